package eventlog

import (
	"context"
	"errors"
	"time"

	"github.com/mcp-events/mcpevents/shared/fault"
	"github.com/mcp-events/mcpevents/shared/store"
)

// Interest says that a client reads a pattern in band, or may come back to read it. While it lasts, fanout writes the
// partitions of the pattern.
type Interest struct {
	// Since is the position at which it began. Earlier events are not in the partitions of the pattern.
	Since int64
	// Until is when it ends, unless it is renewed.
	Until time.Time
}

// Reaches is the first position from which a cursor finds all events of the pattern. A cursor is up to a window before
// the moment at which it was given, so a cursor from the moment when the interest began has no gap.
func (in Interest) Reaches() int64 { return in.Since - (Window + 2*MaxSkew).Microseconds() }

// InterestKey is the key of the item that holds the interest in a pattern.
func InterestKey(workspace, key string) store.Key {
	return store.Key{Table: store.Log, Partition: "i#" + workspace + "#" + key, Sort: "-"}
}

const untilCount = "until"

// Interested makes sure that the partitions of a pattern are written until one retention from now, and returns since
// when they are. The caller has marked the shape before.
func (l *Log) Interested(ctx context.Context, workspace, key string) (Interest, error) {
	k := InterestKey(workspace, key)
	for {
		items, err := l.DB.Get(ctx, k)
		if err != nil {
			return Interest{}, fault.Wrap(fault.Unavailable, err, "read the interest in %s", key)
		}
		now := l.Time()
		since := now.UnixMicro()
		if l.DB.Ordered() {
			since = l.DB.End()
		}
		until := l.KeptUntil()
		ahead := func(in Interest) bool { return in.Since > since+2*MaxSkew.Microseconds() } // the clock was set back
		if it := items[0]; it != nil && ReadInterest(it).Until.After(now) && !ahead(ReadInterest(it)) {
			in := ReadInterest(it)
			if until.Sub(in.Until) > l.Reaches()/16 { // renew seldom
				if err := l.DB.Write(ctx, store.Raise(k, untilCount, until.Unix())); err != nil {
					return Interest{}, fault.Wrap(fault.Unavailable, err, "renew the interest in %s", key)
				}
				in.Until = until
			}
			return in, nil
		}
		cond := store.Absent()
		if items[0] != nil {
			cond = store.VersionIs(items[0].Version)
		}
		// The item outlives its interest, so that a client with an old cursor learns of the gap.
		err = l.DB.Write(ctx, store.Put(store.Item{
			Key: k, Version: since,
			Counts: map[string]int64{untilCount: until.Unix()},
		}, cond))
		if err == nil {
			return Interest{Since: since, Until: until}, nil
		}
		if !errors.Is(err, store.ErrConflict) {
			return Interest{}, fault.Wrap(fault.Unavailable, err, "record the interest in %s", key)
		}
	}
}

// ReadInterest decodes an item of interest. No item is no interest.
func ReadInterest(it *store.Item) Interest {
	if it == nil {
		return Interest{}
	}
	return Interest{Since: it.Version, Until: time.Unix(it.Counts[untilCount], 0)}
}
