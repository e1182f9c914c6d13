package bench

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/mcp-events/mcpevents/test/expect"
)

func TestMessagesOfHTTPAreRead(t *testing.T) {
	const next = "POST /endpoint/1 HTTP/1.1\r\nContent-Length: 0\r\n\r\n"
	for _, tc := range []struct{ name, text, start, id, body string }{
		{"a request", "POST /endpoint/7 HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nWEBHOOK-ID: a-1\r\n\r\nabc", "POST /endpoint/7 HTTP/1.1", "a-1", "abc"},
		{"no body", "POST / HTTP/1.1\r\nwebhook-id:  a \r\n\r\n", "POST / HTTP/1.1", "a", ""},
		{"chunks", "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n", "POST / HTTP/1.1", "", "abcde"},
		{"chunks with a trailer", "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\nX: y\r\n\r\n", "POST / HTTP/1.1", "", "a"},
		{"bare line feeds", "POST / HTTP/1.1\nContent-Length: 1\n\nz", "POST / HTTP/1.1", "", "z"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := bufio.NewReader(strings.NewReader(tc.text + next))
			var m message
			expect.OK(t, m.read(r))
			if string(m.start()) != tc.start || string(m.header("webhook-id")) != tc.id || string(m.body) != tc.body {
				t.Errorf("got %q, id %q, body %q", m.start(), m.header("webhook-id"), m.body)
			}
			if err := m.read(r); err != nil || string(m.start())+"\r\nContent-Length: 0\r\n\r\n" != next || len(m.body) != 0 {
				t.Errorf("the next message is %q, %v", m.start(), err)
			}
		})
	}
	for _, text := range []string{
		"", "POST / HTTP/1.1\r\n", "POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n", "POST / HTTP/1.1\r\nContent-Length: 5000000\r\n\r\n",
		"POST / HTTP/1.1\r\nContent-Length: 4\r\n\r\nabc", "\r\n",
	} {
		var m message
		if err := m.read(bufio.NewReader(strings.NewReader(text))); err == nil {
			t.Errorf("%q is read as a message", text)
		}
	}
}

func TestCallerTalksToNetHTTP(t *testing.T) {
	var conns atomic.Int32
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		switch r.URL.Path {
		case "/close":
			w.Header().Set("Connection", "close")
		case "/chunks":
			_, _ = io.WriteString(w, "chunk ")
			w.(http.Flusher).Flush()
		case "/bad":
			w.WriteHeader(http.StatusTeapot)
		}
		_, _ = io.WriteString(w, r.Header.Get("X-A")+string(b))
	}))
	s.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			conns.Add(1)
		}
	}
	s.Start()
	defer s.Close()
	c := &caller{}
	defer c.close()
	for _, step := range []struct {
		path, want string
		conns      int
	}{{"/", "1body", 1}, {"/chunks", "chunk 1body", 1}, {"/close", "1body", 1}, {"/", "1body", 2}} {
		u, _ := url.Parse(s.URL + step.path)
		got, err := c.post(u, []byte("X-A: 1\r\n"), []byte("body"))
		if err != nil || string(got) != step.want || int(conns.Load()) != step.conns {
			t.Errorf("%s: got %q, %v, %d connections", step.path, got, err, conns.Load())
		}
	}
	// When the server closes a connection that rests, the caller opens another.
	s.CloseClientConnections()
	u, _ := url.Parse(s.URL)
	if _, err := c.post(u, nil, nil); err != nil {
		t.Error(err)
	}
	u.Path = "/bad"
	if _, err := c.post(u, nil, []byte("why")); err == nil || !strings.Contains(err.Error(), "418") || !strings.Contains(err.Error(), "why") {
		t.Errorf("got %v", err)
	}
}
