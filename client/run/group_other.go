//go:build !unix

package run

import "os/exec"

// inGroup does nothing on systems without process groups. On these systems, only the command itself is killed, and not the processes that
// it started.
func inGroup(*exec.Cmd) (end func(err error) error) { return func(error) error { return nil } }
