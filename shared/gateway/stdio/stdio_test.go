//go:build unix

package stdio

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mcp-events/mcpevents/shared/gateway/api"
	"github.com/mcp-events/mcpevents/shared/gateway/upstream"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/platform/secret"
	"github.com/mcp-events/mcpevents/shared/protocol/jsonrpc"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
	"github.com/mcp-events/mcpevents/test/expect"
)

// fixture is a transport with one backend, the fake server.
type fixture struct {
	*testing.T
	transport *Transport
	backend   api.Backend
	client    *upstream.Client
	starts    string // a file with a line for each start
	output    expect.Buffer

	mu      sync.Mutex
	removed bool
	drops   []string
}

func newFixture(t *testing.T, kind string, change ...func(*Transport, *api.Command)) *fixture {
	f := &fixture{T: t, starts: filepath.Join(t.TempDir(), "starts")}
	command := &api.Command{
		Args:      []string{os.Args[0]},
		Env:       map[string]secret.Value{"FAKE": secret.Plain(kind), "STARTS": secret.Plain(f.starts)},
		MemoryMiB: 1 << 20, // the race detector reserves much
	}
	f.transport = &Transport{
		Secrets: secret.FromEnvironment, Server: json.RawMessage(`{"name":"gateway","version":"1"}`), Log: slog.New(slog.NewTextHandler(&f.output, nil)),
		Grace: 300 * time.Millisecond, ProbeTime: 10 * time.Second, StartTime: 20 * time.Second,
		Source: func(context.Context) ([]api.Backend, error) {
			f.mu.Lock()
			defer f.mu.Unlock()
			if f.removed {
				return nil, nil
			}
			return []api.Backend{f.backend}, nil
		},
		Dropped: func(_ context.Context, _ api.Backend, reason string) {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.drops = append(f.drops, reason)
		},
	}
	if strings.Contains(kind, "silent") || strings.Contains(kind, "slow") { // the others answer, also on a slow machine
		f.transport.ProbeTime = 300 * time.Millisecond
	}
	for _, c := range change {
		c(f.transport, command)
	}
	f.backend = api.Backend{Name: "fake", Workspace: "default", ProtocolVersion: api.AutoVersion, Command: command, URL: command.URL("default", "fake")}
	f.client = &upstream.Client{URL: f.backend.URL, HTTP: &http.Client{Transport: f.transport}, Server: f.transport.Server, AskTimeout: 20 * time.Second}
	t.Cleanup(func() { f.transport.Close(context.Background()) })
	return f
}

// session begins a session of a principal.
func (f *fixture) session(holder string) string {
	f.Helper()
	return expect.Value(f.client.Initialize(f.Context(), upstream.Declared{Version: spec.V20251125, Holder: holder}))(f).Session
}

// send calls a tool in a session, or in 2026-07-28 without one. params has further members of params.
func (f *fixture) send(ctx context.Context, session, tool, params string) (*upstream.Exchange, error) {
	r := upstream.Request{Version: spec.V20251125, Session: session}
	if session == "" {
		r.Version = spec.V20260728
	}
	text := fmt.Sprintf("{\n\"name\":%q%s}", tool, params) // with a line end, which stdio does not allow in a message
	r.Body = jsonrpc.AppendRequest(nil, upstream.FreshID(), spec.MethodToolsCall, json.RawMessage(text))
	return f.client.Post(ctx, r)
}

// call calls a tool and returns the text of its result.
func (f *fixture) call(session, tool, params string) string {
	f.Helper()
	return expect.Value(f.try(session, tool, params))(f)
}

func (f *fixture) try(session, tool, params string) (string, error) {
	ctx, cancel := context.WithTimeout(f.Context(), 20*time.Second)
	defer cancel()
	x, err := f.send(ctx, session, tool, params)
	if err != nil {
		return "", err
	}
	defer x.Close()
	return textOf(x.Result(ctx))
}

func textOf(result json.RawMessage, err error) (string, error) {
	var r struct{ Content []struct{ Text string } }
	if err == nil {
		err = json.Unmarshal(result, &r)
	}
	if err != nil || len(r.Content) != 1 {
		return "", err
	}
	return r.Content[0].Text, nil
}

// next returns the next message of a call.
func next(t *testing.T, x *upstream.Exchange) upstream.Message {
	t.Helper()
	return expect.Value(x.Next(t.Context()))(t)
}

// startCount returns how many processes have started.
func (f *fixture) startCount() int {
	b, _ := os.ReadFile(f.starts)
	return strings.Count(string(b), "\n")
}

func (f *fixture) dropped() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.drops)
}

// gone reports whether a process has ended. A killed one may remain as a zombie.
func gone(pid string) bool {
	n, _ := strconv.Atoi(pid)
	stat, err := os.ReadFile("/proc/" + pid + "/stat")
	return syscall.Kill(n, 0) != nil || err == nil && strings.Contains(string(stat), ") Z ")
}

// askingProcess returns a fixture with a call in which the command asks the client a question.
func askingProcess(t *testing.T) (f *fixture, session string, x *upstream.Exchange, question upstream.Message) {
	t.Helper()
	f = newFixture(t, "legacy")
	session = f.session("default/a")
	x = expect.Value(f.send(t.Context(), session, "ask", ""))(t)
	t.Cleanup(func() { x.Close() })
	return f, session, x, next(t, x)
}

func TestStartAndEnd(t *testing.T) {
	t.Run("GWN-26 a command starts with the first request", func(t *testing.T) {
		f := newFixture(t, "modern")
		expect.OK(t, f.transport.Sync(t.Context()))
		if f.startCount() != 0 || f.transport.Running(f.backend) {
			t.Error("it runs before the first request")
		}
		k, err := f.client.Discover(t.Context())
		if err != nil || k.Version != spec.V20260728 || !f.transport.Running(f.backend) {
			t.Errorf("got %v, %v, want 2026-07-28 and a running process", k, err)
		}
	})
	t.Run("GWN-26 callers that come together share one start", func(t *testing.T) {
		f := newFixture(t, "modern")
		var wg sync.WaitGroup
		for range 10 {
			wg.Go(func() { f.call("", "pid", "") })
		}
		wg.Wait()
		expect.Equal(t, "starts", f.startCount(), 1)
	})
	t.Run("GWN-26 an unused process ends, and the next call starts another", func(t *testing.T) {
		f := newFixture(t, "modern", func(_ *Transport, c *api.Command) { c.Idle = 50 * time.Millisecond })
		pid := f.call("", "pid", "")
		expect.Eventually(t, "the shared process ends", func() bool { return gone(pid) })
		expect.Eventually(t, "the next one starts", func() bool { again, err := f.try("", "pid", ""); return err == nil && again != pid })
		expect.Contains(t, "the log", f.output.String(), "it was unused")
	})
	t.Run("GWN-26 an unused session's process ends, and its session is unknown", func(t *testing.T) {
		f := newFixture(t, "legacy", func(_ *Transport, c *api.Command) { c.Idle = 50 * time.Millisecond })
		session := f.session("default/a")
		pid := f.call(session, "pid", "")
		expect.Eventually(t, "its process ends", func() bool { return gone(pid) })
		expect.Is(t, "a call in it", expect.ErrOf(f.try(session, "pid", "")), upstream.ErrSession)
	})
	t.Run("GWN-26 a process with a running call is not unused", func(t *testing.T) {
		f := newFixture(t, "legacy", func(_ *Transport, c *api.Command) { c.Idle = 50 * time.Millisecond })
		x := expect.Value(f.send(t.Context(), f.session("default/a"), "asksLate", `,"arguments":{"ms":300}`))(t)
		defer x.Close()
		expect.Equal(t, "the question", next(t, x).Method, spec.MethodElicit)
	})
	t.Run("GWN-26 a process with a stream of events is not unused until the stream is closed", func(t *testing.T) {
		f := newFixture(t, "modern", func(_ *Transport, c *api.Command) { c.Idle = 200 * time.Millisecond })
		pid, id := f.call("", "pid", ""), upstream.FreshID()
		x := expect.Value(f.client.Post(t.Context(), upstream.Request{
			Version: spec.V20260728, Body: jsonrpc.AppendRequest(nil, id, spec.MethodEventsStream, json.RawMessage(`{"name":"a"}`)),
		}))(t)
		expect.Equal(t, "the first message", next(t, x).Method, spec.NoteEventsActive)
		time.Sleep(600 * time.Millisecond)
		expect.Equal(t, "the process", f.call("", "pid", ""), pid)
		x.Close()
		expect.Eventually(t, "the command learns of it", func() bool { return f.call("", "cancelled", "") == string(id) })
		expect.Eventually(t, "the process ends", func() bool { return gone(pid) })
		expect.List(t, "the dropped messages", f.dropped(), []string{dropStranger})
	})
	for _, kind := range []string{"modern", "modern stubborn"} {
		t.Run("GWN-26 closing ends a process and its children: "+kind, func(t *testing.T) {
			f := newFixture(t, kind)
			pid, child := f.call("", "pid", ""), f.call("", "fork", "")
			began := time.Now()
			f.transport.Close(t.Context())
			expect.True(t, "the process has ended", gone(pid))
			expect.Eventually(t, "the child ends", func() bool { return gone(child) })
			expect.AtMost(t, "the time that it took", time.Since(began), 20*time.Second)
			expect.Error(t, "a call that may not start it again", expect.ErrOf(f.try("", "pid", "")))
		})
	}
	t.Run("GWN-26 a close in a hurry kills", func(t *testing.T) {
		f := newFixture(t, "modern stubborn", func(t *Transport, _ *api.Command) { t.Grace = time.Hour })
		pid := f.call("", "pid", "")
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		f.transport.Close(ctx)
		expect.True(t, "the process has ended", gone(pid))
	})
	t.Run("GWN-26 children end with a process that crashes", func(t *testing.T) {
		f := newFixture(t, "modern")
		child := f.call("", "fork", "")
		expect.Error(t, "the crash", expect.ErrOf(f.try("", "crash", "")), "exit status 5")
		expect.Eventually(t, "the child ends", func() bool { return gone(child) })
	})
	t.Run("GWN-26 a removed backend's process ends after its last call", func(t *testing.T) {
		f, session, x, q := askingProcess(t)
		f.mu.Lock()
		f.removed = true
		f.mu.Unlock()
		expect.OK(t, f.transport.Sync(t.Context()))
		f.transport.mu.Lock()
		p := f.transport.sessions[session]
		f.transport.mu.Unlock()
		if p == nil || p.isEnding() {
			t.Fatal("it has ended during a call")
		}
		expect.OK(t, p.send(t.Context(), jsonrpc.AppendResult(nil, q.ID, json.RawMessage(`{}`))))
		expect.OK(t, expect.ErrOf(x.Result(t.Context())))
		<-p.done
	})
}

func TestFailures(t *testing.T) {
	t.Run("GWN-26 a command that dies immediately does not spin, and callers learn why", func(t *testing.T) {
		f := newFixture(t, "dies")
		_, err := f.try("", "pid", "")
		expect.Error(t, "the call", err, "backend fake does not run", "exit status 3")
		began := f.startCount()
		for range 20 {
			_, err = f.try("", "pid", "")
		}
		if n := f.startCount() - began; n > 1 || !fault.Is(err, fault.Unavailable) || !strings.Contains(fault.Public(err), "the next start is in") {
			t.Errorf("%d more starts, and callers get %q", n, fault.Public(err))
		}
	})
	t.Run("GWN-26 a command that failed counts as such until it runs", func(t *testing.T) {
		f := newFixture(t, "modern")
		f.call("", "pid", "")
		expect.True(t, "it does not fail while it runs", !f.transport.Failing(f.backend))
		_, _ = f.try("", "crash", "")
		expect.Eventually(t, "it counts as failing", func() bool { return f.transport.Failing(f.backend) && !f.transport.Running(f.backend) })
	})
	t.Run("GWN-26 a command that exits right after it has answered server/discover counts as failing", func(t *testing.T) {
		var wg sync.WaitGroup
		for range 40 { // concurrently, so that some processes end before the transport has read the answer
			f := newFixture(t, "modern quits")
			expect.OK(t, f.transport.Sync(t.Context()))
			s := f.transport.findServer(f.backend)
			wg.Go(func() {
				_, _ = s.start()
				for end := time.Now().Add(30 * time.Second); !f.transport.Failing(f.backend); time.Sleep(5 * time.Millisecond) {
					if time.Now().After(end) {
						t.Error("it does not count as failing")
						return
					}
				}
			})
		}
		wg.Wait()
	})
	t.Run("GWN-26 a missing program is an error with its name", func(t *testing.T) {
		f := newFixture(t, "legacy", func(_ *Transport, c *api.Command) { c.Args = []string{"no-such-program"} })
		if _, err := f.try("", "pid", ""); err == nil || !strings.Contains(fault.Public(err), "no-such-program") {
			t.Errorf("got %v", err)
		}
	})
	t.Run("GWN-26 a secret that is missing keeps the command from starting", func(t *testing.T) {
		f := newFixture(t, "legacy", func(_ *Transport, c *api.Command) { c.Env["TOKEN"] = secret.Env("NO_SUCH_VARIABLE") })
		if _, err := f.try("", "pid", ""); err == nil || !strings.Contains(err.Error(), "NO_SUCH_VARIABLE") || f.startCount() > 0 {
			t.Errorf("got %v with %d starts", err, f.startCount())
		}
	})
	t.Run("GWN-26 a crash fails the running calls, and the next call starts another process", func(t *testing.T) {
		f := newFixture(t, "modern")
		x := expect.Value(f.send(t.Context(), "", "hang", ""))(t)
		defer x.Close()
		expect.Error(t, "the call that crashed the process", expect.ErrOf(f.try("", "crash", "")))
		if _, err := x.Next(t.Context()); err == nil || errors.Is(err, io.EOF) {
			t.Errorf("the other call got %v", err)
		}
		f.call("", "pid", "") // waits for the pause
	})
	t.Run("GWN-26 a process that closes its output ends", func(t *testing.T) {
		f := newFixture(t, "modern stubborn")
		pid := f.call("", "pid", "")
		expect.Error(t, "the call", expect.ErrOf(f.try("", "closes", "")))
		expect.Eventually(t, "it ends", func() bool { return gone(pid) })
	})
	t.Run("GWN-26 garbage is dropped", func(t *testing.T) {
		f := newFixture(t, "modern garbage")
		f.call("", "pid", "")
		want := []string{dropNotJSON, dropNotMessage, dropNotJSON, dropNotJSON} // the third is an empty batch
		expect.List(t, "dropped", f.dropped(), want)
	})
	t.Run("GWN-26 a second answer is dropped", func(t *testing.T) {
		f := newFixture(t, "modern")
		expect.Equal(t, "the result", f.call("", "twice", ""), "first")
		f.call("", "pid", "")
		expect.List(t, "dropped", f.dropped(), []string{dropStranger})
	})
	t.Run("GWN-26 an answer that is too large fails only its own call", func(t *testing.T) {
		f := newFixture(t, "modern")
		x := expect.Value(f.send(t.Context(), "", "hang", ""))(t)
		defer x.Close()
		expect.Error(t, "the long answer", expect.ErrOf(f.try("", "long", `,"arguments":{"bytes":9000000}`)), "larger than 8 MiB")
		expect.Equal(t, "the length of a smaller one", len(f.call("", "long", `,"arguments":{"bytes":7000000}`)), 7000000)
		expect.Equal(t, "starts", f.startCount(), 1)
	})
	t.Run("GWN-26 an endless line ends the process", func(t *testing.T) {
		f := newFixture(t, "modern")
		expect.Error(t, "the endless line", expect.ErrOf(f.try("", "endless", "")), "endless line")
	})
	t.Run("GWN-26 of standard error, some lines are logged", func(t *testing.T) {
		f := newFixture(t, "modern")
		f.call("", "flood", `,"arguments":{"lines":500}`)
		f.transport.Close(t.Context())
		text := f.output.String()
		if n := strings.Count(text, "backend wrote"); n < stderrBurst || n > stderrBurst+50 {
			t.Errorf("%d lines, want about %d", n, stderrBurst)
		}
		expect.AtMost(t, "the length of the log", len(text), 400<<10)
		expect.Contains(t, "the log", text, "line 0 yyy")
	})
	t.Run("GWN-26 a call whose messages are not read does not hold up others", func(t *testing.T) {
		f := newFixture(t, "modern")
		x, err := f.send(t.Context(), "", "notify", `,"arguments":{"times":40},"_meta":{"progressToken":1}`)
		expect.OK(t, err)
		defer x.Close()
		p := f.transport.listProcesses()[0]
		expect.Eventually(t, "the process has written its messages", func() bool {
			f.call("", "pid", "")
			p.mu.Lock()
			defer p.mu.Unlock()
			return len(p.exchanges) == 0
		})
		for err == nil {
			_, err = x.Next(t.Context())
		}
		expect.Is(t, "the end of the call", err, errTooSlow)
	})
}

func TestRevisions(t *testing.T) {
	for kind, want := range map[string]spec.Version{"legacy": spec.V20251125, "silent": spec.V20251125, "fragile": spec.V20251125, "old": spec.V20250326} {
		t.Run("GWN-26 a command without 2026-07-28 is initialized: "+kind, func(t *testing.T) {
			f := newFixture(t, kind)
			_, err := f.client.Discover(t.Context())
			if !upstream.IsRefused(err) {
				t.Errorf("server/discover: got %v, want an error of the backend", err)
			}
			for range 2 { // the view and the relay
				k := expect.Value(f.client.Initialize(t.Context(), upstream.Declared{Version: spec.V20251125}))(t)
				expect.Equal(t, "the revision", k.Version, want)
				expect.OK(t, f.client.End(t.Context(), k.Version, k.Session))
				f.call(k.Session, "pid", "")
			}
			session := f.session("default/a")
			f.call(session, "pid", "")
			most := 2
			if kind == "fragile" {
				most = 3 // its first process ends
			}
			expect.Equal(t, "starts", f.startCount(), most)
		})
	}
	t.Run("GWN-26 a command that starts slowly may refuse initialize before it answers server/discover", func(t *testing.T) {
		f := newFixture(t, "modern slow")
		expect.OK(t, expect.ErrOf(f.client.Discover(t.Context())))
		f.call("", "pid", "")
		expect.Equal(t, "starts", f.startCount(), 1)
	})
	t.Run("GWN-26 a command that refuses both server/discover and initialize fails with its reason", func(t *testing.T) {
		_, err := newFixture(t, "slow").client.Discover(t.Context())
		expect.Error(t, "server/discover", err, "it refuses initialize with the error -32022")
	})
	t.Run("GWN-26 the shared process lists the tools that ask questions", func(t *testing.T) {
		f := newFixture(t, "legacy")
		params := newProcess(&server{t: f.transport, backend: f.backend}, "").initializeParams()
		expect.Equal(t, "the declared capabilities", string(jsonrpc.Member(params, "capabilities")), string(upstream.ListCapabilities))
	})
	t.Run("GWN-26 a pinned revision is not probed for", func(t *testing.T) {
		f := newFixture(t, "fragile")
		f.backend.ProtocolVersion = "2025-11-25"
		f.session("default/a")
		expect.OK(t, expect.ErrOf(f.client.Initialize(t.Context(), upstream.Declared{Version: spec.V20251125})))
		expect.Equal(t, "starts", f.startCount(), 2)
	})
	t.Run("GWN-26 each session has a process, which ends with it", func(t *testing.T) {
		f := newFixture(t, "legacy")
		one, two := f.session("default/a"), f.session("default/a")
		pid := f.call(one, "pid", "")
		expect.Differ(t, "the process of the other session", pid, f.call(two, "pid", ""))
		expect.OK(t, f.client.End(t.Context(), spec.V20251125, one))
		expect.Eventually(t, "the process ends", func() bool { return gone(pid) })
		expect.Is(t, "a call in the ended session", expect.ErrOf(f.try(one, "pid", "")), upstream.ErrSession)
		f.call(two, "pid", "")
	})
	t.Run("GWN-26 in 2026-07-28 all share a process", func(t *testing.T) {
		f := newFixture(t, "modern")
		expect.Equal(t, "the process of two calls", f.call("", "pid", ""), f.call("", "pid", ""))
	})
}

func TestEnvironment(t *testing.T) {
	t.Setenv("SECRET_OF_THE_SERVER", "s3cret")
	t.Setenv("TOKEN_FOR_IT", "t0ken")
	f := newFixture(t, "modern", func(_ *Transport, c *api.Command) { c.Env["TOKEN"] = secret.Env("TOKEN_FOR_IT") })
	got := strings.Split(f.call("", "env", ""), "\n")
	t.Run("GWN-26 a command has the named variables, PATH and HOME, and no others", func(t *testing.T) {
		var names []string
		for _, v := range got {
			name, _, _ := strings.Cut(v, "=")
			names = append(names, name)
		}
		slices.Sort(names)
		expect.List(t, "the variables", names, []string{"FAKE", "HOME", "PATH", "STARTS", "TOKEN"})
		expect.Has(t, "the variables", got, "TOKEN=t0ken")
	})
	t.Run("GWN-26 the log has no values of secrets, also if the command writes them to standard error", func(t *testing.T) {
		f.call("", "tell", "")
		expect.Eventually(t, "the line is logged", func() bool { return strings.Contains(f.output.String(), "the token is (env:TOKEN_FOR_IT)") })
		expect.Lacks(t, "the output", f.output.String(), "t0ken")
	})
}

func TestMessagesFindTheirRequests(t *testing.T) {
	t.Run("GWN-26 progress has the caller's token, although two callers have the same", func(t *testing.T) {
		f := newFixture(t, "modern")
		other := expect.Value(f.send(t.Context(), "", "hang", `,"_meta":{"progressToken":1.0}`))(t)
		defer other.Close()
		x := expect.Value(f.send(t.Context(), "", "progress", `,"_meta":{"progressToken":1.0}`))(t)
		defer x.Close()
		m := next(t, x)
		expect.Equal(t, "the token", string(jsonrpc.Member(jsonrpc.Member(m.Raw, "params"), "progressToken")), "1.0")
		if m = next(t, x); !m.Response() {
			t.Errorf("got %s, want the response", m.Raw)
		}
		p := f.transport.listProcesses()[0]
		p.mu.Lock()
		defer p.mu.Unlock()
		expect.Equal(t, "bytes that wait", p.queued, 0)
	})
	t.Run("GWN-26 a question reaches the call, and its answer the process", func(t *testing.T) {
		f, session, x, q := askingProcess(t)
		expect.Equal(t, "the id", string(q.ID), "7.5")
		answer := jsonrpc.AppendResult(nil, q.ID, json.RawMessage(`{"action":"accept"}`))
		expect.OK(t, f.client.Send(t.Context(), upstream.Request{Body: answer, Version: spec.V20251125, Session: session}))
		text, err := textOf(x.Result(t.Context()))
		expect.OK(t, err)
		expect.Equal(t, "the answer", text, `{"action":"accept"}`)
	})
	t.Run("GWN-26 a question that went to the wrong call moves to the other one when that call is answered", func(t *testing.T) {
		f := newFixture(t, "legacy")
		session := f.session("default/a")
		asking := expect.Value(f.send(t.Context(), session, "asksLate", `,"arguments":{"ms":200}`))(t)
		defer asking.Close()
		newest, err := f.send(t.Context(), session, "ask", "") // has the same id, so the process forgets the other wait
		expect.OK(t, err)
		defer newest.Close()
		q := next(t, newest)
		answer := jsonrpc.AppendResult(nil, q.ID, json.RawMessage(`1`))
		expect.OK(t, f.client.Send(t.Context(), upstream.Request{Body: answer, Version: spec.V20251125, Session: session}))
		expect.OK(t, expect.ErrOf(newest.Result(t.Context())))
		expect.Equal(t, "the method", next(t, asking).Method, spec.MethodElicit)
	})
	t.Run("GWN-26 a question before the first call waits for it", func(t *testing.T) {
		f := newFixture(t, "roots")
		session := f.session("default/a")
		x := expect.Value(f.send(t.Context(), session, "hang", ""))(t)
		defer x.Close()
		expect.Equal(t, "the method", next(t, x).Method, spec.MethodRoots)
	})
	t.Run("GWN-26 in the shared process, a log message reaches the only call that asks for some", func(t *testing.T) {
		f := newFixture(t, "modern")
		const asks = `,"_meta":{"io.modelcontextprotocol/logLevel":"info"}`
		x := expect.Value(f.send(t.Context(), "", "log", asks))(t)
		defer x.Close()
		expect.Equal(t, "the method", next(t, x).Method, spec.NoteMessage)
		other := expect.Value(f.send(t.Context(), "", "hang", asks))(t)
		defer other.Close()
		f.call("", "log", asks)
		expect.List(t, "dropped", f.dropped(), []string{dropAmbiguous})
	})
	t.Run("GWN-26 a call of 2026-07-28 whose stream is closed is cancelled", func(t *testing.T) {
		f := newFixture(t, "modern")
		expect.Value(f.send(t.Context(), "", "hang", ""))(t).Close()
		expect.Eventually(t, "the process gets the cancellation", func() bool { return f.call("", "cancelled", "") != "" })
	})
	t.Run("GWN-26 changes of lists reach the gateway's stream, and a listen by its id", func(t *testing.T) {
		f := newFixture(t, "legacy")
		k := expect.Value(f.client.Initialize(t.Context(), upstream.Declared{Version: spec.V20251125}))(t)
		x := expect.Value(f.client.Get(t.Context(), upstream.Request{Version: k.Version, Session: k.Session}, ""))(t)
		defer x.Close()
		f.call(k.Session, "changed", "")
		expect.Equal(t, "the method", next(t, x).Method, spec.NoteToolsChange)

		f = newFixture(t, "modern")
		x = expect.Value(f.client.Post(t.Context(), upstream.Request{
			Body:    jsonrpc.AppendRequest(nil, json.RawMessage(`41`), spec.MethodListen, json.RawMessage(`{"notifications":{}}`)),
			Version: spec.V20260728,
		}))(t)
		defer x.Close()
		expect.Equal(t, "the method", next(t, x).Method, spec.NoteAcknowledged)
	})
}

func TestPlaces(t *testing.T) {
	limit := func(all, each int) func(*Transport, *api.Command) {
		return func(t *Transport, _ *api.Command) { t.Processes, t.PerPrincipal = all, each }
	}
	alive := func(f *fixture, session string) bool {
		_, err := f.try(session, "pid", "")
		return err == nil
	}
	busy := func(f *fixture, session string) {
		f.Cleanup(expect.Value(f.send(f.Context(), session, "hang", ""))(f).Close)
	}
	t.Run("GWN-26 at a principal's limit, its session that was unused for longest ends", func(t *testing.T) {
		f := newFixture(t, "legacy", limit(10, 2))
		other, one, two := f.session("default/b"), f.session("default/a"), f.session("default/a")
		f.call(one, "pid", "")
		three := f.session("default/a")
		if alive(f, two) || !alive(f, one) || !alive(f, three) || !alive(f, other) {
			t.Error("another session ended")
		}
	})
	t.Run("GWN-26 running calls are not ended at the principal's own limit", func(t *testing.T) {
		f := newFixture(t, "legacy", limit(10, 1))
		busy(f, f.session("default/a"))
		_, err := f.client.Initialize(t.Context(), upstream.Declared{Version: spec.V20251125, Holder: "default/a"})
		expect.Fault(t, "the error", err, fault.Exhausted)
		expect.Equal(t, "the limit", fault.LimitOf(err), "backendProcesses")
	})
	t.Run("GWN-26 a session whose process ends before it begins gets another process", func(t *testing.T) {
		f := newFixture(t, "legacy", limit(10, 1))
		var all sync.WaitGroup
		for range 10 {
			all.Go(func() {
				_, err := f.client.Initialize(t.Context(), upstream.Declared{Version: spec.V20251125, Holder: "default/a"})
				if err != nil && fault.KindOf(err) != fault.Exhausted {
					t.Errorf("got %v, want a session or the limit's error", err)
				}
			})
		}
		all.Wait()
	})
	t.Run("GWN-26 a principal with many busy processes cannot lock out another", func(t *testing.T) {
		f := newFixture(t, "legacy", limit(3, 3))
		for range 3 {
			busy(f, f.session("default/a"))
		}
		one := f.session("default/b")
		f.call(one, "pid", "")
		busy(f, one)
		_, err := f.client.Initialize(t.Context(), upstream.Declared{Version: spec.V20251125, Holder: "default/b"})
		expect.Fault(t, "the second process of b", err, fault.Exhausted)
	})
}

// GWN-26: no request begins in a process that ends, and its unanswered questions are bounded, also if it repeats an id or asks with large
// messages.
func TestRequestsAndQuestionsOfAProcess(t *testing.T) {
	newSession := func() *process {
		p := newProcess(&server{t: &Transport{}}, "default/a")
		p.stop("so that no reply waits")
		return p
	}
	ask := func(p *process, id, message string) string {
		m, ok := upstream.Read(fmt.Appendf(nil, `{"jsonrpc":"2.0","id":%s,"method":"elicitation/create","params":{"message":%q}}`, id, message))
		if !ok {
			t.Fatal("the question is malformed")
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		return p.deliver(m)
	}
	expect.Is(t, "a request in a process that ends", newSession().open(&exchange{id: json.RawMessage("1")}, nil), io.ErrClosedPipe)
	p := newSession()
	expect.Equal(t, "dropping the first question", ask(p, "1", "?"), "")
	expect.Equal(t, "dropping the same id again", ask(p, "1", "?"), dropQuestion)
	expect.True(t, "an answer to an open question is sent", p.recordAnswer(json.RawMessage("1")))
	expect.True(t, "a second answer is not sent", !p.recordAnswer(json.RawMessage("1")))
	p = newSession()
	p.exchanges["7"] = &exchange{p: p, id: json.RawMessage("7"), method: spec.MethodToolsCall, wake: make(chan struct{}, 1)}
	for i := range 40 {
		ask(p, strconv.Itoa(i), strings.Repeat("x", 1<<20))
	}
	expect.AtMost(t, "the bytes of kept questions", p.questionBytes(), maxQueued)
}

// GWN-26: given a client that can answer a question after the call that carried it, the next call does not repeat the question, but it gets
// the withdrawal of the question, and log messages that came before the call.
func TestMessagesThatWaitForTheNextCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newProcess(&server{t: &Transport{}}, "default/a")
		p.answersLate = true
		deliver := func(format string, args ...any) {
			t.Helper()
			m, ok := upstream.Read(fmt.Appendf(nil, format, args...))
			expect.True(t, "the message is valid", ok)
			p.mu.Lock()
			defer p.mu.Unlock()
			expect.Equal(t, "the reason to drop the message", p.deliver(m), "")
		}
		number := 0
		call := func() *exchange {
			number++
			x := &exchange{p: p, ctx: t.Context(), id: fmt.Append(nil, number), method: spec.MethodToolsCall, wake: make(chan struct{}, 1)}
			expect.OK(t, p.open(x, nil))
			return x
		}
		respond := func(x *exchange) { deliver(`{"jsonrpc":"2.0","id":%s,"result":{}}`, x.id) }
		got := func(x *exchange) (methods []string) {
			for _, m := range x.queue {
				methods = append(methods, methodOf(m))
			}
			p.discard(x)
			return methods
		}
		const ask, withdraw = `{"jsonrpc":"2.0","id":%q,"method":"elicitation/create"}`, `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":%q}}`

		x := call()
		deliver(ask, "a")
		respond(x)
		expect.Len(t, "a call while the question is open gets", got(call()), 0)
		respond(p.newestCall())
		deliver(withdraw, "a")
		deliver(`{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"later"}}`)
		y := call()
		expect.List(t, "the next call gets", got(y), []string{spec.NoteCancelled, spec.NoteMessage})
		expect.Len(t, "the call after that gets", got(call()), 0)

		deliver(ask, "b")
		newest := p.newestCall()
		expect.List(t, "the newest call gets", got(newest), []string{spec.MethodElicit})
		respond(newest)
		deliver(withdraw, "b")
		expect.List(t, "the older call gets", got(y), []string{spec.NoteCancelled})
		respond(y)

		deliver(ask, "d")
		x = call()
		respond(x)
		time.Sleep(time.Minute)
		expect.True(t, "the client can still answer", p.recordAnswer(json.RawMessage(`"d"`)))

		deliver(ask, "c")
		deliver(withdraw, "c")
		expect.Len(t, "a call after a question that reached no call gets", got(call()), 0)
	})
}
