package auth

import (
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/mcp-events/mcpevents/shared/fault"
)

// Guard keeps web pages of other sites from using an endpoint through their
// visitor's browser. The zero value lets in callers that are no browsers, and on a
// loopback address pages of this machine.
type Guard struct {
	// Origins may be sent by browsers, as "https://console.example.com".
	Origins []string
	// Hosts may stand in Host on a loopback address, beside its own names.
	Hosts []string
}

// Check refuses a request with an Origin that is not allowed, and one that came in
// on a loopback address under another name (DNS rebinding). The error is of kind
// fault.Forbidden.
func (g Guard) Check(r *http.Request) error {
	local := onLoopback(r)
	if local && !loopbackHost(r.Host) && !slices.Contains(g.Hosts, r.Host) {
		return fault.New(fault.Forbidden, "the Host of the request is not allowed here")
	}
	origin := r.Header.Get("Origin")
	if origin == "" || slices.Contains(g.Origins, origin) {
		return nil
	}
	if u, err := url.Parse(origin); err == nil && local && u.Host != "" && loopbackHost(u.Host) {
		return nil
	}
	return fault.New(fault.Forbidden, "the Origin of the request is not allowed here")
}

// onLoopback reports whether the request came in on a loopback address. Without
// an address, as on Lambda, it did not.
func onLoopback(r *http.Request) bool {
	addr, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	return ok && addr != nil && loopbackHost(addr.String())
}

// loopbackHost tells it of a host with or without a port.
func loopbackHost(hostport string) bool {
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
