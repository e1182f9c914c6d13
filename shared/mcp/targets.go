package mcp

import (
	"context"
	"encoding/json"
	"slices"
	"strings"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/events/catalog"
	"github.com/mcp-events/mcpevents/shared/events/event"
	"github.com/mcp-events/mcpevents/shared/events/stream"
	"github.com/mcp-events/mcpevents/shared/events/subscription"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
)

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

const subscriptionScheme = "subscription://"

// permitted keeps those event types of a resolved URI that the principal may have. It
// fails when there is none.
func permitted(p auth.Principal, access []subscription.Access) ([]subscription.Access, error) {
	var out []subscription.Access
	var denied error
	for _, a := range access {
		if err := a.Entry.Access.Check(p, a.Vars); err != nil {
			denied = err
			continue
		}
		out = append(out, a)
	}
	if len(out) == 0 && denied != nil {
		return nil, denied
	}
	return out, nil
}

// allowed holds one event to the rule of its type, as the catalog has it now.
func allowed(cat *catalog.Catalog, p auth.Principal, ev *event.Event) bool {
	entry := cat.ByName(ev.Name)
	if entry == nil || entry.Access == nil {
		return entry != nil
	}
	_, vars, ok := cat.Match(ev.URI)
	return ok && entry.Access.Check(p, vars) == nil
}

// sessionNotice makes the open stream of a session, wherever it is, look at
// the store again.
var sessionNotice = json.RawMessage(`{"changed":true}`)

// Subscriptions shows the caller's webhook subscriptions.
type Subscriptions interface {
	List(ctx context.Context, p auth.Principal, after string, limit int) (views []subscription.View, next string, err error)
	Read(ctx context.Context, p auth.Principal, uri string) (*subscription.View, error)
}
