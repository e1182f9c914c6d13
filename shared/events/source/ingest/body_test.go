package ingest

import (
	"net/http"
	"net/http/httptest"
	"runtime"
	"sync"
	"testing"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
)

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
	for range unpacking {
		unpack("192.0.2.1:1")
	}
	for waiting() < unpacking {
		runtime.Gosched()
	}
	err := m.unpack(from("192.0.2.1:2"), nil, func([]byte) { t.Error("SRC-05 it was unpacked") })
	if fault.LimitOf(err) != "unpacking" || !fault.Is(err, fault.Exhausted) {
		t.Errorf("SRC-05 given %d waiting requests of a client, the next one got %v, want the limit unpacking", unpacking, err)
	}
	unpack("192.0.2.2:1") // another client may still wait
	for waiting() < unpacking+1 {
		runtime.Gosched()
	}
	m.turn.Unlock()
	running.Wait()
	if n := len(m.waiting); n != 0 {
		t.Errorf("%d clients are still counted after all requests have ended", n)
	}
}
