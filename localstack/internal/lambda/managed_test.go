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
	"sync"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/localstack/internal/lambda"
	"github.com/mcp-events/mcpevents/localstack/internal/testfn"
	"github.com/mcp-events/mcpevents/test/expect"
)

// managed starts a function whose processes run n invocations concurrently.
func managed(t *testing.T, n int, cfg lambda.Config) *lambda.Function {
	t.Helper()
	cfg.Env = map[string]string{lambda.MaxConcurrency: strconv.Itoa(n)}
	return start(t, cfg)
}

// pids starts n invocations, waits until all of them are running, counts them by process, and then opens the gate.
func pids(t *testing.T, f *lambda.Function, gate *testfn.Gate, n int) map[string]int {
	t.Helper()
	answers := make(chan string, n)
	var wg sync.WaitGroup
	for range n {
		wg.Go(func() { answers <- body(t, invoke(t, f, testfn.Call{Do: "pid", Gate: gate.URL})) })
	}
	for range n {
		gate.Arrived(t)
	}
	gate.Open()
	wg.Wait()
	close(answers)
	counts := map[string]int{}
	for pid := range answers {
		counts[pid]++
	}
	return counts
}

func TestAManagedInstanceTakesSeveralInvocationsAtOnce(t *testing.T) {
	f := managed(t, 4, lambda.Config{})
	expect.Len(t, "the processes of four calls", pids(t, f, testfn.NewGate(t), 4), 1)
	expect.Eventually(t, "the process is idle", func() bool { return f.Idle() == 1 })
	expect.Len(t, "the processes of six calls", pids(t, f, testfn.NewGate(t), 6), 2)
	expect.Eventually(t, "the processes are idle", func() bool { return f.Idle() == 2 })
	if s := f.Stats(); s.ColdStarts != 2 || s.Invocations != 10 || s.Errors != 0 {
		t.Errorf("got %+v", s)
	}
}

func TestManagedInstancesShareTheInvocations(t *testing.T) {
	f := managed(t, 50, lambda.Config{Instances: 3, Limit: lambda.NewLimit(100)})
	counts := pids(t, f, testfn.NewGate(t), 60)
	expect.MustLen(t, "the calls by process", counts, 3)
	if !f.Kill(false) {
		t.Fatal("there was no process to kill")
	}
	expect.Eventually(t, "the process is gone", func() bool { return f.Live() == 2 })
	body(t, invoke(t, f, testfn.Call{Do: "pid"}))
	expect.Equal(t, "the processes", f.Live(), 3)
}

func TestAManagedInstanceOutlivesAnInvocationThatIsOverItsTime(t *testing.T) {
	gate := testfn.NewGate(t)
	f := managed(t, 3, lambda.Config{Timeout: 2 * time.Second})
	slow := make(chan *lambda.Response, 1)
	go func() { slow <- invoke(t, f, testfn.Call{Do: "pid", Gate: gate.URL}) }()
	gate.Arrived(t)
	stream := invoke(t, f, testfn.Call{Do: "stream", Gate: gate.URL, Count: 3})
	gate.Arrived(t)
	if r := <-slow; r.FunctionError == "" || !strings.Contains(body(t, r), "Sandbox.Timedout") {
		t.Errorf("got %+v, want a timeout", r)
	}
	expect.Error(t, "a stream that timed out", expect.ErrOf(stream.ReadAll()))
	before := body(t, invoke(t, f, testfn.Call{Do: "pid"}))
	gate.Open() // the code has continued, but its response is ignored
	expect.Eventually(t, "the process is idle", func() bool { return f.Idle() == 1 })
	expect.Equal(t, "the process after the timeout", body(t, invoke(t, f, testfn.Call{Do: "pid"})), before)
	if s := f.Stats(); s.Timeouts != 2 || s.Errors != 2 || s.Crashes != 0 || s.ColdStarts != 1 {
		t.Errorf("got %+v", s)
	}
}

func TestAManagedInstanceThatDiesFailsAllThatItHad(t *testing.T) {
	gate := testfn.NewGate(t)
	f := managed(t, 5, lambda.Config{Limit: lambda.NewLimit(5)})
	responses := make(chan *lambda.Response, 3)
	for range 3 {
		go func() { responses <- invoke(t, f, testfn.Call{Do: "pid", Gate: gate.URL}) }()
	}
	streams := []*lambda.Response{}
	for range 2 {
		streams = append(streams, invoke(t, f, testfn.Call{Do: "stream", Gate: gate.URL, Count: 3}))
	}
	for range 5 {
		gate.Arrived(t)
	}
	expect.Is(t, "a call", expect.ErrOf(f.Invoke(t.Context(), lambda.Invocation{})), lambda.ErrThrottled)
	f.Kill(true)
	for range 3 {
		expect.Contains(t, "the answer", body(t, <-responses), "Runtime.ExitError")
	}
	for _, s := range streams {
		expect.Error(t, "a stream of a dead process", expect.ErrOf(s.ReadAll()))
	}
	gate.Open()
	if got := pids(t, f, testfn.NewGate(t), 5); len(got) != 1 { // all five slots must be free again
		t.Errorf("got processes %v", got)
	}
	if s := f.Stats(); s.Crashes != 5 || s.ColdStarts != 2 {
		t.Errorf("got %+v", s)
	}
}

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
	expect.True(t, "the idle process of a managed instance runs", !stopped(t, pid))
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
