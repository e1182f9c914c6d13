//go:build unix

package harness

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/test/expect"
)

// process is a program that a test started, with its output.
type process struct {
	cmd   *exec.Cmd
	out   *expect.Buffer
	ended chan struct{} // closed when it has ended and its output is read
	err   error         // how it ended; valid once ended is closed
}

// begin starts a program. It stays in the test's process group, so that an
// interrupt from the terminal ends it too.
func begin(dir string, env []string, out *expect.Buffer, name string, args ...string) (*process, error) {
	cmd := exec.Command(name, args...)
	cmd.Dir = dir
	cmd.Env = append(environment(), env...)
	p := &process{cmd: cmd, out: out, ended: make(chan struct{})}
	cmd.Stdout, cmd.Stderr = out, out
	cmd.WaitDelay = 5 * time.Second
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		p.err = cmd.Wait()
		close(p.ended)
	}()
	return p, nil
}

// environment returns the test's environment without settings of the system under test.
func environment() []string {
	var env []string
	for _, kv := range os.Environ() {
		if !strings.HasPrefix(kv, "MCPEVENTS_") && !strings.HasPrefix(kv, "AWS_") {
			env = append(env, kv)
		}
	}
	return env
}

// stop ends the process with SIGTERM, or SIGKILL when it has not ended in time.
func (p *process) stop() error {
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	timer := time.NewTimer(Patience)
	defer timer.Stop()
	select {
	case <-p.ended:
		return nil
	case <-timer.C:
		p.kill()
		return errors.New("it did not end after SIGTERM")
	}
}

// kill ends the process immediately, as a crash would.
func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	<-p.ended
}

// peakRSS returns a process's largest resident set so far, in bytes, as Linux counts it. Without /proc it returns 0.
func peakRSS(pid int) int64 { return procStatus(pid, "VmHWM:") }

func procStatus(pid int, field string) int64 {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(b)) {
		if rest, ok := strings.CutPrefix(line, field); ok {
			kb, _ := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 64)
			return kb << 10
		}
	}
	return 0
}

// keepOutput writes the output to the directory of a failed test's artefacts.
func keepOutput(tb testing.TB, name string, out *expect.Buffer) {
	if !tb.Failed() {
		return
	}
	tb.Logf("end of the output of %s:\n%s", name, out.Tail(16<<10))
}
