//go:build !unix

package run

import "os/exec"

// Elsewhere there are no process groups: a command is killed alone.
func inGroup(*exec.Cmd)   {}
func end(*exec.Cmd) error { return nil }
