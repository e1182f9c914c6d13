package webhook

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
)

func TestSend_Connections(t *testing.T) {
	var opened, now, most atomic.Int32
	started := func(srv *httptest.Server) {
		srv.Config.ConnState = func(_ net.Conn, state http.ConnState) {
			switch state {
			case http.StateNew:
				opened.Add(1)
				if n := now.Add(1); n > most.Load() {
					most.Store(n)
				}
			case http.StateClosed, http.StateHijacked:
				now.Add(-1)
			}
		}
		srv.Start()
		t.Cleanup(srv.Close)
	}

	t.Run("WHK-17 a connection is reused, also after an answer with a body", func(t *testing.T) {
		opened.Store(0)
		srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(500)
			_, _ = w.Write(make([]byte, maxAnswer))
		}))
		started(srv)
		s := open(t, Options{})
		for range 50 {
			s.Send(t.Context(), request(srv.URL))
		}
		if n := opened.Load(); n != 1 {
			t.Errorf("%d connections for 50 attempts", n)
		}
	})

	t.Run("WHK-17 connections to one host are bounded", func(t *testing.T) {
		opened.Store(0)
		srv := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
		started(srv)
		s := open(t, Options{ConnsPerHost: 3})
		var wg sync.WaitGroup
		for range 60 {
			wg.Go(func() {
				if o := s.Send(t.Context(), request(srv.URL)); !o.OK() {
					t.Error(o.Err)
				}
			})
		}
		wg.Wait()
		if n := opened.Load(); n > 3 {
			t.Errorf("%d connections", n)
		}
	})

	t.Run("WHK-17 thousands of hosts leave few connections open", func(t *testing.T) {
		opened.Store(0)
		now.Store(0)
		most.Store(0)
		srv := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
		started(srv)
		port := strconv.Itoa(int(portOf(t, srv.URL)))
		const idle, workers, hosts = 40, 16, 2000
		s := open(t, Options{
			IdleConns: idle,
			Guard:     &Guard{AllowInsecure: true, Resolver: newNameServer(t, localhost).resolver()},
		})
		next := make(chan int, workers)
		var wg sync.WaitGroup
		for range workers {
			wg.Go(func() {
				for i := range next {
					o := s.Send(t.Context(), request(fmt.Sprintf("http://h%d.example.com:%s/", i, port)))
					if !o.OK() {
						t.Error(o.Err)
					}
				}
			})
		}
		for i := range hosts {
			next <- i
		}
		close(next)
		wg.Wait()
		// The server learns of a closed connection a little later than the sender.
		if n := most.Load(); n > idle+3*workers {
			t.Errorf("%d connections open at once, opened %d", n, opened.Load())
		}
		if n := opened.Load(); n < hosts {
			t.Errorf("opened %d connections for %d hosts", n, hosts)
		}
	})

	t.Run("a kept connection that was closed is replaced", func(t *testing.T) {
		var conns, ids atomic.Int32
		addr := raw(t, func(c net.Conn, _ <-chan struct{}) {
			first := conns.Add(1) == 1
			r := bufio.NewReader(c)
			for n := 1; ; n++ {
				if _, err := readRequest(r, r.Discard); err != nil {
					return
				}
				ids.Add(1)
				if first && n == 2 {
					return // what an endpoint's idle timeout looks like when it loses the race
				}
				_, _ = io.WriteString(c, "HTTP/1.1 204 No Content\r\n\r\n")
			}
		})
		s := open(t, Options{})
		for range 2 {
			if o := s.Send(t.Context(), request("http://"+addr)); !o.OK() {
				t.Fatal(o.Err)
			}
		}
		if conns.Load() != 2 || ids.Load() != 3 {
			t.Errorf("%d connections, %d requests", conns.Load(), ids.Load())
		}
	})
}
