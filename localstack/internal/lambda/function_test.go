package lambda_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/localstack/internal/lambda"
	"github.com/mcp-events/mcpevents/localstack/internal/testfn"
	"github.com/mcp-events/mcpevents/test/expect"
)

// TestMain makes this test binary act as the function under test if it is started as one.
func TestMain(m *testing.M) {
	testfn.Main()
	if os.Getenv(runnerVariable) != "" {
		runUntilKilled()
	}
	os.Exit(m.Run())
}

func start(t *testing.T, cfg lambda.Config) *lambda.Function {
	t.Helper()
	bin := expect.Value(os.Executable())(t)
	cfg.Name, cfg.ARN = "fn", "arn:aws:lambda:us-east-1:000000000000:function:fn"
	if cfg.Binary == "" {
		cfg.Binary = bin
	}
	if cfg.Env == nil {
		cfg.Env = map[string]string{}
	}
	cfg.Env[testfn.Variable] = "1"
	if cfg.Timeout == 0 {
		cfg.Timeout = 20 * time.Second
	}
	f := lambda.New(cfg)
	t.Cleanup(f.Close)
	return f
}

func invoke(t *testing.T, f *lambda.Function, c testfn.Call) *lambda.Response {
	t.Helper()
	return expect.Value(f.Invoke(t.Context(), lambda.Invocation{Payload: c.JSON(), Wait: true}))(t)
}

func body(t *testing.T, r *lambda.Response) string {
	t.Helper()
	return string(expect.Value(r.ReadAll())(t))
}

func TestAnInvocationReachesTheProcessAndItsResponseComesBack(t *testing.T) {
	f := start(t, lambda.Config{Env: map[string]string{"GREETING": "hello"}, Memory: 256})
	r := invoke(t, f, testfn.Call{Do: "describe"})
	expect.MustEqual(t, "the function error", r.FunctionError, "")
	var got testfn.Description
	expect.OK(t, json.Unmarshal([]byte(body(t, r)), &got))
	expect.Equal(t, "the request ID", got.RequestID, r.RequestID)
	expect.Equal(t, "the ARN", got.ARN, f.ARN())
	if got.Env["GREETING"] != "hello" || got.Env["AWS_LAMBDA_FUNCTION_NAME"] != "fn" || got.Env["AWS_LAMBDA_FUNCTION_MEMORY_SIZE"] != "256" {
		t.Errorf("the environment is incomplete: %v", got.Env)
	}
	if _, ok := got.Env["HOME"]; ok {
		t.Error("the process has the environment of its parent")
	}
	if left := time.Duration(got.MillisLeft) * time.Millisecond; left <= 0 || left > 20*time.Second {
		t.Errorf("got a deadline %v away, want at most 20s", left)
	}
}

func TestAWarmProcessIsUsedAgain(t *testing.T) {
	f := start(t, lambda.Config{})
	var pids []string
	for range 5 {
		pids = append(pids, body(t, invoke(t, f, testfn.Call{Do: "pid"})))
		expect.Eventually(t, "the process is idle", func() bool { return f.Idle() == 1 })
	}
	for _, pid := range pids {
		expect.MustEqual(t, "the process", pid, pids[0])
	}
	if s := f.Stats(); s.ColdStarts != 1 || s.Invocations != 5 || len(s.Init) != 1 || s.Init[0] <= 0 {
		t.Errorf("got %+v", s)
	}
}

func TestSeveralInvocationsRunAtOnceUpToTheLimit(t *testing.T) {
	gate := testfn.NewGate(t)
	f := start(t, lambda.Config{Limit: lambda.NewLimit(3)})
	pids := make(chan string, 4)
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() { pids <- body(t, invoke(t, f, testfn.Call{Do: "pid", Gate: gate.URL})) })
	}
	for range 3 {
		gate.Arrived(t)
	}
	// A fourth invocation is refused, or waits if it has Wait.
	expect.Is(t, "a call", expect.ErrOf(f.Invoke(t.Context(), lambda.Invocation{Payload: testfn.Call{Do: "pid"}.JSON()})), lambda.ErrThrottled)
	wg.Go(func() { pids <- body(t, invoke(t, f, testfn.Call{Do: "pid"})) })
	gate.Open()
	wg.Wait()
	close(pids)
	seen := map[string]bool{}
	for pid := range pids {
		seen[pid] = true
	}
	expect.Equal(t, "the number of processes", len(seen), 3)
	if s := f.Stats(); s.Throttles != 1 || s.ColdStarts != 3 {
		t.Errorf("got %+v", s)
	}
}

func TestWaitingForASlotEndsWithTheContext(t *testing.T) {
	gate := testfn.NewGate(t)
	f := start(t, lambda.Config{Limit: lambda.NewLimit(1)})
	first := make(chan *lambda.Response, 1)
	go func() { first <- invoke(t, f, testfn.Call{Do: "pid", Gate: gate.URL}) }()
	gate.Arrived(t)
	ctx, cancel := context.WithCancel(t.Context())
	waited := make(chan error, 1)
	go func() {
		_, err := f.Invoke(ctx, lambda.Invocation{Payload: testfn.Call{Do: "pid"}.JSON(), Wait: true})
		waited <- err
	}()
	cancel()
	expect.Is(t, "the canceled call", <-waited, context.Canceled)
	gate.Open()
	body(t, <-first)
}

func TestFailuresOfAFunction(t *testing.T) {
	tests := map[string]struct {
		call    testfn.Call
		timeout time.Duration
		want    string // substring of the error
		dies    bool
	}{
		"an error that it returns":        {call: testfn.Call{Do: "error", Text: "no luck"}, want: `"errorMessage":"no luck"`},
		"a panic":                         {call: testfn.Call{Do: "panic", Text: "oh"}, want: `"errorMessage":"oh"`, dies: true},
		"a process that exits":            {call: testfn.Call{Do: "exit"}, want: `"errorType":"Runtime.ExitError"`, dies: true},
		"a process that is over its time": {call: testfn.Call{Do: "hang"}, timeout: time.Second, want: `"errorType":"Sandbox.Timedout"`, dies: true},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			f := start(t, lambda.Config{Timeout: tc.timeout})
			r := invoke(t, f, tc.call)
			expect.Equal(t, "the function error", r.FunctionError, "Unhandled")
			expect.Contains(t, "the answer", body(t, r), tc.want)
			// The function can be invoked again, in a new process if necessary.
			if tc.dies {
				expect.Eventually(t, "the process is gone", func() bool { return f.Live() == 0 })
			} else {
				expect.Eventually(t, "the process is idle", func() bool { return f.Idle() == 1 })
			}
			r = invoke(t, f, testfn.Call{Do: "pid"})
			if got := body(t, r); r.FunctionError != "" {
				t.Errorf("the next invocation failed: %s", got)
			}
			wantStarts := 1
			if tc.dies {
				wantStarts = 2
			}
			if s := f.Stats(); s.Errors != 1 || s.ColdStarts != wantStarts {
				t.Errorf("got %+v, want 1 error and %d starts", s, wantStarts)
			}
		})
	}
}

func TestABinaryThatDoesNotStart(t *testing.T) {
	t.Run("exits before it asks for an invocation", func(t *testing.T) {
		f := start(t, lambda.Config{Env: map[string]string{"TESTFN_EXIT_EARLY": "1"}})
		r := invoke(t, f, testfn.Call{Do: "pid"})
		expect.Differ(t, "the function error", r.FunctionError, "")
		expect.Contains(t, "the body", body(t, r), "Runtime.ExitError")
	})
	t.Run("reports an error during its start", func(t *testing.T) {
		f := start(t, lambda.Config{Env: map[string]string{"TESTFN_INIT_ERROR": "1"}})
		r := invoke(t, f, testfn.Call{Do: "pid"})
		expect.Differ(t, "the function error", r.FunctionError, "")
		expect.Contains(t, "the body", body(t, r), "no configuration")
	})
	t.Run("never asks for an invocation", func(t *testing.T) {
		f := start(t, lambda.Config{InitTimeout: 300 * time.Millisecond, Env: map[string]string{"TESTFN_INIT_HANGS": "1"}})
		r := invoke(t, f, testfn.Call{Do: "pid"})
		expect.Contains(t, "the answer", body(t, r), "Init timed out")
	})
	t.Run("does not exist", func(t *testing.T) {
		f := start(t, lambda.Config{Binary: filepath.Join(t.TempDir(), "none")})
		for range 20 { // and the slot is free again
			if _, err := f.Invoke(t.Context(), lambda.Invocation{}); err == nil || errors.Is(err, lambda.ErrThrottled) {
				t.Fatalf("got error %v", err)
			}
		}
	})
}

func TestAStreamPassesOnEachWriteAtOnce(t *testing.T) {
	gate := testfn.NewGate(t)
	f := start(t, lambda.Config{})
	r := invoke(t, f, testfn.Call{Do: "stream", Gate: gate.URL, Count: 3})
	defer r.Body.Close()
	expect.Equal(t, "the content type", r.ContentType, lambda.HTTPIntegration)
	read := func(want string) {
		t.Helper()
		got := make([]byte, len(want))
		if _, err := io.ReadFull(r.Body, got); err != nil || string(got) != want {
			t.Fatalf("got %q, %v, want %q", got, err, want)
		}
	}
	read(`{"statusCode":200,"headers":{"Content-Type":"text/event-stream"}}` + strings.Repeat("\x00", 8))
	for n := range 3 {
		// The function has written this and now waits at the gate.
		read(fmt.Sprintf("data: %d\n\n", n))
		gate.Arrived(t)
		gate.Pass()
	}
	if n, err := r.Body.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("got %d bytes, %v at the end, want EOF", n, err)
	}
}

func TestAStreamThatFailsIsNotAWholeOne(t *testing.T) {
	t.Run("the process dies", func(t *testing.T) {
		gate := testfn.NewGate(t)
		f := start(t, lambda.Config{})
		r := invoke(t, f, testfn.Call{Do: "stream", Gate: gate.URL, Count: 3})
		gate.Arrived(t)
		if !f.Kill(true) {
			t.Fatal("there was no process to kill")
		}
		expect.Error(t, "the answer", expect.ErrOf(r.ReadAll()))
		expect.Eventually(t, "the process is gone", func() bool { return f.Live() == 0 })
		if s := f.Stats(); s.Kills != 1 || s.Crashes != 1 {
			t.Errorf("got %+v", s)
		}
	})
	t.Run("the function reports an error while it streams", func(t *testing.T) {
		f := start(t, lambda.Config{})
		r := invoke(t, f, testfn.Call{Do: "stream-error", Text: "lost it"})
		expect.Error(t, "the answer", expect.ErrOf(r.ReadAll()), "lost it")
	})
}

func TestACallerThatGoesAwayDoesNotEndTheInvocation(t *testing.T) {
	gate := testfn.NewGate(t)
	f := start(t, lambda.Config{})
	r := invoke(t, f, testfn.Call{Do: "stream", Gate: gate.URL, Count: 3})
	gate.Arrived(t)
	r.Body.Close()
	for range 2 { // the function continues to write, without an error
		gate.Pass()
		gate.Arrived(t)
	}
	gate.Pass()
	expect.Eventually(t, "the process is idle again", func() bool { return f.Idle() == 1 })

	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		_, err := f.Invoke(ctx, lambda.Invocation{Payload: testfn.Call{Do: "pid", Gate: gate.URL}.JSON()})
		done <- err
	}()
	gate.Arrived(t)
	cancel()
	expect.Is(t, "the canceled call", <-done, context.Canceled)
	gate.Pass()
	expect.Eventually(t, "the process is idle again", func() bool { return f.Idle() == 1 })
	if s := f.Stats(); s.ColdStarts != 1 || s.Errors != 0 {
		t.Errorf("got %+v", s)
	}
}

func TestAProcessWithoutWorkEnds(t *testing.T) {
	f := start(t, lambda.Config{IdleTimeout: 50 * time.Millisecond})
	body(t, invoke(t, f, testfn.Call{Do: "pid"}))
	expect.Eventually(t, "the process is gone", func() bool { return f.Live() == 0 })
}

func TestARetiredProcessGetsSIGTERMAndNoFurtherCall(t *testing.T) {
	mark := filepath.Join(t.TempDir(), "mark")
	f := start(t, lambda.Config{Env: map[string]string{"TESTFN_ON_SIGTERM": mark}, Grace: 20 * time.Second})
	before := body(t, invoke(t, f, testfn.Call{Do: "pid"}))
	f.Retire()
	expect.Differ(t, "the process of the next call", body(t, invoke(t, f, testfn.Call{Do: "pid"})), before)
	expect.Eventually(t, "the process ended by itself", func() bool { return f.Live() == 1 })
	expect.Equal(t, "the text of the process", string(expect.Value(os.ReadFile(mark))(t)), "terminated")
}

func TestADeploymentEndsNoInvocation(t *testing.T) {
	gate := testfn.NewGate(t)
	f := start(t, lambda.Config{Limit: lambda.NewLimit(2)})
	first := body(t, invoke(t, f, testfn.Call{Do: "pid"}))
	expect.Eventually(t, "the process is free", func() bool { return f.Idle() == 1 })
	during := make(chan string, 1)
	go func() { during <- body(t, invoke(t, f, testfn.Call{Do: "pid", Gate: gate.URL})) }()
	gate.Arrived(t)
	bin := expect.Value(os.Executable())(t)
	f.Deploy(bin)
	expect.Differ(t, "the process after the deployment", body(t, invoke(t, f, testfn.Call{Do: "pid"})), first)
	gate.Open()
	expect.Equal(t, "the process that answers the call during the deployment", <-during, first)
	expect.Eventually(t, "the process of before is gone", func() bool { return f.Live() == 1 })
	if s := f.Stats(); s.Errors != 0 || s.ColdStarts != 2 {
		t.Errorf("got %+v", s)
	}
}

func TestCloseSendsSIGTERMAndThenSIGKILL(t *testing.T) {
	t.Run("a process that ignores SIGTERM is killed", func(t *testing.T) {
		gate := testfn.NewGate(t)
		f := start(t, lambda.Config{Env: map[string]string{"TESTFN_IGNORE_SIGTERM": "1"}, Grace: 100 * time.Millisecond})
		result := make(chan string, 1)
		go func() { result <- body(t, invoke(t, f, testfn.Call{Do: "pid", Gate: gate.URL})) }()
		gate.Arrived(t)
		f.Close()
		expect.Contains(t, "the answer", <-result, "signal: killed")
		expect.Is(t, "a call after Close", expect.ErrOf(f.Invoke(t.Context(), lambda.Invocation{})), lambda.ErrClosed)
	})
}

func TestWhatAProcessPrintsIsPassedOnInLines(t *testing.T) {
	var mu sync.Mutex
	var out bytes.Buffer
	f := start(t, lambda.Config{Output: writer(func(p []byte) (int, error) {
		mu.Lock()
		defer mu.Unlock()
		return out.Write(p)
	})})
	body(t, invoke(t, f, testfn.Call{Do: "print", Text: "one\ntwo\nthree"}))
	f.Close()
	mu.Lock()
	defer mu.Unlock()
	var got []string
	for line := range strings.Lines(out.String()) {
		fields := strings.Fields(line)
		if len(fields) != 3 || fields[0] != "fn" {
			t.Fatalf("got line %q", line)
		}
		got = append(got, fields[2])
	}
	expect.Equal(t, "the lines", strings.Join(got, " "), "one two three")
}

type writer func([]byte) (int, error)

func (w writer) Write(p []byte) (int, error) { return w(p) }

func TestTheRuntimeAPIRefusesAnAnswerToAnotherInvocation(t *testing.T) {
	gate := testfn.NewGate(t)
	f := start(t, lambda.Config{})
	r := invoke(t, f, testfn.Call{Do: "describe"})
	var d testfn.Description
	expect.OK(t, json.Unmarshal([]byte(body(t, r)), &d))
	result := make(chan string, 1)
	go func() { result <- body(t, invoke(t, f, testfn.Call{Do: "describe", Gate: gate.URL})) }()
	gate.Arrived(t)
	resp := expect.Value(http.Post("http://"+d.Env["AWS_LAMBDA_RUNTIME_API"]+"/2018-06-01/runtime/invocation/"+d.RequestID+"/response", "application/json", strings.NewReader("{}")))(t)
	resp.Body.Close()
	expect.Equal(t, "the status", resp.StatusCode, http.StatusBadRequest)
	gate.Open()
	expect.Lacks(t, "the result", <-result, d.RequestID)
}

func TestTooLargePayloads(t *testing.T) {
	f := start(t, lambda.Config{})
	if _, err := f.Invoke(t.Context(), lambda.Invocation{Payload: make([]byte, lambda.MaxPayload+1)}); err == nil {
		t.Error("a request over the limit was accepted")
	}
	r := invoke(t, f, testfn.Call{Do: "large", Count: lambda.MaxPayload + 1})
	expect.Is(t, "the response", expect.ErrOf(r.ReadAll()), lambda.ErrTooLarge)
}
