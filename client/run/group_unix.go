//go:build unix

package run

import (
	"errors"
	"os/exec"
	"syscall"
	"time"
)

const checkEvery = 20 * time.Millisecond

// inGroup makes a command run in a process group of its own, so that the processes that it starts end together with it. When the context
// of the command ends, the group gets SIGTERM.
//
// The caller must pass the result of the command to the returned function end. If the command has failed, end kills the rest of the
// group. After SIGTERM, it first waits for the grace period. If the command has succeeded, end leaves its processes running, because a
// command may start one on purpose.
func inGroup(cmd *exec.Cmd) (end func(err error) error) {
	var terminated time.Time // when the group got SIGTERM
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error {
		terminated = time.Now()
		return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM)
	}
	return func(err error) error {
		if hasSucceeded(err) || cmd.Process == nil {
			return nil
		}
		group := -cmd.Process.Pid
		for !terminated.IsZero() && time.Since(terminated) < grace && syscall.Kill(group, 0) == nil {
			time.Sleep(checkEvery)
		}
		if err := syscall.Kill(group, syscall.SIGKILL); !errors.Is(err, syscall.ESRCH) {
			return err
		}
		return nil
	}
}
