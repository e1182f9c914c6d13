package graceful

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/test/expect"
)

func TestShutdownDoesNotWaitForUnusedConnections(t *testing.T) {
	t.Parallel()
	l := expect.Value(net.Listen("tcp", "127.0.0.1:0"))(t)
	accepted, arrived, release := make(chan struct{}, 2), make(chan struct{}), make(chan struct{})
	s := &http.Server{
		Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			close(arrived)
			<-release
			_, _ = io.WriteString(w, "answer")
		}),
		ConnState: func(_ net.Conn, state http.ConnState) {
			if state == http.StateNew {
				accepted <- struct{}{}
			}
		},
	}
	CloseUnused(s)
	go func() { _ = s.Serve(l) }()
	connect := func() net.Conn {
		c := expect.Value(net.Dial("tcp", l.Addr().String()))(t)
		t.Cleanup(func() { _ = c.Close() })
		expect.Receive(t, "the call of the server's own hook", accepted)
		return c
	}
	unused, used := connect(), connect()
	expect.OK(t, expect.ErrOf(io.WriteString(used, "GET / HTTP/1.1\r\nHost: a\r\n\r\n")))
	expect.Receive(t, "the request", arrived)
	ended, start := make(chan error, 1), time.Now()
	go func() { ended <- s.Shutdown(t.Context()) }()
	expect.Is(t, "a read of the unused connection", expect.ErrOf(unused.Read(make([]byte, 1))), io.EOF)
	close(release)
	answer := expect.Value(http.ReadResponse(bufio.NewReader(used), nil))(t)
	expect.Equal(t, "the answer to the running request", string(expect.Value(io.ReadAll(answer.Body))(t)), "answer")
	expect.OK(t, expect.Receive(t, "the end of Shutdown", ended))
	expect.AtMost(t, "the time that Shutdown took", time.Since(start), 4*time.Second)
}
