package upstream

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/protocol/sse"
	"github.com/mcp-events/mcpevents/test/expect"
)

func serve(t *testing.T, h http.HandlerFunc) *Client {
	t.Helper()
	server := httptest.NewServer(h)
	t.Cleanup(server.Close)
	return &Client{URL: server.URL, HTTP: NewHTTP()}
}

func answer(media string, status int, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", media)
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	}
}

func all(t *testing.T, x *Exchange) (messages []string, garbage int, err error) {
	t.Helper()
	defer x.Close()
	for {
		raw, err := x.next()
		if _, ok := errors.AsType[*malformedError](err); ok {
			if garbage++; garbage > 10 {
				t.Fatal("garbage without an end")
			}
			continue
		}
		if err != nil {
			return messages, garbage, err
		}
		messages = append(messages, string(raw))
	}
}

const result = `{"jsonrpc":"2.0","id":1,"result":{"x":9007199254740993}}`

// GWN-05, GWN-15: messages keep their bytes, whether the backend answers with JSON or a stream. Invalid JSON has its own error, and
// the stream continues after it.
func TestAnswersAreRead(t *testing.T) {
	deep := strings.Repeat("[", 100) + strings.Repeat("]", 100)
	for _, c := range []struct {
		name, media, body string
		status            int
		want              []string
		garbage           int
	}{
		{name: "JSON", media: "application/json", body: result, status: 200, want: []string{result}},
		{name: "JSON with charset", media: "application/json; charset=utf-8", body: " " + result + " ", status: 200, want: []string{result + " "}},
		{name: "batch", media: "application/json", body: `[{"a":1}, ` + result + `]`, status: 200, want: []string{`{"a":1}`, result}},
		{name: "error status with a message", media: "application/json", body: `{"jsonrpc":"2.0","id":1,"error":{}}`, status: 400, want: []string{`{"jsonrpc":"2.0","id":1,"error":{}}`}},
		{name: "accepted", media: "text/plain", body: "whatever", status: 202},
		{name: "no content", status: 204},
		{
			name: "events", media: "text/event-stream", status: 200,
			body: ": hello\n\nid: 1\ndata:\n\ndata: {\"a\":1}\n\nevent: message\nid: 2\r\ndata: {\"b\":\r\ndata: 2}\r\n\r\nevent: ping\ndata: {}\n\ndata: " + result + "\n\ndata: {\"cut\":",
			want: []string{`{"a":1}`, "{\"b\":\n2}", result},
		},
		{
			name: "garbage between", media: "text/event-stream", status: 200, garbage: 3,
			body: "data: nonsense\n\ndata: {\"a\":\xff}\n\ndata: " + deep + "\n\ndata: " + result + "\n\n", want: []string{result},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			x := expect.Value(serve(t, func(w http.ResponseWriter, r *http.Request) {
				if c.status == 204 {
					w.WriteHeader(c.status)
					return
				}
				answer(c.media, c.status, c.body)(w, r)
			}).Post(t.Context(), Request{Body: []byte(`{}`)}))(t)
			got, garbage, err := all(t, x)
			expect.Is(t, "the end of the answer", err, io.EOF)
			if fmt.Sprint(got) != fmt.Sprint(c.want) || garbage != c.garbage {
				t.Errorf("got %q and %d malformed messages, want %q and %d", got, garbage, c.want, c.garbage)
			}
		})
	}
}

// GWN-08: servers report an unknown session in different ways.
func TestUnknownSessions(t *testing.T) {
	refusal := func(code int, message string) string {
		return fmt.Sprintf(`{"jsonrpc":"2.0","error":{"code":%d,"message":%q},"id":null}`, code, message)
	}
	for name, c := range map[string]struct {
		status int
		body   string
		lost   bool
	}{
		"Go SDK":                        {404, "session not found", true},
		"TypeScript SDK":                {404, refusal(-32001, "Session not found"), true},
		"Python SDK of before":          {400, "Bad Request: No valid session ID provided", true},
		"new transport, TypeScript SDK": {400, refusal(-32000, "Bad Request: Server not initialized"), true},
		"variants of these":             {400, refusal(-32000, "Bad Request: Unknown Mcp-Session-Id header"), true},
		"Express":                       {400, "Invalid or missing session ID", true},
		"another revision":              {400, refusal(-32000, "Bad Request: Unsupported protocol version"), false},
		"an error of the method":        {400, refusal(-32602, "the session parameter is missing"), false},
		"no reason":                     {400, "", false},
		"not allowed":                   {401, refusal(-32001, "session expired"), false},
	} {
		media := "text/plain"
		if strings.HasPrefix(c.body, "{") {
			media = "application/json; charset=utf-8"
		}
		x, err := serve(t, answer(media, c.status, c.body)).Post(t.Context(), Request{Body: []byte(`{}`), Session: "s"})
		if expect.Equal(t, name+": the session is unknown", errors.Is(err, ErrSession), c.lost); err == nil {
			x.Close()
		}
	}
}

// GWN-05, GWN-07, GWN-14: an answer without a message is an error that names the problem.
func TestAnswersThatAreNone(t *testing.T) {
	for _, c := range []struct {
		name, media, body, session string
		status, want               int // want is the status of a StatusError
		gone                       bool
	}{
		{name: "other media type", media: "text/html", body: "<p>hello</p>", status: 200},
		{name: "garbage", media: "application/json", body: "{", status: 200},
		{name: "empty", media: "application/json", status: 200},
		{name: "not allowed", media: "text/plain", status: 405, want: 405},
		{name: "broken", media: "text/html", body: "<p>oh</p>", status: 502, want: 502},
		{name: "error in another form, as from the Java SDK", media: "application/json", body: `{"jsonRpcError":{"code":-32601,"message":"Session ID required"}}`, status: 400, want: 400},
		{name: "not found", media: "text/plain", status: 404, want: 404},
		{name: "no UTF-8", media: "application/json", body: "{\"a\":\"\xff\"}", status: 200},
		{name: "session gone", media: "text/plain", status: 404, session: "s", gone: true},
		{name: "session gone with a message", media: "application/json", body: result, status: 404, session: "s", gone: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := serve(t, func(w http.ResponseWriter, r *http.Request) {
				if c.media == "" {
					w.Header()["Content-Type"] = nil
					_, _ = io.WriteString(w, c.body)
					return
				}
				answer(c.media, c.status, c.body)(w, r)
			}).Post(t.Context(), Request{Body: []byte(`{}`), Session: c.session})
			status, ok := errors.AsType[*StatusError](err)
			switch {
			case err == nil:
				t.Fatal("no error")
			case c.gone != errors.Is(err, ErrSession):
				t.Errorf("got %v", err)
			case c.want != 0 && (!ok || status.Status != c.want):
				t.Errorf("got %v, want the status %d", err, c.want)
			case c.want == 0 && !c.gone && !fault.Is(err, fault.Unavailable):
				t.Errorf("got %v, want one of kind unavailable", err)
			}
		})
	}
}

// GWN-05: the memory for a backend's message is limited.
func TestMessagesAreBounded(t *testing.T) {
	endless := func(w http.ResponseWriter, begin string) {
		_, _ = io.WriteString(w, begin)
		block := strings.Repeat("x", 1<<20)
		for range maxMessage>>20 + 2 {
			if _, err := io.WriteString(w, block); err != nil {
				return
			}
		}
	}
	t.Run("JSON", func(t *testing.T) {
		_, err := serve(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			endless(w, `{"a":"`)
		}).Post(t.Context(), Request{Body: []byte(`{}`)})
		expect.Fault(t, "the error", err, fault.Unavailable)
	})
	t.Run("session", func(t *testing.T) {
		_, err := serve(t, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Mcp-Session-Id", strings.Repeat("x", maxSession+1))
			answer("application/json", http.StatusOK, `{}`)(w, r)
		}).Post(t.Context(), Request{Body: []byte(`{}`)})
		expect.Fault(t, "the error", err, fault.Unavailable)
	})
	t.Run("event", func(t *testing.T) {
		x := expect.Value(serve(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/event-stream")
			endless(w, "data: {\"a\":\"")
		}).Post(t.Context(), Request{Body: []byte(`{}`)}))(t)
		if got, _, err := all(t, x); !errors.Is(err, sse.ErrTooLarge) || len(got) > 0 {
			t.Errorf("got %d messages and %v", len(got), err)
		}
	})
}

// GWN-19: the client does not follow redirects, which would send the credentials to another host.
func TestRedirectsAreNotFollowed(t *testing.T) {
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		t.Errorf("the client sent a request with %v to the other host", r.Header)
	}))
	defer other.Close()
	for _, status := range []int{301, 302, 303, 307, 308} {
		c := serve(t, func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, other.URL, status) })
		c.Credentials = func(_ context.Context, h http.Header) error {
			h.Set("Authorization", "Bearer secret")
			return nil
		}
		_, err := c.Post(t.Context(), Request{Body: []byte(`{}`)})
		if got, ok := errors.AsType[*StatusError](err); !ok || got.Status != status {
			t.Errorf("%d: got %v", status, err)
		}
		expect.Error(t, "a stream", expect.ErrOf(c.Get(t.Context(), Request{}, "")))
	}
}

// A backend may answer the end of a session with any successful status, with or without a body.
func TestSessionsAreEnded(t *testing.T) {
	for _, status := range []int{http.StatusOK, http.StatusAccepted, http.StatusNoContent} {
		c := serve(t, answer("", status, ""))
		c.AskTimeout = time.Minute
		expect.OK(t, c.End(t.Context(), "", "s"))
	}
	c := serve(t, answer("text/plain", http.StatusMethodNotAllowed, "no"))
	c.AskTimeout = time.Minute
	expect.Error(t, "a refused end", c.End(t.Context(), "", "s"))
}

// Requests have the headers of the revision and the session, and a stream can be resumed after its last event.
func TestHeadersOfRequests(t *testing.T) {
	var got http.Header
	var method string
	c := serve(t, func(w http.ResponseWriter, r *http.Request) {
		got, method = r.Header.Clone(), r.Method
		w.Header().Set("Mcp-Session-Id", "made")
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, "id: e7\ndata: {}\n\n")
	})
	x := expect.Value(c.Post(t.Context(), Request{Body: []byte(`{}`), Version: "2025-11-25", Session: "s", Header: http.Header{"Mcp-Method": {"m"}}}))(t)
	if _, _, err := all(t, x); !errors.Is(err, io.EOF) {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"Mcp-Protocol-Version": "2025-11-25", "Mcp-Session-Id": "s", "Mcp-Method": "m",
		"Accept": "application/json, text/event-stream", "Content-Type": "application/json",
	} {
		expect.Equal(t, name, got.Get(name), want)
	}
	if x.Session != "made" || x.EventID != "e7" || x.events == nil {
		t.Errorf("got session %q, event %q, streamed %v", x.Session, x.EventID, x.events != nil)
	}
	x = expect.Value(c.Get(t.Context(), Request{Session: "s"}, "e7"))(t)
	x.Close()
	if method != http.MethodGet || got.Get("Last-Event-Id") != "e7" || got.Get("Accept") != "text/event-stream" {
		t.Errorf("a stream was asked for by %s with %v", method, got)
	}
	c.AskTimeout = time.Minute
	if err := c.End(t.Context(), "", "s"); err != nil || method != http.MethodDelete {
		t.Errorf("the session was ended by %s: %v", method, err)
	}
}

// GWN-14: a backend that cannot be reached, or disconnects within its answer, causes an error.
func TestBackendIsGone(t *testing.T) {
	c := &Client{URL: "http://127.0.0.1:1/", HTTP: NewHTTP(), Observer: Observer{Name: "b"}}
	err := expect.ErrOf(c.Post(t.Context(), Request{}))
	expect.Fault(t, "the call", err, fault.Unavailable)
	expect.Equal(t, "the text for the caller", fault.Public(err), "backend b cannot be reached")
	expect.Contains(t, "the text for the log", err.Error(), "127.0.0.1:1")
	c = serve(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, "data: {}\n\n")
		w.(http.Flusher).Flush()
		panic(http.ErrAbortHandler)
	})
	x := expect.Value(c.Post(t.Context(), Request{Body: []byte(`{}`)}))(t)
	if got, _, err := all(t, x); err == nil || errors.Is(err, io.EOF) || len(got) != 1 {
		t.Errorf("got %q and %v", got, err)
	}
}

// GWN-14: given a request for which the client chose a connection that the backend had just closed, then the client sends it over
// another one, because it was never sent.
func TestClosedConnectionIsReplaced(t *testing.T) {
	var served atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		served.Add(1)
		answer("application/json", 200, result)(w, nil)
	}))
	t.Cleanup(server.Close)
	transport := NewHTTP().Transport.(*http.Transport)
	transport.IdleConnTimeout = 0 // however long this takes
	var last net.Conn
	transport.DialContext = countBytes(func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := (&net.Dialer{}).DialContext(ctx, network, addr)
		last = c
		return c, err
	})
	c := &Client{URL: server.URL, HTTP: &http.Client{Transport: transport}}
	chosen := 0
	ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{GotConn: func(info httptrace.GotConnInfo) {
		if chosen++; info.Reused {
			server.CloseClientConnections()
			_, _ = last.Read(make([]byte, 1)) // returns when the end has arrived
		}
	}})
	for range 2 {
		x := expect.Value(c.Post(ctx, Request{Body: []byte(`{}`)}))(t)
		if got, _, err := all(t, x); err != io.EOF || len(got) != 1 {
			t.Fatalf("got %q, %v", got, err)
		}
	}
	expect.Equal(t, "the served requests", served.Load(), 2)
	expect.Equal(t, "the connections", chosen, 3)
}

// GWN-14: the client does not repeat a request that the backend has read, because it may have taken effect.
func TestRequestThatWasReadIsNotRepeated(t *testing.T) {
	var served atomic.Int64
	c := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if served.Add(1) > 1 {
			panic(http.ErrAbortHandler)
		}
		answer("application/json", 200, result)(w, r)
	})
	x, err := c.Post(t.Context(), Request{Body: []byte(`{}`)})
	expect.OK(t, err)
	_, _, _ = all(t, x)
	if x, err = c.Post(t.Context(), Request{Body: []byte(`{}`)}); err == nil {
		x.Close()
		t.Error("the second request has an answer, want an error")
	}
	expect.Equal(t, "requests that the backend read", served.Load(), 2)
}

// GWN-14: after a connection was idle for as long as servers allow, the client does not use it, because the server may have closed it.
// The server here reads a request on such a connection and then closes it, as can happen over a network.
func TestConnectionsRestForAShortTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		transport := NewHTTP().Transport.(*http.Transport)
		connections := 0
		transport.DialContext = func(context.Context, string, string) (net.Conn, error) {
			connections++
			near, far := net.Pipe()
			go lazyServer(far, 2*time.Second)
			return near, nil
		}
		c := &Client{URL: "http://backend.example/mcp", HTTP: &http.Client{Transport: transport}}
		for _, rest := range []time.Duration{0, RestTime / 2, 2 * time.Second, 5 * time.Second, time.Minute} {
			time.Sleep(rest)
			x, err := c.Post(t.Context(), Request{Body: []byte(`{}`)})
			expect.OK(t, err, "after", rest)
			if _, _, err := all(t, x); err != io.EOF {
				t.Fatalf("after %v: %v", rest, err)
			}
		}
		expect.Equal(t, "connections (one is used twice)", connections, 4)
		time.Sleep(RestTime) // closes the last connection
	})
}

// lazyServer answers requests until one arrives on a connection that was idle for too long.
func lazyServer(c net.Conn, rest time.Duration) {
	defer c.Close()
	r := bufio.NewReader(c)
	for since := time.Now(); ; since = time.Now() {
		req, err := http.ReadRequest(r)
		if err != nil || time.Since(since) >= rest {
			return
		}
		_, _ = io.Copy(io.Discard, req.Body)
		body := strings.NewReader(result)
		resp := http.Response{
			StatusCode: 200, ProtoMajor: 1, ProtoMinor: 1, ContentLength: body.Size(), Body: io.NopCloser(body),
			Header: http.Header{"Content-Type": {"application/json"}},
		}
		if resp.Write(c) != nil {
			return
		}
	}
}

// GWN-14: the client uses a connection again after a stream has ended on it. If the backend leaves the stream open after the response,
// the client soon closes the connection.
func TestConnectionBehindAStream(t *testing.T) {
	for name, leavesOpen := range map[string]bool{"ends": false, "stays open": true} {
		t.Run(name, func(t *testing.T) {
			var connections atomic.Int64
			c := serve(t, func(w http.ResponseWriter, r *http.Request) {
				answer("text/event-stream", 200, "data: "+result+"\n\n")(w, r)
				_ = http.NewResponseController(w).Flush()
				if leavesOpen {
					<-r.Context().Done()
				}
				time.Sleep(endTime / 10) // the end comes on its own
			})
			transport := c.HTTP.Transport.(*http.Transport)
			transport.IdleConnTimeout = 0 // however long this takes
			transport.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
				connections.Add(1)
				return (&net.Dialer{}).DialContext(ctx, network, addr)
			}
			const requests = 20
			for range requests {
				x := expect.Value(c.Post(t.Context(), Request{Body: []byte(`{}`)}))(t)
				expect.OK(t, expect.ErrOf(x.next()))
				x.Finish()
			}
			// On a busy machine an end may come late.
			if n := connections.Load(); leavesOpen != (n == requests) {
				t.Errorf("%d connections for %d requests", n, requests)
			}
		})
	}
}
