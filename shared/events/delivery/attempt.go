package delivery

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"go.opentelemetry.io/otel/attribute"

	"github.com/mcp-events/mcpevents/shared/events/catalog"
	"github.com/mcp-events/mcpevents/shared/events/event"
	"github.com/mcp-events/mcpevents/shared/events/match"
	"github.com/mcp-events/mcpevents/shared/events/subscription"
	"github.com/mcp-events/mcpevents/shared/events/webhook"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/platform/metric"
	"github.com/mcp-events/mcpevents/shared/platform/trace"
	"github.com/mcp-events/mcpevents/shared/protocol/jsonrpc"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"

	"github.com/mcp-events/mcpevents/shared/events/delivery/lifecycle"
	"github.com/mcp-events/mcpevents/shared/events/delivery/state"
)

// sender makes attempts. Each attempt is a signed request with a span, metrics and a log line.
type sender struct {
	poster  Poster
	opener  Opener
	catalog catalog.Source
	gaps    *lifecycle.Gaps // its sealer makes the ids of messages
	options *Options
	now     func() time.Time
	log     *slog.Logger
	metrics *metric.Set
	tracer  *trace.Tracer
}

// attempt makes one signed POST of an event.
func (s *sender) attempt(ctx context.Context, del *state.Delivery, sub *subscription.Subscriber, e *event.Event) webhook.Outcome {
	return s.send(ctx, del, sub.Target.URL, e.Trace, func(r *webhook.Request) error { return s.fill(ctx, r, sub, e) })
}

// send makes the next POST of a delivery. The function fill completes the request. An internal failure has the category
// [webhook.Internal].
func (s *sender) send(ctx context.Context, del *state.Delivery, target string, traced trace.Context, fill func(*webhook.Request) error) (out webhook.Outcome) {
	defer func() {
		if p := recover(); p != nil {
			out = webhook.Outcome{Category: webhook.Internal, Err: fault.Panicked(p)}
		}
	}()
	n := len(del.Attempts) + 1
	span := s.tracer.Continue(traced, "attempt", trace.Client)
	defer func() {
		if span.Recording() {
			endSpan(span, del, target, n, out)
		}
	}()
	r := webhook.Request{Trace: span.Context, URL: target, ID: del.Event, SubscriptionID: del.Subscription, At: s.now(), Timeout: s.options.Timeout}
	if err := fill(&r); err != nil {
		return webhook.Outcome{Category: webhook.Internal, Err: err}
	}
	out = s.poster.Send(ctx, r)
	if out.Internal() {
		return out
	}
	published := del.Published
	if published.IsZero() { // of a control message
		published = del.First
	}
	lag := s.now().Sub(published)
	s.metrics.Attempt(string(out.Category), n, out.Took, lag)
	if s.options.LogDeliveries {
		level := slog.LevelInfo
		if out.Category != "" {
			level = slog.LevelWarn
		}
		s.log.LogAttrs(ctx, level, "delivery attempt",
			slog.String("workspace", del.Workspace), slog.String("subscription", del.Subscription), slog.String("event", del.Event),
			slog.String("name", del.Name), slog.String("origin", subscription.OriginOf(target)), slog.Int("attempt", n), slog.Int("status", out.Status),
			slog.String("category", string(out.Category)), slog.Float64("took_ms", milliseconds(out.Took)), slog.Float64("lag_ms", milliseconds(lag)))
	}
	return out
}

func endSpan(span trace.Span, del *state.Delivery, target string, n int, out webhook.Outcome) {
	span.Set(trace.Event(del.Workspace, del.Event, del.Name)...)
	span.Set(attribute.String("mcpevents.subscription", del.Subscription), attribute.Int("mcpevents.attempt", n),
		attribute.String("http.request.method", http.MethodPost), attribute.String("server.address", subscription.OriginOf(target)))
	if out.Status != 0 {
		span.Set(attribute.Int("http.response.status_code", out.Status))
	}
	span.End(string(out.Category))
}

// fill adds the id, the body and the keys to the request of an event.
func (s *sender) fill(ctx context.Context, r *webhook.Request, sub *subscription.Subscriber, e *event.Event) error {
	redacted := *e
	var err error
	if redacted.Data, err = match.Redacted(e.Data, sub.Redact); err != nil {
		return err
	}
	e = &redacted
	if sub.Origin == subscription.MCPEvents {
		r.Timeout = s.options.EventsTimeout
		r.Body = eventsBody(e, s.entry(ctx, e), sub.Cursor)
		if r.ID, err = s.webhookID(ctx, sub, e); err != nil {
			return err
		}
	} else {
		r.Body = standardBody(e, s.webhookType(ctx, e), sub.ID)
	}
	return s.sign(ctx, r, e.Workspace, sub.ID, sub.Target)
}

// webhookID returns the id of a delivery of an MCP Events subscription. In the released profile that is the event's id. In the
// final profile it is an id of the message, which depends only on the subscription and the event, so that all attempts and
// replays have the same id, whichever process makes them. Its digits are hexadecimal, so it is never taken for the id of a
// control message, msg_<type>_….
func (s *sender) webhookID(ctx context.Context, sub *subscription.Subscriber, e *event.Event) (string, error) {
	if cmp.Or(sub.Profile, s.options.Profile) != spec.Final {
		return e.ID, nil
	}
	sealer, err := s.gaps.Sealer(ctx)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("msg_%016x", sealer.Hash("message\x00"+e.Workspace+"\x00"+sub.ID+"\x00"+e.Key())), nil
}

// sign adds the keys to a request.
func (s *sender) sign(ctx context.Context, r *webhook.Request, workspace, id string, target subscription.Target) error {
	if target.Type == subscription.None {
		return nil
	}
	binding := webhook.Binding{Workspace: workspace, Subscription: id, Target: target.URL}
	key, err := s.opener.Open(ctx, target.Secret, binding)
	if err != nil {
		return fault.Wrap(fault.Internal, err, "open the secret")
	}
	r.Keys = [][]byte{key}
	if target.Type == subscription.Raw {
		r.RawSecret = key
	}
	if len(target.Previous) > 0 && s.now().Unix() < target.PreviousUntil {
		old, err := s.opener.Open(ctx, target.Previous, binding)
		if err != nil {
			return fault.Wrap(fault.Internal, err, "open the previous secret")
		}
		r.Keys = append(r.Keys, old)
	}
	return nil
}

// webhookType returns the type that the catalog gives to webhooks of the event, or else the name of the event type.
func (s *sender) webhookType(ctx context.Context, e *event.Event) string {
	if entry := s.entry(ctx, e); entry != nil && entry.WebhookType != "" {
		return entry.WebhookType
	}
	return e.Name
}

// entry returns the event's type, or nil if the catalog no longer has it or cannot be read.
func (s *sender) entry(ctx context.Context, e *event.Event) *catalog.Entry {
	cat, err := s.catalog.Catalog(ctx, e.Workspace)
	if err != nil {
		return nil
	}
	return cat.ByName(e.Name)
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// The functions below write bodies without encoding/json, which would validate each payload again for each subscriber. The
// payload is valid and compact, because publish has checked it.

// standardBody returns the body of a SEP-1803 webhook: type, timestamp and data as in Standard Webhooks, and our members.
func standardBody(e *event.Event, webhookType, id string) []byte {
	b := make([]byte, 0, len(e.Data)+len(e.URI)+len(webhookType)+192)
	b = jsonrpc.AppendString(append(b, `{"type":`...), webhookType)
	b = appendTimestamp(b, e)
	b = jsonrpc.AppendString(append(b, `,"uri":`...), e.URI)
	b = jsonrpc.AppendString(append(b, `,"subscription":`...), subscription.URI(id))
	return append(appendData(b, e), '}')
}

// eventsBody returns an EventOccurrence (SEP-3415). entry is the event type, or nil if the catalog no longer has it.
func eventsBody(e *event.Event, entry *catalog.Entry, cursor string) []byte {
	b := make([]byte, 0, len(e.Data)+2*len(e.URI)+len(e.Name)+len(cursor)+384)
	b = jsonrpc.AppendString(append(b, `{"eventId":`...), e.ID)
	b = jsonrpc.AppendString(append(b, `,"name":`...), e.Name)
	b = appendData(appendTimestamp(b, e), e)
	b = append(b, `,"cursor":`...)
	if cursor == "" {
		b = append(b, `null`...)
	} else {
		b = jsonrpc.AppendString(b, cursor)
	}
	b = match.AppendOccurrenceMeta(append(b, `,"_meta":{`...), e, entry)
	return append(b, `}}`...)
}

func appendTimestamp(b []byte, e *event.Event) []byte {
	b = append(b, `,"timestamp":"`...)
	return append(e.Time.AppendFormat(b, time.RFC3339Nano), '"')
}

func appendData(b []byte, e *event.Event) []byte {
	b = append(b, `,"data":`...)
	if len(e.Data) == 0 {
		return append(b, `null`...)
	}
	return append(b, e.Data...)
}
