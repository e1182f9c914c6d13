//go:build unix

package chaos

import (
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/test/expect"
)

// ways is how an endpoint answers while it is broken, by its name.
var ways = map[string]http.HandlerFunc{
	"hangs":     hang,
	"drips":     drip,
	"fails":     func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusInternalServerError) },
	"throttles": throttle,
	"closes":    func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
}

func hang(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }

// drip answers a byte at a time, without end.
func drip(w http.ResponseWriter, r *http.Request) {
	conn, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		panic(err)
	}
	defer conn.Close()
	for _, b := range []byte("HTTP/1.1 200 OK\r\nX-Drip: " + strings.Repeat("x", 1000)) {
		if _, err := conn.Write([]byte{b}); err != nil {
			return
		}
		select {
		case <-time.After(100 * time.Millisecond):
		case <-r.Context().Done():
			return
		}
	}
}

func throttle(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Retry-After", "2")
	w.WriteHeader(http.StatusTooManyRequests)
}

// serve runs an HTTP server on 127.0.0.1 that ends with the test.
func serve(t *testing.T, h http.Handler) net.Addr {
	t.Helper()
	l := expect.Value(net.Listen("tcp", "127.0.0.1:0"))(t)
	s := &http.Server{Handler: h, ReadHeaderTimeout: 30 * time.Second}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = s.Serve(l)
	}()
	t.Cleanup(func() {
		_ = s.Close()
		<-ended
	})
	return l.Addr()
}
