package publish

import (
	"context"
	"slices"
	"time"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/events/catalog"
	"github.com/mcp-events/mcpevents/shared/events/event"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/protocol/jsonrpc"
	"github.com/mcp-events/mcpevents/shared/storage/queue"
)

// OnBehalf publishes events that the server itself creates because of a principal's action. The principal does not
// need the scope to publish, but the events count against its quota.
type OnBehalf struct{ Service *Service }

// Publish accepts one event, as [Service.Accept] does.
func (o OnBehalf) Publish(ctx context.Context, p auth.Principal, in Input) error {
	p.Scopes = append(slices.Clone(p.Scopes), auth.ScopePublish)
	_, err := o.Service.Accept(ctx, p, []Input{in})
	return err
}

// FromBackend accepts an event that the relay received from a backend. No quota counts it, because the relay limits the backend.
//
// The catalog of this process may be seconds old and lack an event type that the relay has just stored, or have its former schema. So
// FromBackend tries again with the latest one before it refuses an event, which would be lost.
func (s *Service) FromBackend(ctx context.Context, workspace string, in Input) error {
	in.OfBackend = true
	relay := auth.Principal{Workspace: workspace, ID: "relay", Scopes: []string{auth.ScopePublish}}
	_, err := s.Accept(ctx, relay, []Input{in})
	if fault.Is(err, fault.NotFound) || fault.Is(err, fault.Unprocessable) {
		again := *s
		again.Catalog = latest{s.Catalog}
		_, err = again.Accept(ctx, relay, []Input{in})
	}
	return err
}

// latest reads catalogs without a cache.
type latest struct{ catalog.Source }

// Catalog implements [catalog.Source].
func (l latest) Catalog(ctx context.Context, workspace string) (*catalog.Catalog, error) {
	return catalog.Latest(ctx, l.Source, workspace)
}

// Gap accepts a gap in the events of a backend's URI, of which subscribers are notified. It is in order with the events.
func (s *Service) Gap(ctx context.Context, workspace, uri string) error {
	cat, err := catalog.Latest(ctx, s.Catalog, workspace)
	if err != nil {
		return fault.Wrap(fault.Unavailable, err, "look up the event types")
	}
	entry, _, ok := cat.Match(uri)
	if !ok {
		return fault.New(fault.NotFound, "no event type has the URI %.200q", uri)
	}
	now := s.now().UTC()
	e := event.Event{Workspace: workspace, ID: event.NewID(), URI: uri, Name: entry.Name, Time: now, Published: now, Gap: true}
	out := queue.Outgoing{Body: e.AppendJSON(nil), Group: group(cat, workspace, e), Dedup: digest(workspace, uri, e.ID)}
	return fault.Wrap(fault.Unavailable, s.Queue.Send(ctx, queue.Events, out), "queue a gap")
}

// ByInbox publishes in the same way from a function that can reach only the inbox queue. [Inbox] then checks and
// publishes the event.
type ByInbox struct{ Queue queue.Sender }

// Publish sends one event to the inbox.
func (b ByInbox) Publish(ctx context.Context, p auth.Principal, in Input) error {
	out, err := InboxMessage(p.Workspace, in)
	if err != nil {
		return err
	}
	return fault.Wrap(fault.Unavailable, b.Queue.Send(ctx, queue.Inbox, out), "send to the inbox")
}

// InboxMessage returns a message that makes [Inbox] publish an event in a workspace. It has no trace context.
func InboxMessage(workspace string, in Input) (queue.Outgoing, error) {
	body := jsonrpc.AppendString([]byte(`{"workspace":`), workspace)
	body = jsonrpc.AppendString(append(body, `,"uri":`...), in.URI)
	body = jsonrpc.AppendString(append(body, `,"id":`...), in.ID)
	if !in.Time.IsZero() {
		body = jsonrpc.AppendString(append(body, `,"time":`...), in.Time.Format(time.RFC3339Nano))
	}
	if in.Resend != "" {
		body = jsonrpc.AppendString(append(body, `,"resend":`...), in.Resend)
	}
	body = append(append(append(body, `,"data":`...), in.Data...), '}')
	if body = queue.Escape(body); len(body) > queue.MaxBody {
		return queue.Outgoing{}, fault.New(fault.TooLarge, "the event is larger than %d bytes in the queue", queue.MaxBody)
	}
	return queue.Outgoing{Body: body}, nil
}
