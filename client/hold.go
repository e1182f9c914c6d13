package client

import (
	"context"
	"log/slog"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
)

// Hold registers a webhook that feeds the receiver, and deregisters it when ctx ends or the receiver fails. Begun is
// called when it is registered; it may be nil. The end takes five seconds at most.
func Hold(ctx context.Context, c *Client, s *Registration, r *Receiver, begun func(), log *slog.Logger) error {
	if err := c.Begin(ctx); err != nil {
		return err
	}
	// The server may already know a subscription whose answer we do not: it is
	// ended in any case.
	defer func() {
		last, cancel := ending(ctx)
		defer cancel()
		if err := s.End(last); err != nil && !fault.Is(err, fault.NotFound) {
			log.Warn("subscription not ended", "subscription", s.ID(), "error", err)
		} else if s.ID() != "" {
			log.Info("subscription ended", "subscription", s.ID())
		}
		c.endSession(last)
	}()
	if err := s.Begin(ctx, r); err != nil {
		return err
	}
	if begun != nil {
		begun()
	}
	select {
	case <-ctx.Done():
		return nil
	case err := <-r.Failed:
		return err
	}
}
