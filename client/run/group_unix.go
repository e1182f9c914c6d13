//go:build unix

package run

import (
	"errors"
	"os/exec"
	"syscall"
)

// inGroup gives a command a process group, so that its end is that of what it has started, too.
func inGroup(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
}

// end kills what is left of a group whose command has ended after its context did.
func end(cmd *exec.Cmd) error {
	if cmd.Process == nil || cmd.ProcessState == nil || cmd.ProcessState.Success() {
		return nil // what a command leaves running on purpose goes on
	}
	if err := syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL); !errors.Is(err, syscall.ESRCH) {
		return err
	}
	return nil
}
