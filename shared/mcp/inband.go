package mcp

import (
	"context"
	"encoding/json"
	"strings"
	"time"

	"github.com/mcp-events/mcpevents/shared/catalog"
	"github.com/mcp-events/mcpevents/shared/fault"
	"github.com/mcp-events/mcpevents/shared/gateway"
	"github.com/mcp-events/mcpevents/shared/stream"
	"github.com/mcp-events/mcpevents/shared/subscription"
)

var topicSubscription = stream.TopicSubscription

// sessionNotice tells the open stream of a session, wherever it is, to look at
// the store again.
var sessionNotice = json.RawMessage(`{"changed":true}`)

// subscribe serves resources/subscribe. Every event that is published after its
// answer is sent on the session's stream.
func (e *Endpoint) subscribe(ctx context.Context, c *call) (result, error) {
	uri, err := c.required("uri")
	if err != nil {
		return result{}, err
	}
	cat, err := e.catalog(ctx, c.principal)
	if err != nil {
		return result{}, err
	}
	t, err := e.resolve(ctx, cat, c.principal, uri)
	if err != nil {
		return result{}, err
	}
	open := t.open() > 0
	if open {
		if err := e.admitOpen(ctx, c.session, t); err != nil {
			return result{}, err
		}
	}
	for _, p := range t.patterns {
		if p.Kind == subscription.Concrete {
			continue
		}
		if _, err := e.options.Interest(ctx, c.principal.Workspace, p); err != nil {
			return result{}, err
		}
	}
	if err := e.sessions.subscribe(ctx, c.session, subscribed{URI: t.uri, After: e.options.Log.Position(), Open: open, Backend: t.backend}); err != nil {
		return result{}, e.sessionFault(err)
	}
	if t.backend != "" {
		err := e.options.Gateway.Want(ctx, gateway.Wanted{
			Workspace: c.principal.Workspace, Backend: t.backend, URI: t.uri, Holder: c.session.key, Until: time.Now().Add(e.options.SessionTTL),
		})
		if err != nil {
			return result{}, err
		}
	}
	return result{}, e.tellSession(ctx, c)
}

// admitOpen holds a session to its number of parents and wildcards.
func (e *Endpoint) admitOpen(ctx context.Context, sess *session, t target) error {
	uris, err := e.sessions.subscriptions(ctx, sess.key)
	if err != nil {
		return err
	}
	n := 0
	for _, u := range uris {
		if u.URI == t.uri {
			return nil
		}
		if u.Open {
			n++
		}
	}
	if n >= e.options.MaxStreamPatterns {
		return limitReached("streamPatterns", e.options.MaxStreamPatterns)
	}
	return nil
}

// limitReached names the limit that a request would go over.
func limitReached(name string, most int) error {
	return fault.New(fault.Exhausted, "the limit %s of %d is reached", name, most).
		With(map[string]any{"limit": name, "max": most})
}

// unsubscribe serves resources/unsubscribe. Ending what is not there is no
// fault, but the URI must be one that could be.
func (e *Endpoint) unsubscribe(ctx context.Context, c *call) (result, error) {
	uri, err := c.required("uri")
	if err != nil {
		return result{}, err
	}
	cat, err := e.catalog(ctx, c.principal)
	if err != nil {
		return result{}, err
	}
	backend := ""
	if backends := e.gateway(ctx); backends != nil && !known(cat, uri) {
		backend, _ = backends.Subscribable(ctx, c.principal, uri)
	}
	switch {
	case backend != "":
		if err := e.options.Gateway.Unwant(ctx, gateway.Wanted{Workspace: c.principal.Workspace, Backend: backend, URI: uri, Holder: c.session.key}); err != nil {
			return result{}, err
		}
	case !strings.HasPrefix(uri, subscriptionScheme):
		if uri, err = catalog.CanonicalPattern(uri); err != nil {
			return result{}, fault.Wrap(fault.Invalid, err, "unsubscribe")
		}
	}
	if err := e.sessions.unsubscribe(ctx, c.session, uri); err != nil {
		return result{}, err
	}
	return result{}, e.tellSession(ctx, c)
}

func (e *Endpoint) tellSession(ctx context.Context, c *call) error {
	return e.options.Log.Notify(ctx, c.principal.Workspace, stream.TopicSession(c.session.key), sessionNotice)
}

// sessionFault is a session that ended while it was used.
func (e *Endpoint) sessionFault(err error) error {
	if err == errNoSession {
		return fault.New(fault.NotFound, "the session has ended")
	}
	return err
}
