//go:build !unix

package stdio

import "os/exec"

// Without process groups, the gateway can only kill the command itself. It sends no signal first, and cannot end processes that the command
// started.

func inGroup(*exec.Cmd) {}

func terminateGroup(*exec.Cmd) {}

func killGroup(cmd *exec.Cmd) { _ = cmd.Process.Kill() }

func groupExists(*exec.Cmd) bool { return false }
