package upstream

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/test/expect"
)

// serveRaw serves connections with a function that writes to them, and counts them.
func serveRaw(t *testing.T, serve func(c net.Conn, requests func() bool)) (client *Client, connections *atomic.Int64) {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	expect.OK(t, err)
	connections = new(atomic.Int64)
	var running sync.WaitGroup
	ended, end := context.WithCancel(context.Background())
	running.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			connections.Add(1)
			context.AfterFunc(ended, func() { _ = c.Close() })
			running.Go(func() {
				defer c.Close()
				r := bufio.NewReader(c)
				serve(c, func() bool { // reads the next request
					req, err := http.ReadRequest(r)
					if err == nil {
						_, err = io.Copy(io.Discard, req.Body)
					}
					return err == nil
				})
			})
		}
	})
	client = &Client{URL: "http://" + l.Addr().String() + "/mcp", HTTP: NewHTTP()}
	client.HTTP.Transport.(*http.Transport).IdleConnTimeout = 0 // however long a test takes
	t.Cleanup(func() {
		_ = l.Close()
		end()
		running.Wait()
	})
	return client, connections
}

const jsonAnswer = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s"

// GWN-14: a connection is used again only if the response ended as announced and nothing else arrived. So no call gets the answer of
// another one.
func TestConnectionsThatAreUsedAgain(t *testing.T) {
	whole := func(text string) string { return fmt.Sprintf(jsonAnswer, len(text), text) }
	for _, c := range []struct {
		name        string
		answer      func(text string) string
		connections int64 // for two requests
		err         string
	}{
		{"response with a length", whole, 1, ""},
		{"response in chunks", func(text string) string {
			return fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n", len(text), text)
		}, 1, ""},
		{"interim responses", func(text string) string {
			return strings.Repeat("HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n", maxInterim) + whole(text)
		}, 1, ""},
		{"the backend wants to close it", func(text string) string {
			return strings.Replace(whole(text), "\r\n", "\r\nConnection: close\r\n", 1)
		}, 2, ""},
		{"HTTP/1.0", func(text string) string { return strings.Replace(whole(text), "1.1", "1.0", 1) }, 2, ""},
		{"a second response", func(text string) string { return whole(text) + whole(`{"jsonrpc":"2.0","id":1,"result":"forged"}`) }, 2, ""},
		{"too many interim responses", func(text string) string {
			return strings.Repeat("HTTP/1.1 103 Early Hints\r\n\r\n", maxInterim+1) + whole(text)
		}, 2, "too many 1xx responses"},
		{"another protocol", func(string) string {
			return "HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n"
		}, 2, "switches protocols"},
		{"a header without an end", func(string) string {
			return "HTTP/1.1 200 OK\r\n" + strings.Repeat("X-Filler: "+strings.Repeat("x", 1000)+"\r\n", 70)
		}, 2, "longer than 65536 bytes"},
		{"no HTTP", func(string) string { return "hello\r\n\r\n" }, 2, "malformed"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var n atomic.Int64
			client, connections := serveRaw(t, func(conn net.Conn, requests func() bool) {
				for requests() {
					_, _ = io.WriteString(conn, c.answer(fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"result":%d}`, n.Add(1))))
				}
			})
			for i := range 2 {
				x, err := client.Post(t.Context(), Request{Body: []byte(`{"jsonrpc":"2.0","id":1,"method":"m"}`)})
				if c.err != "" {
					if err == nil || !strings.Contains(errors.Unwrap(err).Error(), c.err) {
						t.Fatalf("got %v, want %s", err, c.err)
					}
					continue
				}
				expect.OK(t, err)
				got, _, err := all(t, x)
				if want := fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"result":%d}`, i+1); err != io.EOF || len(got) != 1 || got[0] != want {
					t.Fatalf("got %q, %v, want %s", got, err, want)
				}
			}
			expect.Equal(t, "connections", connections.Load(), c.connections)
		})
	}
}

// GWN-14: given a backend that sends a second response after the first one was read, then the next call gets its own answer, over another
// connection.
func TestAnswerBeforeItsRequest(t *testing.T) {
	var served atomic.Int64
	read := make(chan struct{})
	client, connections := serveRaw(t, func(c net.Conn, requests func() bool) {
		for requests() {
			_, _ = fmt.Fprintf(c, jsonAnswer, len(result), result)
			if served.Add(1) == 1 {
				<-read
				_, _ = fmt.Fprintf(c, jsonAnswer, 42, `{"jsonrpc":"2.0","id":1,"result":"forged"}`)
			}
		}
	})
	ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{GotConn: func(info httptrace.GotConnInfo) {
		if info.Reused {
			close(read)
			for i := 0; i < 5000 && isSilent(info.Conn); i++ { // until the second response arrives
				time.Sleep(time.Millisecond)
			}
		}
	}})
	for range 2 {
		x := expect.Value(client.Post(ctx, Request{Body: []byte(`{}`)}))(t)
		if got, _, _ := all(t, x); len(got) != 1 || got[0] != result {
			t.Errorf("got %q, want %s", got, result)
		}
	}
	expect.Equal(t, "connections", connections.Load(), 2)
}

// GWN-14: a body that ends too early is an error, and not a shorter answer.
func TestBodyThatIsCutShort(t *testing.T) {
	client, _ := serveRaw(t, func(c net.Conn, requests func() bool) {
		requests()
		_, _ = fmt.Fprintf(c, jsonAnswer, len(result)+1, result)
	})
	_, err := client.Post(t.Context(), Request{Body: []byte(`{}`)})
	expect.Is(t, "the error", err, io.ErrUnexpectedEOF)
}

// GWN-14: a cancelled request closes its connection, which tells the backend, whether the response has begun or not. Other connections
// stay.
func TestCancellationClosesTheConnection(t *testing.T) {
	for name, begun := range map[string]bool{"before the response": false, "within the response": true} {
		t.Run(name, func(t *testing.T) {
			asked, ended := make(chan struct{}), make(chan struct{})
			client, connections := serveRaw(t, func(c net.Conn, requests func() bool) {
				requests()
				if begun {
					_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n: hello\n\n")
				}
				close(asked)
				_, _ = c.Read(make([]byte, 1))
				close(ended)
			})
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			if !begun {
				go func() {
					<-asked
					cancel()
				}()
			}
			x, err := client.Post(ctx, Request{Body: []byte(`{}`)})
			if begun {
				expect.OK(t, err)
				cancel()
				_, err = x.next()
			}
			expect.Is(t, "the error", err, context.Canceled)
			<-ended
			expect.Equal(t, "connections", connections.Load(), 1)
		})
	}
}

// A request whose context ends while the client connects returns the cause.
func TestCancellationWhileConnecting(t *testing.T) {
	client, cause := &Client{URL: "http://backend.example/mcp", HTTP: NewHTTP()}, errors.New("the caller left")
	ctx, cancel := context.WithCancelCause(t.Context())
	client.HTTP.Transport.(*http.Transport).DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
		cancel(cause)
		return nil, ctx.Err()
	}
	expect.Is(t, "the error", expect.ErrOf(client.Post(ctx, Request{Body: []byte(`{}`)})), cause)
}

// GWN-07: a client that resumes a stream over a connection that the backend is closing uses another one. A GET may be repeated, but not
// after a part of the response has arrived.
func TestGetIsRepeated(t *testing.T) {
	var served atomic.Int64
	client, connections := serveRaw(t, func(c net.Conn, requests func() bool) {
		for requests() {
			switch served.Add(1) {
			case 2:
				return // without a response
			case 3:
				_, _ = fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: %d\r\n\r\ndata: %s\n\n", len(result)+8, result)
				continue
			case 4:
				_, _ = io.WriteString(c, "HTTP/1.1 2")
				return
			}
			_, _ = fmt.Fprintf(c, jsonAnswer, len(result), result)
		}
	})
	x, err := client.Post(t.Context(), Request{Body: []byte(`{}`)})
	expect.OK(t, err)
	_, _, _ = all(t, x)
	x, err = client.Get(t.Context(), Request{}, "7")
	expect.OK(t, err)
	if got, _, _ := all(t, x); len(got) != 1 || got[0] != result {
		t.Errorf("got %q", got)
	}
	if x, err = client.Get(t.Context(), Request{}, "8"); err == nil {
		x.Close()
		t.Error("half a response was read as one")
	}
	expect.Equal(t, "requests", served.Load(), 4)
	expect.Equal(t, "connections", connections.Load(), 2)
}

// The transport sends the requests that direct cannot send: large bodies, which need two directions concurrently, and requests through a
// proxy.
func TestRequestsThatAreLeftToTheTransport(t *testing.T) {
	var got string
	serving := func(w http.ResponseWriter, r *http.Request) {
		n, _ := io.Copy(io.Discard, r.Body)
		got = fmt.Sprintf("%s %d %q", r.RequestURI, n, r.Header.Get("Accept-Encoding"))
		answer("application/json", 200, result)(w, r)
	}
	direct, proxied := serve(t, serving), serve(t, serving)
	proxy, err := url.Parse(proxied.URL)
	expect.OK(t, err)
	proxied.URL = "http://backend.example/mcp"
	proxied.HTTP.Transport.(*http.Transport).Proxy = http.ProxyURL(proxy)
	for _, c := range []struct {
		client *Client
		bytes  int
		want   string
	}{
		{direct, maxDirect, `/ 65536 ""`},
		{direct, maxDirect + 1, `/ 65537 "gzip"`},
		{direct, 0, `/ 0 ""`},
		{proxied, 2, `http://backend.example/mcp 2 "gzip"`},
	} {
		x := expect.Value(c.client.Post(t.Context(), Request{Body: make([]byte, c.bytes)}))(t)
		_, _, _ = all(t, x)
		expect.Equal(t, "request", got, c.want)
	}
}

// After many concurrent requests, few idle connections are kept.
func TestIdleConnectionsAreLimited(t *testing.T) {
	const most = maxResting + 8
	var arrived, closed atomic.Int64
	together := make(chan struct{})
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if arrived.Add(1) == most {
			close(together)
		}
		<-together
		answer("application/json", 200, result)(w, r)
	}))
	gone := make(chan struct{}, most)
	server.Config.ConnState = func(_ net.Conn, s http.ConnState) {
		if s == http.StateClosed {
			closed.Add(1)
			gone <- struct{}{}
		}
	}
	server.Start()
	t.Cleanup(server.Close)
	client := &Client{URL: server.URL, HTTP: NewHTTP()}
	client.HTTP.Transport.(*http.Transport).IdleConnTimeout = 0
	var requests sync.WaitGroup
	for range most {
		requests.Go(func() {
			x, err := client.Post(t.Context(), Request{Body: []byte(`{}`)})
			if err != nil {
				t.Error(err)
				return
			}
			_, _, _ = all(t, x)
		})
	}
	requests.Wait()
	for range most - maxResting {
		<-gone
	}
	expect.Equal(t, "closed connections", closed.Load(), most-maxResting)
}
