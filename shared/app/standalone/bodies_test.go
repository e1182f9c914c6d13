package standalone

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mcp-events/mcpevents/test/pipes"
)

// TestBodiesComeInTime (AUT-06) checks that the time limit for a body applies before the body is parsed.
func TestBodiesComeInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const limit = 10 * time.Second
		server := pipes.Serve(t, boundBodies(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			switch r.URL.Path {
			case "/refused":
				w.WriteHeader(http.StatusUnauthorized)
				return
			case "/exact": // a handler that knows the length and does not read to EOF
				if _, err := io.ReadFull(r.Body, make([]byte, r.ContentLength)); err != nil {
					t.Errorf("read a whole body: %v", err)
				}
			default:
				if _, err := io.ReadAll(r.Body); err != nil {
					w.WriteHeader(http.StatusBadRequest)
					return
				}
			}
			select { // a stream
			case <-r.Context().Done():
				t.Errorf("%s: the request ended with its deadline", r.URL.Path)
			case <-time.After(4 * limit):
			}
		}), limit))

		send := func(path string, length int, body string) (status string, err error) {
			c, err := pipes.Dial(t.Context(), server.Listener.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			_, _ = fmt.Fprintf(c, "POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", path, length, body)
			_ = c.SetDeadline(time.Now().Add(time.Hour))
			answer, err := io.ReadAll(c)
			if len(answer) < 12 {
				return "", err
			}
			return string(answer[9:12]), err
		}
		for path, want := range map[string]string{"/slow": "400", "/refused": "401"} {
			began := time.Now()
			if status, err := send(path, 1000, "{"); err != nil || status != want {
				t.Errorf("AUT-06: a body that stops at %s: status %q, %v; want %s and the end of the connection", path, status, err, want)
			}
			if took := time.Since(began); path == "/refused" && took > 2*refusedBodyTime {
				t.Errorf("AUT-06: a request that was refused before its body arrived was answered after %v, want at most %v", took, 2*refusedBodyTime)
			}
		}
		for _, path := range []string{"/whole", "/exact"} {
			// The connection stays open for another request.
			if status, err := send(path, 2, "{}"); !errors.Is(err, os.ErrDeadlineExceeded) || status != "200" {
				t.Errorf("a whole body at %s: status %q, %v", path, status, err)
			}
		}
	})
}
