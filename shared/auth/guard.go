package auth

import (
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"

	"golang.org/x/time/rate"

	"github.com/mcp-events/mcpevents/shared/platform/bounded"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
)

// Guard prevents web pages of other sites from calling an endpoint through a visitor's browser. The zero value admits callers that are
// not browsers and, on a loopback address, pages of this machine. It does not log. Create a logging Guard with [NewGuard].
type Guard struct {
	// Origins are the allowed origins, for example "https://console.example.com".
	Origins []string
	// Hosts are the values of Host that are allowed on a loopback address in addition to its own names, because a proxy on this machine
	// passes them on. A host without a port is allowed with any port.
	Hosts []string

	log    *slog.Logger
	logged *bounded.Map[string, bool]
	lines  *rate.Limiter
}

const (
	// maxLoggedHosts limits the refused hosts in memory, because callers choose them.
	maxLoggedHosts = 64
	// loggedHosts is the number of refused hosts that are logged immediately. After them, one per minute is logged.
	loggedHosts = 20
)

// NewGuard returns a guard that logs each refused host once. It logs few hosts if a caller makes up new ones.
func NewGuard(origins, hosts []string, log *slog.Logger) Guard {
	return Guard{Origins: origins, Hosts: hosts, log: log, logged: bounded.NewMap[string, bool](maxLoggedHosts), lines: rate.NewLimiter(rate.Every(time.Minute), loggedHosts)}
}

// Check returns an error of kind fault.Forbidden for a request
//
//   - with an Origin that is not allowed,
//   - without an Origin that a browser sends on behalf of another site, for example for an image, or
//   - that arrived on a loopback address with another host name (DNS rebinding).
func (g Guard) Check(r *http.Request) error {
	local := onLoopback(r)
	if local && !Loopback(r.Host) && !g.allowsHost(r.Host) {
		g.logHost(r)
		return fault.New(fault.Forbidden, "the Host %.128q is not allowed here; a server behind a proxy allows it with --allowed-hosts", r.Host)
	}
	origin := r.Header.Get("Origin")
	switch {
	case origin == "" && r.Header.Get("Sec-Fetch-Site") == "cross-site":
		return fault.New(fault.Forbidden, "a page of another site cannot make this request")
	case origin == "" || slices.Contains(g.Origins, origin):
		return nil
	}
	if u, err := url.Parse(origin); err == nil && local && u.Host != "" && Loopback(u.Host) {
		return nil
	}
	return fault.New(fault.Forbidden, "the Origin %.128q is not allowed here; --allowed-origins allows it", origin)
}

func (g Guard) allowsHost(host string) bool {
	name := host
	if h, _, err := net.SplitHostPort(host); err == nil {
		name = h
	}
	return slices.ContainsFunc(g.Hosts, func(allowed string) bool {
		return strings.EqualFold(allowed, host) || strings.EqualFold(allowed, name)
	})
}

func (g Guard) logHost(r *http.Request) {
	if g.log == nil {
		return
	}
	host := fmt.Sprintf("%.128s", r.Host) // callers choose it, so it is cut
	if _, known := g.logged.Get(host); known || !g.lines.Allow() {
		return
	}
	g.logged.Put(host, true)
	g.log.WarnContext(r.Context(), "host refused", "host", host, "allow_by", "--allowed-hosts")
}

// onLoopback reports whether the request arrived on a loopback address. On Lambda, requests have no address.
func onLoopback(r *http.Request) bool {
	addr, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	return ok && addr != nil && Loopback(addr.String())
}

// Loopback reports whether a host, with or without a port, is "localhost" or a loopback address.
func Loopback(hostport string) bool {
	host := hostport
	if h, _, err := net.SplitHostPort(hostport); err == nil {
		host = h
	}
	if strings.EqualFold(host, "localhost") {
		return true
	}
	ip := net.ParseIP(strings.Trim(host, "[]"))
	return ip != nil && ip.IsLoopback()
}

// ClientNetwork returns the network that limits count as one client. That is an IPv4 address or an IPv6 network of 64 bits, because a
// client usually has a whole network of that size. Addresses that cannot be parsed count as one client.
func ClientNetwork(remote string) netip.Prefix {
	ip, err := netip.ParseAddr(remote) // on Lambda, without a port
	if withPort, bad := netip.ParseAddrPort(remote); bad == nil {
		ip, err = withPort.Addr(), nil
	}
	if err != nil {
		return netip.Prefix{}
	}
	bits := 32
	if ip = ip.Unmap(); ip.Is6() {
		bits = 64
	}
	p, _ := ip.Prefix(bits) // drops a zone
	return p
}
