package delivery

import (
	"context"
	"log/slog"
	"net/http"
	"time"

	"github.com/mcp-events/mcpevents/shared/events/webhook"
	"github.com/mcp-events/mcpevents/shared/platform/trace"
	"github.com/mcp-events/mcpevents/shared/storage/store"

	"github.com/mcp-events/mcpevents/shared/events/delivery/state"
)

// notices sends control messages, and makes those of gaps.
type notices struct {
	deliveries    *state.Deliveries
	sender        *sender
	subscriptions Subscriptions
	terminator    *Terminator // knows who gets none
	gaps          *Gaps
	options       *Options
	log           *slog.Logger
}

// send makes one attempt to send the message of a delivery. It is retried as an event
// is, and leaves no dead letter: no owner is left who could ask for it.
func (n *notices) send(ctx context.Context, del *state.Delivery, at poster) ([]store.Op, error) {
	record, err := n.subscriptions.Lookup(ctx, del.Workspace, del.Principal, del.Subscription)
	if err != nil {
		return nil, err
	}
	// A client that has subscribed again would take a termination notice for the new subscription's.
	send := record == nil
	if del.Control.Gap != "" {
		var later time.Time
		if send, later, err = n.prepareGap(ctx, del, record); err != nil {
			return nil, err
		}
		if !later.IsZero() {
			del.First = later
			_, err = n.deliveries.WriteNext(ctx, del, later)
			return nil, err
		}
	}
	if !send {
		return del.Forget(), nil
	}
	now := n.deliveries.Now()
	out, err := at(del.Control.Target.URL, func() webhook.Outcome {
		return n.sender.send(ctx, del, del.Control.Target.URL, trace.Context{}, func(r *webhook.Request) error {
			r.Timeout, r.Body = n.options.EventsTimeout, del.Control.Body
			return n.sender.sign(ctx, r, del.Workspace, del.Subscription, del.Control.Target)
		})
	})
	switch {
	case err != nil:
		return nil, err
	case out.Internal():
		return nil, internalError(out)
	case out.Category == "":
		return del.Forget(), nil
	}
	del.Attempts = append(del.Attempts, state.Result{At: now, Category: string(out.Category), Status: out.Status, TookMS: out.Took.Milliseconds()})
	wait, more := n.next(del, out.RetryAfter)
	if !more || out.Status == http.StatusGone || out.Status == http.StatusRequestEntityTooLarge {
		n.log.WarnContext(ctx, "control message undeliverable", "subscription", del.Subscription, "message", del.Event, "category", out.Category)
		return del.Forget(), nil
	}
	_, err = n.deliveries.WriteNext(ctx, del, now.Add(wait))
	return nil, err
}
