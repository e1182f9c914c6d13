// Package auth authenticates callers and checks their scopes.
//
// An [Authenticator] turns the headers of a request into a [Principal], which belongs to a workspace and has scopes. Package catalog has
// the access rules for events. HTTP handlers answer an error of kind fault.Unauthenticated with 401 and an error of kind fault.Forbidden
// with 403, and set the header that [Challenge] returns.
package auth

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
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

// The general scopes. An event type or a backend may require other scopes, too.
const (
	ScopeRead      = "events:read"      // list, read, listen to and poll events
	ScopeSubscribe = "events:subscribe" // webhooks
	ScopePublish   = "events:publish"   // publish
)

// ScopeManage lets an operator list, give and revoke the consents with which other principals of the workspace share their conversations.
// It is not a general scope, so that clients do not request it by default, and --auth none does not grant it.
const ScopeManage = "consent:manage"

// ScopeOperate lets an operator use the admin API for the workspace. It is not a general scope, so that clients do not request
// it together with the general scopes.
const ScopeOperate = "events:operate"

// Scopes returns the general scopes in a stable order.
func Scopes() []string { return []string{ScopeRead, ScopeSubscribe, ScopePublish} }

// DefaultWorkspace is the workspace of principals, backends, sources and so on whose configuration names no workspace.
const DefaultWorkspace = "default"

// anonymousID is the id of the principal of [AcceptAll].
const anonymousID = "anonymous"

// Principal is the caller of a request. The zero value has no permissions.
type Principal struct {
	// ID is unique within the workspace.
	ID        string
	Workspace string
	Scopes    []string
	// Claims has the claims of the caller's token or key, for the access rules of the catalog. It leaves out claims that are not
	// strings, numbers, or lists of strings and numbers.
	Claims map[string][]string
	// Expires is when the caller's streams end, because the caller has to authenticate again. The zero time means never.
	Expires time.Time
	// ByPath is true if the caller may send its key in the path of a URL, see [SecretPath].
	ByPath bool
	// Anonymous is true for the principal of [AcceptAll].
	Anonymous bool
	// ScopePrefix is the prefix that scope names have at the authorization server of the caller's token, for example
	// "https://events.example.com/". [Challenge] adds it to the names of the required scopes, so that the client can request them there.
	ScopePrefix string
}

// Token is a caller's credential, for backends that act on behalf of the caller. Formatting a Token prints only "(a token)".
type Token struct {
	// Header is the Authorization header of the caller's request.
	Header string
	// Expires has the same meaning as [Principal.Expires].
	Expires time.Time
}

// Format implements [fmt.Formatter].
func (Token) Format(s fmt.State, _ rune) { _, _ = s.Write([]byte("(a token)")) }

type tokenKey struct{}

// WithToken returns a context with a caller's token. Calls to backends with this context are made on behalf of that caller.
func WithToken(ctx context.Context, t Token) context.Context {
	return context.WithValue(ctx, tokenKey{}, t)
}

// TokenOf returns the token in a context, or the zero Token if the context has no token.
func TokenOf(ctx context.Context) Token {
	t, _ := ctx.Value(tokenKey{}).(Token)
	return t
}

// Has reports whether the principal has all of the scopes.
func (p Principal) Has(scopes ...string) bool { return len(p.listMissing(scopes)) == 0 }

func (p Principal) listMissing(scopes []string) []string {
	var out []string
	for _, s := range scopes {
		if !slices.Contains(p.Scopes, s) && !slices.Contains(out, s) {
			out = append(out, s)
		}
	}
	return out
}

// LogName returns the name of the principal in the log: the beginning of the SHA-256 of its id, because the id may be a person's name.
func (p Principal) LogName() string {
	hash := sha256.Sum256([]byte(p.ID))
	return hex.EncodeToString(hash[:6])
}

// MissingScopes is the data of an error of kind fault.Forbidden. It lists all scopes that the caller lacks, so that the client needs to
// request scopes only once (RFC 6750, section 3.1).
type MissingScopes struct {
	Scopes []string `json:"missingScopes"`
	prefix string
}

// LacksScope reports whether err means that the caller lacks a scope, as errors of [Principal.Require] do.
func LacksScope(err error) bool {
	_, ok := fault.DataOf(err).(MissingScopes)
	return ok
}

// Require returns nil if the principal has all of the scopes. Otherwise the error is of kind fault.Forbidden, and its data is
// [MissingScopes].
func (p Principal) Require(scopes ...string) error {
	missing := p.listMissing(scopes)
	if len(missing) == 0 {
		return nil
	}
	return fault.New(fault.Forbidden, "this needs the scope %s", strings.Join(missing, " ")).
		With(MissingScopes{missing, p.ScopePrefix})
}

// Authenticator returns the caller of a request. The error is of kind fault.Unauthenticated if the request has no valid credentials, and
// of kind fault.Unavailable if they cannot be checked now.
type Authenticator interface {
	Authenticate(ctx context.Context, h http.Header) (Principal, error)
}

type none struct{ principal Principal }

// AcceptAll returns an authenticator that accepts every request without credentials. All callers are the principal "anonymous" of the
// default workspace, with all general scopes and [ScopeOperate]. It must not be used on a network, see [CheckListen].
func AcceptAll() Authenticator {
	return none{Principal{ID: anonymousID, Workspace: DefaultWorkspace, Scopes: append(Scopes(), ScopeOperate), Anonymous: true}}
}

func (n none) Authenticate(context.Context, http.Header) (Principal, error) { return n.principal, nil }

// Mode is the value of the flag --auth.
type Mode string

// The modes in which a server authenticates callers.
const (
	ModeNone Mode = "none"
	ModeKeys Mode = "keys"
	ModeJWT  Mode = "jwt"
)

// CheckListen returns an error if a server without authentication would listen on an address that other machines can reach. Only loopback
// addresses and "localhost" are allowed, and an address without a host means all interfaces. A server with authentication may listen
// anywhere.
func CheckListen(addr string, mode Mode) error {
	if mode != ModeNone {
		return nil
	}
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return fault.New(fault.Invalid, "the address %q is not HOST:PORT", addr)
	}
	if IsLoopback(host) {
		return nil
	}
	return fault.New(fault.Invalid,
		"--auth none is for this machine only, and %q is not a loopback address; listen on 127.0.0.1 or use --auth keys or jwt", addr)
}

// Bearer returns the token in the Authorization header (RFC 6750, section 2.1). Without such a header, it returns [ErrNoToken]. If the
// header is repeated or malformed, or the token is longer than 16 KiB, the error is of kind fault.Unauthenticated. Bearer does not read
// tokens in URLs; see [SecretPath] for these.
func Bearer(h http.Header) (string, error) {
	values := h.Values("Authorization")
	if len(values) == 0 {
		return "", ErrNoToken
	}
	if len(values) > 1 {
		return "", fault.New(fault.Unauthenticated, "more than one Authorization header was sent")
	}
	scheme, token, _ := strings.Cut(values[0], " ")
	token = strings.TrimSpace(token)
	if !strings.EqualFold(scheme, "Bearer") || token == "" || strings.ContainsAny(token, " \t") || len(token) > maxToken {
		return "", ErrInvalidToken
	}
	return token, nil
}

// maxToken is the maximum size of a token in bytes. It limits the work for callers who are not authenticated yet.
const maxToken = 16 << 10

// ErrNoToken is returned for a request without credentials. [Challenge] then names no error (RFC 6750, section 3).
var ErrNoToken = fault.New(fault.Unauthenticated, "authentication is required")

// ErrInvalidToken is returned for unknown, expired and malformed tokens.
var ErrInvalidToken = fault.New(fault.Unauthenticated, "the token is not valid")

// prefixedError is an error for a caller whose authorization server puts a prefix before the names of scopes. It carries this prefix (see
// [Principal.ScopePrefix]), which [Challenge] adds to the scopes.
type prefixedError struct {
	error
	prefix string
}

func (e *prefixedError) Unwrap() error { return e.error }

// WithScopePrefix returns err with the scope prefix of the caller's authorization server, which [Challenge] needs. The errors of
// [Principal.Require] have the prefix already.
func WithScopePrefix(err error, prefix string) error {
	if err == nil || prefix == "" {
		return err
	}
	return &prefixedError{err, prefix}
}

// Challenge returns the value of the WWW-Authenticate header for a 401 or 403 response (RFC 6750, section 3; RFC 9728, section 5.1): the
// URL of the protected resource's metadata if there is one, the required scopes, and the error. For an error that is
// not of kind fault.Unauthenticated and has no [MissingScopes], Challenge returns "", and the response needs no such header.
//
// The argument scopes lists all scopes that the refused request requires. Challenge adds the missing scopes of the error. It
// writes all these scopes with the authorization server's prefix, because clients request exactly the scopes of a challenge.
func Challenge(err error, metadataURL string, scopes ...string) string {
	var code, prefix string
	scopes = slices.Clone(scopes)
	switch fault.KindOf(err) {
	case fault.Unauthenticated:
		if !errors.Is(err, ErrNoToken) {
			code = "invalid_token"
		}
		if prefixed, ok := errors.AsType[*prefixedError](err); ok {
			prefix = prefixed.prefix
		}
	case fault.Forbidden:
		missing, ok := fault.DataOf(err).(MissingScopes)
		if !ok {
			return ""
		}
		code = "insufficient_scope"
		scopes, prefix = append(scopes, missing.Scopes...), missing.prefix
	default:
		return ""
	}
	var params []string
	add := func(name, value string) {
		if value != "" {
			params = append(params, name+`="`+quoted.Replace(value)+`"`)
		}
	}
	add("error", code)
	for i, scope := range scopes {
		scopes[i] = prefix + scope
	}
	slices.Sort(scopes)
	add("scope", strings.Join(slices.Compact(scopes), " "))
	add("resource_metadata", metadataURL)
	if len(params) == 0 {
		return "Bearer"
	}
	return "Bearer " + strings.Join(params, ", ")
}

var quoted = strings.NewReplacer(`\`, `\\`, `"`, `\"`)

// Guard prevents web pages of other sites from calling an endpoint through a visitor's browser. The zero value admits callers that are
// not browsers and, on a loopback address, pages of this machine. It does not log. Create a logging Guard with [NewGuard].
type Guard struct {
	// Origins are the allowed origins, for example "https://console.example.com".
	Origins []string
	// Hosts are additional values of the Host header that are allowed on a loopback address. They are needed if a proxy on this machine passes
	// on the Host of its own requests, for example "events.example.com". A host without a port is allowed with any port.
	Hosts []string

	log    *slog.Logger
	logged *bounded.Map[string, bool]
	lines  *rate.Limiter
}

const (
	// maxLoggedHosts limits how many refused hosts a Guard remembers, because callers can make up any number of hosts.
	maxLoggedHosts = 64
	// loggedHosts is how many refused hosts a Guard logs immediately. After that, it logs one per minute.
	loggedHosts = 20
)

// NewGuard returns a guard that logs each refused host once. If a caller makes up many hosts, it logs the first 20, and then one per
// minute.
func NewGuard(origins, hosts []string, log *slog.Logger) Guard {
	return Guard{Origins: origins, Hosts: hosts, log: log, logged: bounded.NewMap[string, bool](maxLoggedHosts), lines: rate.NewLimiter(rate.Every(time.Minute), loggedHosts)}
}

// Check returns an error of kind fault.Forbidden for a request
//
//   - that has several Origins, or one that is not allowed,
//   - that has no Origin but was sent by a browser for a page of another site, for example to load an image, or
//   - that arrived on a loopback address with a Host that is not a loopback name and not in Hosts (DNS rebinding).
func (g Guard) Check(r *http.Request) error {
	local := onLoopback(r)
	if local && !IsLoopback(r.Host) && !g.allowsHost(r.Host) {
		g.logHost(r)
		return fault.New(fault.Forbidden, "the Host %.128q is not allowed here; a server behind a proxy allows it with --allowed-hosts", r.Host)
	}
	origin := strings.Join(r.Header.Values("Origin"), ", ") // a list equals no allowed origin
	switch {
	case origin == "" && r.Header.Get("Sec-Fetch-Site") == "cross-site":
		return fault.New(fault.Forbidden, "a page of another site cannot make this request")
	case origin == "" || slices.Contains(g.Origins, origin):
		return nil
	}
	if u, err := url.Parse(origin); err == nil && local && u.Host != "" && IsLoopback(u.Host) {
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

// onLoopback reports whether the request arrived on a loopback address. On Lambda it returns false, because requests have no address
// there.
func onLoopback(r *http.Request) bool {
	switch addr := r.Context().Value(http.LocalAddrContextKey).(type) {
	case *net.TCPAddr: // the usual type, which needs no conversion to text
		return addr.IP.IsLoopback()
	case net.Addr:
		return IsLoopback(addr.String())
	}
	return false
}

// IsLoopback reports whether a host, with or without a port, is "localhost" or a loopback address.
func IsLoopback(hostport string) bool {
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

// ClientNetwork returns the network that counts as one client in limits: an IPv4 address or an IPv6 network of 64 bits, because one client
// usually has a whole network of that size. All addresses that cannot be parsed count as one client.
func ClientNetwork(remote string) netip.Prefix {
	ip, err := netip.ParseAddr(remote) // on Lambda, remote has no port
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
	p, _ := ip.Prefix(bits) // without the zone of an IPv6 address, for example eth0
	return p
}
