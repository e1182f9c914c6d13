package mcp

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/shared/protocol/spec"
	"github.com/mcp-events/mcpevents/shared/protocol/sse"
)

// slowCalls is a backend that answers calls by hand.
type slowCalls struct {
	*lister
	calls chan slowCall
}

type slowCall struct {
	progress chan struct{} // sends a log message for each
	answer   chan struct{} // closed: answers
	gone     chan struct{} // closed when the gateway has given up
}

func startSlowCalls(t *testing.T, stateless bool) *slowCalls {
	t.Helper()
	s := &slowCalls{lister: startLister(t, "b", stateless, "tool"), calls: make(chan slowCall, 1)}
	s.set(func() {
		s.call = func(w http.ResponseWriter, r *http.Request, id json.RawMessage) {
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
					fmt.Fprintf(w, "data: {\"jsonrpc\":\"2.0\",\"id\":%s,\"result\":{\"content\":[]}}\n\n", id)
					return
				case <-r.Context().Done():
					close(c.gone)
					return
				}
			}
		}
	})
	return s
}

const callTool = `"name":"b_tool","arguments":{},"_meta":{"io.modelcontextprotocol/logLevel":"info"}`

// callRequests are calls of the backend's tool by clients of both revisions.
func callRequests(f *fixture, accept string) map[string]*http.Request {
	headers := append(statelessHeaders("tools/call", callTool), "Accept:", "Accept: "+accept)
	body := strings.Replace(statelessBody("1", "tools/call", `"name":"b_tool","arguments":{}`), `"_meta":{`, `"_meta":{"io.modelcontextprotocol/logLevel":"info",`, 1)
	return map[string]*http.Request{
		"2026-07-28": f.request("POST", alice, body, headers...),
		"a session": f.request("POST", alice, `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"b_tool","arguments":{}}}`,
			"Mcp-Session-Id: "+f.session(alice, spec.V20251125), "Accept:", "Accept: "+accept),
	}
}

const both = "application/json, text/event-stream"

// GWN-02, SUB-07: while a call is quiet for longer than a heartbeat its client gets comments, before the backend's first
// message and after it. One that takes no streams gets JSON, however long it takes.
func TestLongCallsAreKeptAlive(t *testing.T) {
	for _, stateless := range []bool{true, false} {
		b := startSlowCalls(t, stateless)
		f := behindGateway(t, func(o *Options) { o.Heartbeat = 5 * time.Millisecond }, b.lister)
		for client, req := range callRequests(f, both) {
			t.Run(fmt.Sprintf("%s, backend of 2026 %v", client, stateless), func(t *testing.T) {
				res, err := f.server.Client().Do(req)
				must(t, err)
				defer res.Body.Close()
				if res.StatusCode != 200 || res.Header.Get("Content-Type") != sse.ContentType {
					t.Fatalf("%d %v", res.StatusCode, res.Header)
				}
				c := <-b.calls
				lines := bufio.NewReader(res.Body)
				quiet := func(what string) (message string) {
					for comments := 0; comments < 3; {
						line, err := lines.ReadString('\n')
						must(t, err)
						if strings.HasPrefix(line, ":") {
							comments++
						} else if strings.TrimSpace(line) != "" {
							message = line
						}
					}
					return message
				}
				if m := quiet("at first"); m != "" {
					t.Errorf("before any message: %q", m)
				}
				c.progress <- struct{}{}
				for !strings.Contains(quiet("after a message"), "notifications/message") {
				}
				close(c.answer)
				e, err := sse.NewReader(lines, 1<<20).Next()
				must(t, err)
				if !strings.Contains(string(e.Data), `"content":[]`) {
					t.Errorf("got %s", e.Data)
				}
				if rest, err := io.ReadAll(lines); err != nil || strings.TrimSpace(string(rest)) != "" {
					t.Errorf("after the response: %q, %v", rest, err)
				}
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
					t.Errorf("%d %v %s", r.Status, r.Header, r.Body)
				}
			})
		}
	}
}

// SUB-06, GWN-14: calls that run when the endpoint closes go on, for as long as there is time to notify their clients and the backend. Then
// the client gets an error, and the backend's work is given up, whether the client is of a revision with sessions or not.
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
						select {
						case c := <-b.calls:
							return c
						case <-time.After(patience):
							t.Fatal("the backend was not called")
						}
						return slowCall{}
					}
					ctx, cancel := context.WithTimeout(t.Context(), time.Second)
					defer cancel()
					short := ask(ends)
					must(t, f.endpoint.Close(ctx))
					close(short.answer)
					if r := <-answers; r.Status != 200 || !strings.Contains(r.Body, `"content":[]`) {
						t.Errorf("a call that ends in time: %d %s", r.Status, r.Body)
					}
					long := ask(runs)
					select {
					case r := <-answers:
						if !strings.Contains(r.Body, `"code":503`) || !strings.Contains(r.Body, "shutting down") || strings.Count(r.Body, "jsonrpc") != 1 {
							t.Errorf("a call that takes longer: %d %s", r.Status, r.Body)
						}
					case <-ctx.Done():
						t.Fatal("a call outlives the endpoint")
					}
					select {
					case <-long.gone:
					case <-ctx.Done():
						t.Error("the backend goes on")
					}
				})
			}
		}
	}
}
