package relay

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"time"

	"github.com/mcp-events/mcpevents/client"
	"github.com/mcp-events/mcpevents/shared/events/catalog"
	"github.com/mcp-events/mcpevents/shared/events/demand"
	"github.com/mcp-events/mcpevents/shared/events/publish"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/platform/periodic"
)

// reception is a subscription to the events of one URI at the backend.
type reception struct {
	cancel context.CancelFunc
	done   chan struct{}
}

func (r *reception) stop() {
	r.cancel()
	<-r.done
}

// start starts a subscription in the background.
func (e *receiver) start(ctx context.Context, uri, mode string) *reception {
	ctx, cancel := context.WithCancel(ctx)
	r := &reception{cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(r.done)
		defer cancel()
		e.receive(ctx, uri, mode)
	}()
	return r
}

// receive keeps a subscription until ctx ends. If the backend refuses or ends it, receive tries again later.
func (e *receiver) receive(ctx context.Context, uri, mode string) {
	workspace := e.backend.Place().Workspace
	for ctx.Err() == nil {
		err := e.subscribe(ctx, uri, mode)
		if ctx.Err() != nil {
			return
		}
		e.relay.log(e.backend).WarnContext(ctx, "subscription to events ended", "uri", uri, "again", retryAfter, "error", err)
		if !client.Retryable(err) {
			err = e.Demand.SetState(ctx, workspace, uri, demand.State{Error: fault.Public(err)})
		}
		if err != nil && ctx.Err() == nil {
			e.relay.log(e.backend).WarnContext(ctx, "subscription state not recorded", "error", err)
		}
		_ = periodic.Sleep(ctx, retryAfter) // the loop sees if ctx has ended
	}
}

// subscribe subscribes at the backend and returns when the subscription has ended.
func (e *receiver) subscribe(ctx context.Context, uri, mode string) error {
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
	sub, err := e.client.Subscribe(ctx, client.SubscribeOptions{
		Name: own, Arguments: arguments, Mode: mode, Store: cursor,
		Event: func(ctx context.Context, ev client.Event) error { return e.publish(ctx, uri, own, ev) },
		Gap:   func(ctx context.Context, _ client.Gap) error { return e.announceGap(ctx, uri) },
	})
	if err != nil {
		return err
	}
	if saved == "" { // the log has no events of the time before, which a client with an old cursor must learn
		err = e.announceGap(ctx, uri)
	}
	if err == nil {
		err = e.Demand.SetState(ctx, workspace, uri, demand.State{Active: true})
	}
	if err != nil {
		_ = sub.Close() // err is the cause
		return err
	}
	<-sub.Done()
	return sub.Err()
}

// announceGap tells the subscribers of a URI that events are missing.
func (e *receiver) announceGap(ctx context.Context, uri string) error {
	if err := e.limit.WaitN(ctx, gapCost); err != nil {
		return fault.Wrap(fault.Unavailable, err, "wait to announce a gap")
	}
	return e.Gap(ctx, e.backend.Place().Workspace, uri)
}

// publish publishes an event, unless it was published before. An event that cannot be published is counted and dropped.
func (e *receiver) publish(ctx context.Context, uri, own string, ev client.Event) error {
	workspace, dropped := e.backend.Place().Workspace, e.backend.Client().Dropped
	if err := e.limit.WaitN(ctx, min(eventBurst, 1+len(ev.Data)/updateUnit)); err != nil {
		return fault.Wrap(fault.Unavailable, err, "wait to publish an event")
	}
	if ev.ID == "" || ev.Name != "" && ev.Name != own {
		dropped(ctx, dropForeign)
		return nil
	}
	in := publish.Input{URI: uri, ID: eventID(e.backend.Place().Backend, ev.ID), Data: ev.Data}
	if at, err := time.Parse(time.RFC3339, ev.Time); err == nil {
		in.Time = at
	}
	seen, err := e.Demand.Seen(ctx, workspace, uri, in.ID)
	if err != nil || seen {
		return err
	}
	switch err := e.Publish(ctx, workspace, in); {
	case err == nil:
		return e.Demand.MarkSeen(ctx, workspace, uri, in.ID)
	case fault.Is(err, fault.Unprocessable):
		dropped(ctx, dropMisfit)
	case fault.Is(err, fault.Invalid), fault.Is(err, fault.TooLarge), fault.Is(err, fault.NotFound):
		dropped(ctx, dropMalformed)
	default:
		return err
	}
	return nil
}

// eventID returns the id under which an event of a backend is published. It depends on the backend and the backend's id only, so that an
// event that arrives again is the same event.
func eventID(backend, id string) string {
	h := sha256.Sum256(fmt.Appendf(nil, "%q %q", backend, id))
	return "be_" + base64.RawURLEncoding.EncodeToString(h[:])
}
