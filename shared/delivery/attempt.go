package delivery

import (
	"context"
	"log/slog"
	"net/http"
	"time"

	"go.opentelemetry.io/otel/attribute"

	"github.com/mcp-events/mcpevents/shared/catalog"
	"github.com/mcp-events/mcpevents/shared/event"
	"github.com/mcp-events/mcpevents/shared/fault"
	"github.com/mcp-events/mcpevents/shared/subscription"
	"github.com/mcp-events/mcpevents/shared/trace"
	"github.com/mcp-events/mcpevents/shared/webhook"
)

// attempt makes one signed POST of an event.
func (d *Dispatcher) attempt(ctx context.Context, workspace string, sub *subscription.Subscriber, e *event.Event, n int) webhook.Outcome {
	return d.send(ctx, attempted{
		workspace: workspace, subscription: sub.ID, target: sub.Target.URL,
		event: e.ID, name: e.Name, published: e.Published, n: n, trace: e.Trace,
	}, func(r *webhook.Request) error { return d.fill(ctx, r, workspace, sub, e) })
}

// attempted describes an attempt for logs and metrics.
type attempted struct {
	workspace, subscription, target, event, name string

	published time.Time
	n         int
	trace     trace.Context
}

// send makes one POST of a request that fill completes. An internal failure has the
// category [webhook.Internal].
func (d *Dispatcher) send(ctx context.Context, a attempted, fill func(*webhook.Request) error) (out webhook.Outcome) {
	defer func() {
		if p := recover(); p != nil {
			out = webhook.Outcome{Category: webhook.Internal, Err: panicked(p)}
		}
	}()
	span := d.Tracer.Continue(a.trace, "attempt", trace.Client)
	defer func() { a.end(span, out) }()
	r := webhook.Request{Trace: span.Context, URL: a.target, ID: a.event, SubscriptionID: a.subscription, At: d.now(), Timeout: d.Options.Timeout}
	if err := fill(&r); err != nil {
		return webhook.Outcome{Category: webhook.Internal, Err: err}
	}
	out = d.Poster.Send(ctx, r)
	if internal(out) {
		return out
	}
	lag := d.now().Sub(a.published)
	d.Metrics.Attempt(string(out.Category), a.n, out.Took, lag)
	if d.Options.LogDeliveries {
		level := slog.LevelInfo
		if out.Category != "" {
			level = slog.LevelWarn
		}
		d.log().LogAttrs(ctx, level, "delivery attempt",
			slog.String("workspace", a.workspace), slog.String("subscription", a.subscription), slog.String("event", a.event),
			slog.String("name", a.name), slog.String("origin", origin(a.target)), slog.Int("attempt", a.n), slog.Int("status", out.Status),
			slog.String("category", string(out.Category)), slog.Float64("took_ms", milliseconds(out.Took)), slog.Float64("lag_ms", milliseconds(lag)))
	}
	return out
}

// end ends the span of an attempt.
func (a *attempted) end(span trace.Span, out webhook.Outcome) {
	if !span.On() {
		return
	}
	span.Set(trace.Event(a.workspace, a.event, a.name)...)
	span.Set(attribute.String("mcpevents.subscription", a.subscription), attribute.Int("mcpevents.attempt", a.n),
		attribute.String("http.request.method", http.MethodPost), attribute.String("server.address", origin(a.target)))
	if out.Status != 0 {
		span.Set(attribute.Int("http.response.status_code", out.Status))
	}
	span.End(string(out.Category))
}

// fill adds the body and the keys to a request.
func (d *Dispatcher) fill(ctx context.Context, r *webhook.Request, workspace string, sub *subscription.Subscriber, e *event.Event) error {
	redacted := *e
	var err error
	if redacted.Data, err = subscription.Redacted(e.Data, sub.Redact); err != nil {
		return err
	}
	e = &redacted
	if sub.Origin == subscription.MCPEvents {
		r.Timeout = d.Options.EventsTimeout
		r.Body = eventsBody(e, sub.Cursor)
	} else {
		r.Body = standardBody(e, d.Catalog.WebhookType(ctx, workspace, e.Name), sub.ID)
	}
	return d.sign(ctx, r, workspace, sub.ID, sub.Target)
}

// sign adds the keys to a request.
func (d *Dispatcher) sign(ctx context.Context, r *webhook.Request, workspace, id string, target subscription.Target) error {
	if target.Type == subscription.None {
		return nil
	}
	binding := webhook.Binding{Workspace: workspace, Subscription: id, Target: target.URL}
	key, err := d.Opener.Open(ctx, target.Secret, binding)
	if err != nil {
		return fault.Wrap(fault.Internal, err, "open the secret")
	}
	r.Keys = [][]byte{key}
	if target.Type == subscription.Raw {
		r.RawSecret = key
	}
	if len(target.Previous) > 0 && d.now().Unix() < target.PreviousUntil {
		old, err := d.Opener.Open(ctx, target.Previous, binding)
		if err != nil {
			return fault.Wrap(fault.Internal, err, "open the previous secret")
		}
		r.Keys = append(r.Keys, old)
	}
	return nil
}

// WebhookTypes implements [Types] from the catalog.
type WebhookTypes struct{ Source catalog.Source }

// WebhookType is the catalog's; an event type that left the catalog has its name.
func (t WebhookTypes) WebhookType(ctx context.Context, workspace, name string) string {
	if cat, err := t.Source.Catalog(ctx, workspace); err == nil {
		if e := cat.ByName(name); e != nil && e.WebhookType != "" {
			return e.WebhookType
		}
	}
	return name
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
