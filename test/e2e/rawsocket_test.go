//go:build unix

package e2e

import (
	"bufio"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/test/expect"
	"github.com/mcp-events/mcpevents/test/harness"
)

// TestRawSockets sends the server what no client should send. AUT-06: it responds or closes the connection, continues
// to run, serves other clients, and its memory is limited.
func TestRawSockets(t *testing.T) {
	t.Parallel()
	s := harness.StartServer(t, harness.ServerOptions{Fast: true})
	alice := s.Stateless("alice")
	bystander := alice.Listen(t, 1, object{"resourceSubscriptions": []string{"event://ci/build-finished"}}, nil)
	before := s.PeakRSS()
	addr := strings.TrimPrefix(s.Base(), "http://")
	auth := "Authorization: Bearer " + s.Keys["alice"] + "\r\n"
	post := "POST /mcp HTTP/1.1\r\nHost: " + addr + "\r\n" + auth + "Content-Type: application/json\r\nAccept: application/json, text/event-stream\r\n"
	body := `{"jsonrpc":"2.0","id":1,"method":"ping"}`

	t.Run("AUT-06 malformed HTTP is refused or cut off", func(t *testing.T) {
		for name, text := range map[string]string{
			"noise":                           "\x00\x01\x02\xff\xfe\r\n\r\n",
			"no host":                         "GET /mcp HTTP/1.1\r\n\r\n",
			"a NUL in a header":               post + "X: a\x00b\r\nContent-Length: 0\r\n\r\n",
			"two lengths":                     post + "Content-Length: 3\r\nContent-Length: 5\r\n\r\n" + body,
			"a chunk size beyond any number":  post + "Transfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\n" + body,
			"a path that leaves":              "GET /../../etc/passwd HTTP/1.1\r\nHost: " + addr + "\r\n" + auth + "\r\n",
			"TLS":                             "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
			"a body shorter than it was said": post + "Content-Length: 4000\r\n\r\n" + body,
		} {
			t.Run(name, func(t *testing.T) {
				status := converse(t, addr, text)
				if status != 0 && (status < 400 || status >= 500) && status != 501 && status != 505 && status != 307 {
					t.Errorf("status %d", status)
				}
			})
		}
	})
	t.Run("AUT-06 oversized headers and bodies are refused before they are read", func(t *testing.T) {
		endless := func(unit string) string { return strings.Repeat(unit, 64<<20/len(unit)) }
		for name, c := range map[string]struct {
			text string
			want int
		}{
			"a header of 64 MiB":     {post + "X: " + endless("y"), 431},
			"a length of a terabyte": {post + "Content-Length: 1099511627776\r\n\r\n" + endless("x"), 413},
			"chunks without end":     {post + "Transfer-Encoding: chunked\r\n\r\n" + endless("400\r\n"+strings.Repeat("[", 1024)+"\r\n"), 413},
		} {
			t.Run(name, func(t *testing.T) {
				// A client that continues to send may be cut off before it reads the response.
				if status := converse(t, addr, c.text); status != 0 && status != c.want {
					t.Errorf("status %d, want %d", status, c.want)
				}
			})
		}
	})

	// Finally, the server still works.
	s.Publish(t, build("after-all", 1))
	if got := idsOf(bystander.Wait(t, 1)); len(got) != 1 || got[0] != "after-all" {
		t.Errorf("the bystander got %v", got)
	}
	if grown := s.PeakRSS() - before; grown > 150<<20 {
		t.Errorf("the server's memory grew by %d MiB", grown>>20)
	} else {
		t.Logf("the server's memory grew by %d MiB", grown>>20)
	}
}

// converse sends bytes as fast as the server accepts them, and returns the status of the response, or 0 if the server
// closed the connection without one.
func converse(t *testing.T, addr, text string) (status int) {
	t.Helper()
	conn := expect.Value(net.Dial("tcp", addr))(t)
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(harness.Patience))
	go func() {
		_, _ = io.WriteString(conn, text)
		_ = conn.(*net.TCPConn).CloseWrite()
	}()
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	switch {
	case err == nil:
		_ = resp.Body.Close()
		return resp.StatusCode
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
		return 0
	}
	t.Errorf("got %v, want a response or the end of the connection", err)
	return 0
}
