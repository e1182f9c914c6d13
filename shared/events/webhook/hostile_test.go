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
	"net/netip"
	"net/url"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/net/http2"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/test/expect"
)

// TestSend_HostileEndpoints checks that an endpoint cannot hold a worker beyond the timeout (WHK-11), make it read
// without limit (SRF-04), or get its text into the error (SRF-05).
func TestSend_HostileEndpoints(t *testing.T) {
	const marker = "S3CR3T-MARKER"
	check := baseline(t)
	t.Cleanup(func() { // after all have ended: WHK-17
		check()
		rests(t)
	})
	writing := func(head, unit string, pause time.Duration) func(net.Conn, <-chan struct{}) {
		return func(c net.Conn, done <-chan struct{}) {
			r := bufio.NewReader(c)
			if _, err := readRequest(r); err != nil {
				return
			}
			_, err := io.WriteString(c, head)
			for err == nil {
				if pause > 0 {
					select {
					case <-done:
						return
					case <-time.After(pause):
					}
				}
				_, err = io.WriteString(c, unit)
			}
		}
	}
	once := func(answer string) func(net.Conn, <-chan struct{}) {
		return answering(func(c net.Conn, _ *bufio.Reader) { _, _ = io.WriteString(c, answer) })
	}
	silent := func(c net.Conn, done <-chan struct{}) { <-done }
	big := strings.Repeat("a", 64<<10)
	for name, tt := range map[string]struct {
		handle func(net.Conn, <-chan struct{})
		want   Category
		status int
	}{
		"never answers":                        {silent, Timeout, 0},
		"drips a status line":                  {writing("HTTP/1.1 ", "2", 20*time.Millisecond), Timeout, 0},
		"drips a header":                       {writing("HTTP/1.1 200 OK\r\nX-"+marker+": ", "x", 20*time.Millisecond), Timeout, 0},
		"drips a body":                         {writing("HTTP/1.1 200 OK\r\nContent-Length: 16000\r\n\r\n", "x", 20*time.Millisecond), Timeout, 0},
		"drips chunks":                         {writing("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", "1\r\nx\r\n", 20*time.Millisecond), Timeout, 0},
		"drips a failure":                      {writing("HTTP/1.1 500 No\r\nContent-Length: 16000\r\n\r\n", "x", 20*time.Millisecond), Timeout, 0},
		"drips the size of a chunk":            {writing("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", "0", 20*time.Millisecond), Timeout, 0},
		"drips an extension of a chunk":        {writing("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1;", "x", 20*time.Millisecond), Timeout, 0},
		"drips trailers":                       {writing("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n", "X-A: b\r\n", 20*time.Millisecond), Timeout, 0},
		"sends trailers without end":           {writing("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n", "X-A: "+marker+"\r\n", 0), "", 200},
		"sends an endless extension":           {writing("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1;", big, 0), "", 200},
		"sends tiny chunks without end":        {writing("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", "1;"+big[:200]+"\r\nx\r\n", 0), "", 200},
		"drips 1xx":                            {writing("", "HTTP/1.1 103 Early Hints\r\nLink: "+marker+"\r\n\r\n", 20*time.Millisecond), Timeout, 0},
		"floods 1xx":                           {writing("", "HTTP/1.1 103 Early Hints\r\nLink: "+marker+"\r\n\r\n", 0), ConnectionRefused, 0},
		"floods 100":                           {writing("", "HTTP/1.1 100 Continue\r\n\r\n", 0), ConnectionRefused, 0},
		"floods 102":                           {writing("", "HTTP/1.1 102 Processing\r\n\r\n", 0), ConnectionRefused, 0},
		"sends a huge header":                  {writing("HTTP/1.1 200 OK\r\nX-Big: "+marker, big, 0), ConnectionRefused, 0},
		"sends headers without end":            {writing("HTTP/1.1 200 OK\r\n", "X-A: "+marker+"\r\n", 0), ConnectionRefused, 0},
		"SRF-04 sends an endless body":         {writing("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", "10000\r\n"+big+"\r\n", 0), "", 200},
		"sends an endless failure":             {writing("HTTP/1.1 500 No\r\n\r\n", big, 0), HTTP5xx, 500},
		"sends a body without length":          {once("HTTP/1.1 200 OK\r\n\r\n" + marker), "", 200},
		"breaks off a body":                    {once("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n" + marker), "", 200},
		"breaks off a failure":                 {once("HTTP/1.1 500 No\r\nContent-Length: 100\r\n\r\n" + marker), HTTP5xx, 500},
		"closes immediately":                   {func(net.Conn, <-chan struct{}) {}, ConnectionRefused, 0},
		"closes after the request":             {once(""), ConnectionRefused, 0},
		"resets":                               {func(c net.Conn, _ <-chan struct{}) { _ = c.(*net.TCPConn).SetLinger(0) }, ConnectionRefused, 0},
		"speaks no HTTP":                       {once(marker + " nonsense\r\n\r\n"), ConnectionRefused, 0},
		"sends an invalid status":              {once("HTTP/1.1 2x0 " + marker + "\r\n\r\n"), ConnectionRefused, 0},
		"sends a negative length":              {once("HTTP/1.1 200 OK\r\nContent-Length: -" + marker + "\r\n\r\n"), ConnectionRefused, 0},
		"sends two lengths":                    {once("HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n" + marker), ConnectionRefused, 0},
		"sends a broken header":                {once("HTTP/1.1 200 OK\r\n" + marker + "\r\n\r\n"), ConnectionRefused, 0},
		"sends NUL in a header":                {once("HTTP/1.1 200 OK\r\nX: \x00" + marker + "\r\n\r\n"), ConnectionRefused, 0},
		"sends an unknown encoding":            {once("HTTP/1.1 200 OK\r\nTransfer-Encoding: " + marker + "\r\n\r\n"), ConnectionRefused, 0},
		"answers with a secret reason":         {once("HTTP/1.1 503 " + marker + "\r\nX: " + marker + "\r\nContent-Length: 13\r\n\r\n" + marker), HTTP5xx, 503},
		"answers 404 with a long body":         {once("HTTP/1.1 404 " + marker + "\r\n\r\n" + strings.Repeat(marker, 4000)), HTTP4xx, 404},
		"speaks HTTP/2 unasked":                {once("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), ConnectionRefused, 0},
		"SRF-04 claims an encoding it has not": {once("HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 13\r\n\r\n" + marker), "", 200},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			addr := startTCP(t, tt.handle)
			r := request("http://" + addr)
			r.Timeout = 5 * time.Second
			if tt.want == Timeout {
				r.Timeout = 200 * time.Millisecond
			}
			o := open(t, Options{}).Send(t.Context(), r)
			if o.Category != tt.want || o.Status != tt.status {
				t.Errorf("got %q, status %d, %v; want %q, %d", o.Category, o.Status, o.Err, tt.want, tt.status)
			}
			expect.AtMost(t, "WHK-11 the time that it was held", o.Took, r.Timeout+8*time.Second)
			expect.Lacks(t, "SRF-05 the outcome", fmt.Sprintf("%+v %#v %v", o, o, o.Err), marker, "nonsense")
			if f, ok := errors.AsType[*Failure](o.Err); o.Err != nil && (!ok || f.Category != o.Category) {
				t.Errorf("error %#v", o.Err)
			}
		})
	}
}

// switching responds to the first request with 101 and keeps the connection open until the sender closes it.
var switching = answering(func(c net.Conn, r *bufio.Reader) {
	_, _ = io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\nmore")
	_, _ = io.Copy(io.Discard, r)
})

// TestSend_SwitchingProtocols checks that an endpoint cannot keep a connection by responding with 101. The body of
// that response is the bare connection, which is not closed when the context ends.
func TestSend_SwitchingProtocols(t *testing.T) {
	check := baseline(t)
	t.Cleanup(check) // after the cleanups of senders and servers

	direct := func(t *testing.T) (*Sender, string) {
		return open(t, Options{}), "http://" + startTCP(t, switching)
	}
	encrypted := func(t *testing.T) (*Sender, string) {
		cert, trust := certificate(t, "hooks.example.com", time.Now().Add(time.Hour))
		_, port, _ := net.SplitHostPort(startTCP(t, func(c net.Conn, done <-chan struct{}) {
			switching(tls.Server(c, &tls.Config{Certificates: []tls.Certificate{cert}}), done)
		}))
		guard := here(t)
		return open(t, Options{RootCAs: trust, Guard: guard}), "https://hooks.example.com:" + port
	}
	for name, start := range map[string]func(*testing.T) (*Sender, string){
		"directly": direct, "with TLS": encrypted,
	} {
		t.Run("WHK-17 "+name, func(t *testing.T) {
			s, target := start(t)
			check := baseline(t)
			count := 100
			if strings.HasPrefix(target, "https:") {
				count = 20 // handshakes are slow with the race detector
			}
			var wg sync.WaitGroup
			for range count {
				wg.Go(func() {
					switch o := sendWithin(t, s, request(target+"/hook")); {
					case o.Status != 101 || o.Category != HTTP4xx || o.RetryAfter != 0:
						t.Errorf("got %+v", o)
					case o.Took > 8*time.Second:
						t.Errorf("WHK-11 held for %s", o.Took)
					}
				})
			}
			wg.Wait()
			for range 10 {
				err := s.Verify(t.Context(), target+"/hook", "sub_1", request("").Keys)
				expect.Fault(t, "the challenge", err, fault.Unavailable, string(HTTP4xx))
			}
			check() // while the sender and the server are still open
		})
	}
}

// sendWithin fails the test if Send does not return.
func sendWithin(t *testing.T, s *Sender, r Request) Outcome {
	t.Helper()
	done := make(chan Outcome, 1)
	go func() { done <- s.Send(t.Context(), r) }()
	return expect.Receive(t, "WHK-11 the outcome of Send", done)
}

// TestMuteTransport checks that endpoints cannot write to our log.
func TestMuteTransport(t *testing.T) {
	var written bytes.Buffer // guarded by the log's own lock
	before := log.Writer()
	log.SetOutput(&written)
	t.Cleanup(func() { log.SetOutput(before) })
	MuteTransport()

	t.Run("unexpected frames write no lines", func(t *testing.T) {
		srv, s := serveFrames(t, func(f *http2.Framer, stream uint32) error {
			return forever(func() error { return f.WritePriority(stream, http2.PriorityParam{Weight: 1}) })
		})
		s.Send(t.Context(), request(srv.target))
		<-srv.ended
	})
	t.Run("SRF-05 an unsolicited response is not quoted", func(t *testing.T) {
		ended := make(chan struct{})
		addr := startTCP(t, answering(func(c net.Conn, r *bufio.Reader) {
			defer close(ended)
			_, _ = io.WriteString(c, "HTTP/1.1 204 No Content\r\n\r\n")
			time.Sleep(50 * time.Millisecond) // until the connection is idle, for which there is no signal
			_, _ = io.WriteString(c, "HTTP/1.1 200 s3cr3t-marker\r\n\r\n")
			_, _ = io.Copy(io.Discard, r)
		}))
		delivers(t, open(t, Options{}), request("http://"+addr))
		<-ended
	})
	log.Print("kept")
	if got := written.String(); strings.Count(got, "\n") != 1 || !strings.HasSuffix(got, "kept\n") {
		t.Errorf("got %d bytes: %.300s", len(got), got)
	}
}

// childEndpoint names the variable that tells a child process the endpoint.
const childEndpoint = "WEBHOOK_TEST_ENDPOINT"

// inChild runs the same test in a child process, whose limit on open files can be lowered, and returns its output.
func inChild(t *testing.T, endpoint string) []string {
	t.Helper()
	c := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v")
	c.Env = append(os.Environ(), childEndpoint+"="+endpoint)
	out, err := c.CombinedOutput()
	expect.OK(t, err, out)
	var lines []string
	for line := range strings.Lines(string(out)) {
		if said, ok := strings.CutPrefix(strings.TrimSpace(line), "says: "); ok {
			lines = append(lines, said)
		}
	}
	return lines
}

func say(format string, args ...any) { fmt.Printf("\nsays: "+format+"\n", args...) }

// TestSend_OutOfDescriptors checks that a process without free descriptors does not blame the endpoint, whether it
// fails to open the name server's socket or the endpoint's. Afterwards it must deliver again.
func TestSend_OutOfDescriptors(t *testing.T) {
	if endpoint := os.Getenv(childEndpoint); endpoint != "" {
		outOfDescriptors(t, endpoint)
		return
	}
	srv := serve(t, func(http.ResponseWriter, *http.Request) {})
	got := inChild(t, srv.URL)
	want := []string{
		"an address: internal", "a name: internal", "a name, the system's resolver: internal",
		"a challenge: false", "afterwards:",
	}
	expect.Equal(t, "the outcomes", strings.Join(got, "\n"), strings.Join(want, "\n"))
}

func outOfDescriptors(t *testing.T, endpoint string) {
	names := newNameServer(t, localhost)
	port := strconv.Itoa(int(portOf(t, endpoint)))
	s := open(t, Options{Guard: &Guard{AllowInsecure: true, Resolver: names.resolver()}})
	system := open(t, Options{Guard: &Guard{AllowInsecure: true}})
	if o := open(t, Options{}).Send(t.Context(), request(endpoint)); o.Category != "" { // opens the descriptors that the runtime needs
		t.Fatal(o.Err)
	}
	lowerLimit(t, uint64(countDescriptors(t)+20))
	var files []*os.File
	for {
		f, err := os.Open(os.DevNull)
		if errors.Is(err, syscall.EMFILE) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		files = append(files, f)
	}
	say("an address: %s", s.Send(t.Context(), request(endpoint)).Category)
	say("a name: %s", s.Send(t.Context(), request("http://hooks.example.com:"+port)).Category)
	say("a name, the system's resolver: %s", system.Send(t.Context(), request("http://hooks.example.com:"+port)).Category)
	say("a challenge: %t", strings.Contains(s.Verify(t.Context(), endpoint, "sub_1", nil).Error(), string(ConnectionRefused)))
	for _, f := range files {
		_ = f.Close()
	}
	say("afterwards: %s", s.Send(t.Context(), request("http://hooks.example.com:"+port)).Category)
}

func lowerLimit(t *testing.T, n uint64) {
	t.Helper()
	expect.OK(t, syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: n, Max: n}))
}

// TestSend_HangingOriginsUnderALowLimit sends to two hundred origins that hang, with 128 descriptors and the sender's
// default options.
func TestSend_HangingOriginsUnderALowLimit(t *testing.T) {
	if port := os.Getenv(childEndpoint); port != "" {
		hangingOriginsUnderALowLimit(t, port)
		return
	}
	var open, most atomic.Int32
	_, port, _ := net.SplitHostPort(startTCP(t, func(c net.Conn, done <-chan struct{}) {
		n := open.Add(1)
		defer open.Add(-1)
		for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
			continue
		}
		r := bufio.NewReader(c)
		for {
			head, err := readRequest(r)
			if err != nil {
				return
			}
			if strings.Contains(strings.Join(head, "\n"), "Host: hang") {
				_, _ = io.Copy(io.Discard, r)
				return
			}
			if _, err := io.WriteString(c, "HTTP/1.1 204 No Content\r\n\r\n"); err != nil {
				return
			}
		}
	}))
	got := strings.Join(inChild(t, port), "; ")
	expect.Equal(t, "WHK-17", got, "hanging: timeouts true, others 0; healthy:")
	if n := most.Load(); n < 1 || n > 40 {
		t.Errorf("WHK-17 %d concurrent connections", n)
	}
}

func hangingOriginsUnderALowLimit(t *testing.T, port string) {
	lowerLimit(t, 128)
	s := open(t, Options{Guard: here(t)})
	var timeouts, internal, others atomic.Int32
	var wg sync.WaitGroup
	for i := range 200 {
		wg.Go(func() {
			r := request(fmt.Sprintf("http://hang%d.example.com:%s/", i, port))
			r.Timeout = time.Second
			switch o := s.Send(t.Context(), r); o.Category {
			case Timeout:
				timeouts.Add(1)
			case Internal:
				internal.Add(1)
			default:
				others.Add(1)
				t.Logf("got %+v, %v", o, o.Err)
			}
		})
	}
	wg.Wait()
	say("hanging: timeouts %t, others %d", timeouts.Load() > 0 && internal.Load() > 0, others.Load())
	say("healthy: %s", s.Send(t.Context(), request("http://healthy.example.com:"+port)).Category)
}

// TestDiagnose_Ours checks errors that a test cannot cause on every machine.
func TestDiagnose_Ours(t *testing.T) {
	dial := func(errno syscall.Errno, address string) error {
		addr := net.TCPAddrFromAddrPort(netip.MustParseAddrPort(address))
		return &net.OpError{Op: "dial", Net: "tcp", Addr: addr, Err: os.NewSyscallError("connect", errno)}
	}
	const four, six = "1.1.1.1:443", "[2606:4700::1]:443"
	for _, tt := range []struct {
		err  error
		want Category
	}{
		{dial(syscall.EMFILE, four), Internal},
		{dial(syscall.ENFILE, four), Internal},
		{dial(syscall.ENOBUFS, six), Internal},
		{dial(syscall.ENOMEM, six), Internal},
		{dial(syscall.EADDRNOTAVAIL, four), Internal},
		{dial(syscall.EADDRNOTAVAIL, six), ConnectionRefused}, // on a machine without IPv6
		{dial(syscall.ECONNREFUSED, four), ConnectionRefused},
		{dial(syscall.ENETUNREACH, four), ConnectionRefused},
		{&net.DNSError{Err: "dial udp 10.0.0.2:53: socket: too many open files", Name: "x.example"}, Internal},
		{&net.DNSError{Err: "server misbehaving", Name: "too many open files"}, DNSError},
		{&url.Error{Op: "Post", Err: os.NewSyscallError("write", syscall.ENOBUFS)}, Internal},
	} {
		x := &exchange{ctx: t.Context()}
		expect.Equal(t, fmt.Sprint(tt.err), diagnose(context.Background(), x, tt.err).Category, tt.want)
	}
}
