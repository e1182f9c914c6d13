package subscription

import (
	"context"
	"log/slog"

	eventlog "github.com/mcp-events/mcpevents/shared/events/log"
	"github.com/mcp-events/mcpevents/shared/events/match"
)

// advancedCursor returns the subscription's cursor, moved forward to the latest position up to which all deliveries are known to be finished.
func (g *Registrar) advancedCursor(ctx context.Context, sub *Subscription) string {
	if g.Watermark == nil || sub.State != Active || sub.Owed != 0 {
		return sub.Cursor
	}
	c, err := g.Sealer.Open(sub.Workspace, sub.Cursor)
	if err == nil {
		c, err = g.watermark(ctx, sub, c)
	}
	if err != nil {
		slog.WarnContext(ctx, "cursor not advanced", "subscription", sub.ID, "error", err)
		return sub.Cursor
	}
	return g.Sealer.Seal(sub.Workspace, c)
}

func (g *Registrar) watermark(ctx context.Context, sub *Subscription, had eventlog.Cursor) (eventlog.Cursor, error) {
	now, end := g.now(), g.Service.Log.Settled()
	settled, open, err := g.Watermark.Settled(ctx, sub.Workspace, sub.ID)
	if err != nil || sub.Replayed > settled && sub.Replayed != 0 {
		return had, err
	}
	c := eventlog.Cursor{At: max(had.At, min(settled, end))}
	if c.At == had.At {
		c = had
	}
	if open {
		return c, nil
	}
	// No delivery is open. If the log also has no events after the cursor, then none is in flight, because events that have left the log
	// were in the queues for the whole retention period.
	quiet, err := g.hasNoEventAfter(ctx, sub, c)
	if err != nil || !quiet {
		return c, err
	}
	return eventlog.Cursor{At: max(c.At, end), Given: now.UnixMicro()}, nil
}

// hasNoEventAfter reports whether no event of the subscription's patterns is in the log after a cursor. It reports false
// if the log was not written for a pattern since then, because an event may be on its way that the log does not have.
func (g *Registrar) hasNoEventAfter(ctx context.Context, sub *Subscription, c eventlog.Cursor) (bool, error) {
	for _, p := range sub.Patterns {
		if p.Kind != match.Concrete {
			in, err := g.Service.Log.Interest(ctx, sub.Workspace, p.Key)
			if err != nil || in.Reaches() > max(c.At, c.Given) {
				return false, err
			}
		}
		for _, part := range p.Partitions(g.Service.Log, sub.Workspace) {
			after := c.At - g.Service.Log.LookBack(part).Microseconds()
			for more := true; more; {
				entries, rest, next, err := g.Service.Log.Read(ctx, part, after, 1)
				if err != nil || len(entries) > 0 {
					return false, err
				}
				more, after = rest, next
			}
		}
	}
	return true, nil
}
