package boot

import (
	"crypto/subtle"
	"net/http"
)

const (
	// envFrontKey is the variable with the key that CloudFront, the front, sends in frontHeader with every request.
	// CloudFront replaces a header of this name that a client sent. Without a front the variable is empty.
	envFrontKey = "MCPEVENTS_FRONT_KEY"
	frontHeader = "X-Mcpevents-Front"
)

// Fronted refuses requests that did not come through the front, if there is one. Otherwise a client that knows a
// function's URL could bypass the firewall.
func (p *Process) Fronted(next http.Handler) http.Handler {
	key := []byte(p.getenv(envFrontKey))
	if len(key) == 0 {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if subtle.ConstantTimeCompare([]byte(r.Header.Get(frontHeader)), key) != 1 {
			http.Error(w, "this deployment is served at another host", http.StatusForbidden)
			return
		}
		next.ServeHTTP(w, r)
	})
}
