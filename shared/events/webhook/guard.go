package webhook

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http/httptrace"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"code.dny.dev/ssrf"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
)

// Guard decides where webhooks may be sent. [Guard.checkURL] checks the URL when a client subscribes, and again when a process first
// sends a request to the URL. [Guard.dialContext] checks each address after DNS resolution and before connecting, so that changing a
// name's address does not get around the check.
//
// The zero value is strict: it allows only https to globally routable addresses on ports 443 and 8443. A Guard must not be changed while
// in use.
type Guard struct {
	// AllowInsecure also allows http, private addresses and all ports, for development. The addresses of cloud metadata services and
	// BlockedHosts are still refused.
	AllowInsecure bool
	// Ports replaces the default list of allowed ports.
	Ports []uint16
	// BlockedHosts are our own hosts, so that a webhook cannot call this server. An entry is a name, .suffix for all names below it, or an
	// address. Without a :port it applies to every port.
	BlockedHosts []string
	// allowNets are networks that may be targets although they are private. Only tests set them.
	allowNets []netip.Prefix
	// Resolver resolves names. Nil means the system's resolver.
	Resolver *net.Resolver
	// dialed is called with each address before connecting to it. Only tests set it.
	dialed func(netip.AddrPort)
}

var defaultPorts = []uint16{443, 8443}

// connectTimeout limits name resolution and connecting. It leaves time to repeat a lost SYN twice (after 1 s and 3 s).
const connectTimeout = 5 * time.Second

// blocked is the error for a refused target. It contains no part of the target.
type blocked string

func (b blocked) Error() string { return "the target is " + string(b) }

// checkURL parses the URL of a webhook's target. The returned URL has a lower-case host and omits the default port.
//
// It returns an error if webhooks can never be sent to the URL, but does not resolve names. The error is of kind Invalid and may be shown
// to the subscriber.
func (g *Guard) checkURL(raw string) (*url.URL, error) {
	u, reason := g.check(raw)
	if reason != "" {
		return nil, fault.New(fault.Invalid, "the target URL %s", reason)
	}
	return u, nil
}

// check returns the parsed URL, or a description of the problem with it, for example "is not https".
func (g *Guard) check(raw string) (*url.URL, string) {
	if raw == "" || len(raw) > maxURL {
		return nil, "is empty or longer than 2048 bytes"
	}
	for i := range len(raw) {
		// Refuse spaces, control characters and non-ASCII characters. Refuse the backslash too, because some parsers treat it as a slash.
		if c := raw[i]; c <= ' ' || c >= 0x7f || c == '\\' {
			return nil, "holds a character that must be encoded"
		}
	}
	u, err := url.Parse(raw)
	if err != nil || u.Opaque != "" {
		return nil, "is not a URL"
	}
	switch {
	case u.Scheme == "https", u.Scheme == "http" && g.AllowInsecure:
	case u.Scheme == "http":
		return nil, "is not https; for development only, a server that runs with --allow-insecure-targets accepts http"
	default:
		return nil, "is not https"
	}
	if u.User != nil || strings.Contains(authorityOf(raw), "@") {
		return nil, "holds credentials"
	}
	if u.Fragment != "" || strings.Contains(raw, "#") {
		return nil, "has a fragment"
	}
	if strings.Contains(authorityOf(raw), "%") {
		return nil, "has a host with an encoded character"
	}
	host, port := strings.ToLower(u.Hostname()), u.Port()
	if port == "" && strings.HasSuffix(u.Host, ":") {
		return nil, "has an empty port"
	}
	n := uint64(443)
	if u.Scheme == "http" {
		n = 80
	}
	if port != "" {
		if n, err = strconv.ParseUint(port, 10, 16); err != nil || n == 0 || strconv.FormatUint(n, 10) != port {
			return nil, fmt.Sprintf("has the port %q, not a number from 1 to 65535", port)
		}
	}
	if !g.portAllowed(uint16(n)) {
		return nil, fmt.Sprintf("has port %d, which is not allowed (allowed: %s)", n, g.portNames())
	}
	if reason := g.checkHost(host, strings.HasPrefix(u.Host, "[")); reason != "" {
		return nil, reason
	}
	if g.hostBlocked(host, uint16(n)) {
		return nil, "is a host of this server"
	}
	u.Host = canonicalHost(host, uint16(n), u.Scheme)
	if u.Path == "" {
		u.Path = "/"
	}
	return u, ""
}

func authorityOf(raw string) string {
	_, rest, _ := strings.Cut(raw, "://")
	if i := strings.IndexAny(rest, "/?#"); i >= 0 {
		rest = rest[:i]
	}
	return rest
}

func canonicalHost(host string, port uint16, scheme string) string {
	if strings.Contains(host, ":") {
		host = "[" + host + "]"
	}
	if port == 443 && scheme == "https" || port == 80 && scheme == "http" {
		return host
	}
	return host + ":" + strconv.FormatUint(uint64(port), 10)
}

func (g *Guard) portAllowed(port uint16) bool {
	switch {
	case g.Ports != nil:
		return slices.Contains(g.Ports, port)
	case g.AllowInsecure:
		return true
	}
	return slices.Contains(defaultPorts, port)
}

func (g *Guard) portNames() string {
	ports := g.Ports
	if ports == nil {
		ports = defaultPorts
	}
	return strings.Trim(strings.Join(strings.Fields(fmt.Sprint(ports)), ", "), "[]")
}

// localNames are top-level domains that never lead to the public internet (RFC 6761, 6762, 7686 and 8375, and ICANN's internal).
var localNames = []string{"localhost", "local", "internal", "home.arpa", "onion", "localdomain", "lan", "intranet", "corp", "home"}

// checkHost describes the problem with a lower-case host, or returns "" if there is no problem. The parameter brackets is true if the URL
// had the host in brackets.
func (g *Guard) checkHost(host string, brackets bool) string {
	if a, err := netip.ParseAddr(host); err == nil {
		if a.Is6() != brackets || a.Is4In6() && !g.AllowInsecure {
			return "has an address in an unusual spelling"
		}
		if err := g.checkAddr(a); err != nil {
			return "is " + string(err.(blocked))
		}
		return ""
	}
	if brackets || host == "" || len(host) > 253 {
		return "has no valid host"
	}
	labels := strings.Split(host, ".")
	for _, label := range labels {
		if label == "" || len(label) > 63 || label[0] == '-' || label[len(label)-1] == '-' ||
			strings.Trim(label, "abcdefghijklmnopqrstuvwxyz0123456789-_") != "" {
			return "has no valid host"
		}
	}
	// Refuse a host whose last label is a number, because many parsers treat it as an IPv4 address in another notation (WHATWG URL,
	// inet_aton).
	if isNumber(labels[len(labels)-1]) {
		return "has an address in an unusual spelling"
	}
	if g.AllowInsecure {
		return ""
	}
	if len(labels) == 1 {
		return "has a host without a domain"
	}
	if slices.ContainsFunc(localNames, func(name string) bool { return strings.HasSuffix(host, "."+name) }) {
		return "has a host of a local network"
	}
	return ""
}

func isNumber(label string) bool {
	if hex, ok := strings.CutPrefix(label, "0x"); ok {
		return strings.Trim(hex, "0123456789abcdef") == ""
	}
	return strings.Trim(label, "0123456789") == ""
}

func (g *Guard) hostBlocked(host string, port uint16) bool {
	for _, entry := range g.BlockedHosts {
		name, p := splitEntry(entry)
		if p != 0 && p != port {
			continue
		}
		if host == name || strings.HasPrefix(name, ".") && strings.HasSuffix(host, name) {
			return true
		}
		if a, err := netip.ParseAddr(name); err == nil {
			if b, err := netip.ParseAddr(host); err == nil && sameHost(a, b) {
				return true
			}
		}
	}
	return false
}

// sameHost reports whether two addresses reach the same machine. The unspecified address (0.0.0.0 or ::) counts as a loopback
// address, because connecting to it reaches this machine.
func sameHost(a, b netip.Addr) bool {
	local := func(a netip.Addr) bool { return a.IsLoopback() || a.IsUnspecified() }
	a, b = a.Unmap(), b.Unmap()
	return a == b || local(a) && local(b)
}

func splitEntry(entry string) (name string, port uint16) {
	entry = strings.ToLower(entry)
	if host, p, err := net.SplitHostPort(entry); err == nil {
		if n, err := strconv.ParseUint(p, 10, 16); err == nil {
			return host, uint16(n)
		}
	}
	return strings.Trim(entry, "[]"), 0
}

// dialContext connects to host:port. It checks each address after resolving the name and before connecting. It resolves names as absolute
// names, so the machine's search list does not apply.
func (g *Guard) dialContext(ctx context.Context, network, address string) (net.Conn, error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, blocked("no host and port")
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil || !g.portAllowed(uint16(n)) {
		return nil, blocked("on a port that is not allowed")
	}
	a, err := netip.ParseAddr(host)
	switch {
	case err == nil && a.Is4In6() && !g.AllowInsecure:
		return nil, blocked("an address in an unusual spelling") // control would see only the IPv4 address inside it
	case err != nil && strings.Contains(host, ".") && !strings.HasSuffix(host, "."):
		address = host + ".:" + port
	}
	d := net.Dialer{Timeout: connectTimeout, Resolver: g.Resolver, Control: g.control}
	return d.DialContext(ctx, network, address)
}

// control checks the address that the kernel will use. It runs after the socket is created and before it connects.
func (g *Guard) control(network, address string, _ syscall.RawConn) error {
	if network != "tcp4" && network != "tcp6" {
		return blocked("not reached by TCP")
	}
	ap, err := netip.ParseAddrPort(address)
	if err != nil {
		return blocked("no address and port")
	}
	if !g.portAllowed(ap.Port()) {
		return blocked("on a port that is not allowed")
	}
	if err := g.checkAddr(ap.Addr()); err != nil {
		return err
	}
	if g.hostBlocked(ap.Addr().String(), ap.Port()) {
		return blocked("a host of this server")
	}
	if g.dialed != nil {
		g.dialed(ap)
	}
	return nil
}

// special refuses addresses that are not globally routable. Its ranges come from code.dny.dev/ssrf, which is generated from the IANA
// special-purpose registries. It refuses every special IPv4 range, everything outside 2000::/3 in IPv6 (which includes loopback, unique
// local, link local, v4-mapped, v4-compatible and NAT64), and the special ranges within 2000::/3 (Teredo, 6to4, documentation).
//
// This file adds addresses that the registries do not list.
var special = ssrf.New(ssrf.WithAnyPort(), ssrf.WithAnyNetwork())

// metadata are the addresses at which cloud providers give credentials to any program on the machine. They are always refused.
var metadata = map[netip.Addr]bool{
	netip.MustParseAddr("169.254.169.254"): true, // AWS, GCP, Azure, Oracle, DigitalOcean
	netip.MustParseAddr("169.254.170.2"):   true, // AWS, container credentials
	netip.MustParseAddr("169.254.170.23"):  true, // AWS, EKS pod identity
	netip.MustParseAddr("100.100.100.200"): true, // Alibaba
	netip.MustParseAddr("168.63.129.16"):   true, // Azure host agent; a public range
	netip.MustParseAddr("192.0.0.192"):     true, // Oracle
	netip.MustParseAddr("fd00:ec2::254"):   true, // AWS over IPv6
	netip.MustParseAddr("fd00:ec2::23"):    true, // AWS, EKS pod identity over IPv6
	netip.MustParseAddr("fd20:ce::254"):    true, // GCP over IPv6
}

var (
	nat64      = netip.MustParsePrefix("64:ff9b::/96") // RFC 6052
	sixToFour  = netip.MustParsePrefix("2002::/16")    // RFC 3056
	teredo     = netip.MustParsePrefix("2001::/32")    // RFC 4380
	compatible = netip.MustParsePrefix("::/96")        // RFC 4291 section 2.5.5.1
)

// embeddedIPv4 returns the IPv4 address inside an IPv6 address. A gateway or tunnel may forward traffic for the IPv6 address to it.
func embeddedIPv4(a netip.Addr) (netip.Addr, bool) {
	if !a.Is6() {
		return netip.Addr{}, false
	}
	b := a.As16()
	switch {
	case a.Is4In6(), nat64.Contains(a), compatible.Contains(a):
		return netip.AddrFrom4([4]byte(b[12:16])), true
	case sixToFour.Contains(a):
		return netip.AddrFrom4([4]byte(b[2:6])), true
	case teredo.Contains(a): // the IPv4 address of the Teredo client, with inverted bits
		return netip.AddrFrom4([4]byte{^b[12], ^b[13], ^b[14], ^b[15]}), true
	case b[8]&^0x02 == 0 && b[9] == 0 && b[10] == 0x5e && b[11] == 0xfe: // ISATAP, RFC 5214
		return netip.AddrFrom4([4]byte(b[12:16])), true
	}
	return netip.Addr{}, false
}

func (g *Guard) checkAddr(a netip.Addr) error {
	if a.Zone() != "" {
		return blocked("an address with a zone")
	}
	inner, carries := embeddedIPv4(a)
	if metadata[a] || carries && metadata[inner] {
		return blocked("a cloud metadata address")
	}
	if g.AllowInsecure {
		return nil
	}
	if carries { // check the IPv4 address even if allowNets has the IPv6 range around it, e.g. a NAT64 prefix
		if err := g.checkAddr(inner); err != nil {
			return err
		}
	}
	if slices.ContainsFunc(g.allowNets, func(p netip.Prefix) bool { return p.Contains(a) }) {
		return nil
	}
	if special.SafeAddr(a) != nil {
		return blocked("an address that is not globally routable")
	}
	return nil
}

// An endpoint may send at most answerQuota bytes per running exchange (a request with its response) on a connection, plus answerQuota for
// the time between exchanges, for example for a handshake or the unread rest of a response. That is enough for a complete response: a
// header of at most [maxAnswerHeader], a body of at most [maxAnswer], and the data that fits into the window of an HTTP/2 stream. Each
// read costs readCost bytes more, so that an endpoint which sends single bytes uses up its quota too.
//
// Without this limit, an endpoint could send empty frames (DATA, SETTINGS, PING) forever on an HTTP/2 connection, which stays open after
// its exchange has timed out. Reading them would keep most of a core busy.
const (
	answerQuota = 128 << 10
	readCost    = 64
)

var errExcess = errors.New("the endpoint sends without end")

// conn is a connection to an endpoint, below TLS. It enforces the quota of bytes that the endpoint may send (see [answerQuota]).
type conn struct {
	net.Conn
	closed func() // called once

	once sync.Once
	mu   sync.Mutex
	left int // bytes that may still be read
	busy int // running exchanges
}

func (c *conn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.mu.Lock()
	c.left -= n + readCost
	excess := c.left < 0
	c.mu.Unlock()
	if excess {
		_ = c.Close()
		return 0, errExcess
	}
	return n, err
}

func (c *conn) Close() error {
	err := c.Conn.Close()
	c.once.Do(c.closed)
	return err
}

// begin and end count the running exchanges (requests with their responses). begin adds answerQuota to the quota, and end takes back the
// unused part.
func (c *conn) begin() { c.count(1) }
func (c *conn) end()   { c.count(-1) }

func (c *conn) count(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.busy += n
	c.left = min(c.left+max(0, n)*answerQuota, (c.busy+1)*answerQuota)
}

// exchange tracks which connection a request uses, and whether the request got a connection in time. The errors of net/http's transport
// do not say this.
type exchange struct {
	trace   httptrace.ClientTrace
	ctx     context.Context // the exchange's context, because the transport dials with a different one
	half    time.Time       // when half of the timeout is over
	reached atomic.Bool     // set by markReached
	conn    *conn
}

type exchangeKey struct{}

func trackExchange(ctx context.Context, timeout time.Duration) (context.Context, *exchange) {
	x := &exchange{ctx: ctx, half: time.Now().Add(timeout / 2)}
	x.trace.GotConn = x.gotConn
	return httptrace.WithClientTrace(context.WithValue(ctx, exchangeKey{}, x), &x.trace), x
}

// gotConn moves the exchange to a new connection, whose quota it then raises. net/http calls it in the goroutine of RoundTrip, and calls
// it again each time the transport repeats a request.
func (x *exchange) gotConn(info httptrace.GotConnInfo) {
	x.end()
	x.markReached()
	below := info.Conn
	if t, ok := below.(*tls.Conn); ok {
		below = t.NetConn()
	}
	if c, ok := below.(*conn); ok {
		x.conn = c
		c.begin()
	}
}

// markReached records that the exchange has a connection, or that our limits let it open one. A timeout then counts as the endpoint's
// fault. In the second half of the timeout markReached does nothing, because the exchange has then spent most of its time waiting for a
// free connection on our side.
func (x *exchange) markReached() {
	if time.Now().Before(x.half) {
		x.reached.Store(true)
	}
}

func (x *exchange) end() {
	if x.conn != nil {
		x.conn.end()
		x.conn = nil
	}
}

// connLimit limits the open connections to all hosts together, including idle ones. The settings of net/http cannot limit that.
type connLimit struct {
	open    chan struct{} // has an element for each open connection
	turn    chan struct{} // has an element while an exchange waits for a connection, so that only one at a time closes idle ones
	reclaim func()
}

func newConnLimit(n int, reclaim func()) *connLimit {
	return &connLimit{open: make(chan struct{}, n), turn: make(chan struct{}, 1), reclaim: reclaim}
}

var errNoConn = errors.New("all connections are in use")

func (l *connLimit) acquire(x *exchange) error {
	select {
	case l.open <- struct{}{}:
		return nil
	default:
	}
	select {
	case l.turn <- struct{}{}:
		defer func() { <-l.turn }()
	case <-x.ctx.Done():
		return errNoConn
	}
	again := time.NewTicker(100 * time.Millisecond)
	defer again.Stop()
	for {
		l.reclaim()
		select {
		case l.open <- struct{}{}:
			return nil
		case <-x.ctx.Done():
			return errNoConn
		case <-again.C: // reclaim connections that became idle meanwhile
		}
	}
}

func (l *connLimit) release() { <-l.open }

// dial waits until the limit on open connections allows another connection, and then connects to an endpoint.
func (s *Sender) dial(ctx context.Context, network, address string) (net.Conn, error) {
	x := ctx.Value(exchangeKey{}).(*exchange) // the transport keeps the context's values
	if err := s.conns.acquire(x); err != nil {
		return nil, err
	}
	x.markReached()
	c, err := s.guard.dialContext(ctx, network, address)
	if err != nil {
		s.conns.release()
		return nil, err
	}
	return &conn{Conn: c, closed: s.conns.release, left: answerQuota}, nil
}

// MuteTransport keeps net/http's messages about endpoints out of the standard log, because an endpoint must not be able to fill our log
// (SRF-07) or to put text into it (SRF-05). Call it once, after [slog.SetDefault], which replaces the standard log's writer.
func MuteTransport() { log.SetOutput(muted{log.Writer()}) }

// muted drops net/http's log lines, because net/http has no setting for that.
type muted struct{ io.Writer }

var transportLines = [][]byte{
	[]byte("Transport: "), []byte("http2: Transport "), []byte("protocol error: "), []byte("Unsolicited response "),
	[]byte("http2: 1xx "),
}

func (m muted) Write(line []byte) (int, error) {
	for _, prefix := range transportLines {
		if bytes.Contains(line, prefix) { // not HasPrefix, because the line may begin with the time
			return len(line), nil
		}
	}
	return m.Writer.Write(line)
}
