package lambda_test

import (
	"errors"
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
	if got := pids(t, f, testfn.NewGate(t), 4); len(got) != 1 {
		t.Errorf("four calls went to processes %v, want one", got)
	}
	expect.Eventually(t, "the process is idle", func() bool { return f.Idle() == 1 })
	if got := pids(t, f, testfn.NewGate(t), 6); len(got) != 2 {
		t.Errorf("six calls went to processes %v, want two", got)
	}
	expect.Eventually(t, "the processes are idle", func() bool { return f.Idle() == 2 })
	if s := f.Stats(); s.ColdStarts != 2 || s.Invocations != 10 || s.Errors != 0 {
		t.Errorf("got %+v", s)
	}
}

func TestManagedInstancesShareTheInvocations(t *testing.T) {
	f := managed(t, 50, lambda.Config{Instances: 3, Limit: lambda.NewLimit(100)})
	counts := pids(t, f, testfn.NewGate(t), 60)
	if len(counts) != 3 {
		t.Fatalf("calls went to processes %v, want three", counts)
	}
	if !f.Kill(false) {
		t.Fatal("there was no process to kill")
	}
	expect.Eventually(t, "the process is gone", func() bool { return f.Live() == 2 })
	if body(t, invoke(t, f, testfn.Call{Do: "pid"})); f.Live() != 3 {
		t.Errorf("%d processes, want three again", f.Live())
	}
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
	if _, err := f.Invoke(t.Context(), lambda.Invocation{}); !errors.Is(err, lambda.ErrThrottled) {
		t.Errorf("got error %v, want ErrThrottled", err)
	}
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
