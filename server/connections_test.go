package server

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"testing"
	"time"
)

// serveAtMost serves a handler with at most so many connections.
func serveAtMost(t *testing.T, most int, h http.HandlerFunc) (addr string, l *connections) {
	t.Helper()
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l = limitConnections(inner, most)
	s := &http.Server{Handler: boundBodies(h, time.Minute)}
	l.serveBy(s)
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(l) }()
	t.Cleanup(func() {
		_ = s.Close()
		<-ended
	})
	return inner.Addr().String(), l
}

// connect opens a connection and sends a text.
func connect(t *testing.T, addr, text string) net.Conn {
	t.Helper()
	c, err := net.DialTimeout("tcp", addr, 10*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	_ = c.SetDeadline(time.Now().Add(20 * time.Second))
	if _, err := io.WriteString(c, text); err != nil {
		t.Fatal(err)
	}
	return c
}

// answered returns the status of the answer, or 0 if the connection is closed.
func answered(t *testing.T, c net.Conn) int {
	t.Helper()
	answer, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		return 0
	}
	return answer.StatusCode
}

const get = "GET /mcp HTTP/1.1\r\nHost: x\r\n\r\n"

func TestAFullServerMakesRoom(t *testing.T) {
	answer := func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		_, _ = io.WriteString(w, "ok")
	}
	for name, open := range map[string]func(t *testing.T, addr string, l *connections){
		"of clients that send nothing": func(t *testing.T, addr string, _ *connections) { connect(t, addr, "") },
		"of clients that send half a header": func(t *testing.T, addr string, _ *connections) {
			connect(t, addr, "GET /mcp HTTP/1.1\r\nHost:")
		},
		"of idle clients": func(t *testing.T, addr string, _ *connections) {
			if got := answered(t, connect(t, addr, get)); got != http.StatusOK {
				t.Errorf("status %d, want 200", got)
			}
		},
	} {
		t.Run("OPS-16 "+name, func(t *testing.T) {
			addr, l := serveAtMost(t, 20, answer)
			for range 60 {
				open(t, addr, l)
			}
			if got := answered(t, connect(t, addr, get)); got != http.StatusOK {
				t.Errorf("a new client gets the status %d, want 200", got)
			}
		})
	}
	t.Run("OPS-16 of clients that send a body slowly", func(t *testing.T) {
		addr, l := serveAtMost(t, 20, answer)
		for range 18 {
			connect(t, addr, "POST /mcp HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nx")
		}
		eventually(t, func() bool { // all are known to send a body
			n := 0
			l.mu.Lock()
			defer l.mu.Unlock()
			for k := range l.open {
				if k.body {
					k.since = k.since.Add(-2 * slowBody)
					n++
				}
			}
			return n == 18
		})
		if got := answered(t, connect(t, addr, get)); got != http.StatusOK {
			t.Errorf("a new client gets the status %d, want 200", got)
		}
	})
}

// eventually polls a condition of a server that runs in real time.
func eventually(t *testing.T, done func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !done(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("it did not happen")
		}
	}
}

func TestAServerFullOfStreamsServesOperators(t *testing.T) {
	started, end := make(chan bool), make(chan struct{})
	addr, _ := serveAtMost(t, 20, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/mcp" {
			started <- true
			<-end
		}
		_, _ = io.WriteString(w, "ok")
	})
	var streams []net.Conn
	for range 18 {
		streams = append(streams, connect(t, addr, get))
		<-started
	}
	if got := answered(t, connect(t, addr, get)); got != http.StatusServiceUnavailable {
		t.Errorf("OPS-16 one stream too many gets the status %d, want 503", got)
	}
	for _, path := range []string{"/healthz", "/admin/subscriptions"} {
		if got := answered(t, connect(t, addr, "GET "+path+" HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")); got != http.StatusOK {
			t.Errorf("OPS-16 %s gets the status %d, want 200", path, got)
		}
	}
	close(end)
	for i, c := range streams {
		if got := answered(t, c); got != http.StatusOK {
			t.Errorf("OPS-16 stream %d was cut off: status %d, want 200", i, got)
		}
	}
}

func TestRoomIsMadeByTheClientWithTheMostConnections(t *testing.T) {
	l := limitConnections(nil, 20)
	from := func(ip string) *connection {
		client, server := net.Pipe()
		t.Cleanup(func() { _ = client.Close() })
		return l.admit(addressed{server, &net.TCPAddr{IP: net.ParseIP(ip), Port: 1}})
	}
	quiet := []*connection{from("192.0.2.1"), from("2001:db8::1")}
	for range 100 {
		if from("192.0.2.2") == nil || from("2001:db8:1::1") == nil || from("2001:db8:1::2") == nil {
			t.Fatal("a client was refused")
		}
	}
	for _, k := range quiet {
		if _, open := l.open[k]; !open {
			t.Errorf("the only connection of %s was closed", k.client)
		}
	}
}

// addressed is a connection from an address.
type addressed struct {
	net.Conn
	remote net.Addr
}

func (a addressed) RemoteAddr() net.Addr { return a.remote }
