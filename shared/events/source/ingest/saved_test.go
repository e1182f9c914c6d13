package ingest

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"sync"
	"testing"

	"github.com/mcp-events/mcpevents/shared/events/source"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/test/expect"
)

// TestSavedIsLive sends a request and also reads it from a file: mappings must see the same document. The two could
// differ because net/http's server removes Host and Transfer-Encoding from the headers.
func TestSavedIsLive(t *testing.T) {
	documents := make(chan any, 1)
	documentOf := func(r *http.Request, body []byte) any {
		doc, err := source.ReadRequest(r, body, nil)
		if err != nil {
			return err
		}
		return doc
	}
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		documents <- documentOf(r, body)
	}))
	defer server.Close()
	for name, raw := range map[string]string{
		"with a length": "POST /sources/x?a=1 HTTP/1.1\r\nHost: Events.example\r\nX-A: b\r\nContent-Length: 2\r\n\r\n{}",
		"in chunks":     "POST /sources/x?a=1 HTTP/1.1\r\nHost: Events.example\r\nX-A: b\r\nTrailer: X-T\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
		"of a proxy":    "POST http://Events.example/sources/x?a=1 HTTP/1.1\r\nHost: other.example\r\nX-A: b\r\nContent-Length: 2\r\n\r\n{}",
	} {
		t.Run("SRC-03 SRC-06 "+name, func(t *testing.T) {
			conn := expect.Value(net.Dial("tcp", server.Listener.Addr().String()))(t)
			defer conn.Close()
			expect.OK(t, expect.ErrOf(io.WriteString(conn, raw)))
			if _, err := bufio.NewReader(conn).ReadByte(); err != nil { // the response has begun
				t.Fatal(err)
			}
			live := <-documents
			want := map[string]any{
				"headers": map[string]any{"host": "Events.example", "x-a": "b"}, "query": map[string]any{"a": "1"}, "body": map[string]any{},
			}
			expect.Deep[any](t, "the live document", live, want)
			r, _, err := parseSavedRequest([]byte(raw))
			expect.OK(t, err)
			expect.Deep[any](t, "the saved document", documentOf(r, []byte("{}")), want)
		})
	}
}

// FuzzSavedRequest reads arbitrary files.
func FuzzSavedRequest(f *testing.F) {
	for _, text := range []string{
		"POST /sources/github HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}\r\n", "A: b\n\n{}", "\n{}", " HTTP/1.1\n\n", "GET HTTP/1.1\nA: b\n\n",
		"A: b\nA: c\n d\nContent-Length: -1\n\n{}", "POST http://[::1/x HTTP/1.1\n\n", "",
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		r, body, err := parseSavedRequest(raw)
		if err != nil {
			if !fault.Is(err, fault.Invalid) && !fault.Is(err, fault.TooLarge) {
				t.Fatal(err)
			}
			return
		}
		if r.URL == nil || r.Header == nil || len(body) > len(raw) {
			t.Fatalf("got %+v with %d bytes of %d", r, len(body), len(raw))
		}
	})
}

func TestBodiesAreUnpackedOneAtATime(t *testing.T) {
	var m bodySlots
	from := func(addr string) *http.Request {
		r := httptest.NewRequest("POST", "/sources/github", nil)
		r.RemoteAddr = addr
		return r
	}
	var running sync.WaitGroup
	unpack := func(addr string) {
		running.Go(func() {
			if err := m.unpack(from(addr), nil, func([]byte) {}); err != nil {
				t.Errorf("%s: %v", addr, err)
			}
		})
	}
	waiting := func() (n int) {
		m.mu.Lock()
		defer m.mu.Unlock()
		for _, of := range m.waiting {
			n += of
		}
		return n
	}

	m.turn.Lock() // as if a body were being unpacked
	for range maxUnpacking {
		unpack("192.0.2.1:1")
	}
	for waiting() < maxUnpacking {
		runtime.Gosched()
	}
	err := m.unpack(from("192.0.2.1:2"), nil, func([]byte) { t.Error("SRC-05 it was unpacked") })
	if fault.LimitOf(err) != "unpacking" || !fault.Is(err, fault.Exhausted) {
		t.Errorf("SRC-05 given %d waiting requests of a client, the next one got %v, want the limit unpacking", maxUnpacking, err)
	}
	unpack("192.0.2.2:1") // another client may still wait
	for waiting() < maxUnpacking+1 {
		runtime.Gosched()
	}
	m.turn.Unlock()
	running.Wait()
	expect.Equal(t, "clients that are still counted after all requests have ended", len(m.waiting), 0)
}
