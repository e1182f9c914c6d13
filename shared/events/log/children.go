package eventlog

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/mcp-events/mcpevents/shared/events/event"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/storage/store"
)

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
