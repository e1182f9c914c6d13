package mcp

import (
	"context"
	"slices"
	"strings"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/events/catalog"
	"github.com/mcp-events/mcpevents/shared/events/stream"
	"github.com/mcp-events/mcpevents/shared/events/subscription"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
)

// catalogs finds the catalog of a principal's workspace.
type catalogs struct{ source catalog.Source }

func (cs catalogs) of(ctx context.Context, p auth.Principal) (*catalog.Catalog, error) {
	cat, err := cs.source.Catalog(ctx, p.Workspace)
	return cat, fault.Wrap(fault.Unavailable, err, "read the catalog")
}

// with returns the principal's catalog. If it lacks the named event type, with reads the latest catalog, because the
// type may have been added, and its first event published, within the seconds for which this process keeps a catalog.
func (cs catalogs) with(ctx context.Context, p auth.Principal, name string) (*catalog.Catalog, error) {
	cat, err := cs.of(ctx, p)
	if err == nil && cat.ByName(name) == nil {
		cat, err = catalog.Latest(ctx, cs.source, p.Workspace)
		err = fault.Wrap(fault.Unavailable, err, "read the latest catalog")
	}
	return cat, err
}

// targets makes out what the URIs of streams stand for.
type targets struct {
	subscriptions Subscriptions
	backends      Gateway
}

// target is a URI that a stream is subscribed to, made out.
type target struct {
	// uri is the canonical form, asked what the client wrote.
	uri, asked string
	patterns   []subscription.Pattern
	// topic is set for a subscription:// URI.
	topic string
	// backend serves a URI that is not ours; the stream follows its notifications.
	backend string
	// lost is set while the catalog does not have it, or not for the caller.
	lost bool
}

// open is the number of its parents and wildcards.
func (t target) open() (n int) {
	for _, p := range t.patterns {
		if p.Kind != subscription.Concrete {
			n++
		}
	}
	return n
}

// addTo has a feed begin with the target.
func (t target) addTo(r *stream.Request) {
	r.Patterns = append(r.Patterns, t.patterns...)
	if t.topic != "" {
		r.Topics = append(r.Topics, t.topic)
	}
}

// resolve makes out a URI for a stream. Faults name what is wrong with it.
func (ts *targets) resolve(ctx context.Context, cat *catalog.Catalog, p auth.Principal, uri string) (target, error) {
	t := target{uri: uri, asked: uri}
	if strings.HasPrefix(uri, subscriptionScheme) {
		if ts.subscriptions == nil {
			return t, notFound(uri)
		}
		v, err := ts.subscriptions.Read(ctx, p, uri)
		if err != nil {
			if fault.Is(err, fault.NotFound) {
				err = notFound(uri)
			}
			return t, err
		}
		t.topic = stream.TopicSubscription(v.ID)
		return t, nil
	}
	patterns, access, err := subscription.Resolve(cat, uri)
	if err != nil {
		if ts.backends.Any(ctx) {
			if name, ok := ts.backends.Subscribable(ctx, p, uri); ok {
				t.backend = name
				return t, nil
			}
		}
		return t, err
	}
	if access, err = permitted(p, access); err != nil {
		return t, err
	}
	if !slices.ContainsFunc(access, func(a subscription.Access) bool { return a.Entry.PushAllowed() }) {
		return t, fault.New(fault.Invalid, "%s is not delivered on streams", clip(uri)).With(map[string]any{"uri": clip(uri)})
	}
	t.uri, t.patterns = patterns[0].URI(), patterns
	return t, nil
}
