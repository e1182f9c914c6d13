package fanout

import (
	"context"
	"slices"

	eventlog "github.com/mcp-events/mcpevents/shared/events/log"
	"github.com/mcp-events/mcpevents/shared/events/match"
	"github.com/mcp-events/mcpevents/shared/events/subscription"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/storage/store"
)

type headerID struct{ workspace, key string }

// match finds the patterns in use that each group's events match, and how many subscribers they have. It needs one read
// for the shapes and the concrete patterns, and a second one only if other shapes are in use or streams read.
func (f *Fanout) match(ctx context.Context, groups []*uriBatch) (map[headerID]int, error) {
	now := f.now()
	var r reads
	for _, g := range groups {
		g.webhookKeys, g.inBandKeys = nil, nil
		g.try(func() error {
			wanted := []store.Key{subscription.HeaderKey(g.workspace, g.uri)}
			for _, scope := range match.Scopes(g.entry.Name) {
				wanted = append(wanted, subscription.ShapesKey(g.workspace, scope))
			}
			return r.want(wanted...)
		})
	}
	if err := r.do(ctx, f.DB); err != nil {
		return nil, fault.Wrap(fault.Unavailable, err, "read the shapes in use")
	}
	for _, g := range groups {
		g.try(func() error {
			for _, scope := range match.Scopes(g.entry.Name) {
				webhooks, inBand := subscription.InUse(r.got(subscription.ShapesKey(g.workspace, scope)), scope, now)
				g.webhookKeys = append(g.webhookKeys, patternKeys(g, webhooks)...)
				g.inBandKeys = append(g.inBandKeys, patternKeys(g, inBand)...)
			}
			var wanted []store.Key
			for _, key := range g.webhookKeys {
				wanted = append(wanted, subscription.HeaderKey(g.workspace, key))
			}
			for _, key := range g.inBandKeys {
				wanted = append(wanted, eventlog.InterestKey(g.workspace, key))
			}
			return r.want(wanted...)
		})
	}
	if err := r.do(ctx, f.DB); err != nil {
		return nil, fault.Wrap(fault.Unavailable, err, "read the patterns in use")
	}
	headers := map[headerID]int{}
	for _, g := range groups {
		g.try(func() error {
			g.webhookKeys = slices.DeleteFunc(g.webhookKeys, func(key string) bool {
				n := subscription.HeaderCount(r.got(subscription.HeaderKey(g.workspace, key)))
				headers[headerID{g.workspace, key}] = n
				return n <= 0
			})
			g.inBandKeys = slices.DeleteFunc(g.inBandKeys, func(key string) bool {
				return !eventlog.ReadInterest(r.got(eventlog.InterestKey(g.workspace, key))).Until.After(now)
			})
			return nil
		})
	}
	return headers, nil
}

// patternKeys returns the keys of the patterns with the given shapes that match the events of a batch.
func patternKeys(g *uriBatch, shapes []match.Shape) (out []string) {
	for _, s := range shapes {
		if key, ok := match.KeyUnder(g.entry, g.vars, g.uri, s); ok {
			out = append(out, key)
		}
	}
	slices.Sort(out)
	return out
}

// reads collects keys and reads each once.
type reads struct {
	pending []store.Key
	items   map[store.Key]*store.Item
}

// want asks for keys, all or none of them. It refuses a key that the store would refuse, because that would fail the
// read for all groups.
func (r *reads) want(keys ...store.Key) error {
	for _, k := range keys {
		if err := k.Check(); err != nil {
			return err
		}
	}
	if r.items == nil {
		r.items = map[store.Key]*store.Item{}
	}
	for _, k := range keys {
		if _, ok := r.items[k]; !ok {
			r.items[k] = nil
			r.pending = append(r.pending, k)
		}
	}
	return nil
}

func (r *reads) do(ctx context.Context, db store.DB) error {
	for part := range slices.Chunk(r.pending, store.MaxGet) {
		items, err := db.Get(ctx, part...)
		if err != nil {
			return err
		}
		for i, it := range items {
			r.items[part[i]] = it
		}
	}
	r.pending = nil
	return nil
}

func (r *reads) got(k store.Key) *store.Item { return r.items[k] }
