package webhook

import (
	"bufio"
	"crypto/tls"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
)

// switching responds to the first request with 101 and keeps the connection open until the sender closes it.
var switching = answering(func(c net.Conn, r *bufio.Reader) {
	_, _ = io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\nmore")
	_, _ = io.Copy(io.Discard, r)
})

// TestSend_SwitchingProtocols checks that an endpoint cannot keep a connection by responding with 101. The body of
// that response is the bare connection, which is not closed when the context ends.
func TestSend_SwitchingProtocols(t *testing.T) {
	check := baseline(t)
	t.Cleanup(check) // after the cleanups of senders and servers

	direct := func(t *testing.T) (*Sender, string) {
		return open(t, Options{}), "http://" + startTCP(t, switching)
	}
	encrypted := func(t *testing.T) (*Sender, string) {
		cert, trust := certificate(t, "hooks.example.com", time.Now().Add(time.Hour))
		_, port, _ := net.SplitHostPort(startTCP(t, func(c net.Conn, done <-chan struct{}) {
			switching(tls.Server(c, &tls.Config{Certificates: []tls.Certificate{cert}}), done)
		}))
		guard := here(t)
		return open(t, Options{RootCAs: trust, Guard: guard}), "https://hooks.example.com:" + port
	}
	for name, start := range map[string]func(*testing.T) (*Sender, string){
		"directly": direct, "with TLS": encrypted,
	} {
		t.Run("WHK-17 "+name, func(t *testing.T) {
			s, target := start(t)
			check := baseline(t)
			count := 100
			if strings.HasPrefix(target, "https:") {
				count = 20 // handshakes are slow with the race detector
			}
			var wg sync.WaitGroup
			for range count {
				wg.Go(func() {
					switch o := sendWithin(t, s, request(target+"/hook")); {
					case o.Status != 101 || o.Category != HTTP4xx || o.RetryAfter != 0:
						t.Errorf("got %+v", o)
					case o.Took > 8*time.Second:
						t.Errorf("WHK-11 held for %s", o.Took)
					}
				})
			}
			wg.Wait()
			for range 10 {
				err := s.Verify(t.Context(), target+"/hook", "sub_1", request("").Keys)
				if !fault.Is(err, fault.Unavailable) || !strings.Contains(err.Error(), string(HTTP4xx)) {
					t.Errorf("the challenge: got %v", err)
				}
			}
			check() // while the sender and the server are still open
		})
	}
}

// sendWithin fails the test if Send does not return.
func sendWithin(t *testing.T, s *Sender, r Request) Outcome {
	t.Helper()
	done := make(chan Outcome, 1)
	go func() { done <- s.Send(t.Context(), r) }()
	select {
	case o := <-done:
		return o
	case <-time.After(r.Timeout + 20*time.Second):
		t.Error("WHK-11 Send does not return")
		return Outcome{}
	}
}
