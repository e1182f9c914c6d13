package standalone

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/test/expect"
	"github.com/mcp-events/mcpevents/test/pipes"
)

// serveAtMost serves a handler with a maximum number of connections.
func serveAtMost(t *testing.T, most int, h http.HandlerFunc) (addr string, l *connections) {
	t.Helper()
	inner := expect.Value(net.Listen("tcp", "127.0.0.1:0"))(t)
	l = limitConnections(inner, most).reserveLast()
	s := &http.Server{Handler: boundBodies(h, time.Minute)}
	l.attach(s)
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(l) }()
	t.Cleanup(func() {
		_ = s.Close()
		<-ended
	})
	return inner.Addr().String(), l
}

// connect opens a connection and sends a text over it.
func connect(t *testing.T, addr, text string) net.Conn {
	t.Helper()
	c := expect.Value(net.DialTimeout("tcp", addr, 10*time.Second))(t)
	t.Cleanup(func() { _ = c.Close() })
	_ = c.SetDeadline(time.Now().Add(20 * time.Second))
	expect.OK(t, expect.ErrOf(io.WriteString(c, text)))
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
			expect.Equal(t, "the status", answered(t, connect(t, addr, get)), http.StatusOK)
		},
	} {
		t.Run("OPS-16 "+name, func(t *testing.T) {
			addr, l := serveAtMost(t, 20, answer)
			for range 60 {
				open(t, addr, l)
			}
			expect.Equal(t, "the status of a new client", answered(t, connect(t, addr, get)), http.StatusOK)
		})
	}
	t.Run("OPS-16 of clients that send a body slowly", func(t *testing.T) {
		addr, l := serveAtMost(t, 20, answer)
		for range 18 {
			connect(t, addr, "POST /mcp HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nx")
		}
		expect.Eventually(t, "the server knows that all clients send a body", func() bool {
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
		expect.Equal(t, "the status of a new client", answered(t, connect(t, addr, get)), http.StatusOK)
	})
}

// Given a request that continues without its client, when the client disconnects, then its connection no longer takes a place.
func TestOPS_16_AClientThatLeavesGivesItsPlaceBack(t *testing.T) {
	begun, end := make(chan struct{}), make(chan struct{})
	addr, l := serveAtMost(t, 20, func(_ http.ResponseWriter, r *http.Request) {
		defer context.AfterFunc(r.Context(), func() { clientLeft(r) })()
		close(begun)
		<-end
	})
	defer close(end)
	c := connect(t, addr, get)
	<-begun
	_ = c.Close()
	expect.Eventually(t, "the server knows that the connection is closed", func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		return len(l.open) == 0
	})
}

// TestAFloodOfSlowClients fills a server with requests that have not waited long enough to count as slow.
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
			expect.Eventually(t, "the server knows which connections wait", func() bool {
				l.mu.Lock()
				defer l.mu.Unlock()
				n := 0
				for k := range l.open {
					if c.waits(k) && k.waitTime(time.Now()) > 0 {
						n++
					}
				}
				return n == l.most-l.reserved && len(l.open) == n // those on the reserved places were answered
			})
			expect.Equal(t, "the status of a new client", answered(t, connect(t, addr, get)), http.StatusOK)
		})
	}
}

func TestAResponseThatIsNotRead(t *testing.T) {
	deadline := make(chan time.Time, 1)
	k := limitConnections(nil, 20).reserveLast().admit(noting{nil, deadline})
	expect.OK(t, expect.ErrOf(k.Write([]byte("x"))))
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

func TestAClientThatReadsAFewBytesAtATime(t *testing.T) {
	for name, c := range map[string]struct {
		pause time.Duration // between writes
		read  time.Duration // that the client takes for each
		want  bool          // its connection may be closed to make room
	}{
		"OPS-16 of a queue of responses is slow":           {0, 400 * time.Millisecond, true},
		"OPS-16 of a stream that has little to say is not": {15 * time.Second, 400 * time.Millisecond, false},
		"OPS-16 of a queue of responses, but fast, is not": {0, time.Millisecond, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				client, server := net.Pipe()
				k := limitConnections(nil, 20).admit(addressed{server, &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1)}})
				reader := make(chan bool)
				go func() {
					defer close(reader)
					for {
						time.Sleep(c.read)
						if _, err := client.Read(make([]byte, 200)); err != nil {
							return
						}
					}
				}()
				longest := time.Duration(0)
				for range 100 {
					time.Sleep(c.pause)
					written := make(chan error)
					go func() {
						_, err := k.Write(make([]byte, 200))
						written <- err
					}()
					synctest.Wait() // it is blocked
					k.all.mu.Lock()
					longest = max(longest, k.waitTime(time.Now()))
					k.all.mu.Unlock()
					expect.OK(t, <-written)
				}
				expect.Equal(t, fmt.Sprintf("it waited for the client for %s, so it is slow", longest), longest > slowClient, c.want)
				_ = server.Close()
				<-reader
			})
		})
	}
}

// noting is a connection that sends the deadlines of its writes to a channel.
type noting struct {
	net.Conn
	deadlines chan time.Time
}

func (n noting) RemoteAddr() net.Addr               { return &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1)} }
func (n noting) Write(p []byte) (int, error)        { return len(p), nil }
func (n noting) SetWriteDeadline(t time.Time) error { n.deadlines <- t; return nil }

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
	expect.Equal(t, "OPS-16 the status of one stream too many", answered(t, connect(t, addr, get)), http.StatusServiceUnavailable)
	for range 2 { // which take the last places until they are closed
		c := connect(t, addr, "POST /mcp HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nx")
		expect.Equal(t, "OPS-16 the status of a request without the rest of its body", answered(t, c), http.StatusServiceUnavailable)
	}
	expect.Eventually(t, "the server knows that the last places are free again", func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		return len(l.open) == 18
	})
	for _, path := range []string{"/healthz", "/admin/subscriptions"} {
		expect.Equal(t, "OPS-16 the status of "+path, answered(t, connect(t, addr, "GET "+path+" HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")), http.StatusOK)
	}
	close(end)
	for i, c := range streams {
		expect.Equal(t, fmt.Sprintf("OPS-16 the status of stream %d", i), answered(t, c), http.StatusOK)
	}
}

func TestRoomIsMadeByTheClientWithTheMostConnections(t *testing.T) {
	l := limitConnections(nil, 20).reserveLast()
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

// Given strangers who refill all places with unfinished bodies within moments, when another client connects, then it is served.
func TestOPS_16_AFloodOfNewBodiesLocksNobodyOut(t *testing.T) {
	for name, stranger := range map[string]func(i int) net.IP{
		"from one address":     func(int) net.IP { return net.IPv4(192, 0, 2, 2) },
		"from many addresses":  func(i int) net.IP { return net.IPv4(192, 0, 2, byte(10+i)) },
		"next to the client's": func(int) net.IP { return net.IPv4(192, 0, 2, 1) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := limitConnections(nil, 20).reserveLast()
				from := func(ip net.IP, body bool) *connection {
					client, server := net.Pipe()
					t.Cleanup(func() { _ = client.Close() })
					k := l.admit(addressed{server, &net.TCPAddr{IP: ip, Port: 1}})
					if k != nil {
						l.recordState(k, http.StateActive)
						k.body = body
					}
					return k
				}
				served := from(net.IPv4(192, 0, 2, 1), false)
				var fresh *connection // its client has not sent the request yet
				for i := range 100 {
					from(stranger(i), true)
					time.Sleep(time.Millisecond)
					if i == 95 {
						fresh = from(net.IPv4(192, 0, 2, 1), false)
						l.recordState(fresh, http.StateNew)
					}
				}
				if _, open := l.open[fresh]; !open {
					t.Error("the connection of a new client was closed before its request arrived")
				}
				if k := from(net.IPv4(192, 0, 2, 1), false); k == nil || k.reserved {
					t.Errorf("the new client was refused: %+v", k)
				}
				if _, open := l.open[served]; !open {
					t.Error("a request that was being served was closed")
				}
			})
		})
	}
}

// addressed is a connection from an address.
type addressed struct {
	net.Conn
	remote net.Addr
}

func (a addressed) RemoteAddr() net.Addr { return a.remote }

// TestOtherListenersAreLimited opens more connections than the admin API and the address for debugging may have.
func TestOtherListenersAreLimited(t *testing.T) {
	s := serve(t, func(o *Options) { o.AdminAddr = "127.0.0.1:0" })
	for name, c := range map[string]struct {
		addr, path string
		most       int
	}{
		"the admin API":             {strings.TrimPrefix(s.AdminURL, "http://"), "/admin/v1/overview", adminConnections()},
		"the address for debugging": {debugging(t, s), "/debug/vars", debugConnections},
	} {
		t.Run("OPS-16 "+name, func(t *testing.T) {
			const more = 10
			var all []net.Conn
			for range c.most + more {
				all = append(all, connect(t, c.addr, ""))
			}
			expect.Equal(t, "the status", answered(t, connect(t, c.addr, "GET "+c.path+" HTTP/1.1\r\nHost: localhost\r\n\r\n")), http.StatusOK)
			closed := 0
			for _, k := range all[:more] { // the oldest ones were closed before the answer
				_ = k.SetReadDeadline(time.Now().Add(2 * time.Second))
				if _, err := k.Read(make([]byte, 1)); err == io.EOF {
					closed++
				}
			}
			expect.Equal(t, fmt.Sprintf("closed ones of %d connections", c.most+more), closed, more)
		})
	}
}

// debugging serves a server's address for debugging.
func debugging(t *testing.T, s *Server) (addr string) {
	t.Helper()
	l := expect.Value(net.Listen("tcp", "127.0.0.1:0"))(t)
	addr = l.Addr().String()
	_ = l.Close()
	expect.OK(t, ServeDebug(t.Context(), addr, func() *Server { return s }))
	return addr
}

func TestOnlyThisMachineCanDebug(t *testing.T) {
	for _, addr := range []string{"0.0.0.0:0", ":0", "127.0.0.1"} {
		err := ServeDebug(t.Context(), addr, func() *Server { return nil })
		expect.Fault(t, "the address "+addr, err, fault.Invalid, `--debug-addr "`+addr+`" is not HOST:PORT with a loopback address`)
	}
}

func TestPagesOfOtherSitesCannotDebug(t *testing.T) {
	addr := debugging(t, serve(t, nil))
	for header, want := range map[string]int{
		"Host: localhost":       http.StatusOK,
		"Host: rebound.example": http.StatusForbidden,
		"Host: localhost\r\nOrigin: https://other.example": http.StatusForbidden,
		"Host: localhost\r\nSec-Fetch-Site: cross-site":    http.StatusForbidden,
	} {
		expect.Equal(t, fmt.Sprintf("AUT-06 the status with %q", header), answered(t, connect(t, addr, "GET /debug/vars HTTP/1.1\r\n"+header+"\r\n\r\n")), want)
	}
}

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
			c := expect.Value(pipes.Dial(t.Context(), server.Listener.Addr().String()))(t)
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
			expect.Equal(t, "AUT-06: the status of a body that stops at "+path, expect.Value(send(path, 1000, "{"))(t), want)
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
