package relay

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/mcp-events/mcpevents/client"
	"github.com/mcp-events/mcpevents/shared/events/catalog"
	"github.com/mcp-events/mcpevents/shared/events/demand"
	"github.com/mcp-events/mcpevents/shared/events/demand/intake"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/platform/periodic"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
)

type reception struct {
	cancel context.CancelFunc
	done   chan struct{}
}

func (r *reception) stop() {
	r.cancel()
	<-r.done
}

// start starts a subscription to the events of a URI. If resume is set, a backend that delivers by webhook sends the events after the
// stored cursor again.
func (e *receiver) start(ctx context.Context, uri, mode string, resume bool) *reception {
	ctx, cancel := context.WithCancel(ctx)
	r := &reception{cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(r.done)
		defer cancel()
		if e.perCaller {
			e.receiveAs(ctx, uri)
			return
		}
		e.receive(ctx, uri, mode, resume)
	}()
	return r
}

func (e *receiver) receive(ctx context.Context, uri, mode string, resume bool) {
	workspace := e.backend.Place().Workspace
	for ctx.Err() == nil {
		err := e.subscribe(ctx, uri, mode, resume)
		if ctx.Err() != nil {
			return
		}
		e.relay.log(e.backend).WarnContext(ctx, "subscription to events ended", "uri", uri, "again", retryAfter, "error", err)
		if !client.Retryable(err) {
			err := e.Demand.SetState(ctx, workspace, uri, demand.State{Error: fault.Public(err)})
			if err != nil && ctx.Err() == nil {
				e.relay.log(e.backend).WarnContext(ctx, "subscription state not recorded", "uri", uri, "error", err)
			}
		}
		_ = periodic.Sleep(ctx, retryAfter) // fails only if ctx has ended, which the loop checks
	}
}

func (e *receiver) subscribe(ctx context.Context, uri, mode string, resume bool) error {
	workspace := e.backend.Place().Workspace
	_, own, arguments, ok := catalog.ParseBackendURI(uri)
	if !ok {
		return fault.New(fault.Invalid, "%.200q is not the URI of a backend's event", uri)
	}
	cursor := demand.Cursor{DB: e.relay.DB, Workspace: workspace, URI: uri}
	saved, err := cursor.Load(ctx, "")
	if err != nil {
		return err
	}
	o := client.SubscribeOptions{
		Name: own, Arguments: arguments, Mode: mode, Store: cursor,
		Event: func(ctx context.Context, ev client.Event) error { return e.publish(ctx, uri, ev) },
		Gap:   func(ctx context.Context, _ client.Gap) error { return e.announceGap(ctx, uri) },
	}
	if mode == client.ModeWebhook {
		if o.Endpoint, err = e.endpoint(ctx, uri, cursor); err != nil {
			return err
		}
		o.Endpoint.Resume, o.TTL = resume, hookTTL
	}
	sub, err := e.client.Subscribe(ctx, o)
	if err != nil {
		return err
	}
	if saved == "" && mode != client.ModeWebhook { // tell clients with older cursors that they may have missed events
		err = e.announceGap(ctx, uri)
	}
	if err == nil {
		err = e.Demand.SetState(ctx, workspace, uri, demand.State{Active: true})
	}
	if err != nil {
		_ = sub.Close() // return err instead of an error of Close, because err explains why the subscription failed
		return err
	}
	<-sub.Done()
	return sub.Err()
}

func (e *receiver) announceGap(ctx context.Context, uri string) error {
	if err := e.limit.WaitN(ctx, gapCost); err != nil {
		return fault.Wrap(fault.Unavailable, err, "wait to announce a gap")
	}
	return e.Gap(ctx, e.backend.Place().Workspace, uri)
}

// publish publishes an event of a backend, unless it was published before. It drops an event that cannot be published.
func (e *receiver) publish(ctx context.Context, uri string, ev client.Event) error {
	if err := e.limit.WaitN(ctx, min(eventBurst, 1+len(ev.Data)/updateUnit)); err != nil {
		return fault.Wrap(fault.Unavailable, err, "wait to publish an event")
	}
	if e.perCaller && !e.matchesSchema(ctx, uri, ev.Data) {
		e.backend.Client().Dropped(ctx, intake.Misfit)
		return nil
	}
	dropped, err := e.Accept(ctx, e.backend.Place().Workspace, uri, intake.Event{ID: ev.ID, Name: ev.Name, Time: ev.Time, Data: ev.Data})
	if dropped != "" {
		e.backend.Client().Dropped(ctx, dropped)
	}
	return err
}

// Some backends deliver events by webhook only. The relay creates and refreshes the subscriptions at these backends, and the publish role
// receives the webhooks (ingest.Backends). When another relay takes over the backend, it continues the same subscriptions, because the
// webhook's URL and secret do not depend on the relay.

// hookTTL is the lifetime that the relay requests for a webhook subscription. If the relay never ends the subscription, for example because
// the backend is removed from the configuration, the backend ends it after this time.
const hookTTL = 24 * time.Hour

// errNoURL is the reason why the relay does not use an event type that needs webhooks: the server has no public URL for them.
var errNoURL = fault.New(fault.Unsupported, "it is delivered by webhook only, and --public-url is not set")

func (e *receiver) endpoint(ctx context.Context, uri string, cursor demand.Cursor) (*client.Endpoint, error) {
	workspace := e.backend.Place().Workspace
	to, err := e.Hooks.URL(ctx, workspace, uri)
	return &client.Endpoint{
		URL:    to,
		Secret: func(ctx context.Context) (string, error) { return e.Hooks.Secret(ctx, workspace, uri) },
		Accepted: func(ctx context.Context, id string, until time.Time) error {
			fresh, err := e.Hooks.RecordAccepted(ctx, workspace, uri, id, until)
			if err != nil || !fresh {
				return err
			}
			// If a cursor is stored, the backend continues after it. Otherwise announce a gap, because clients may have missed events.
			if saved, err := cursor.Load(ctx, ""); err != nil || saved != "" {
				return err
			}
			return e.announceGap(ctx, uri)
		},
	}, err
}

// restartHooks restarts webhook subscriptions that have stopped at the backend. The backend has reported in a webhook that it ended the
// subscription or gave up deliveries.
func (e *receiver) restartHooks(ctx context.Context) error {
	place := e.backend.Place()
	if !slices.Contains(slices.Collect(maps.Values(e.modes)), client.ModeWebhook) {
		return nil
	}
	all, err := e.Demand.ListRestarts(ctx, place.Workspace, place.Backend)
	for _, again := range all {
		r := e.running[again.URI]
		if r == nil || time.Since(e.restarted[again.URI]) < retryAfter {
			continue
		}
		e.restarted[again.URI] = time.Now()
		r.stop()
		if err := e.Demand.FinishRestart(ctx, place.Workspace, again); err != nil {
			return err
		}
		e.running[again.URI] = e.start(ctx, again.URI, client.ModeWebhook, true)
	}
	return err
}

// endHook ends a webhook subscription at the backend. If that fails, the subscription ends after [hookTTL].
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
