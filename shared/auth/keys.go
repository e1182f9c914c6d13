package auth

import (
	"cmp"
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"net/http"
	"net/netip"
	"path"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/platform/periodic"
	"github.com/mcp-events/mcpevents/shared/platform/refresh"
)

// Key is a static key of --auth keys. Only its hash is stored. A key must have at least 16 random bytes, because the plain hash of a
// password would not protect the password.
type Key struct {
	Principal string
	Workspace string // [DefaultWorkspace] if it is empty
	Scopes    []string
	// SHA256 is the SHA-256 of the key as 64 hexadecimal digits.
	SHA256 string
	// Expires is the time from which the key is refused. The zero time means never.
	Expires time.Time
	// Path allows the key to be part of a URL, see [SecretPath].
	Path bool
	// Claims are claims of the principal, for the access rules of the catalog.
	Claims map[string]string
}

type hashedKey struct {
	hash      [sha256.Size]byte
	principal Principal
}

func (k *hashedKey) isExpired(now time.Time) bool {
	return !k.principal.Expires.IsZero() && !now.Before(k.principal.Expires)
}

// StaticKeys authenticates callers with static keys. It is also a [Directory]. Create it with [NewStaticKeys].
type StaticKeys struct {
	all    []hashedKey
	byName map[name][]int // the keys of each principal, as indices in the field all
	now    func() time.Time
}

// MaxKeys is the largest number of keys. It is limited because the key of each request is compared with all of them.
const MaxKeys = 10_000

var (
	principalID   = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._@:|/-]{0,127}$`)
	workspaceName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$`)
)

// ValidPrincipal reports whether id can name a principal.
func ValidPrincipal(id string) bool { return principalID.MatchString(id) }

// ValidWorkspace reports whether name can name a workspace: up to 64 letters, digits, - and _, beginning with a letter or digit.
func ValidWorkspace(name string) bool { return workspaceName.MatchString(name) }

// NewStaticKeys returns an authenticator for static keys, which callers send as "Authorization: Bearer KEY". The error is of kind
// fault.Invalid if a key is malformed. If the parameter now is nil, the clock is time.Now.
func NewStaticKeys(list []Key, now func() time.Time) (*StaticKeys, error) {
	now = periodic.Clock(now)
	k := &StaticKeys{now: now, all: make([]hashedKey, 0, len(list)), byName: map[name][]int{}}
	for i, x := range list {
		h, err := hashKey(x)
		if err != nil {
			return nil, fault.Wrap(fault.Invalid, err, "key %d", i+1)
		}
		owner := name{h.principal.Workspace, h.principal.ID}
		k.byName[owner] = append(k.byName[owner], len(k.all))
		k.all = append(k.all, h)
	}
	return k, nil
}

// Check returns an error of kind fault.Invalid if the key is malformed.
func (x Key) Check() error {
	_, err := hashKey(x)
	return err
}

func hashKey(x Key) (hashedKey, error) {
	h := hashedKey{}
	sum, err := hex.DecodeString(x.SHA256)
	if err != nil || len(sum) != sha256.Size {
		return h, fault.New(fault.Invalid, "sha256 is not 64 hexadecimal digits")
	}
	h.hash = [sha256.Size]byte(sum)
	x.Workspace = cmp.Or(x.Workspace, DefaultWorkspace)
	switch {
	case !ValidPrincipal(x.Principal):
		return h, fault.New(fault.Invalid, "principal %q is not a name of letters, digits and ._@:|/-", x.Principal)
	case x.Principal == anonymousID:
		return h, fault.New(fault.Invalid, "principal %q is reserved for --auth none", x.Principal)
	case !ValidWorkspace(x.Workspace):
		return h, fault.New(fault.Invalid, "workspace %q is not a name of letters, digits, - and _", x.Workspace)
	}
	h.principal = Principal{ID: x.Principal, Workspace: x.Workspace, Scopes: slices.Clone(x.Scopes), Expires: x.Expires, ByPath: x.Path}
	if len(x.Claims) > 0 {
		h.principal.Claims = make(map[string][]string, len(x.Claims))
		for name, value := range x.Claims {
			h.principal.Claims[name] = []string{value}
		}
	}
	return h, nil
}

// Authenticate compares the hash of the token with all keys. Its duration does not depend on which key matches, or on how many bytes
// match, so that an attacker cannot learn about the keys from it.
func (k *StaticKeys) Authenticate(_ context.Context, h http.Header) (Principal, error) {
	token, err := Bearer(h)
	if err != nil {
		return Principal{}, err
	}
	sum := sha256.Sum256([]byte(token))
	found := -1
	for i := range k.all {
		eq := subtle.ConstantTimeCompare(sum[:], k.all[i].hash[:])
		found = subtle.ConstantTimeSelect(eq, i, found)
	}
	if found < 0 {
		return Principal{}, ErrInvalidToken
	}
	if k.all[found].isExpired(k.now()) {
		return Principal{}, ErrInvalidToken
	}
	return k.all[found].principal, nil
}

// Directory looks up the current rights of a principal without a request from the principal, for example to decide whether its
// subscriptions may continue.
type Directory interface {
	// Principals returns a [Principal] for each valid credential of a principal, with that credential's scopes and claims. The result is empty
	// if the principal can no longer authenticate.
	Principals(ctx context.Context, workspace, id string, f refresh.Freshness) ([]Principal, error)
}

// Principals implements [Directory].
func (k *StaticKeys) Principals(_ context.Context, workspace, id string, _ refresh.Freshness) ([]Principal, error) {
	var out []Principal
	for _, i := range k.byName[name{workspace, id}] {
		if key := &k.all[i]; !key.isExpired(k.now()) {
			out = append(out, key.principal)
		}
	}
	return out, nil
}

type name struct{ workspace, id string }

// SecretPath is for clients that cannot send an Authorization header. They put their key in the URL, as /mcp/u/KEY. SecretPath accepts only
// keys whose configuration allows this. It moves the key to the header, so that no other handler sees, logs or returns the path.
type SecretPath struct {
	Auth Authenticator
	// Proxies are the proxies whose X-Forwarded-Proto is trusted.
	Proxies []netip.Prefix
	// HTTPS says that all requests use https, as on Lambda.
	HTTPS bool
}

const (
	secretPrefix   = "/mcp/u/"
	secretEndpoint = "/mcp"
	forwardedProto = "X-Forwarded-Proto"
)

// Handler rewrites requests to secret paths and passes all requests on to next. A key that is unknown, expired or not allowed in a path
// gets a 404, as if the path did not exist.
func (s SecretPath) Handler(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(path.Clean(r.URL.Path), secretPrefix) {
			if r = s.rewrite(w, r); r == nil {
				return
			}
		}
		next.ServeHTTP(w, r)
	})
}

// rewrite turns a request to a secret path into a request to the MCP endpoint. If it refuses the request, it writes the response and
// returns nil. It is separate from [SecretPath.Handler] because each open stream keeps the Handler's stack frame, which should therefore
// be small.
func (s SecretPath) rewrite(w http.ResponseWriter, r *http.Request) *http.Request {
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("Referrer-Policy", "no-referrer")
	if !s.isSecure(r) {
		// The client has sent the key in clear text, so refuse the request even if the key is valid.
		http.Error(w, "a secret path needs https", http.StatusForbidden)
		return nil
	}
	// Refuse a path such as /mcp//u/KEY here. The mux would redirect it, and the response would contain the key.
	key, found := strings.CutPrefix(r.URL.Path, secretPrefix)
	if !found || strings.Contains(key, "/") || len(r.Header.Values("Authorization")) > 0 {
		notFound(w)
		return nil
	}
	header := r.Header.Clone()
	header.Set("Authorization", "Bearer "+key)
	if p, err := s.Auth.Authenticate(r.Context(), header); err != nil || !p.ByPath {
		notFound(w)
		return nil
	}
	to := r.Clone(r.Context())
	to.Header, to.URL.Path, to.URL.RawPath, to.RequestURI, to.Pattern = header, secretEndpoint, "", secretEndpoint, ""
	return to
}

func notFound(w http.ResponseWriter) { http.Error(w, "404 page not found", http.StatusNotFound) }

// isSecure reports whether a request used https or came from this machine. A header X-Forwarded-Proto with a value other than https makes
// the request insecure. The value https counts only in requests from a trusted proxy.
func (s SecretPath) isSecure(r *http.Request) bool {
	proto := r.Header.Values(forwardedProto)
	https := len(proto) == 1 && strings.EqualFold(strings.TrimSpace(proto[0]), "https")
	switch {
	case len(proto) > 0 && !https:
		return false
	case s.HTTPS, r.TLS != nil, onLoopback(r):
		return true
	}
	return https && s.trusts(r.RemoteAddr)
}

func (s SecretPath) trusts(remote string) bool {
	addr, err := netip.ParseAddrPort(remote)
	return err == nil && slices.ContainsFunc(s.Proxies, func(p netip.Prefix) bool { return p.Contains(addr.Addr().Unmap()) })
}

// ParseProxies parses IP addresses and prefixes, such as 10.0.0.0/8. If an entry is malformed, the result bad is this entry.
func ParseProxies(list []string) (out []netip.Prefix, bad string) {
	for _, text := range list {
		if ip, err := netip.ParseAddr(text); err == nil {
			out = append(out, netip.PrefixFrom(ip, ip.BitLen()))
			continue
		}
		p, err := netip.ParsePrefix(text)
		if err != nil {
			return nil, text
		}
		out = append(out, p.Masked())
	}
	return out, ""
}
