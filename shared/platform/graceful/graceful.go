// Package graceful lets HTTP servers shut down without long waits.
package graceful

import (
	"net"
	"net/http"
	"sync"
)

// CloseUnused lets Shutdown of s close connections on which no request has arrived. Otherwise Shutdown waits five seconds for them, and
// browsers and HTTP clients often open connections before they need them. No request is lost, because net/http does not answer requests
// that arrive after Shutdown has begun. Call CloseUnused before s serves. It keeps the ConnState hook that s already has.
func CloseUnused(s *http.Server) {
	var mu sync.Mutex
	unused := map[net.Conn]struct{}{}
	previous := s.ConnState
	s.ConnState = func(c net.Conn, state http.ConnState) {
		mu.Lock()
		if state == http.StateNew {
			unused[c] = struct{}{}
		} else {
			delete(unused, c)
		}
		mu.Unlock()
		if previous != nil {
			previous(c, state)
		}
	}
	s.RegisterOnShutdown(func() {
		mu.Lock()
		defer mu.Unlock()
		for c := range unused {
			_ = c.Close()
		}
	})
}
