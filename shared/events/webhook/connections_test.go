package webhook

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/test/expect"
)

func TestSend_Connections(t *testing.T) {
	start := func(t *testing.T, h http.HandlerFunc) (*httptest.Server, *connections) {
		conns, srv := &connections{}, httptest.NewUnstartedServer(h)
		conns.count(srv, nil)
		srv.Start()
		t.Cleanup(srv.Close)
		return srv, conns
	}

	t.Run("WHK-17 a connection is reused, even after a response with a body", func(t *testing.T) {
		srv, conns := start(t, func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(500)
			_, _ = w.Write(make([]byte, maxAnswer))
		})
		s := open(t, Options{})
		for range 50 {
			s.Send(t.Context(), request(srv.URL))
		}
		if n := conns.opened.Load(); n > 2 { // on a busy machine an attempt may time out
			t.Errorf("%d connections for 50 attempts", n)
		}
	})

	t.Run("WHK-17 the number of connections to one host is limited", func(t *testing.T) {
		srv, conns := start(t, func(http.ResponseWriter, *http.Request) {})
		s := open(t, Options{ConnsPerHost: 3})
		var wg sync.WaitGroup
		for range 60 {
			wg.Go(func() {
				delivers(t, s, request(srv.URL))
			})
		}
		wg.Wait()
		if n := conns.opened.Load(); n > 3 {
			t.Errorf("%d connections", n)
		}
	})

	t.Run("WHK-17 thousands of hosts leave few connections open", func(t *testing.T) {
		srv, conns := start(t, func(http.ResponseWriter, *http.Request) {})
		port := strconv.Itoa(int(portOf(t, srv.URL)))
		const idle, workers, hosts = 40, 16, 2000
		s := open(t, Options{MaxConns: 2 * idle, Guard: here(t)})
		next := make(chan int, workers)
		var wg sync.WaitGroup
		for range workers {
			wg.Go(func() {
				for i := range next {
					delivers(t, s, request(fmt.Sprintf("http://h%d.example.com:%s/", i, port)))
				}
			})
		}
		for i := range hosts {
			next <- i
		}
		close(next)
		wg.Wait()
		// The server notices a closed connection slightly later than the sender.
		if n := conns.most.Load(); n > idle+3*workers {
			t.Errorf("%d connections open at the same time, opened %d", n, conns.opened.Load())
		}
		if n := conns.opened.Load(); n < hosts {
			t.Errorf("opened %d connections for %d hosts", n, hosts)
		}
	})

	t.Run("WHK-17 HTTP/2 origins leave few connections open, although net/http does not limit them", func(t *testing.T) {
		const bound, hosts = 8, 100
		var conns connections
		_, s, target := serveTLS(t, func(http.ResponseWriter, *http.Request) {}, func(_ *httptest.Server, o *Options) {
			o.MaxConns = bound
		}, certified(t, "*.example.com", time.Hour), conns.count)
		for i := range hosts {
			delivers(t, s, request(strings.Replace(target, "example", fmt.Sprintf("h%d.example", i), 1)))
		}
		// The server notices a closed connection slightly later than the sender.
		if n := conns.most.Load(); n > 3*bound {
			t.Errorf("%d connections open at the same time", n)
		}
		expect.Equal(t, "connections that were opened", conns.opened.Load(), hosts)
	})

	t.Run("WHK-17 when all connections are in use, a request waits within its own timeout and the endpoint is not blamed", func(t *testing.T) {
		const bound = 4
		release := make(chan struct{})
		arrived := make(chan struct{}, bound)
		srv := serve(t, func(_ http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/hold" {
				arrived <- struct{}{}
				<-release
			}
		})
		s := open(t, Options{MaxConns: bound, Guard: here(t)})
		target := func(name string) string {
			return fmt.Sprintf("http://%s.example.com:%d", name, portOf(t, srv.URL))
		}
		var wg sync.WaitGroup
		for i := range bound {
			wg.Go(func() {
				delivers(t, s, request(target("hold"+strconv.Itoa(i))+"/hold"))
			})
		}
		for range bound {
			<-arrived
		}
		for range 3 {
			r := request(target("other"))
			r.Timeout = 100 * time.Millisecond
			failsAs(t, s, r, Internal)
		}
		waiting := make(chan Outcome, 1)
		go func() { waiting <- s.Send(t.Context(), request(target("other"))) }()
		close(release)
		wg.Wait()
		if o := <-waiting; !o.OK() {
			t.Errorf("got %+v", o)
		}
	})

	t.Run("WHK-17 one origin uses at most half of all connections", func(t *testing.T) {
		arrived := make(chan struct{}, 20)
		addr := startTCP(t, func(c net.Conn, _ <-chan struct{}) {
			arrived <- struct{}{}
			_, _ = io.Copy(io.Discard, c)
		})
		srv := serve(t, func(http.ResponseWriter, *http.Request) {})
		s := open(t, Options{MaxConns: 8})
		if s.transport.MaxConnsPerHost != 4 || s.transport.MaxIdleConns != 4 {
			t.Errorf("%d connections for a host, %d idle", s.transport.MaxConnsPerHost, s.transport.MaxIdleConns)
		}
		var wg sync.WaitGroup
		var timeouts, internal atomic.Int32
		for range 20 {
			wg.Go(func() {
				r := request("http://" + addr)
				r.Timeout = 300 * time.Millisecond
				switch s.Send(t.Context(), r).Category {
				case Timeout:
					timeouts.Add(1)
				case Internal:
					internal.Add(1)
				}
			})
		}
		for range 4 {
			<-arrived
		}
		for range 20 {
			delivers(t, s, request(srv.URL))
		}
		wg.Wait()
		if timeouts.Load() < 4 || internal.Load() == 0 || timeouts.Load()+internal.Load() != 20 {
			t.Errorf("%d timeouts, %d without a connection", timeouts.Load(), internal.Load())
		}
	})

	t.Run("a kept connection that the endpoint closed is replaced", func(t *testing.T) {
		var conns, ids atomic.Int32
		addr := startTCP(t, func(c net.Conn, _ <-chan struct{}) {
			first := conns.Add(1) == 1
			r := bufio.NewReader(c)
			for n := 1; ; n++ {
				if _, err := readRequest(r); err != nil {
					return
				}
				ids.Add(1)
				if first && n == 2 {
					return // as when an endpoint's idle timeout loses the race
				}
				_, _ = io.WriteString(c, "HTTP/1.1 204 No Content\r\n\r\n")
			}
		})
		s := open(t, Options{})
		for range 2 {
			expect.OK(t, s.Send(t.Context(), request("http://"+addr)).Err)
		}
		if conns.Load() != 2 || ids.Load() != 3 {
			t.Errorf("%d connections, %d requests", conns.Load(), ids.Load())
		}
	})

	// net/http marks a connection as idle shortly before RoundTrip gets the response that arrived on it.
	for name, end := range map[string]func(*Sender, string){
		"all idle connections are closed": func(s *Sender, _ string) { s.Close() },
		"another connection becomes idle": func(s *Sender, other string) { s.Send(context.Background(), request(other)) },
	} {
		t.Run("WHK-17 given a response, the request is repeated when its connection is closed as idle because "+name, func(t *testing.T) {
			srv, other := serve(t, func(http.ResponseWriter, *http.Request) {}), serve(t, func(http.ResponseWriter, *http.Request) {})
			s := open(t, Options{MaxConns: 2}) // one of them may be idle
			var idle atomic.Int32
			sent := make(chan struct{})
			ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{PutIdleConn: func(error) {
				if idle.Add(1) == 1 {
					end(s, other.URL)
					<-sent // the response is delayed until then
				}
			}})
			o := s.Send(ctx, request(srv.URL))
			close(sent)
			if !o.OK() || idle.Load() != 2 {
				t.Errorf("after %d answers the outcome is %+v, want success after 2", idle.Load(), o)
			}
		})
	}

	t.Run("one attempt uses at most two connections, regardless of how many are kept", func(t *testing.T) {
		const kept = 5
		var together sync.WaitGroup
		together.Add(kept)
		var answers atomic.Bool
		var requests atomic.Int32
		answers.Store(true)
		addr := startTCP(t, func(c net.Conn, _ <-chan struct{}) {
			r := bufio.NewReader(c)
			for {
				if _, err := readRequest(r); err != nil {
					return
				}
				if !answers.Load() {
					requests.Add(1)
					return
				}
				together.Done()
				together.Wait() // so that each gets its own connection
				_, _ = io.WriteString(c, "HTTP/1.1 204 No Content\r\n\r\n")
			}
		})
		s := open(t, Options{})
		var sent sync.WaitGroup
		for range kept {
			sent.Go(func() {
				delivers(t, s, request("http://"+addr))
			})
		}
		sent.Wait()
		answers.Store(false)
		if o := s.Send(t.Context(), request("http://"+addr)); o.OK() || requests.Load() != 2 {
			t.Errorf("%d requests: %v", requests.Load(), o.Err)
		}
	})
}

// countedConn counts the writes of a connection.
type countedConn struct {
	net.Conn
	writes *atomic.Int64
}

func (c countedConn) Write(b []byte) (int, error) {
	c.writes.Add(1)
	return c.Conn.Write(b)
}

func TestAWebhookIsOneWrite(t *testing.T) {
	s := NewSender(Options{Guard: &Guard{AllowInsecure: true}})
	defer s.Close()
	var writes atomic.Int64
	s.transport.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
		c, err := (&net.Dialer{}).DialContext(ctx, network, address)
		return countedConn{c, &writes}, err
	}
	r := Request{URL: bareReceiver(t), ID: "evt_1", SubscriptionID: "sub_1", Body: bytes.Repeat([]byte("x"), 4<<10)}
	for range 3 {
		expect.OK(t, s.Send(t.Context(), r).Err)
	}
	expect.Equal(t, "writes for 3 webhooks of 4 KiB", writes.Load(), 3)
}
