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

// wire is a client that writes and reads lines. While unread is locked, it reads nothing.
type wire struct {
	agent
	in     io.WriteCloser
	lines  chan line
	served chan error
	unread sync.Mutex
	begun  atomic.Int64 // writes of the server
	n      int
}

// gate is where the server writes.
type gate struct {
	io.Writer
	w *wire
}

func (g gate) Write(p []byte) (int, error) {
	g.w.begun.Add(1)
	g.w.unread.Lock()
	defer g.w.unread.Unlock()
	return g.Writer.Write(p)
}

// line is what came, and its text.
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

// newWire begins a session as the client of that name does, and returns the answer to initialize.
func newWire(t *testing.T, name string) (*wire, string) {
	t.Helper()
	w := &wire{agent: agent{T: t}, lines: make(chan line, 1000), served: make(chan error, 1)}
	s, ts := connected(t, "agent")
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

// end closes the input of the server, and waits until that has ended.
func (w *wire) end() {
	w.Helper()
	_ = w.in.Close()
	select {
	case err, first := <-w.served:
		if first && err != nil {
			w.Errorf("serve: %v", err)
		}
	case <-time.After(servertest.Patience):
		w.Error("it runs on")
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

// next is the next line that came.
func (w *wire) next() line {
	w.Helper()
	select {
	case l, ok := <-w.lines:
		if !ok {
			w.Fatal("the session has ended")
		}
		return l
	case <-time.After(servertest.Patience):
		w.Fatal("nothing comes")
	}
	return line{}
}

// request is answered by the next line.
func (w *wire) request(method, params string) line {
	w.Helper()
	w.n++
	w.send(fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":%q,"params":%s}`, w.n, method, params))
	l := w.next()
	if l.ID == nil || *l.ID != w.n || l.Error != nil {
		w.Fatalf("%s is answered with %s", method, l.text)
	}
	return l
}

func (w *wire) call(name, arguments string) line {
	w.Helper()
	return w.request("tools/call", fmt.Sprintf(`{"name":%q,"arguments":%s}`, name, arguments))
}

// silent fails if something comes, other than the answer to a ping.
func (w *wire) silent() {
	w.Helper()
	w.request("ping", `{}`)
}

func TestALineThatIsNoMessageDoesNotEndTheSession(t *testing.T) {
	t.Parallel()
	w, _ := newWire(t, "another")
	for _, c := range []struct {
		name, line string
		code       int
	}{
		{"no JSON", `{"jsonrpc":"2.0","id":1,"method":`, -32700},
		{"two values", `{} {}`, -32700},
		{"no UTF-8", "\"\xff\"", -32700},
		{"no object", `42`, -32600},
		{"no message", `{"hello":"world"}`, -32600},
		{"another version", `{"jsonrpc":"1.0","id":1,"method":"ping"}`, -32600},
		{"a batch", `[{"jsonrpc":"2.0","id":1,"method":"ping"}]`, -32600},
		{"a line that is too long", `"` + strings.Repeat("x", 5<<20) + `"`, -32600},
	} {
		t.Run("RCH-04 "+c.name, func(t *testing.T) {
			w.send(c.line)
			l := w.next()
			if l.ID != nil || l.Error == nil || l.Error.Code != c.code {
				t.Fatalf("answered with %s, want %d", l.text, c.code)
			}
			w.send("")
			w.silent()
		})
	}
}

func TestAClientThatStopsReading(t *testing.T) {
	t.Parallel()
	w, _ := newWire(t, "claude-code")
	w.call("subscribe", `{"name":"incident.created"}`)
	t.Run("RCH-04 gets the rest when it reads on", func(t *testing.T) {
		w.unread.Lock()
		w.publish("api", "first")
		w.publish("api", "second")
		w.n++
		w.send(fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"unsubscribe","arguments":{"subscription":"s9"}}}`, w.n))
		w.unread.Unlock()
		var all string
		for range 3 {
			all += w.next().text
		}
		for _, want := range []string{"first", "second", `{"ended":false}`} {
			if !strings.Contains(all, want) {
				t.Errorf("no %s in %s", want, all)
			}
		}
	})
	t.Run("RCH-04 does not keep it from ending", func(t *testing.T) {
		w.unread.Lock()
		defer w.unread.Unlock()
		begun := w.begun.Load()
		w.publish("api", "third")
		for end := time.Now().Add(servertest.Patience); w.begun.Load() == begun && time.Now().Before(end); { // until it is pushed
			runtime.Gosched()
		}
		w.send(`{"jsonrpc":"2.0","id":99,"method":"tools/call","params":{"name":"wait_for_event"}}`)
		w.end()
	})
}

func TestAFloodOfRequests(t *testing.T) {
	t.Parallel()
	w, _ := newWire(t, "another")
	w.call("subscribe", `{"name":"incident.created"}`)
	const most, first = 64, 1000
	for i := range most {
		w.send(fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"wait_for_event","arguments":{"seconds":600}}}`, first+i))
	}
	t.Run("RCH-04 is refused beyond the bound, at once", func(t *testing.T) {
		for i := range 1000 {
			w.send(fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"recent_events"}}`, first+most+i))
			l := w.next()
			if l.ID == nil || *l.ID != first+most+i || l.Error == nil || l.Error.Code != 429 || !strings.Contains(l.Error.Message, "64 requests are under way") {
				t.Fatalf("request %d is answered with %s", most+i, l.text)
			}
		}
	})
	t.Run("RCH-04 does not keep a cancellation from being read", func(t *testing.T) {
		w.send(fmt.Sprintf(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":%d}}`, first))
		if l := w.next(); l.ID == nil || *l.ID != first {
			t.Fatalf("got %s", l.text)
		}
		w.call("recent_events", `{}`)
	})
	t.Run("RCH-04 leaves those under way as they are", func(t *testing.T) {
		w.publish("api", "down")
		events := 0
		for range most - 1 {
			l := w.next()
			if l.Error != nil {
				t.Fatal(l.text)
			}
			events += strings.Count(l.text, `"structuredContent":{"events":[{`)
			if events == 1 {
				break
			}
		}
		if events != 1 {
			t.Error("none of them has got the event")
		}
		w.silent()
	})
}
