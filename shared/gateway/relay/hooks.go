package relay

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/mcp-events/mcpevents/client"
	"github.com/mcp-events/mcpevents/shared/events/catalog"
	"github.com/mcp-events/mcpevents/shared/events/demand"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
)

// Some backends deliver by webhook only. The relay creates and refreshes their subscriptions, and the role publish receives the webhooks
// (ingest.Backends). The subscription at the backend stays when another relay takes over, because its URL and secret are the same.

// hookTTL is the requested lifetime of a subscription. If it is never ended, for example because the backend is removed from the
// configuration, the backend ends it after this time.
const hookTTL = 24 * time.Hour

// errNoURL is why the relay cannot use an event type without a public URL.
var errNoURL = fault.New(fault.Unsupported, "it is delivered by webhook only, and --public-url is not set")

// endpoint returns where the backend sends the events of a URI.
func (e *receiver) endpoint(ctx context.Context, uri string, cursor demand.Cursor) (*client.Endpoint, error) {
	workspace := e.backend.Place().Workspace
	to, err := e.Hooks.URL(ctx, workspace, uri)
	return &client.Endpoint{
		URL:    to,
		Secret: func(ctx context.Context) (string, error) { return e.Hooks.Secret(ctx, workspace, uri) },
		Accepted: func(ctx context.Context, id string, until time.Time) error {
			fresh, err := e.Hooks.Accepted(ctx, workspace, uri, id, until)
			if err != nil || !fresh {
				return err
			}
			// With a cursor, the backend continues there.
			if saved, err := cursor.Load(ctx, ""); err != nil || saved != "" {
				return err
			}
			return e.announceGap(ctx, uri)
		},
	}, err
}

// restartHooks subscribes again where the backend has ended a subscription or given up deliveries, which its webhooks say.
func (e *receiver) restartHooks(ctx context.Context) error {
	place := e.backend.Place()
	if !slices.Contains(slices.Collect(maps.Values(e.modes)), client.ModeWebhook) {
		return nil
	}
	all, err := e.Demand.Restarts(ctx, place.Workspace, place.Backend)
	for _, again := range all {
		r := e.running[again.URI]
		if r == nil || time.Since(e.restarted[again.URI]) < retryAfter {
			continue
		}
		e.restarted[again.URI] = time.Now()
		r.stop()
		if err := e.Demand.Restarted(ctx, place.Workspace, again); err != nil {
			return err
		}
		e.running[again.URI] = e.start(ctx, again.URI, client.ModeWebhook, true)
	}
	return err
}

// endHook ends a webhook subscription at the backend. If that fails, the backend ends it after [hookTTL].
func (e *receiver) endHook(ctx context.Context, uri string) error {
	_, own, arguments, _ := catalog.ParseBackendURI(uri)
	if e.modes[own] != client.ModeWebhook {
		return nil
	}
	workspace := e.backend.Place().Workspace
	to, err := e.Hooks.URL(ctx, workspace, uri)
	if err != nil {
		return err
	}
	if err := e.Hooks.Remove(ctx, workspace, uri); err != nil {
		return err
	}
	params := map[string]any{"name": own, "arguments": arguments, "delivery": map[string]any{"mode": client.ModeWebhook, "url": to}}
	ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), e.backend.Client().AskTimeout)
	defer cancel()
	if err := e.client.Call(ending, spec.MethodEventsUnsub, params, nil); err != nil {
		e.relay.log(e.backend).WarnContext(ctx, "subscription to events not ended", "uri", uri, "error", err)
	}
	return nil
}
