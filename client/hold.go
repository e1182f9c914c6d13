package client

import (
	"context"
	"log/slog"
	"time"

	"github.com/mcp-events/mcpevents/shared/fault"
)

// Hold makes a webhook subscription that feeds the receiver, refreshes it in time, and ends it when
// ctx ends or the receiver fails. Begun is called when the subscription is made; it may be nil.
func Hold(ctx context.Context, c *Client, s Webhook, r *Receiver, begun func(), log *slog.Logger) error {
	if err := c.Begin(ctx); err != nil {
		return err
	}
	// The server may already know a subscription whose answer we do not: it is
	// ended in any case.
	defer func() {
		last, cancel := context.WithTimeout(context.WithoutCancel(ctx), drainTime)
		defer cancel()
		if err := s.End(last); err != nil && !fault.Is(err, fault.NotFound) {
			log.Warn("subscription not ended", "subscription", s.ID(), "error", err)
		} else if s.ID() != "" {
			log.Info("subscription ended", "subscription", s.ID())
		}
		c.End(last)
	}()
	if err := s.Begin(ctx, r); err != nil {
		return err
	}
	if begun != nil {
		begun()
	}
	return keep(ctx, s, r, log)
}

// keep refreshes a subscription that has a lifetime, until ctx ends.
func keep(ctx context.Context, s Webhook, r *Receiver, log *slog.Logger) error {
	failures := 0
	for {
		var due <-chan time.Time
		if at := s.RefreshAt(); !at.IsZero() {
			due = time.After(time.Until(at))
		}
		select {
		case <-ctx.Done():
			return nil
		case err := <-r.Failed:
			return err
		case <-due:
		}
		err := s.Refresh(ctx, r.LastCursor())
		switch {
		case ctx.Err() != nil:
			return nil
		case err == nil:
			failures = 0
			log.Debug("subscription refreshed", "subscription", s.ID())
		case !Again(err):
			return err
		default:
			log.Warn("subscription not refreshed", "error", err)
			if err := Pause(ctx, failures, 0); err != nil {
				return nil
			}
			failures++
		}
	}
}
