package publish

import (
	"cmp"
	"context"
	"log/slog"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sync/singleflight"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/events/catalog"
	"github.com/mcp-events/mcpevents/shared/events/event"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/platform/trace"
	"github.com/mcp-events/mcpevents/shared/protocol/jsonrpc"
	"github.com/mcp-events/mcpevents/shared/storage/queue"
)

// Inbox accepts events that programs send directly to the inbox queue. Anyone with permission to send to this queue (IAM on AWS) may
// publish. The body of a message is an event, an array of events, or a structured CloudEvent, as in POST /events. The member "workspace"
// (in a CloudEvent, an extension attribute) names the workspace.
//
// A message is accepted as a whole or not at all. A message that can never be accepted goes to the dead queue as a [queue.DeadLetter]
// with the reason, and does not hold up other messages.
type Inbox struct {
	Service *Service
	// Workspace is the workspace of events that name no workspace. Empty means auth.DefaultWorkspace.
	Workspace string
	// Documents converts messages that are not events, for example messages of AWS services. It may be nil if the inbox gets only events.
	Documents Documents
	// Log logs failures and dead letters. Nil means slog.Default.
	Log *slog.Logger
}

// Documents converts messages that are not events into events, for example the envelopes of Amazon EventBridge.
type Documents interface {
	// Read returns the events of a message. The result known is false if the message is not a document that Read can convert. The inbox
	// then decodes the message as an event.
	Read(ctx context.Context, body []byte) (in []Input, known bool, err error)
}

// Handle implements [queue.Handler] for the inbox.
func (b *Inbox) Handle(ctx context.Context, messages []queue.Message) (failed []string, err error) {
	var events, dead []queue.Outgoing
	var spans trace.Spans
	var taken, faulty []string
	for _, m := range messages {
		var begun trace.Spans
		out, err := b.prepare(ctx, m, &begun)
		if err != nil {
			begun.End(fault.KindOf(err).String())
		}
		switch kind := fault.KindOf(err); {
		case err == nil:
			spans = append(spans, begun...)
			events = append(events, out...)
			taken = append(taken, m.ID)
		case kind == fault.Unavailable || kind == fault.Internal: // an error of the server, so let the queue redeliver the message
			b.log().ErrorContext(ctx, "inbox message failed", "message", m.ID, "error", err)
			failed = append(failed, m.ID)
		default:
			b.log().WarnContext(ctx, "inbox message dead-lettered", "message", m.ID, "kind", kind.String())
			dead = append(dead, b.newDeadLetter(m, err))
			faulty = append(faulty, m.ID)
		}
	}
	// Send the events before the dead letters. If the process dies in between, the queue redelivers all messages. The events queue drops
	// repeated events, but the dead queue does not drop repeated dead letters.
	if len(events) > 0 {
		if err := b.Service.enqueue(ctx, events, spans); err != nil {
			b.log().ErrorContext(ctx, "inbox messages not queued", "messages", len(taken), "error", err)
			failed = append(failed, taken...)
		}
	}
	if len(dead) > 0 {
		if err := b.Service.Queue.Send(ctx, queue.Dead, dead...); err != nil {
			b.log().ErrorContext(ctx, "inbox messages not dead-lettered", "messages", len(faulty), "error", err)
			failed = append(failed, faulty...)
		} else {
			b.Service.Metrics.DeadLettered(string(queue.Inbox), len(dead))
		}
	}
	return failed, nil
}

func (b *Inbox) log() *slog.Logger { return cmp.Or(b.Log, slog.Default()) }

func (b *Inbox) prepare(ctx context.Context, m queue.Message, spans *trace.Spans) ([]queue.Outgoing, error) {
	in, err := b.read(ctx, m.Body)
	if err != nil {
		return nil, err
	}
	var out []queue.Outgoing
	for start := 0; start < len(in); {
		workspace := in[start].Workspace
		end := start + 1
		for end < len(in) && in[end].Workspace == workspace {
			end++
		}
		part, err := b.preparePart(ctx, m, in[start:end], start, spans)
		if err != nil {
			return nil, err
		}
		out = append(out, part...)
		start = end
	}
	return out, nil
}

func (b *Inbox) read(ctx context.Context, body []byte) ([]Input, error) {
	if b.Documents != nil {
		if in, known, err := b.Documents.Read(ctx, body); known || err != nil {
			return in, err
		}
	}
	return decode(body, true)
}

// preparePart turns inputs of one workspace into messages for the events queue. The parameter start is the index of in[0] among the
// events of the message m.
func (b *Inbox) preparePart(ctx context.Context, m queue.Message, in []Input, start int, spans *trace.Spans) ([]queue.Outgoing, error) {
	workspace := cmp.Or(in[0].Workspace, b.Workspace, auth.DefaultWorkspace)
	if !auth.ValidWorkspace(workspace) {
		return nil, fault.New(fault.Invalid, "%s", describe(in[0].At+"/workspace", "is not the name of a workspace"))
	}
	sent := trace.Parse(m.Attributes[trace.Parent], m.Attributes[trace.State])
	for i := range in {
		if in[i].Trace.Parent == "" {
			in[i].Trace = sent
		}
		// Derive a missing id or time from the message, so that a redelivered message results in the same event.
		if in[i].ID == "" {
			in[i].ID = "in_" + digest("inbox", m.ID, strconv.Itoa(start+i))
		}
		if in[i].Time.IsZero() {
			in[i].Time = m.Sent.UTC()
		}
	}
	var out []queue.Outgoing
	var refused error
	_, err := catalog.Try(ctx, b.Service.Catalog, workspace, func(cat *catalog.Catalog) bool {
		var begun trace.Spans
		if out, _, refused = b.Service.prepare(cat, workspace, in, &begun); refused != nil {
			begun.End(fault.KindOf(refused).String())
			return !dependsOnCatalog(refused)
		}
		*spans = append(*spans, begun...)
		return true
	})
	if err != nil {
		return nil, fault.Wrap(fault.Unavailable, err, "look up the event types of workspace %s", workspace)
	}
	return out, refused
}

// dependsOnCatalog reports whether a newer catalog might accept an event that the current one refused with the error err. An event type
// or a schema may have been added or changed meanwhile.
func dependsOnCatalog(err error) bool {
	return fault.Is(err, fault.NotFound) || fault.Is(err, fault.Unprocessable)
}

func (b *Inbox) newDeadLetter(m queue.Message, err error) queue.Outgoing {
	var faults any
	if data, ok := fault.DataOf(err).(Refusal); ok && len(data.Faults) > 0 {
		faults = data.Faults
	}
	return queue.NewDeadLetter(queue.Inbox, m, fault.Public(err), faults, b.Service.now())
}

// ServerPublisher publishes events that the server itself creates because of a principal's action. The principal does not need the scope
// for publishing, but the events count against its quota.
type ServerPublisher struct{ Service *Service }

// Publish publishes one event with [Service.Accept].
func (o ServerPublisher) Publish(ctx context.Context, p auth.Principal, in Input) error {
	p.Scopes = append(slices.Clone(p.Scopes), auth.ScopePublish)
	_, err := o.Service.Accept(ctx, p, []Input{in})
	return err
}

// InboxPublisher publishes events like [ServerPublisher], for a process that can reach only the inbox queue. [Inbox] then
// checks and publishes the event.
type InboxPublisher struct{ Queue queue.Sender }

// Publish sends one event to the inbox queue.
func (b InboxPublisher) Publish(ctx context.Context, p auth.Principal, in Input) error {
	out, err := InboxMessage(p.Workspace, in)
	if err != nil {
		return err
	}
	return fault.Wrap(fault.Unavailable, b.Queue.Send(ctx, queue.Inbox, out), "send to the inbox")
}

// InboxMessage returns a message for the inbox queue, with which [Inbox] publishes an event in the workspace. The message has no trace
// context.
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

// BackendPublisher publishes the events that backends send. It applies no quota, because its callers already limit each backend
// separately. Make it with [NewBackendPublisher].
//
// The catalog of this process may be seconds old, and may lack an event type that the relay has stored a moment ago. A refused event is
// lost, so BackendPublisher tries again with the latest catalog before it refuses an event.
type BackendPublisher struct {
	service *Service
	latest  *latest
}

// NewBackendPublisher returns a BackendPublisher that publishes like a service, but without its quota.
func NewBackendPublisher(s *Service) BackendPublisher {
	return BackendPublisher{s.WithoutQuota(), &latest{source: s.Catalog}}
}

// Publish accepts an event that a backend sent.
func (o BackendPublisher) Publish(ctx context.Context, workspace string, in Input) error {
	in.OfBackend = true
	relay := auth.Principal{Workspace: workspace, ID: "relay", Scopes: []string{auth.ScopePublish}}
	_, err := o.service.Accept(ctx, relay, []Input{in})
	if dependsOnCatalog(err) {
		again := *o.service
		again.Catalog = o.latest
		_, err = again.Accept(ctx, relay, []Input{in})
	}
	return err
}

// Gap publishes a notice that some of the events of a backend's URI are missing. Subscribers get it in order with the URI's events.
func (o BackendPublisher) Gap(ctx context.Context, workspace, uri string) error {
	cat, entry, err := findType(ctx, o.service.Catalog, workspace, uri)
	if fault.Is(err, fault.NotFound) {
		cat, entry, err = findType(ctx, o.latest, workspace, uri)
	}
	if err != nil {
		return err
	}
	now := o.service.now().UTC()
	e := event.Event{Workspace: workspace, ID: event.NewID(), URI: uri, Name: entry.Name, Time: now, Published: now, Gap: true}
	out := queue.Outgoing{Body: e.AppendJSON(nil), Group: groupOf(cat, workspace, e), Dedup: digest(workspace, uri, e.ID)}
	return fault.Wrap(fault.Unavailable, o.service.Queue.Send(ctx, queue.Events, out), "queue a gap")
}

func findType(ctx context.Context, in catalog.Source, workspace, uri string) (*catalog.Catalog, *catalog.Entry, error) {
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

// latest reads a workspace's catalog from its source, without a cache. Such a read is needed for every event of a backend that does not
// match the cached catalog, and a backend may send many of them. So latest reads the catalog of each workspace at most once per
// [readEvery].
//
// The first caller waits for the time readEvery and then reads the catalog. Callers that arrive during this wait share the read. Callers
// that arrive later start the next wait, because the read may have missed a change that was made shortly before their event.
type latest struct {
	source  catalog.Source
	reading singleflight.Group
}

// readEvery is the minimum time between two reads of a workspace's catalog by [latest].
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
