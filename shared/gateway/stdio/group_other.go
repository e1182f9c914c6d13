//go:build !unix

package stdio

import "os/exec"

// On systems without process groups, only the command itself is ended, and there is no signal before it is killed.

func inGroup(*exec.Cmd) {}

func terminateGroup(*exec.Cmd) {}

func killGroup(cmd *exec.Cmd) { _ = cmd.Process.Kill() }

func groupExists(*exec.Cmd) bool { return false }
