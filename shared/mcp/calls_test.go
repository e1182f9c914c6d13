package mcp

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/shared/auth/quota"
	"github.com/mcp-events/mcpevents/shared/gateway/api"
	"github.com/mcp-events/mcpevents/shared/mcp/method"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/protocol/jsonrpc"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
	"github.com/mcp-events/mcpevents/shared/protocol/sse"
	"github.com/mcp-events/mcpevents/test/expect"
)

// slowCalls is a backend whose calls each test controls: it decides when they send a message and when they return.
type slowCalls struct {
	*lister
	calls chan slowCall
}

type slowCall struct {
	progress chan struct{} // each value makes the backend send a log message
	answer   chan struct{} // close it to return the result
	gone     chan struct{} // closed when the gateway has canceled the call
}

func startSlowCalls(t *testing.T, stateless bool) *slowCalls {
	t.Helper()
	s := &slowCalls{lister: startLister(t, "b", stateless, "tool"), calls: make(chan slowCall, 1)}
	s.set(func() {
		s.handle = func(w http.ResponseWriter, r *http.Request, m received) bool {
			if m.Method != spec.MethodToolsCall {
				return false
			}
			c := slowCall{make(chan struct{}), make(chan struct{}), make(chan struct{})}
			s.calls <- c
			w.Header().Set("Content-Type", sse.ContentType)
			w.(http.Flusher).Flush()
			for {
				select {
				case <-c.progress:
					fmt.Fprint(w, "data: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/message\",\"params\":{\"level\":\"info\",\"data\":1}}\n\n")
					w.(http.Flusher).Flush()
				case <-c.answer:
					fmt.Fprintf(w, "data: {\"jsonrpc\":\"2.0\",\"id\":%s,\"result\":{\"content\":[]}}\n\n", m.ID)
					return true
				case <-r.Context().Done():
					close(c.gone)
					return true
				}
			}
		}
	})
	return s
}

const callTool = `"name":"b_tool","arguments":{},"_meta":{"io.modelcontextprotocol/logLevel":"info"}`

// callRequests returns calls to the backend's tool, one in 2026-07-28 and one in a session.
func callRequests(f *fixture, accept string) map[string]*http.Request {
	headers := append(statelessHeaders("tools/call", callTool), "Accept:", "Accept: "+accept)
	body := strings.Replace(statelessBody("1", "tools/call", `"name":"b_tool","arguments":{}`), `"_meta":{`, `"_meta":{"io.modelcontextprotocol/logLevel":"info",`, 1)
	return map[string]*http.Request{
		"2026-07-28": f.request("POST", alice, body, headers...),
		"a session":  f.request("POST", alice, rpcText("1", spec.MethodToolsCall, `"name":"b_tool","arguments":{}`), "Mcp-Session-Id: "+f.session(alice, spec.V20251125), "Accept:", "Accept: "+accept),
	}
}

const both = "application/json, text/event-stream"

// A backend would answer a call that asks for a task of 2025-11-25 with the task, and the client could not get its result.
func TestCallsOfSessionsAskForNoTask(t *testing.T) {
	l := startLister(t, "b", false, "tool")
	called := make(chan string, 1)
	l.answers(spec.MethodToolsCall, func(m received) string {
		called <- string(jsonrpc.Member(m.raw, "params"))
		return `{"content":[]}`
	})
	f := behindGateway(t, nil, l)
	params := `"name":"b_tool","task":{"ttl":60000},"arguments":{"task":{"ttl":1}}`
	req := f.request("POST", alice, rpcText("1", spec.MethodToolsCall, params), "Mcp-Session-Id: "+f.session(alice, spec.V20251125))
	res := expect.Value(f.server.Client().Do(req))(t)
	defer res.Body.Close()
	expect.MustEqual(t, "the status code", res.StatusCode, 200)
	expect.Equal(t, "the params at the backend", <-called, `{"name":"tool","arguments":{"task":{"ttl":1}}}`)
}

// GWN-02, SUB-07: while the backend is silent for longer than a heartbeat, the client gets comments, both before and after
// the backend's first message. A client that does not accept streams gets JSON, even after a long wait.
func TestLongCallsAreKeptAlive(t *testing.T) {
	for _, stateless := range []bool{true, false} {
		b := startSlowCalls(t, stateless)
		f := behindGateway(t, func(o *Options) { o.Heartbeat = 5 * time.Millisecond }, b.lister)
		for client, req := range callRequests(f, both) {
			t.Run(fmt.Sprintf("%s, backend of 2026 %v", client, stateless), func(t *testing.T) {
				res := expect.Value(f.server.Client().Do(req))(t)
				defer res.Body.Close()
				expect.MustEqual(t, "the status code", res.StatusCode, 200)
				expect.MustEqual(t, "the header Content-Type", res.Header.Get("Content-Type"), sse.ContentType)
				c := <-b.calls
				lines := bufio.NewReader(res.Body)
				quiet := func() (message string) {
					for comments := 0; comments < 3; {
						line := expect.Value(lines.ReadString('\n'))(t)
						if strings.HasPrefix(line, ":") {
							comments++
						} else if strings.TrimSpace(line) != "" {
							message = line
						}
					}
					return message
				}
				expect.Deep(t, "before any message, besides comments", quiet(), "")
				c.progress <- struct{}{}
				for !strings.Contains(quiet(), "notifications/message") {
				}
				close(c.answer)
				e := expect.Value(sse.NewReader(lines, 1<<20).Next())(t)
				expect.Equal(t, "the rest of the stream", strings.TrimSpace(string(expect.Value(io.ReadAll(lines))(t))), "")
				expect.Contains(t, "the result", string(e.Data), `"content":[]`)
			})
		}
		for client, req := range callRequests(f, "application/json") {
			t.Run(fmt.Sprintf("%s without streams, backend of 2026 %v", client, stateless), func(t *testing.T) {
				go func() {
					c := <-b.calls
					c.progress <- struct{}{}
					time.Sleep(30 * time.Millisecond) // several heartbeats
					close(c.answer)
				}()
				r := f.answer(req)
				if r.Status != 200 || r.Header.Get("Content-Type") != "application/json" || !strings.Contains(r.Body, `"content":[]`) || strings.Contains(r.Body, "notifications") {
					t.Errorf("got status %d, %v: %s, want the result as JSON", r.Status, r.Header, r.Body)
				}
			})
		}
	}
}

// SUB-06, GWN-14: when the endpoint closes, running calls continue until just enough time is left to notify their clients
// and the backend. Then the client gets an error and the backend's request is canceled. Both kinds of revisions, with and
// without sessions, behave the same.
func TestCallsEndWithTheEndpoint(t *testing.T) {
	for _, stateless := range []bool{true, false} {
		for _, accept := range []string{both, "application/json"} {
			for _, client := range []string{"2026-07-28", "a session"} {
				t.Run(fmt.Sprintf("%s, %s, backend of 2026 %v", client, accept, stateless), func(t *testing.T) {
					t.Parallel()
					b := startSlowCalls(t, stateless)
					f := behindGateway(t, nil, b.lister)
					ends, runs := callRequests(f, accept)[client], callRequests(f, accept)[client]
					answers := make(chan reply, 1)
					ask := func(req *http.Request) slowCall {
						go func() { answers <- f.answer(req) }()
						return <-b.calls
					}
					ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second) // a busy machine needs some time for the first call
					defer cancel()
					short := ask(ends)
					expect.OK(t, f.endpoint.Close(ctx))
					close(short.answer)
					(<-answers).isPlain(t, "a call that ends in time", 200, `"content":[]`)
					long := ask(runs)
					select {
					case r := <-answers:
						if !strings.Contains(r.Body, `"code":503`) || !strings.Contains(r.Body, "shutting down") || strings.Count(r.Body, "jsonrpc") != 1 {
							t.Errorf("a call that takes longer: got status %d: %s, want one error 503 about the shutdown", r.Status, r.Body)
						}
					case <-ctx.Done():
						t.Fatal("a call outlives the endpoint")
					}
					select {
					case <-long.gone:
					case <-ctx.Done():
						t.Error("the backend continues, want the end of its work")
					}
				})
			}
		}
	}
}

// slowNotices is a gateway whose backend is slow to accept the first two notifications of an extension.
type slowNotices struct {
	*fakeGateway
	began, end chan struct{}
	count      atomic.Int32
}

func (g *slowNotices) NotifyExtension(context.Context, api.Client, string, json.RawMessage) error {
	if g.count.Add(1) <= 2 {
		g.began <- struct{}{}
		<-g.end
	}
	return nil
}

// GWN-24: notifications of extensions that wait for a backend count toward the principal's limit of calls, so that they cannot pile up.
func TestAUT_07_NotificationsOfExtensions(t *testing.T) {
	g := &slowNotices{fakeGateway: newFakeGateway(), began: make(chan struct{}), end: make(chan struct{})}
	f := newFixture(t, func(o *Options) {
		o.Gateway, o.Calls = g, quota.NewConcurrency("calls", "calls", quota.FixedLimit(1), 100)
	})
	sessions := map[string]string{}
	for _, who := range []string{alice, bob} {
		sessions[who] = "Mcp-Session-Id: " + f.session(who, spec.V20251125)
	}
	notify := func(who, name string) reply {
		return f.do("POST", who, `{"jsonrpc":"2.0","method":"notifications/`+name+`"}`, sessions[who])
	}
	waiting := make(chan reply, 2)
	for _, who := range []string{alice, bob} {
		go func() { waiting <- notify(who, "com.example/changed") }()
		<-g.began
	}
	second, other := notify(alice, "com.example/changed"), notify(alice, "initialized")
	close(g.end)
	for range cap(waiting) {
		expect.Equal(t, "the status of a notification that waited", (<-waiting).Status, http.StatusAccepted)
	}
	if second.Status != http.StatusTooManyRequests || !strings.Contains(second.Body, `"limit":"calls"`) || second.Header.Get("Retry-After") == "" {
		t.Errorf("a second notification: got status %d, %v: %s, want 429 with the limit calls", second.Status, second.Header, second.Body)
	}
	expect.Equal(t, "the status of a notification of no extension", other.Status, http.StatusAccepted)
	expect.Equal(t, "the status of a notification after the first one has ended", notify(alice, "com.example/changed").Status, http.StatusAccepted)
}

// Calls that still wait for a backend count toward the principal's limit, even after their clients have left. The endpoint
// refuses the next call with an error that names the limit. Other principals can still call.
func TestAUT_07_CallsOfClientsThatLeft(t *testing.T) {
	b := startSlowCalls(t, false)
	f := behindGateway(t, func(o *Options) { o.Calls = quota.NewConcurrency("calls", "calls", quota.FixedLimit(2), 100) }, b.lister)
	body := rpcText("1", spec.MethodToolsCall, `"name":"b_tool","arguments":{}`)
	session := f.session(alice, spec.V20251125)
	var waiting []slowCall
	for range 2 {
		ctx, leave := context.WithCancel(t.Context())
		go func() {
			res, err := http.DefaultClient.Do(f.request("POST", alice, body, "Mcp-Session-Id: "+session).WithContext(ctx))
			if err == nil {
				res.Body.Close()
			}
		}()
		waiting = append(waiting, <-b.calls)
		leave()
	}
	f.do("POST", alice, body, "Mcp-Session-Id: "+session).is(t, "a third call", 200, 429, `"limit":"calls","max":2`)

	other := make(chan reply)
	go func() { other <- f.do("POST", bob, body, "Mcp-Session-Id: "+f.session(bob, spec.V20251125)) }()
	close((<-b.calls).answer)
	(<-other).is(t, "another principal's call", 200, 0)
	for _, call := range waiting {
		close(call.answer)
	}
}

// asker is a backend with one tool. The tool asks the user a question and returns the answer, or, with the argument wait,
// blocks until it is cancelled.
type asker struct {
	*lister
	answers   chan json.RawMessage // the answers to its question
	waiting   chan json.RawMessage // the ids of waiting calls
	cancelled chan json.RawMessage // the cancellation notifications
}

const question = `"method":"elicitation/create","params":{"message":"Name?","requestedSchema":{"type":"object","properties":{}}}`

func startAsker(t *testing.T, stateless bool) *asker {
	t.Helper()
	a := &asker{
		lister: startLister(t, "b", stateless, "ask"), answers: make(chan json.RawMessage, 1),
		waiting: make(chan json.RawMessage, 1), cancelled: make(chan json.RawMessage, 1),
	}
	a.set(func() { a.handle = a.receive })
	return a
}

func (a *asker) receive(w http.ResponseWriter, r *http.Request, m received) bool {
	switch {
	case m.Method == spec.NoteCancelled:
		a.cancelled <- m.raw
		w.WriteHeader(http.StatusAccepted)
	case m.Method == "":
		a.answers <- m.raw
		w.WriteHeader(http.StatusAccepted)
	case m.Method != spec.MethodToolsCall:
		return false
	case bytes.Contains(m.raw, []byte("wait")):
		a.waiting <- m.ID
		<-r.Context().Done()
	case a.stateless:
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"result":{"resultType":"input_required","inputRequests":{"name":{%s}}}}`, m.ID, question)
	default:
		w.Header().Set("Content-Type", "text/event-stream")
		fmt.Fprintf(w, "data: {\"jsonrpc\":\"2.0\",\"id\":\"q\",%s}\n\n", question)
		w.(http.Flusher).Flush()
		select {
		case answer := <-a.answers:
			fmt.Fprintf(w, "data: {\"jsonrpc\":\"2.0\",\"id\":%s,\"result\":{\"content\":[],\"structuredContent\":%s}}\n\n", m.ID, answer)
		case <-r.Context().Done():
		}
	}
	return true
}

// capable starts a session of a client with the elicitation capability and returns its session header.
func (f *fixture) capable(v spec.Version) string {
	f.t.Helper()
	return "Mcp-Session-Id: " + f.initialize(alice, v, `{"elicitation":{}}`).Header.Get(spec.HeaderSession)
}

// capableInDialect does the same in the named-event dialect.
func (f *fixture) capableInDialect() string {
	f.t.Helper()
	const params = `"protocolVersion":"2025-06-18","capabilities":{"elicitation":{}},"clientInfo":{"name":"t","version":"1"}`
	return "Mcp-Session-Id: " + f.dialect(alice, rpcText("0", spec.MethodInitialize, params), jsonOnly).Header.Get(spec.HeaderSession)
}

// GWN-10, GWN-14: elicitation needs an event stream to the client. Without one, a backend of an earlier revision immediately
// gets an error as the answer to its question and can continue. A call to a backend of 2026-07-28 immediately fails.
func TestNobodyIsAskedWithoutAStream(t *testing.T) {
	call := rpcText("1", spec.MethodToolsCall, `"name":"b_ask","arguments":{}`)
	for _, stateless := range []bool{false, true} {
		f := behindGateway(t, nil, startAsker(t, stateless).lister)
		for name, ask := range map[string]func() reply{
			"JSON only": func() reply {
				return f.do("POST", alice, call, "Accept:", jsonOnly, f.capable(spec.V20251125))
			},
			"a batch": func() reply {
				r := f.do("POST", alice, "["+call+"]", f.capable(spec.V20250326))
				r.Body = strings.Trim(r.Body, "[]")
				return r
			},
			"the dialect": func() reply { return f.dialect(alice, call, jsonOnly, f.capableInDialect()) },
		} {
			if stateless {
				ask().is(t, name, 200, jsonrpc.InvalidRequest)
			} else { // The backend returns the answer to its question.
				ask().is(t, name, 200, 0, fmt.Sprintf(`"error":{"code":%d`, jsonrpc.MethodNotFound))
			}
		}
	}
}

// GWN-11: the endpoint also accepts answers in a batch. An answer to an unknown question gets an error, and the other messages of the batch
// are still processed. The error is the HTTP response's and no part of an array, because JSON-RPC has no response to an answer.
func TestAnswersInABatch(t *testing.T) {
	f := behindGateway(t, nil, startAsker(t, false).lister)
	session := f.capable(spec.V20250326)
	o := f.open(f.request("POST", alice, rpcText("1", spec.MethodToolsCall, `"name":"b_ask","arguments":{}`), session))
	id := o.next().ID
	const unknown = `{"jsonrpc":"2.0","id":"gw_other","result":{}}`
	r := f.do("POST", alice, `[`+unknown+`,{"jsonrpc":"2.0","id":2,"method":"ping"}]`, session)
	r.isPlain(t, "with a request", 200)
	expect.Deep(t, "the responses", r.Body, `[{"jsonrpc":"2.0","id":2,"result":{}}]`)
	r = f.do("POST", alice, `[`+unknown+`,{"jsonrpc":"2.0","id":`+string(id)+`,"result":{"action":"decline"}}]`, session)
	r.isPlain(t, "without a request", 400, `{"jsonrpc":"2.0","error":{"code":-32600,`)
	expect.Contains(t, "the end of the call", string(o.event().Data), `"action":"decline"`)
	f.do("POST", alice, `[{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}]`, session).isPlain(t, "a batch of a cancellation", 202)
}

// GWN-13: cancelling a call in a session of the named-event dialect works as in the revision that the session negotiated.
func TestCancellationInTheDialect(t *testing.T) {
	a := startAsker(t, false)
	f := behindGateway(t, nil, a.lister)
	session := f.capableInDialect()
	req := f.request("POST", alice, rpcText("7", spec.MethodToolsCall, `"name":"b_ask","arguments":{"wait":true}`), session)
	req.URL.Path = dialectPath
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if res, err := f.server.Client().Do(req.WithContext(ctx)); err == nil {
			_ = res.Body.Close()
		}
	}()
	id := <-a.waiting
	f.dialect(alice, `{"jsonrpc":"2.0","id":"gw_x","result":{}}`, session).isPlain(t, "an answer to nothing", 202)
	f.dialect(alice, `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":7}}`, session).isPlain(t, "a cancellation", 202)
	m := expect.Receive(t, "the cancellation at the backend", a.cancelled)
	expect.Deep(t, "the cancelled request", string(jsonrpc.Member(jsonrpc.Member(m, "params"), "requestId")), string(id))
	cancel()
	a.CloseClientConnections()
	<-done
}

// GWN-14: the answer says that a backend failed, and only the log says why. The log line leaves out the request's content
// and secrets in the backend's URL, e.g. a key in its query.
func TestWhyACallFailedIsLogged(t *testing.T) {
	for _, stateless := range []bool{true, false} {
		b := startLister(t, "b", stateless, "tool")
		b.URL += "/?key=hush"
		b.Config.SetKeepAlivesEnabled(false) // With keep-alive, the error could be a closed connection instead of a refused one.
		said := new(expect.Buffer)
		f := behindGateway(t, func(o *Options) { o.Logger = slog.New(slog.NewTextHandler(said, nil)) }, b)
		session := f.session(alice, spec.V20251125)
		f.wholeList(t, spec.MethodToolsList, "", nil)
		b.Close()
		for _, in := range []string{"", session} {
			r := f.in(alice, in, "tools/call", `"name":"b_tool","arguments":{"private":"whisper"}`)
			line := said.Take()
			r.fails(t, "a call", method.CodeUnavailable, "")
			expect.Contains(t, "the error, without a reason", r.Body, `"message":"backend b cannot be reached"`)
			if strings.Count(line, "\n") != 1 || !strings.Contains(line, "backend b") || !strings.Contains(line, "connection refused") || strings.Contains(line, "hush") || strings.Contains(line, "whisper") {
				t.Errorf("stateless backend %v, session %q: the log has %q, want a line with the backend and the reason only", stateless, in, line)
			}
		}
	}
}

// A request that failed because its client left is not logged as an error, because there is no client to answer.
func TestClientsThatWentAwayAreNoFailures(t *testing.T) {
	said := new(expect.Buffer)
	f := newFixture(t, func(o *Options) { o.Logger = slog.New(slog.NewTextHandler(said, nil)) })
	gone, leave := context.WithCancel(t.Context())
	leave()
	why := fault.Wrap(fault.Unavailable, fmt.Errorf("exchange: %w", context.Canceled), "reach a backend")
	f.endpoint.faults.Translate(gone, why, spec.V20260728, "")
	expect.Deep(t, "the log", said.Take(), "")
	f.endpoint.faults.Translate(t.Context(), why, spec.V20260728, "")
	expect.Contains(t, "the log of a client that waits", said.Take(), "context canceled")
}
