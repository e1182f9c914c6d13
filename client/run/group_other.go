//go:build !unix

package run

import "os/exec"

// inGroup does nothing on systems without process groups. There, only the command itself is killed.
func inGroup(*exec.Cmd) (end func(err error) error) { return func(error) error { return nil } }
