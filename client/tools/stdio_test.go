package tools_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/shared/app/standalone/servertest"
)

// wire is a client that writes and reads lines. It reads only while unread is not locked.
type wire struct {
	agent
	in     io.WriteCloser
	lines  chan line
	served chan error
	unread sync.Mutex
	writes atomic.Int64 // that the server has begun
	n      int
}

// gate is the writer of the server. It blocks while unread is locked.
type gate struct {
	io.Writer
	w *wire
}

func (g gate) Write(p []byte) (int, error) {
	g.w.writes.Add(1)
	g.w.unread.Lock()
	defer g.w.unread.Unlock()
	return g.Writer.Write(p)
}

// line is a received message and its text.
type line struct {
	ID     *int
	Method string
	Params json.RawMessage
	Result json.RawMessage
	Error  *struct {
		Code    int
		Message string
	}
	text string
}

// newWire starts a session of a client with that name and returns the result of initialize.
func newWire(t *testing.T, name string) (*wire, string) {
	t.Helper()
	w := &wire{agent: agent{T: t}, lines: make(chan line, 1000), served: make(chan error, 1)}
	s, ts := connect(t, "agent")
	w.server = s
	in, toServer := io.Pipe()
	fromServer, out := io.Pipe()
	w.in = toServer
	go func() {
		err := ts.Serve(t.Context(), "mcpevents", "1", in, gate{out, w})
		ts.Close()
		w.served <- err
		close(w.served)
		_ = out.Close()
	}()
	go w.read(fromServer)
	t.Cleanup(w.end)
	begun := w.request("initialize", `{"protocolVersion":"2025-11-25","capabilities":{"roots":{}},"clientInfo":{"name":"`+name+`","version":"2.1.80"}}`)
	w.send(`{"jsonrpc":"2.0","method":"notifications/initialized"}`)
	return w, string(begun.Result)
}

// end closes the input of the server and waits until the server has ended.
func (w *wire) end() {
	w.Helper()
	_ = w.in.Close()
	select {
	case err, first := <-w.served:
		if first && err != nil {
			w.Errorf("serve: %v", err)
		}
	case <-time.After(servertest.Patience):
		w.Error("the server is still running after its input was closed")
	}
}

func (w *wire) read(from io.Reader) {
	defer close(w.lines)
	lines := bufio.NewScanner(from)
	lines.Buffer(nil, 8<<20)
	for lines.Scan() {
		l := line{text: lines.Text()}
		if err := json.Unmarshal(lines.Bytes(), &l); err != nil {
			w.Errorf("%q: %v", l.text, err)
		}
		w.lines <- l
	}
}

func (w *wire) send(text string) {
	w.Helper()
	if _, err := io.WriteString(w.in, text+"\n"); err != nil {
		w.Fatal(err)
	}
}

// next returns the next line of the server.
func (w *wire) next() line {
	w.Helper()
	select {
	case l, ok := <-w.lines:
		if !ok {
			w.Fatal("the session has ended")
		}
		return l
	case <-time.After(servertest.Patience):
		w.Fatal("no line arrived")
	}
	return line{}
}

// ask sends a request and does not wait for its answer.
func (w *wire) ask(method, params string) {
	w.Helper()
	w.n++
	w.send(fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":%q,"params":%s}`, w.n, method, params))
}

// request sends a request, which the next line must answer with a result.
func (w *wire) request(method, params string) line {
	w.Helper()
	w.ask(method, params)
	l := w.next()
	if l.ID == nil || *l.ID != w.n || l.Error != nil {
		w.Fatalf("%s: got %s, want the result of request %d", method, l.text, w.n)
	}
	return l
}

func (w *wire) call(name, arguments string) line {
	w.Helper()
	return w.request("tools/call", fmt.Sprintf(`{"name":%q,"arguments":%s}`, name, arguments))
}

// expectSilence fails if another message arrives before the answer to a ping.
func (w *wire) expectSilence() {
	w.Helper()
	w.request("ping", `{}`)
}

func TestInvalidLinesDoNotEndTheSession(t *testing.T) {
	t.Parallel()
	w, _ := newWire(t, "another")
	for _, c := range []struct {
		name, line string
		code       int
	}{
		{"malformed JSON", `{"jsonrpc":"2.0","id":1,"method":`, -32700},
		{"two values", `{} {}`, -32700},
		{"invalid UTF-8", "\"\xff\"", -32700},
		{"a number", `42`, -32600},
		{"an object that is not a message", `{"hello":"world"}`, -32600},
		{"another version of JSON-RPC", `{"jsonrpc":"1.0","id":1,"method":"ping"}`, -32600},
		{"a batch", `[{"jsonrpc":"2.0","id":1,"method":"ping"}]`, -32600},
		{"a line that is too long", `"` + strings.Repeat("x", 5<<20) + `"`, -32600},
	} {
		t.Run("RCH-04 "+c.name, func(t *testing.T) {
			w.send(c.line)
			l := w.next()
			if l.ID != nil || l.Error == nil || l.Error.Code != c.code {
				t.Fatalf("got %s, want error %d without an id", l.text, c.code)
			}
			w.send("")
			w.expectSilence()
		})
	}
}

func TestClientStopsReading(t *testing.T) {
	t.Parallel()
	w, _ := newWire(t, "claude-code")
	w.call("subscribe", `{"name":"incident.created"}`)
	t.Run("RCH-04 it gets the rest when it continues", func(t *testing.T) {
		w.unread.Lock()
		w.publish("api", "first")
		w.publish("api", "second")
		w.ask("tools/call", `{"name":"unsubscribe","arguments":{"subscription":"s9"}}`)
		w.unread.Unlock()
		var all string
		for range 3 {
			all += w.next().text
		}
		for _, want := range []string{"first", "second", `{"ended":false}`} {
			if !strings.Contains(all, want) {
				t.Errorf("got %s, want %s in it", all, want)
			}
		}
	})
	t.Run("RCH-04 the server ends anyway", func(t *testing.T) {
		w.unread.Lock()
		defer w.unread.Unlock()
		begun := w.writes.Load()
		w.publish("api", "third")
		for end := time.Now().Add(servertest.Patience); w.writes.Load() == begun && time.Now().Before(end); { // until the event is pushed
			runtime.Gosched()
		}
		w.send(`{"jsonrpc":"2.0","id":99,"method":"tools/call","params":{"name":"wait_for_event"}}`)
		w.end()
	})
}

func TestFloodOfRequests(t *testing.T) {
	t.Parallel()
	w, _ := newWire(t, "another")
	w.call("subscribe", `{"name":"incident.created"}`)
	const most = 64
	first := w.n + 1
	for range most {
		w.ask("tools/call", `{"name":"wait_for_event","arguments":{"seconds":600}}`)
	}
	t.Run("RCH-04 requests beyond the limit are refused immediately", func(t *testing.T) {
		for range 1000 {
			w.ask("tools/call", `{"name":"recent_events"}`)
			if l := w.next(); l.ID == nil || *l.ID != w.n || l.Error == nil || l.Error.Code != 429 || !strings.Contains(l.Error.Message, "64 requests are in flight") {
				t.Fatalf("request %d: got %s, want error 429", w.n, l.text)
			}
		}
	})
	t.Run("RCH-04 a cancellation is still read", func(t *testing.T) {
		w.send(fmt.Sprintf(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":%d}}`, first))
		if l := w.next(); l.ID == nil || *l.ID != first {
			t.Fatalf("got %s, want the answer to request %d", l.text, first)
		}
		w.call("recent_events", `{}`)
	})
	t.Run("RCH-04 requests in flight are still served", func(t *testing.T) {
		w.publish("api", "down")
		if l := w.next(); l.Error != nil || !strings.Contains(l.text, `"structuredContent":{"events":[{`) {
			t.Errorf("got %s, want the event as the result of one waiting call", l.text)
		}
		w.expectSilence()
	})
}
