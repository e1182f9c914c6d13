package lambda_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/localstack/internal/lambda"
	"github.com/mcp-events/mcpevents/localstack/internal/testfn"
	"github.com/mcp-events/mcpevents/test/expect"
)

// state returns the state of a process as ps shows it, e.g. "S" or "T", or "" if the process does not exist.
func state(t *testing.T, pid string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "ps", "-o", "stat=", "-p", pid).Output()
	if _, none := errors.AsType[*exec.ExitError](err); err != nil && !none {
		t.Fatal(err)
	}
	return string(out)
}

// stopped reports whether a process is stopped by a signal.
func stopped(t *testing.T, pid string) bool {
	t.Helper()
	return strings.HasPrefix(state(t, pid), "T")
}

func exists(file string) bool {
	_, err := os.Stat(file)
	return err == nil
}

// gone reports whether a process has ended, even if its parent has not noticed yet.
func gone(t *testing.T, pid string) bool {
	t.Helper()
	is := state(t, pid)
	return is == "" || strings.HasPrefix(is, "Z")
}

func TestBackgroundWorkDoesNotAdvanceWhileAnInstanceIsIdle(t *testing.T) {
	f := start(t, lambda.Config{})
	pid := body(t, invoke(t, f, testfn.Call{Do: "tick"}))
	expect.Eventually(t, "the idle process is frozen", func() bool { return stopped(t, pid) })
	const idle = 300 * time.Millisecond
	time.Sleep(idle) // the process must be idle for some time; a longer pause shows the same
	pause, err := strconv.Atoi(body(t, invoke(t, f, testfn.Call{Do: "pause"})))
	if err != nil || time.Duration(pause)*time.Millisecond < idle {
		t.Errorf("the goroutine never stopped for longer than %d ms, %v, want at least %v", pause, err, idle)
	}
	expect.Eventually(t, "the process is idle again", func() bool { return f.Idle() == 1 })
	expect.Equal(t, "the process that serves the next event", body(t, invoke(t, f, testfn.Call{Do: "pid"})), pid)
}

func TestAManagedInstanceIsNeverFrozen(t *testing.T) {
	f := managed(t, 2, lambda.Config{})
	pid := body(t, invoke(t, f, testfn.Call{Do: "tick"}))
	expect.Eventually(t, "the process is idle", func() bool { return f.Idle() == 1 })
	if stopped(t, pid) {
		t.Error("the idle process of a managed instance is stopped")
	}
}

func TestAFrozenProcessEndsInOrderWithEverythingThatEndsProcesses(t *testing.T) {
	for name, end := range map[string]func(*lambda.Function){
		"close":  (*lambda.Function).Close,
		"retire": (*lambda.Function).Retire,
		"deploy": func(f *lambda.Function) { f.Deploy("/nonexistent") },
	} {
		t.Run(name, func(t *testing.T) {
			mark := filepath.Join(t.TempDir(), "mark")
			f := start(t, lambda.Config{Env: map[string]string{"TESTFN_ON_SIGTERM": mark}, Grace: time.Minute})
			pid := body(t, invoke(t, f, testfn.Call{Do: "pid"}))
			expect.Eventually(t, "the idle process is frozen", func() bool { return stopped(t, pid) })
			end(f)
			expect.Eventually(t, "the process has handled SIGTERM and ended", func() bool { return exists(mark) && gone(t, pid) })
		})
	}
	t.Run("kill", func(t *testing.T) {
		f := start(t, lambda.Config{})
		pid := body(t, invoke(t, f, testfn.Call{Do: "pid"}))
		expect.Eventually(t, "the idle process is frozen", func() bool { return stopped(t, pid) })
		f.Kill(false)
		expect.Eventually(t, "the process is gone", func() bool { return gone(t, pid) })
	})
	t.Run("idle for too long", func(t *testing.T) {
		f := start(t, lambda.Config{IdleTimeout: 500 * time.Millisecond, Grace: time.Minute})
		pid := body(t, invoke(t, f, testfn.Call{Do: "pid"}))
		expect.Eventually(t, "the process is gone", func() bool { return gone(t, pid) })
	})
}

// runnerVariable makes this test binary act as a runner that starts a function, prints the process id and waits.
const runnerVariable = "TESTFN_RUNNER"

func runUntilKilled() {
	bin, err := os.Executable()
	if err != nil {
		panic(err)
	}
	f := lambda.New(lambda.Config{Name: "fn", Binary: bin, Env: map[string]string{testfn.Variable: "1"}})
	r, err := f.Invoke(context.Background(), lambda.Invocation{Payload: testfn.Call{Do: "pid"}.JSON()})
	if err != nil {
		panic(err)
	}
	pid, err := r.ReadAll()
	if err != nil {
		panic(err)
	}
	fmt.Println(string(pid))
	time.Sleep(time.Hour)
}

func TestAFrozenProcessDoesNotOutliveARunnerThatIsKilled(t *testing.T) {
	bin := expect.Value(os.Executable())(t)
	runner := exec.CommandContext(t.Context(), bin)
	runner.Env = append(os.Environ(), runnerVariable+"=1")
	out := expect.Value(runner.StdoutPipe())(t)
	expect.OK(t, runner.Start())
	pid := expect.Value(bufio.NewReader(out).ReadString('\n'))(t)
	pid = strings.TrimSpace(pid)
	expect.Eventually(t, "the idle process is frozen", func() bool { return stopped(t, pid) })
	expect.OK(t, runner.Process.Kill())
	_ = runner.Wait() // the error says that it was killed
	expect.Eventually(t, "the process is gone", func() bool { return gone(t, pid) })
}
