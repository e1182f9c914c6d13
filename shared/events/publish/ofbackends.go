package publish

import (
	"context"
	"time"

	"golang.org/x/sync/singleflight"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/events/catalog"
	"github.com/mcp-events/mcpevents/shared/events/event"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/storage/queue"
)

// OfBackends publishes the events that backends send. No quota counts them, because the relay limits each backend. Make it with
// [NewOfBackends].
//
// The catalog of this process may be seconds old and lack an event type that the relay has just stored, or have its former schema. So
// OfBackends tries again with the latest one before it refuses an event, which would be lost.
type OfBackends struct {
	service *Service
	latest  *latest
}

// NewOfBackends returns an OfBackends that publishes through a service.
func NewOfBackends(s *Service) OfBackends { return OfBackends{s, &latest{source: s.Catalog}} }

// Publish accepts an event of a backend.
func (o OfBackends) Publish(ctx context.Context, workspace string, in Input) error {
	in.OfBackend = true
	relay := auth.Principal{Workspace: workspace, ID: "relay", Scopes: []string{auth.ScopePublish}}
	_, err := o.service.Accept(ctx, relay, []Input{in})
	if fault.Is(err, fault.NotFound) || fault.Is(err, fault.Unprocessable) {
		again := *o.service
		again.Catalog = o.latest
		_, err = again.Accept(ctx, relay, []Input{in})
	}
	return err
}

// Gap accepts a gap in the events of a backend's URI, of which subscribers are notified. It is in order with the events.
func (o OfBackends) Gap(ctx context.Context, workspace, uri string) error {
	cat, entry, err := find(ctx, o.service.Catalog, workspace, uri)
	if fault.Is(err, fault.NotFound) {
		cat, entry, err = find(ctx, o.latest, workspace, uri)
	}
	if err != nil {
		return err
	}
	now := o.service.now().UTC()
	e := event.Event{Workspace: workspace, ID: event.NewID(), URI: uri, Name: entry.Name, Time: now, Published: now, Gap: true}
	out := queue.Outgoing{Body: e.AppendJSON(nil), Group: group(cat, workspace, e), Dedup: digest(workspace, uri, e.ID)}
	return fault.Wrap(fault.Unavailable, o.service.Queue.Send(ctx, queue.Events, out), "queue a gap")
}

// find returns the event type of a URI and its catalog.
func find(ctx context.Context, in catalog.Source, workspace, uri string) (*catalog.Catalog, *catalog.Entry, error) {
	cat, err := in.Catalog(ctx, workspace)
	if err != nil {
		return nil, nil, fault.Wrap(fault.Unavailable, err, "look up the event types")
	}
	entry, _, ok := cat.Match(uri)
	if !ok {
		return nil, nil, fault.New(fault.NotFound, "no event type has the URI %.200q", uri)
	}
	return cat, entry, nil
}

// latest reads catalogs without a cache, but each at most once per readEvery, because a backend may send any number of events that do not
// fit. Callers that come before a read begins share it, so that none gets a catalog that is older than its event.
type latest struct {
	source  catalog.Source
	reading singleflight.Group
}

const readEvery = 200 * time.Millisecond

// Catalog implements [catalog.Source].
func (l *latest) Catalog(ctx context.Context, workspace string) (*catalog.Catalog, error) {
	read := l.reading.DoChan(workspace, func() (any, error) {
		time.Sleep(readEvery)
		l.reading.Forget(workspace)
		return catalog.Latest(context.WithoutCancel(ctx), l.source, workspace)
	})
	select {
	case r := <-read:
		cat, _ := r.Val.(*catalog.Catalog)
		return cat, r.Err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}
