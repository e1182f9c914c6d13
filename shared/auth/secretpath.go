package auth

import (
	"net"
	"net/http"
	"net/netip"
	"path"
	"strings"
)

// SecretPath lets callers in by a key that is part of the URL, PREFIX/KEY, in place of a header, for clients that can
// send none (RCH-05). Only a key that its configuration allows it is taken so. The request then goes on as if it had
// come to the endpoint with the key in its header, so that nothing behind this handler sees the path, logs it or answers with it.
type SecretPath struct {
	Auth Authenticator
	// Proxies are those whose X-Forwarded-Proto is believed.
	Proxies []netip.Prefix
	// HTTPS is set where all requests come over https, as on Lambda.
	HTTPS bool
}

const (
	secretPrefix   = "/mcp/u/"
	secretEndpoint = "/mcp"
	forwardedProto = "X-Forwarded-Proto"
)

// Handler serves requests to secret paths by next, and all others, too. A path with a key that is not known, not allowed here or expired
// is answered as one that does not exist.
func (s SecretPath) Handler(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(path.Clean(r.URL.Path), secretPrefix) {
			if r = s.plain(w, r); r == nil {
				return
			}
		}
		next.ServeHTTP(w, r)
	})
}

// plain is the request to a secret path as one to the endpoint with the key as bearer token; nil if it is refused. It is a function of its
// own because thousands of streams wait below [SecretPath.Handler], each with its frame on the stack.
func (s SecretPath) plain(w http.ResponseWriter, r *http.Request) *http.Request {
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("Referrer-Policy", "no-referrer")
	if !s.secure(r) {
		// The key is known on the way now.
		http.Error(w, "a secret path needs https", http.StatusForbidden)
		return nil
	}
	// A path that is not clean would be redirected, and the answer would name the key.
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

// secure reports whether a request came over https, or from this machine. A proxy that says how it was called is believed if it
// says http; else only if it is trusted.
func (s SecretPath) secure(r *http.Request) bool {
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

// ParseProxies reads addresses and prefixes, such as 10.0.0.0/8.
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
