package conversation

import (
	"context"
	"time"
)

// If starting a session with a backend takes longer than the budget of a message, and each message had to start one,
// the backend would never provide any context. So after the response, the service lets the backend prepare a session
// for the next message.

const (
	// prepareTime limits a preparation, and maxPreparing limits how many run concurrently.
	prepareTime  = 20 * time.Second
	maxPreparing = 64
)

// preparation identifies a preparation. Only one with the same identity runs at a time.
type preparation struct{ backend, workspace, principal, session string }

// prepare starts preparing a backend for the caller, in the background.
func (s *Service) prepare(c Caller, backend string) {
	if !s.options.Prepares {
		return
	}
	this := preparation{backend, c.Principal.Workspace, c.Principal.ID, c.Client.Session}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.preparing[this] || len(s.preparing) >= maxPreparing {
		return
	}
	s.preparing[this] = true
	s.running.Go(func() {
		ctx, cancel := context.WithTimeout(s.ending, prepareTime)
		defer cancel()
		if err := s.options.Backends.Prepare(ctx, c.Client, backend); err != nil {
			s.options.Log.WarnContext(ctx, "provider not ready", "workspace", this.workspace, "provider", backend, "error", err)
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.preparing, this)
	})
}
