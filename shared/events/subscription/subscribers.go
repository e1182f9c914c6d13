package subscription

import (
	"context"
	"time"

	"github.com/mcp-events/mcpevents/shared/events/match"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/storage/store"
)

// Found is the result of reading a pattern's subscribers.
type Found struct {
	List []Subscriber
	// More is true when the range holds further ones, after the key Last.
	More bool
	Last string
	// Broken are the ranges of items that cannot be decoded.
	Broken []Range
}

// Subscribers returns the subscribers of a pattern within a range: one strongly
// consistent read of at most limit items. An item that cannot be decoded keeps nothing
// from the others.
func Subscribers(ctx context.Context, db store.DB, workspace, patternKey string, r Range, limit int) (Found, error) {
	after := r.From
	if after == "" {
		after = "#" // after the header
	}
	page, err := db.Query(ctx, store.Query{
		Table: store.Subscriptions, Partition: HeaderKey(workspace, patternKey).Partition,
		After: after, Until: r.To, Limit: limit,
	})
	if err != nil {
		return Found{}, fault.Wrap(fault.Unavailable, err, "read the subscribers of %s", patternKey)
	}
	f := Found{List: make([]Subscriber, 0, len(page.Items)), More: page.More, Last: page.Last}
	for _, it := range page.Items {
		sub, err := decodeSubscriber(it.Value)
		if err != nil {
			f.Broken = append(f.Broken, At(idPrefix+it.Sort))
			continue
		}
		f.List = append(f.List, sub)
	}
	return f, nil
}

// Wants reports whether the subscriber is to get the event by the pattern it
// lies under: not expired, not delivered by another of its patterns, and let through by its filters.
func (s *Subscriber) Wants(p *match.Payload, now time.Time) bool {
	if s.Until != 0 && now.Unix() >= s.Until {
		return false
	}
	for _, key := range s.Skip {
		if match.Matches(key, p.Event.URI) {
			return false
		}
	}
	return p.Passes(s.Filters)
}
