package delivery

import (
	"context"
	"net/http"
	"time"

	"github.com/mcp-events/mcpevents/shared/events/webhook"
	"github.com/mcp-events/mcpevents/shared/platform/trace"
	"github.com/mcp-events/mcpevents/shared/storage/store"

	"github.com/mcp-events/mcpevents/shared/events/delivery/retry"
	"github.com/mcp-events/mcpevents/shared/events/delivery/state"
)

// sendNotice makes one attempt to send the control message of a delivery. The message is retried like an event. It leaves no
// dead letter, because no owner is left who could ask for it.
func (d *Dispatcher) sendNotice(ctx context.Context, del *state.Delivery, at poster) ([]store.Op, error) {
	record, err := d.Subscriptions.Lookup(ctx, del.Workspace, del.Principal, del.Subscription)
	if err != nil {
		return nil, err
	}
	// A client that has subscribed again would think that a termination notice is about the new subscription.
	send := record == nil
	if del.Control.Gap != "" {
		var later time.Time
		if send, later, err = d.manager.PrepareGap(ctx, del, record); err != nil {
			return nil, err
		}
		if !later.IsZero() {
			del.First = later
			_, err = d.deliveries.WriteNext(ctx, del, later)
			return nil, err
		}
	}
	if !send {
		return del.Forget(), nil
	}
	now := d.deliveries.Now()
	out, err := at(del.Control.Target.URL, func() webhook.Outcome {
		return d.sender.send(ctx, del, del.Control.Target.URL, trace.Context{}, func(r *webhook.Request) error {
			r.Timeout, r.Body = d.Options.EventsTimeout, del.Control.Body
			return d.sender.sign(ctx, r, del.Workspace, del.Subscription, del.Control.Target)
		})
	})
	switch {
	case err != nil:
		return nil, err
	case out.Internal():
		return nil, retry.InternalError(out)
	case out.Category == "":
		return del.Forget(), nil
	}
	del.Attempts = append(del.Attempts, state.Result{At: now, Category: string(out.Category), Status: out.Status, TookMS: out.Took.Milliseconds()})
	wait, more := d.nextNotice(del, out.RetryAfter)
	if !more || out.Status == http.StatusGone || out.Status == http.StatusRequestEntityTooLarge {
		d.log().WarnContext(ctx, "control message undeliverable", "subscription", del.Subscription, "message", del.Event, "category", out.Category)
		return del.Forget(), nil
	}
	_, err = d.deliveries.WriteNext(ctx, del, now.Add(wait))
	return nil, err
}

// nextNotice returns when a control message that failed is sent again, or false if it is given up.
func (d *Dispatcher) nextNotice(del *state.Delivery, retryAfter time.Duration) (time.Duration, bool) {
	schedule := d.schedules.Of(del.Origin)
	wait, more := schedule.Next(len(del.Attempts), retryAfter)
	if more || del.Control.Gap == "" {
		return wait, more
	}
	return d.manager.NextGap(del, schedule[len(schedule)-1], len(del.Attempts)-len(schedule)+1, retryAfter)
}
