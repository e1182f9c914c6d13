package auth

import (
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"golang.org/x/time/rate"

	"github.com/mcp-events/mcpevents/shared/platform/bounded"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
)

// Guard keeps web pages of other sites from using an endpoint through their
// visitor's browser. The zero value lets in callers that are no browsers, and on a
// loopback address pages of this machine. [NewGuard] makes one that logs.
type Guard struct {
	// Origins may be sent by browsers, as "https://console.example.com".
	Origins []string
	// Hosts may stand in Host on a loopback address, beside its own names: those that a
	// proxy on this machine passes on. One without a port is allowed with any.
	Hosts []string

	log    *slog.Logger
	logged *bounded.Map[string, bool]
	lines  *rate.Limiter
}

const (
	// maxLoggedHosts bounds the refused hosts that are remembered; callers choose them.
	maxLoggedHosts = 64
	// loggedHosts is how many refused hosts are logged immediately. After that one per minute is.
	loggedHosts = 20
)

// NewGuard makes a guard that logs a host that it refuses once, and few hosts of a caller that makes up new ones.
func NewGuard(origins, hosts []string, log *slog.Logger) Guard {
	return Guard{Origins: origins, Hosts: hosts, log: log, logged: bounded.NewMap[string, bool](maxLoggedHosts), lines: rate.NewLimiter(rate.Every(time.Minute), loggedHosts)}
}

// Check refuses a request with an Origin that is not allowed, one that a browser sends for another site without saying its Origin
// (such as for an image), and one that arrived on a loopback address under another name (DNS rebinding). The error is of kind
// fault.Forbidden.
func (g Guard) Check(r *http.Request) error {
	local := onLoopback(r)
	if local && !Loopback(r.Host) && !g.knows(r.Host) {
		g.logHost(r)
		return fault.New(fault.Forbidden, "the Host %.128q is not allowed here; a server behind a proxy allows it by --allowed-hosts", r.Host)
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

func (g Guard) knows(host string) bool {
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
	host := fmt.Sprintf("%.128s", r.Host) // of the caller's choice
	if _, known := g.logged.Get(host); known || !g.lines.Allow() {
		return
	}
	g.logged.Put(host, true)
	g.log.WarnContext(r.Context(), "host refused", "host", host, "allow_by", "--allowed-hosts")
}

// onLoopback reports whether the request came in on a loopback address. Without
// an address, as on Lambda, it did not.
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
