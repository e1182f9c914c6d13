package webhook

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log"
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

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

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
		expect.AtMost(t, "the connections for 50 attempts", conns.opened.Load(), 2) // on a busy machine an attempt may time out
	})

	t.Run("WHK-17 the number of connections to one host is limited", func(t *testing.T) {
		srv, conns := start(t, func(http.ResponseWriter, *http.Request) {})
		s := open(t, Options{ConnsPerHost: 3})
		var wg sync.WaitGroup
		for range 60 {
			wg.Go(func() { delivers(t, s, request(srv.URL)) })
		}
		wg.Wait()
		expect.AtMost(t, "the connections", conns.opened.Load(), 3)
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
		expect.AtMost(t, "the connections that were open at the same time", conns.most.Load(), idle+3*workers)
		expect.AtLeast(t, "the opened connections", conns.opened.Load(), hosts)
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
		expect.AtMost(t, "the connections that were open at the same time", conns.most.Load(), 3*bound)
		expect.Equal(t, "connections that were opened", conns.opened.Load(), hosts)
	})

	for name, c := range map[string]struct {
		maxConns int
		holder   func(i int) string // the hosts of four requests that hang
		refused  string             // the host of the requests that wait
	}{
		"all connections are in use":              {4, func(i int) string { return fmt.Sprint("hold", i) }, "other"},
		"one origin uses half of all connections": {8, func(int) string { return "hold" }, "hold"},
	} {
		t.Run("WHK-17 when "+name+", a request waits within its own timeout and the endpoint is not blamed", func(t *testing.T) {
			release, arrived := make(chan struct{}), make(chan struct{}, 4)
			srv := serve(t, func(_ http.ResponseWriter, r *http.Request) {
				if r.URL.Path == "/hold" {
					arrived <- struct{}{}
					<-release
				}
			})
			s := open(t, Options{MaxConns: c.maxConns, Guard: here(t)})
			target := func(host string) string { return fmt.Sprintf("http://%s.example.com:%d", host, portOf(t, srv.URL)) }
			var wg sync.WaitGroup
			for i := range 4 {
				wg.Go(func() { delivers(t, s, request(target(c.holder(i))+"/hold")) })
			}
			for range 4 {
				<-arrived
			}
			for range 3 {
				r := request(target(c.refused))
				r.Timeout = 100 * time.Millisecond
				failsAs(t, s, r, Internal)
			}
			if c.maxConns > 4 {
				delivers(t, s, request(target("other")))
			}
			waiting := make(chan Outcome, 1)
			go func() { waiting <- s.Send(t.Context(), request(target(c.refused))) }()
			close(release)
			wg.Wait()
			expect.Equal(t, "the category", (<-waiting).Category, "")
		})
	}

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
		expect.Equal(t, "the connections", conns.Load(), 2)
		expect.Equal(t, "the ids", ids.Load(), 3)
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
			expect.Equal(t, "the category", o.Category, "")
			expect.Equal(t, "the idle connections", idle.Load(), 2)
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
			sent.Go(func() { delivers(t, s, request("http://"+addr)) })
		}
		sent.Wait()
		answers.Store(false)
		if o := s.Send(t.Context(), request("http://"+addr)); o.Category == "" || requests.Load() != 2 {
			t.Errorf("%d requests: %v", requests.Load(), o.Err)
		}
	})
}

func TestAWebhookIsOneWrite(t *testing.T) {
	s := open(t, Options{})
	var writes atomic.Int64
	s.transport.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
		c, err := (&net.Dialer{}).DialContext(ctx, network, address)
		return &counting{c, func(int) { writes.Add(1) }}, err
	}
	r := request(serve(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) }).URL)
	r.Body = bytes.Repeat([]byte("x"), 4<<10)
	for range 3 {
		delivers(t, s, r)
	}
	expect.Equal(t, "writes for 3 webhooks of 4 KiB", writes.Load(), 3)
}

// framed is an HTTP/2 endpoint that writes single frames. It passes each request's stream to answer, and reports when
// a connection has ended and how much was written to it.
type framed struct {
	target string
	ended  chan struct{} // one for each connection
	wrote  atomic.Int64
}

func serveFrames(t *testing.T, answer func(f *http2.Framer, stream uint32) error) (*framed, *Sender) {
	t.Helper()
	cert, trust := certificate(t, "example.com", time.Now().Add(time.Hour))
	config := &tls.Config{Certificates: []tls.Certificate{cert}, NextProtos: []string{"h2"}}
	srv := &framed{ended: make(chan struct{}, 100)}
	addr := startTCP(t, func(c net.Conn, _ <-chan struct{}) {
		defer func() { srv.ended <- struct{}{} }()
		srv.serve(tls.Server(&counting{c, func(n int) { srv.wrote.Add(int64(n)) }}, config), answer)
	})
	_, port, _ := net.SplitHostPort(addr)
	srv.target = "https://example.com:" + port
	return srv, open(t, Options{RootCAs: trust, Guard: here(t)})
}

func (srv *framed) serve(c net.Conn, answer func(*http2.Framer, uint32) error) {
	preface := make([]byte, len(http2.ClientPreface))
	if _, err := io.ReadFull(c, preface); err != nil {
		return
	}
	f := http2.NewFramer(c, c)
	if f.WriteSettings() != nil {
		return
	}
	var answering sync.WaitGroup
	var turn sync.Mutex // one stream at a time, because a Framer's writes are for one goroutine
	defer answering.Wait()
	for {
		frame, err := f.ReadFrame()
		if err != nil {
			return
		}
		if h, ok := frame.(*http2.HeadersFrame); ok {
			stream := h.StreamID
			answering.Go(func() {
				turn.Lock()
				defer turn.Unlock()
				_ = answer(f, stream)
			})
		}
	}
}

// counting passes the number of bytes of each write to a function.
type counting struct {
	net.Conn
	wrote func(n int)
}

func (c *counting) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	c.wrote(n)
	return n, err
}

func fields(pairs ...string) []byte {
	var buf bytes.Buffer
	e := hpack.NewEncoder(&buf)
	for i := 0; i < len(pairs); i += 2 {
		_ = e.WriteField(hpack.HeaderField{Name: pairs[i], Value: pairs[i+1]})
	}
	return buf.Bytes()
}

// mute keeps the test's log short.
func mute(t *testing.T) {
	before := log.Writer()
	MuteTransport()
	t.Cleanup(func() { log.SetOutput(before) })
}

// forever repeats a frame until the connection ends.
func forever(write func() error) error {
	for {
		if err := write(); err != nil {
			return err
		}
	}
}

func respond(f *http2.Framer, stream uint32, status string, end bool) error {
	return f.WriteHeaders(http2.HeadersFrameParam{
		StreamID: stream, BlockFragment: fields(":status", status), EndHeaders: true, EndStream: end,
	})
}

// TestSend_Floods checks that an HTTP/2 endpoint which sends frames without end has its connection closed, during the
// attempt or after it, and that no goroutine, descriptor or CPU use remains.
func TestSend_Floods(t *testing.T) {
	mute(t)
	check := baseline(t)
	t.Cleanup(func() {
		check()
		rests(t)
	})
	type write = func(f *http2.Framer, stream uint32) error
	header := func(status string, end bool) write {
		return func(f *http2.Framer, stream uint32) error { return respond(f, stream, status, end) }
	}
	unended := func(f *http2.Framer, stream uint32) error { // it requires a CONTINUATION frame
		return f.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, BlockFragment: fields(":status", "200")})
	}
	empty := func(f *http2.Framer, stream uint32) error { return f.WriteData(stream, false, nil) }
	settings := func(f *http2.Framer, _ uint32) error { return f.WriteSettings() }
	ping := func(ack bool) write {
		return func(f *http2.Framer, _ uint32) error { return f.WritePing(ack, [8]byte{1}) }
	}
	reset := func(code http2.ErrCode) write {
		return func(f *http2.Framer, stream uint32) error { return f.WriteRSTStream(stream, code) }
	}
	more, pad, large := fields("x-a", strings.Repeat("a", 1000)), make([]byte, 255), make([]http2.Setting, 500)
	for i := range large {
		large[i] = http2.Setting{ID: http2.SettingHeaderTableSize, Val: uint32(i)}
	}
	for name, flood := range map[string]struct{ first, then write }{
		"empty DATA after a header":  {header("200", false), empty},
		"empty DATA after a failure": {header("500", false), empty},
		"padding": {header("200", false), func(f *http2.Framer, stream uint32) error {
			return f.WriteDataPadded(stream, false, nil, pad)
		}},
		"SETTINGS":           {nil, settings},
		"large SETTINGS":     {nil, func(f *http2.Framer, _ uint32) error { return f.WriteSettings(large...) }},
		"PING":               {nil, ping(false)},
		"acknowledged PING":  {nil, ping(true)},
		"empty CONTINUATION": {unended, func(f *http2.Framer, stream uint32) error { return f.WriteContinuation(stream, false, nil) }},
		"CONTINUATION":       {unended, func(f *http2.Framer, stream uint32) error { return f.WriteContinuation(stream, false, more) }},
		"RST_STREAM":         {nil, reset(http2.ErrCodeInternal)},
		"refused streams":    {nil, reset(http2.ErrCodeRefusedStream)},
		"WINDOW_UPDATE":      {nil, func(f *http2.Framer, stream uint32) error { return f.WriteWindowUpdate(stream, 1) }},
		"PRIORITY": {nil, func(f *http2.Framer, stream uint32) error {
			return f.WritePriority(stream, http2.PriorityParam{Weight: 1})
		}},
		"unknown frames":                       {nil, func(f *http2.Framer, stream uint32) error { return f.WriteRawFrame(0xee, 0, stream, nil) }},
		"informational answers":                {nil, header("103", false)},
		"trailers after the end of the answer": {header("200", false), header("200", true)},
		"frames after the end of the answer":   {header("200", true), settings},
	} {
		t.Run("WHK-11 WHK-17 "+name, func(t *testing.T) {
			srv, s := serveFrames(t, func(f *http2.Framer, stream uint32) error {
				if flood.first != nil {
					if err := flood.first(f, stream); err != nil {
						return err
					}
				}
				return forever(func() error { return flood.then(f, stream) })
			})
			r := request(srv.target)
			r.Timeout = 3 * time.Second
			before := cpu()
			o := sendWithin(t, s, r)
			expect.AtMost(t, "WHK-11 the time that it was held", o.Took, r.Timeout+8*time.Second)
			if answered := strings.Contains(name, "after the end"); o.Category == "" && !answered {
				t.Errorf("got %+v", o)
			}
			expect.Receive(t, "the end of the connection", srv.ended)
			t.Logf("%s of CPU, including the endpoint's", cpu()-before)
			expect.AtMost(t, "the bytes that were written", srv.wrote.Load(), 16<<20) // most of them were in the kernel's buffers
		})
	}
}

// TestSend_FloodAfterSilence checks that the connection is also closed if the flood begins after the attempt has
// timed out.
func TestSend_FloodAfterSilence(t *testing.T) {
	begin := make(chan struct{})
	srv, s := serveFrames(t, func(f *http2.Framer, stream uint32) error {
		if err := respond(f, stream, "200", false); err != nil {
			return err
		}
		<-begin
		return forever(func() error { return f.WriteData(stream, false, nil) })
	})
	check := baseline(t)
	r := request(srv.target)
	r.Timeout = 200 * time.Millisecond
	failsAs(t, s, r, Timeout)
	close(begin)
	<-srv.ended
	check()
	rests(t)
}

// TestSend_SharedConnection: WHK-11, WHK-17. Concurrent deliveries share an HTTP/2 connection. Responses of the maximum size,
// and paths that hang, must not affect the other deliveries.
func TestSend_SharedConnection(t *testing.T) {
	var conns connections
	var hanging, canceled sync.WaitGroup
	_, s, target := serveTLS(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/hang" {
			hanging.Done()
			<-r.Context().Done()
			canceled.Done()
			return
		}
		w.Header().Set("X-Large", strings.Repeat("x", 24<<10))
		w.WriteHeader(http.StatusInternalServerError)
		_, _ = w.Write(make([]byte, 256<<10)) // sixteen times what the sender reads
	}, conns.count)
	if o := s.Send(t.Context(), request(target)); o.Status != 500 { // to negotiate the protocol
		t.Fatalf("got %+v", o)
	}
	var wg sync.WaitGroup
	hanging.Add(10)
	canceled.Add(10)
	for range 10 {
		wg.Go(func() {
			r := request(target + "/hang")
			r.Timeout = 2 * time.Second
			failsAs(t, s, r, Timeout)
		})
	}
	hanging.Wait()
	for i := range 10 {
		wg.Go(func() {
			for range 10 {
				expect.Equal(t, "WHK-17 the status of a path next to one that hangs", s.Send(t.Context(), request(target+"/"+strconv.Itoa(i))).Status, 500)
			}
		})
	}
	wg.Wait()
	canceled.Wait() // the endpoint sees the cancellation
	expect.Equal(t, "the status after that", s.Send(t.Context(), request(target)).Status, 500)
	expect.Equal(t, "WHK-17 connections", conns.opened.Load(), 1)
}

// TestConn_Quota tests the quota directly.
func TestConn_Quota(t *testing.T) {
	closed := 0
	c := &conn{Conn: endless{}, closed: func() { closed++ }, left: answerQuota}
	read := func() (total int) {
		for buf := make([]byte, 1000); ; {
			n, err := c.Read(buf)
			if err != nil {
				if !errors.Is(err, errExcess) {
					t.Fatal(err)
				}
				return total
			}
			total += n
		}
	}
	for range 1000 { // unused quota of past exchanges is not kept
		c.begin()
		c.end()
	}
	c.begin()
	c.begin()
	if n := read(); n > 3*answerQuota || n < 3*answerQuota/2 {
		t.Errorf("WHK-17 %d bytes were read", n)
	}
	_ = c.Close()
	expect.Equal(t, "how often it was closed", closed, 1)
}

type endless struct{ net.Conn }

func (endless) Read(p []byte) (int, error) { return len(p), nil }
func (endless) Close() error               { return nil }
