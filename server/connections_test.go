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
					k.since = k.since.Add(-2 * slowClient)
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

// Given a request that goes on without its client, when the client leaves, then its connection takes no place any more.
func TestOPS_16_AClientThatLeavesGivesItsPlaceBack(t *testing.T) {
	begun, end := make(chan struct{}), make(chan struct{})
	addr, l := serveAtMost(t, 20, func(http.ResponseWriter, *http.Request) {
		close(begun)
		<-end
	})
	defer close(end)
	c := connect(t, addr, get)
	<-begun
	_ = c.Close()
	eventually(t, func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		return len(l.open) == 0
	})
}

// TestAFloodOfSlowClients fills a server with requests that are too young to be slow.
func TestAFloodOfSlowClients(t *testing.T) {
	large := make([]byte, 32<<20) // more than the buffers of a connection hold
	for name, c := range map[string]struct {
		request string
		waits   func(k *connection) bool
	}{
		"that send a body": {
			"POST /mcp HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nx",
			func(k *connection) bool { return k.body },
		},
		"that do not read the response": {
			"GET /large HTTP/1.1\r\nHost: x\r\n\r\n",
			func(k *connection) bool { return k.writing.Load() != 0 },
		},
	} {
		t.Run("OPS-16 "+name, func(t *testing.T) {
			addr, l := serveAtMost(t, 20, func(w http.ResponseWriter, r *http.Request) {
				_, _ = io.Copy(io.Discard, r.Body)
				if r.URL.Path == "/large" {
					_, _ = w.Write(large)
				}
			})
			for range 20 {
				connect(t, addr, c.request)
			}
			eventually(t, func() bool {
				l.mu.Lock()
				defer l.mu.Unlock()
				n := 0
				for k := range l.open {
					if c.waits(k) && k.waits(time.Now()) > floodClient {
						n++
					}
				}
				return n >= l.most-l.reserved
			})
			if got := answered(t, connect(t, addr, get)); got != http.StatusOK {
				t.Errorf("a new client gets the status %d, want 200", got)
			}
		})
	}
}

func TestAResponseThatIsNotRead(t *testing.T) {
	deadline := make(chan time.Time, 1)
	k := limitConnections(nil, 20).admit(noting{nil, deadline})
	if _, err := k.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	if left := time.Until(<-deadline); left <= 0 || left > readTime {
		t.Errorf("OPS-16 the write may take %s, want at most %s", left, readTime)
	}
	want := time.Now().Add(time.Hour)
	if err := k.SetWriteDeadline(want); err != nil || !(<-deadline).Equal(want) {
		t.Errorf("the handler's deadline is not set: %v", err)
	}
	if _, err := k.Write([]byte("x")); err != nil || len(deadline) > 0 {
		t.Errorf("the handler's deadline was changed: %v", err)
	}
}

// noting is a connection that notes the deadlines of its writes.
type noting struct {
	net.Conn
	deadlines chan time.Time
}

func (n noting) RemoteAddr() net.Addr               { return &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1)} }
func (n noting) Write(p []byte) (int, error)        { return len(p), nil }
func (n noting) SetWriteDeadline(t time.Time) error { n.deadlines <- t; return nil }

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
	addr, l := serveAtMost(t, 20, func(w http.ResponseWriter, r *http.Request) {
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
	for range 2 { // which take the last places until they are closed
		c := connect(t, addr, "POST /mcp HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nx")
		if got := answered(t, c); got != http.StatusServiceUnavailable {
			t.Errorf("OPS-16 a request without the rest of its body gets the status %d, want 503", got)
		}
	}
	eventually(t, func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		return len(l.open) == 18
	})
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
