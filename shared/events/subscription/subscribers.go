package subscription

import (
	"bytes"
	"context"
	"encoding/json"
	"hash/maphash"
	"time"

	"github.com/mcp-events/mcpevents/shared/events/match"
	"github.com/mcp-events/mcpevents/shared/platform/bounded"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/storage/store"
)

// Found is the result of reading a pattern's subscribers.
type Found struct {
	List []Subscriber
	// More is true if the range holds further subscribers after the key Last.
	More bool
	Last string
	// Broken are the ranges of items that cannot be decoded.
	Broken []Range
}

// Subscribers returns the subscribers of a pattern within a range. It makes one strongly consistent read of at most limit items, and
// reports items that cannot be decoded in [Found.Broken].
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

// Wants reports whether the subscriber must receive the event under this pattern. It must if the subscription has not expired, no other of
// its patterns delivers the event, and the filters accept the payload.
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

// decoded caches subscribers by the text of their items, because every event reads the same items. A changed item has another text.
// Cached subscribers share their slices, which must not be changed.
var (
	decoded     = bounded.NewMap[uint64, decodedSubscriber](4096)
	decodedSeed = maphash.MakeSeed()
)

type decodedSubscriber struct {
	text       []byte
	subscriber Subscriber
}

// decodeSubscriber decodes the item of a subscriber.
func decodeSubscriber(text []byte) (Subscriber, error) {
	key := maphash.Bytes(decodedSeed, text)
	if d, ok := decoded.Get(key); ok && bytes.Equal(d.text, text) {
		return d.subscriber, nil
	}
	var s Subscriber
	if err := json.Unmarshal(text, &s); err != nil {
		return Subscriber{}, err
	}
	if len(text) <= maxDecoded {
		decoded.Put(key, decodedSubscriber{bytes.Clone(text), s})
	}
	return s, nil
}

// maxDecoded is the longest cached text. An ordinary item is ten times shorter.
const maxDecoded = 8 << 10
