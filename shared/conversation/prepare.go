package conversation

import (
	"context"
	"time"
)

// A backend that takes longer to begin a session than a message may wait would never give any
// context, if each message began from nothing. So it gets ready after the answer, for the next message.

const (
	// prepareTime bounds how long that may take, and maxPreparing how often it happens at once.
	prepareTime  = 20 * time.Second
	maxPreparing = 64
)

// preparation is what happens once at a time.
type preparation struct{ backend, workspace, principal, session string }

// prepare lets a backend get ready for the caller.
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
