//go:build unix

package e2e

import (
	"bufio"
	"bytes"
	"fmt"
	"net"
	"net/url"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/test/expect"
	"github.com/mcp-events/mcpevents/test/harness"
)

// TestTenThousandListens opens ten thousand listens at one process, and publishes to all of them. It does not check
// the time (goal 500 ms), which the benchmarks measure, because the clients share the server's cores.
func TestTenThousandListens(t *testing.T) {
	const listens, most = 10_000, 40 << 10
	s := harness.StartServer(t, harness.ServerOptions{Auth: "none", Fast: true, Args: []string{"--streams", "20000", "--log-level", "warn"}}) // the race detector can handle 8,000 goroutines
	u := expect.Value(url.Parse(s.MCP))(t)
	before := s.RSS()
	body := `{"jsonrpc":"2.0","id":1,"method":"subscriptions/listen","params":{"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28",` +
		`"io.modelcontextprotocol/clientInfo":{"name":"x","version":"1"},"io.modelcontextprotocol/clientCapabilities":{}},` +
		`"notifications":{"resourceSubscriptions":["event://ci/build-finished"]}}}`
	request := fmt.Appendf(nil, "POST /mcp HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\nAccept: application/json, text/event-stream\r\n"+
		"MCP-Protocol-Version: 2026-07-28\r\nMcp-Method: subscriptions/listen\r\nContent-Length: %d\r\n\r\n%s", u.Host, len(body), body)
	var acknowledged, events atomic.Int64
	var reading sync.WaitGroup
	dialing := make(chan struct{}, 100)
	for range listens {
		dialing <- struct{}{}
		c := expect.Value(net.Dial("tcp", u.Host))(t)
		t.Cleanup(func() { _ = c.Close() })
		reading.Go(func() {
			if _, err := c.Write(request); err != nil {
				t.Error(err)
			}
			first := true
			lines := bufio.NewReaderSize(c, 2<<10)
			for {
				line, err := lines.ReadSlice('\n')
				if err != nil && err != bufio.ErrBufferFull {
					return
				}
				switch {
				case !bytes.HasPrefix(line, []byte("data: ")):
				case first:
					first = false
					acknowledged.Add(1)
					<-dialing
				default:
					events.Add(1)
				}
			}
		})
	}
	wait := func(what string, n *atomic.Int64) time.Duration {
		began, last, at := time.Now(), int64(0), time.Now()
		for last < listens && time.Since(at) < harness.Patience { // while more of them arrive
			time.Sleep(time.Millisecond)
			if now := n.Load(); now > last {
				last, at = now, time.Now()
			}
		}
		if got := n.Load(); got != listens {
			t.Fatalf("SUB-12 %d of %d %s", got, listens, what)
		}
		return time.Since(began)
	}
	t.Run("SUB-12 ten thousand listens in one process", func(t *testing.T) {
		wait("listens are open", &acknowledged)
		s.Publish(t, harness.Event{URI: "event://ci/build-finished", Data: map[string]any{"build": 1, "status": "passed"}})
		took := wait("got the event", &events)
		each := (s.RSS() - before) / listens
		t.Logf("%d bytes each; the event reached all after %v", each, took)
		if each > most {
			t.Errorf("each uses %d bytes, want at most %d", each, most)
		}
	})
}
