package auth

import (
	"net"
	"net/http"
	"net/netip"
	"path"
	"strings"
)

// SecretPath authenticates clients that cannot send a header with a key in the URL, /mcp/u/KEY (RCH-05). It accepts only keys whose
// configuration allows this. It rewrites the request to one to /mcp with the key in the Authorization header, so that no other handler
// sees, logs or returns the path with the key.
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

// Handler passes all requests on to next and rewrites requests to secret paths. If the key in the path is unknown, expired or not allowed
// in a path, it responds as if the path did not exist.
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

// rewrite returns the request to a secret path as a request to the endpoint with the key as bearer token. It returns nil after it has
// refused the request. It is separate from [SecretPath.Handler] because thousands of streams have the Handler's frame on their stacks.
func (s SecretPath) rewrite(w http.ResponseWriter, r *http.Request) *http.Request {
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("Referrer-Policy", "no-referrer")
	if !s.isSecure(r) {
		// The key was sent in clear text, so refuse it even if it is valid.
		http.Error(w, "a secret path needs https", http.StatusForbidden)
		return nil
	}
	// The mux would redirect a path that is not clean, and the response would contain the key.
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

// isSecure reports whether a request used https or came from this machine. If X-Forwarded-Proto says http, the request is not secure. If it
// says https, the request is secure only if the proxy is trusted.
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
	host, _, err := net.SplitHostPort(remote)
	if err != nil {
		return false
	}
	ip, err := netip.ParseAddr(host)
	if err != nil {
		return false
	}
	for _, p := range s.Proxies {
		if p.Contains(ip.Unmap()) {
			return true
		}
	}
	return false
}

// ParseProxies parses addresses and prefixes, such as 10.0.0.0/8. If one is malformed, it returns it as bad.
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
