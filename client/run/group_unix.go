//go:build unix

package run

import (
	"errors"
	"os/exec"
	"syscall"
	"time"
)

// checkEvery is how often end looks whether the processes of a group have ended.
const checkEvery = 20 * time.Millisecond

// inGroup starts a command in a process group of its own, so that the processes that it starts end with it. When the
// command's context ends, the group gets SIGTERM. The caller calls end with the outcome of the command; end kills the
// rest of the group unless the command has succeeded, because a command may leave a process running on purpose. After
// SIGTERM it waits for the group first, at most for the grace period.
func inGroup(cmd *exec.Cmd) (end func(err error) error) {
	var asked time.Time // when the group got SIGTERM
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error {
		asked = time.Now()
		return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM)
	}
	return func(err error) error {
		if succeeded(err) || cmd.Process == nil {
			return nil
		}
		group := -cmd.Process.Pid
		for !asked.IsZero() && time.Since(asked) < grace && syscall.Kill(group, 0) == nil {
			time.Sleep(checkEvery)
		}
		if err := syscall.Kill(group, syscall.SIGKILL); !errors.Is(err, syscall.ESRCH) {
			return err
		}
		return nil
	}
}
