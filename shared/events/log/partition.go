package eventlog

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/mcp-events/mcpevents/shared/events/event"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/storage/store"
)

// Partition names a part of the log.
type Partition struct {
	name   string
	single bool // one writer at a time; keys grow in commit order
}

// Own returns the partition of one event URI.
func Own(workspace, uri string) Partition {
	return Partition{name: "u#" + workspace + "#" + uri, single: true}
}

// Pattern returns the partitions of a parent or wildcard pattern.
func Pattern(workspace, key string) []Partition {
	parts := make([]Partition, Shards)
	for i := range parts {
		parts[i] = shard(workspace, key, i)
	}
	return parts
}

func shard(workspace, key string, i int) Partition {
	return Partition{name: fmt.Sprintf("w#%s#%d#%s", workspace, i, key)}
}

// shardOf returns the shard for a URI. All events of a URI are in one shard, so that readers see them in order.
func shardOf(uri string) int {
	h := fnv.New32a()
	h.Write([]byte(uri))
	return int(h.Sum32() % Shards)
}

// Topic returns the partition of a topic's notices.
func Topic(workspace, topic string) Partition {
	return Partition{name: "n#" + workspace + "#" + topic}
}

// Name returns the name of the partition in the store, and for a [store.Watcher].
func (p Partition) Name() string { return p.name }

// stampSize is the number of digits of a stamp in a sort key.
const stampSize = 16

func sortKey(stamp int64) string { return fmt.Sprintf("%0*d", stampSize, stamp) }

// afterKey returns a sort key after all items with the given stamp.
func afterKey(stamp int64) string { return sortKey(max(stamp, 0)) + "~" }

func parseKey(sort string) (int64, error) {
	if len(sort) < stampSize {
		return 0, fault.New(fault.Internal, "log key %q is malformed", sort)
	}
	k, err := strconv.ParseInt(sort[:stampSize], 10, 64)
	if err != nil {
		return 0, fault.Wrap(fault.Internal, err, "parse log key")
	}
	return k, nil
}

// Interest says that a client reads a pattern in band, or may do so again soon. While it lasts, fanout writes the partitions
// of the pattern.
type Interest struct {
	// Since is the position at which it began. Earlier events are not in the partitions of the pattern.
	Since int64
	// Until is when it ends, unless it is renewed.
	Until time.Time
}

// Reaches returns the first position from which a cursor finds all events of the pattern. It is a window before Since,
// because a cursor is up to a window before the time at which it was given.
func (in Interest) Reaches() int64 { return in.Since - (Window + 2*MaxSkew).Microseconds() }

// InterestKey returns the key of the item that holds the interest in a pattern.
func InterestKey(workspace, key string) store.Key {
	return store.Key{Table: store.Log, Partition: "i#" + workspace + "#" + key, Sort: "-"}
}

const untilCount = "until"

// Interested makes sure that the partitions of a pattern are written until the given time, and for at least one retention
// from now. It returns the interest, which tells since when they are written. The caller must have marked the shape before.
func (l *Log) Interested(ctx context.Context, workspace, key string, until time.Time) (Interest, error) {
	k := InterestKey(workspace, key)
	if kept := l.KeptUntil(); until.Before(kept) {
		until = kept
	}
	for {
		had, err := l.Interest(ctx, workspace, key)
		if err != nil {
			return Interest{}, err
		}
		now := l.Time()
		since := l.keys().interestBegins()
		item := store.Item{Key: k, Version: since, Counts: map[string]int64{untilCount: until.Unix()}, Expires: until.Add(interestMargin)}
		cond := store.Absent()
		if had != (Interest{}) {
			cond = store.VersionIs(had.Since)
		}
		setBack := had.Since > since+2*MaxSkew.Microseconds() // the clock
		if had.Until.After(now) && !setBack {
			if until.Sub(had.Until) <= l.Reaches()/16 { // renew seldom
				return had, nil
			}
			// Each renewal changes the version, so that one of two concurrent renewals fails and tries again. That moves the
			// beginning by a microsecond, which does not matter.
			item.Version = had.Since + 1
		}
		err = l.DB.Write(ctx, store.Put(item, cond))
		if err == nil {
			return ReadInterest(&item), nil
		}
		if !errors.Is(err, store.ErrConflict) {
			return Interest{}, fault.Wrap(fault.Unavailable, err, "record the interest in %s", key)
		}
	}
}

// interestMargin is how much longer than the interest its item stays, so that a clock that is a little fast does not end the
// interest early.
const interestMargin = time.Hour

// Interest returns the interest in a pattern, or the zero value if its item does not exist or has expired.
func (l *Log) Interest(ctx context.Context, workspace, key string) (Interest, error) {
	it, err := store.One(ctx, l.DB, InterestKey(workspace, key), "read the interest in a pattern")
	return ReadInterest(it), err
}

// ReadInterest decodes an item of interest. A nil item is no interest.
func ReadInterest(it *store.Item) Interest {
	if it == nil {
		return Interest{}
	}
	return Interest{Since: it.Version, Until: time.Unix(it.Counts[untilCount], 0)}
}

// LatestBelow returns up to n of the newest events of the sub-resources of a parent, oldest first, with up to [LatestBytes] of
// payloads. wants reports whether a sub-resource is wanted and whether it is unordered. Of the first [maxKnown] sub-resources,
// LatestBelow reads the [maxChildren] that [Log.RecordChild] recorded last.
func (l *Log) LatestBelow(ctx context.Context, workspace, parent string, n int, wants func(uri string) (wanted, unordered bool)) ([]event.Event, error) {
	var children []store.Item
	unordered := map[string]bool{}
	err := l.eachBelow(ctx, workspace, parent, maxKnown, func(page []store.Item) {
		children = append(children, slices.DeleteFunc(page, func(it store.Item) bool {
			wanted, spread := wants(it.Sort)
			if spread {
				unordered[it.Sort] = true
			}
			return !wanted
		})...)
		slices.SortStableFunc(children, func(a, b store.Item) int { return b.Expires.Compare(a.Expires) })
		children = children[:min(len(children), maxChildren)]
	})
	if err != nil {
		return nil, err
	}
	var all []event.Event
	for _, child := range children {
		es, err := l.Latest(ctx, workspace, child.Sort, unordered[child.Sort], n)
		if err != nil {
			return nil, err
		}
		all = append(all, es...)
		slices.SortStableFunc(all, func(a, b event.Event) int { return b.Published.Compare(a.Published) })
		all = takeFitting(all, n, func(e event.Event) int { return len(e.Data) })
	}
	slices.Reverse(all)
	return all, nil
}

const (
	maxKnown    = 10_000
	maxChildren = 50
)

// Below returns up to n URIs below a parent that had events within the last month, in the order of the URIs.
func (l *Log) Below(ctx context.Context, workspace, parent string, n int) (uris []string, err error) {
	err = l.eachBelow(ctx, workspace, parent, n, func(page []store.Item) {
		for _, item := range page {
			uris = append(uris, item.Sort)
		}
	})
	return uris, err
}

// eachBelow calls take with up to n sub-resources of a parent, page by page. The sort key of an item is the URI.
func (l *Log) eachBelow(ctx context.Context, workspace, parent string, n int, take func(page []store.Item)) error {
	q := store.Query{Table: store.Log, Partition: childrenOf(workspace, parent)}
	for more := true; more && n > 0; {
		q.Limit = min(n, 1000)
		page, err := l.DB.Query(ctx, q)
		if err != nil {
			return fault.Wrap(fault.Unavailable, err, "list the sub-resources of %s", parent)
		}
		n -= len(page.Items)
		q.After, more = page.Last, page.More
		take(page.Items)
	}
	return nil
}

func childrenOf(workspace, parent string) string { return "c#" + workspace + "#" + parent }

// RecordChild records a URI under its parents for a month, for [Log.LatestBelow] and [Log.Below]. Fanout calls it for the
// first event of a URI on the URI's day (see [Appended]), and continues if it fails.
func (l *Log) RecordChild(ctx context.Context, workspace, uri string) error {
	segs := strings.Split(strings.TrimPrefix(uri, "event://"), "/")
	var ops []store.Op
	for depth := 1; depth < len(segs); depth++ {
		ops = append(ops, store.Put(store.Item{
			Key: store.Key{
				Table: store.Log, Sort: uri,
				Partition: childrenOf(workspace, "event://"+strings.Join(segs[:depth], "/")),
			},
			Expires: l.Time().Add(30 * 24 * time.Hour),
		}))
	}
	if len(ops) == 0 {
		return nil
	}
	return fault.Wrap(fault.Unavailable, l.DB.WriteAll(ctx, ops...), "record the parents of %s", uri)
}
