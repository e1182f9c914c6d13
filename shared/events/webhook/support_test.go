package webhook

import (
	"bufio"
	"context"
	"crypto/x509"
	"encoding/binary"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"os"
	"runtime"
	"runtime/pprof"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/test/expect"
)

// nameServer answers every question for a name with the addresses that answer returns. Without an address, it answers that the name
// does not exist.
type nameServer struct {
	conn   net.PacketConn
	answer func(name string) []netip.Addr

	mu    sync.Mutex
	asked []string
}

func newNameServer(tb testing.TB, answer func(name string) []netip.Addr) *nameServer {
	tb.Helper()
	conn := expect.Value(net.ListenPacket("udp", "127.0.0.1:0"))(tb)
	n := &nameServer{conn: conn, answer: answer}
	var serving sync.WaitGroup
	serving.Go(n.serve)
	tb.Cleanup(func() {
		_ = conn.Close()
		serving.Wait()
	})
	return n
}

// resolver returns a resolver that asks only this server.
func (n *nameServer) resolver() *net.Resolver {
	return &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "udp", n.conn.LocalAddr().String())
	}}
}

func (n *nameServer) serve() {
	buf := make([]byte, 1500)
	for {
		size, from, err := n.conn.ReadFrom(buf)
		if err != nil {
			return
		}
		if reply := n.reply(buf[:size]); reply != nil {
			_, _ = n.conn.WriteTo(reply, from)
		}
	}
}

// reply answers one question (RFC 1035 section 4).
func (n *nameServer) reply(query []byte) []byte {
	if len(query) < 12 {
		return nil
	}
	name, i := "", 12
	for i < len(query) && query[i] != 0 {
		size := int(query[i])
		if i+1+size >= len(query) {
			return nil
		}
		name += string(query[i+1:i+1+size]) + "."
		i += 1 + size
	}
	i++
	if i+4 > len(query) {
		return nil
	}
	kind := binary.BigEndian.Uint16(query[i:])
	n.mu.Lock()
	n.asked = append(n.asked, name)
	n.mu.Unlock()
	all := n.answer(name)
	const typeA, typeAAAA = 1, 28
	reply := append([]byte{query[0], query[1], 0x85, 0x80, 0, 1, 0, 0, 0, 0, 0, 0}, query[12:i+4]...)
	count := uint16(0)
	for _, a := range all {
		raw := a.AsSlice()
		if (kind == typeA) != (len(raw) == 4) || kind != typeA && kind != typeAAAA {
			continue
		}
		reply = append(reply, 0xc0, 12)
		reply = binary.BigEndian.AppendUint16(reply, kind)
		reply = append(reply, 0, 1, 0, 0, 0, 0)
		reply = binary.BigEndian.AppendUint16(reply, uint16(len(raw)))
		reply = append(reply, raw...)
		count++
	}
	binary.BigEndian.PutUint16(reply[6:], count)
	if len(all) == 0 {
		reply[3] |= 3 // NXDOMAIN
	}
	return reply
}

func (n *nameServer) names() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return append([]string(nil), n.asked...)
}

// dials records the addresses to which connections were about to be opened.
type dials struct {
	mu  sync.Mutex
	all []netip.AddrPort
}

func (d *dials) saw(a netip.AddrPort) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.all = append(d.all, a)
}

func (d *dials) take() []netip.AddrPort {
	d.mu.Lock()
	defer d.mu.Unlock()
	all := d.all
	d.all = nil
	return all
}

// loopback stands for a public address in tests of the strict guard. It is listed as the operator's own network, and
// all other rules apply.
var loopback = netip.MustParsePrefix("127.0.0.1/32")

func localhost(string) []netip.Addr { return []netip.Addr{loopback.Addr()} }

// here returns a permissive guard that resolves every name to this machine.
func here(tb testing.TB) *Guard {
	return &Guard{AllowInsecure: true, Resolver: newNameServer(tb, localhost).resolver()}
}

// open returns a sender for test servers.
func open(tb testing.TB, o Options) *Sender {
	tb.Helper()
	if o.Guard == nil {
		o.Guard = &Guard{AllowInsecure: true}
	}
	s := NewSender(o)
	tb.Cleanup(s.Close)
	return s
}

// serve starts a server for a test.
func serve(tb testing.TB, h http.HandlerFunc) *httptest.Server {
	tb.Helper()
	srv := httptest.NewServer(h)
	tb.Cleanup(srv.Close)
	return srv
}

// serveTLS starts a TLS server whose certificate is for example.com, and returns a sender with a strict guard that
// reaches this server under every name.
func serveTLS(tb testing.TB, h http.HandlerFunc, with ...func(*httptest.Server, *Options)) (*httptest.Server, *Sender, string) {
	tb.Helper()
	srv := httptest.NewUnstartedServer(h)
	srv.EnableHTTP2 = true
	o := Options{Guard: &Guard{allowNets: []netip.Prefix{loopback}, Resolver: newNameServer(tb, localhost).resolver()}}
	for _, f := range with {
		f(srv, &o)
	}
	srv.StartTLS()
	tb.Cleanup(srv.Close)
	if o.RootCAs == nil {
		o.RootCAs = pool(srv)
	}
	o.Guard.Ports = []uint16{portOf(tb, srv.URL)}
	return srv, open(tb, o), "https://example.com:" + strconv.Itoa(int(o.Guard.Ports[0]))
}

func pool(srv *httptest.Server) *x509.CertPool {
	p := x509.NewCertPool()
	p.AddCert(srv.Certificate())
	return p
}

func portOf(tb testing.TB, raw string) uint16 {
	tb.Helper()
	u := expect.Value(url.Parse(raw))(tb)
	return uint16(expect.Value(strconv.ParseUint(u.Port(), 10, 16))(tb))
}

// startTCP starts a TCP server that passes each connection to handle, until the test ends, and returns its address.
func startTCP(tb testing.TB, handle func(c net.Conn, done <-chan struct{})) string {
	tb.Helper()
	l := expect.Value(net.Listen("tcp", "127.0.0.1:0"))(tb)
	done := make(chan struct{})
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			serving.Go(func() {
				defer c.Close()
				stop := context.AfterFunc(tb.Context(), func() { _ = c.Close() })
				defer stop()
				handle(c, done)
			})
		}
	})
	tb.Cleanup(func() {
		close(done)
		_ = l.Close()
		serving.Wait()
	})
	return l.Addr().String()
}

// answering returns a handler for [startTCP] that gets each connection after its first request has been read.
func answering(handle func(c net.Conn, r *bufio.Reader)) func(net.Conn, <-chan struct{}) {
	return func(c net.Conn, _ <-chan struct{}) {
		r := bufio.NewReader(c)
		if _, err := readRequest(r); err == nil {
			handle(c, r)
		}
	}
}

// connections counts the connections of a server.
type connections struct{ opened, now, most atomic.Int32 }

// count makes a server report its connections. It is an option for [serveTLS].
func (c *connections) count(srv *httptest.Server, _ *Options) {
	srv.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		switch state {
		case http.StateNew:
			c.opened.Add(1)
			c.most.Store(max(c.most.Load(), c.now.Add(1)))
		case http.StateClosed, http.StateHijacked:
			c.now.Add(-1)
		}
	}
}

// readRequest reads a request and its body from a connection.
func readRequest(r *bufio.Reader) (head []string, err error) {
	length := 0
	for {
		line, err := r.ReadString('\n')
		if err != nil {
			return nil, err
		}
		line = line[:max(0, len(line)-2)]
		if line == "" {
			_, err := r.Discard(length)
			return head, err
		}
		head = append(head, line)
		if v, ok := cutField(line, "Content-Length"); ok {
			length, _ = strconv.Atoi(v)
		}
	}
}

func cutField(line, name string) (string, bool) {
	if len(line) > len(name)+1 && line[:len(name)] == name && line[len(name)] == ':' {
		return line[len(name)+2:], true
	}
	return "", false
}

// request returns a delivery to a target.
func request(target string) Request {
	return Request{
		URL: target, ID: "evt_1", SubscriptionID: "sub_1", Body: []byte(`{"type":"t","data":{}}`),
		Keys: [][]byte{[]byte("0123456789abcdef0123456789abcdef")}, Timeout: 10 * time.Second,
	}
}

// newEndpoint returns an endpoint with secrets. It responds with 401 to requests without a signature by one of them, with 200 and the
// challenge to a challenge, and with 204 to others.
func newEndpoint(secrets ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		if Verify(r.Header, body, secrets...) != nil {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		if challenge, ok := Challenge(r.Header, body); ok {
			_ = json.NewEncoder(w).Encode(map[string]string{"challenge": challenge})
			return
		}
		w.WriteHeader(http.StatusNoContent)
	}
}

// delivers sends a request that the endpoint must accept.
func delivers(t testing.TB, s *Sender, r Request) {
	t.Helper()
	expect.Equal(t, "the outcome for "+r.URL, s.Send(t.Context(), r).Category, "")
}

// failsAs sends a request that must fail soon after its timeout and in the given way.
func failsAs(t testing.TB, s *Sender, r Request, want Category) {
	t.Helper()
	if o := s.Send(t.Context(), r); o.Category != want || o.Took > r.Timeout+8*time.Second {
		t.Errorf("the outcome for %.80q is %+v, want the category %q soon after its timeout", r.URL, o, want)
	}
}

// baseline counts goroutines and descriptors. The returned function checks that there are no more than that later,
// and that the process is idle.
func baseline(t *testing.T) (check func()) {
	t.Helper()
	http.DefaultTransport.(*http.Transport).CloseIdleConnections()
	goroutines, descriptors := runtime.NumGoroutine(), countDescriptors(t)
	return func() {
		t.Helper()
		deadline := time.Now().Add(20 * time.Second)
		for runtime.NumGoroutine() > goroutines || countDescriptors(t) > descriptors {
			if time.Now().After(deadline) {
				var all strings.Builder
				_ = pprof.Lookup("goroutine").WriteTo(&all, 1)
				t.Errorf("WHK-17 %d goroutines and %d descriptors, before there were %d and %d\n%s",
					runtime.NumGoroutine(), countDescriptors(t), goroutines, descriptors, &all)
				return
			}
			time.Sleep(10 * time.Millisecond) // there is no signal for the end of the last goroutine
		}
	}
}

func countDescriptors(t *testing.T) int {
	t.Helper()
	return len(expect.Value(os.ReadDir("/proc/self/fd"))(t))
}

// rests fails if the process uses more than a fifteenth of a core for a while. A goroutine in a busy loop would use a
// whole core.
func rests(t *testing.T) {
	t.Helper()
	before := cpu()
	const while = 300 * time.Millisecond
	time.Sleep(while) // the process must stay idle for this time
	expect.AtMost(t, "WHK-17 the CPU time at rest", cpu()-before, 20*time.Millisecond)
}

func cpu() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
