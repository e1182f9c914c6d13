package upstream

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mcp-events/mcpevents/test/expect"
)

// closing is a connection that reports when the client closes it.
type closing struct {
	net.Conn
	closed chan struct{}
}

func (c *closing) Close() error {
	err := c.Conn.Close()
	select {
	case <-c.closed:
	default:
		close(c.closed)
	}
	return err
}

// GWN-14: given a request for which the client chose a connection that the backend had just closed, then the client sends it over
// another one, because it was never sent.
func TestClosedConnectionIsReplaced(t *testing.T) {
	var served atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		served.Add(1)
		answer("application/json", 200, result)(w, nil)
	}))
	t.Cleanup(server.Close)
	transport := NewHTTP().Transport.(*http.Transport)
	transport.IdleConnTimeout = 0 // however long this takes
	var last *closing
	transport.DialContext = counting(func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := (&net.Dialer{}).DialContext(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		last = &closing{Conn: c, closed: make(chan struct{})}
		return last, nil
	})
	c := &Client{URL: server.URL, HTTP: &http.Client{Transport: transport}}
	chosen := 0
	ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{GotConn: func(info httptrace.GotConnInfo) {
		if chosen++; info.Reused {
			first := last
			server.CloseClientConnections()
			<-first.closed
		}
	}})
	for range 2 {
		x := expect.Value(c.Post(ctx, Request{Body: []byte(`{}`)}))(t)
		if got, _, err := all(t, x); err != io.EOF || len(got) != 1 {
			t.Fatalf("got %q, %v", got, err)
		}
	}
	if served.Load() != 2 || chosen != 3 {
		t.Errorf("%d requests were served over %d connections", served.Load(), chosen)
	}
}

// GWN-14: the client does not repeat a request that the backend has read, because it may have taken effect.
func TestRequestThatWasReadIsNotRepeated(t *testing.T) {
	var served atomic.Int64
	c := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if served.Add(1) > 1 {
			panic(http.ErrAbortHandler)
		}
		answer("application/json", 200, result)(w, r)
	})
	x, err := c.Post(t.Context(), Request{Body: []byte(`{}`)})
	expect.OK(t, err)
	_, _, _ = all(t, x)
	if x, err = c.Post(t.Context(), Request{Body: []byte(`{}`)}); err == nil {
		x.Close()
		t.Error("the second request has an answer, want an error")
	}
	expect.Equal(t, "requests that the backend read", served.Load(), 2)
}

// GWN-14: after a connection was idle for as long as servers allow, the client does not use it, because the server may have closed it.
// The server here reads a request on such a connection and then closes it, as can happen over a network.
func TestConnectionsRestForAShortTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		transport := NewHTTP().Transport.(*http.Transport)
		defer transport.CloseIdleConnections()
		connections := 0
		transport.DialContext = func(context.Context, string, string) (net.Conn, error) {
			connections++
			near, far := net.Pipe()
			go lazyServer(far, 2*time.Second)
			return near, nil
		}
		c := &Client{URL: "http://backend.example/mcp", HTTP: &http.Client{Transport: transport}}
		for _, rest := range []time.Duration{0, RestTime / 2, 2 * time.Second, 5 * time.Second, time.Minute} {
			time.Sleep(rest)
			x, err := c.Post(t.Context(), Request{Body: []byte(`{}`)})
			if err != nil {
				t.Fatalf("after %v: %v", rest, err)
			}
			if _, _, err := all(t, x); err != io.EOF {
				t.Fatalf("after %v: %v", rest, err)
			}
		}
		expect.Equal(t, "connections (one is used twice)", connections, 4)
	})
}

// lazyServer answers requests until one arrives on a connection that was idle for too long.
func lazyServer(c net.Conn, rest time.Duration) {
	defer c.Close()
	r := bufio.NewReader(c)
	for since := time.Now(); ; since = time.Now() {
		req, err := http.ReadRequest(r)
		if err != nil || time.Since(since) >= rest {
			return
		}
		_, _ = io.Copy(io.Discard, req.Body)
		body := strings.NewReader(result)
		resp := http.Response{
			StatusCode: 200, ProtoMajor: 1, ProtoMinor: 1, ContentLength: body.Size(), Body: io.NopCloser(body),
			Header: http.Header{"Content-Type": {"application/json"}},
		}
		if resp.Write(c) != nil {
			return
		}
	}
}

// GWN-14: the client uses a connection again after a stream has ended on it. If the backend leaves the stream open after the response,
// the client soon closes the connection.
func TestConnectionBehindAStream(t *testing.T) {
	for name, leavesOpen := range map[string]bool{"ends": false, "stays open": true} {
		t.Run(name, func(t *testing.T) {
			var connections atomic.Int64
			c := serve(t, func(w http.ResponseWriter, r *http.Request) {
				answer("text/event-stream", 200, "data: "+result+"\n\n")(w, r)
				_ = http.NewResponseController(w).Flush()
				if leavesOpen {
					<-r.Context().Done()
				}
				time.Sleep(endTime / 10) // the end comes on its own
			})
			transport := c.HTTP.Transport.(*http.Transport)
			transport.IdleConnTimeout = 0 // however long this takes
			transport.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
				connections.Add(1)
				return (&net.Dialer{}).DialContext(ctx, network, addr)
			}
			const requests = 20
			for range requests {
				x := expect.Value(c.Post(t.Context(), Request{Body: []byte(`{}`)}))(t)
				expect.OK(t, expect.ErrOf(x.next()))
				x.Finish()
			}
			// On a busy machine an end may come late.
			if n := connections.Load(); leavesOpen != (n == requests) {
				t.Errorf("%d connections for %d requests", n, requests)
			}
		})
	}
}
