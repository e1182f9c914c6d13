package streams

import (
	"context"
	"encoding/json"
	"slices"
	"strings"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/events/catalog"
	"github.com/mcp-events/mcpevents/shared/events/event"
	"github.com/mcp-events/mcpevents/shared/events/match"
	"github.com/mcp-events/mcpevents/shared/events/stream"
	"github.com/mcp-events/mcpevents/shared/events/subscription"
	"github.com/mcp-events/mcpevents/shared/gateway/api"
	"github.com/mcp-events/mcpevents/shared/mcp/method"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
)

// Targets makes out what the URIs of streams stand for.
type Targets struct {
	Subscriptions Subscriptions
	Backends      api.Gateway
}

// Target is a URI that a stream is subscribed to, made out.
type Target struct {
	// URI is the canonical form, asked what the client wrote.
	URI, asked string
	Patterns   []match.Pattern
	// topic is set for a subscription:// URI.
	topic string
	// Backend serves a URI that is not ours; the stream follows its notifications.
	Backend string
	// lost is set while the catalog does not have it, or not for the caller.
	lost bool
}

// Open is the number of its parents and wildcards.
func (t Target) Open() (n int) {
	for _, p := range t.Patterns {
		if p.Kind != match.Concrete {
			n++
		}
	}
	return n
}

// addTo has a feed begin with the target.
func (t Target) addTo(r *stream.Request) {
	r.Patterns = append(r.Patterns, t.Patterns...)
	if t.topic != "" {
		r.Topics = append(r.Topics, t.topic)
	}
}

// Resolve makes out a URI for a stream. Faults name what is wrong with it.
func (ts *Targets) Resolve(ctx context.Context, cat *catalog.Catalog, p auth.Principal, uri string) (Target, error) {
	t := Target{URI: uri, asked: uri}
	if strings.HasPrefix(uri, SubscriptionScheme) {
		if ts.Subscriptions == nil {
			return t, method.NotFound(uri)
		}
		v, err := ts.Subscriptions.Read(ctx, p, uri)
		if err != nil {
			if fault.Is(err, fault.NotFound) {
				err = method.NotFound(uri)
			}
			return t, err
		}
		t.topic = stream.TopicSubscription(v.ID)
		return t, nil
	}
	patterns, access, err := match.Resolve(cat, uri)
	if err != nil {
		if ts.Backends.Any(ctx) {
			if name, ok := ts.Backends.Subscribable(ctx, p, uri); ok {
				t.Backend = name
				return t, nil
			}
		}
		return t, err
	}
	if access, err = Permitted(p, access); err != nil {
		return t, err
	}
	if !slices.ContainsFunc(access, func(a match.Access) bool { return a.Entry.PushAllowed() }) {
		return t, fault.New(fault.Invalid, "%s is not delivered on streams", method.Clip(uri)).With(map[string]any{"uri": method.Clip(uri)})
	}
	t.URI, t.Patterns = patterns[0].URI(), patterns
	return t, nil
}

const SubscriptionScheme = "subscription://"

// Permitted keeps those event types of a resolved URI that the principal may have. It
// fails when there is none.
func Permitted(p auth.Principal, access []match.Access) ([]match.Access, error) {
	var out []match.Access
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

// Allowed holds one event to the rule of its type, as the catalog has it now.
func Allowed(cat *catalog.Catalog, p auth.Principal, ev *event.Event) bool {
	entry := cat.ByName(ev.Name)
	if entry == nil || entry.Access == nil {
		return entry != nil
	}
	_, vars, ok := cat.Match(ev.URI)
	return ok && entry.Access.Check(p, vars) == nil
}

// SessionNotice makes the open stream of a session, wherever it is, look at
// the store again.
var SessionNotice = json.RawMessage(`{"changed":true}`)

// Subscriptions shows the caller's webhook subscriptions.
type Subscriptions interface {
	List(ctx context.Context, p auth.Principal, after string, limit int) (views []subscription.View, next string, err error)
	Read(ctx context.Context, p auth.Principal, uri string) (*subscription.View, error)
}
