package delivery

import (
	"context"
	"encoding/json"
	"net/http"

	"github.com/mcp-events/mcpevents/shared/store"
	"github.com/mcp-events/mcpevents/shared/subscription"
	"github.com/mcp-events/mcpevents/shared/webhook"
)

// control is the message of a delivery that carries no event but says something about its
// subscription (SEP-3415, Non-event webhook bodies). It holds the target, because the
// subscription may be gone.
type control struct {
	Body   json.RawMessage     `json:"b"`
	Target subscription.Target `json:"t"`
}

// sendNotice makes one attempt to send the message of a delivery. It is retried as an event
// is, and leaves no dead letter: no owner is left who could ask for it.
func (d *Dispatcher) sendNotice(ctx context.Context, del *delivery, had int64, was store.Key, at poster) ([]store.Op, error) {
	forget := []store.Op{store.Delete(deliveryKey(del.Workspace, del.Subscription, del.key())), store.Delete(was)}
	// A client that has subscribed again would take the notice for the new subscription's.
	again, err := d.Subscriptions.Lookup(ctx, del.Workspace, del.Principal, del.Subscription)
	if err != nil {
		return nil, err
	}
	if again != nil {
		return forget, nil
	}
	now := d.now()
	out, err := at(del.Control.Target.URL, len(del.Control.Body), func() webhook.Outcome {
		return d.send(ctx, attempted{
			workspace: del.Workspace, subscription: del.Subscription, target: del.Control.Target.URL,
			event: del.Event, name: del.Name, published: del.First, n: len(del.Attempts) + 1,
		}, func(r *webhook.Request) error {
			r.Timeout, r.Body = d.Options.EventsTimeout, del.Control.Body
			return d.sign(ctx, r, del.Workspace, del.Subscription, del.Control.Target)
		})
	})
	switch {
	case err != nil:
		return nil, err
	case internal(out):
		return nil, internalError(out)
	case out.Category == "":
		return forget, nil
	}
	del.Attempts = append(del.Attempts, attempt{At: now, Category: string(out.Category), Status: out.Status, TookMS: out.Took.Milliseconds()})
	wait, more := d.schedule(del.Origin).Next(len(del.Attempts), out.RetryAfter)
	if !more || out.Status == http.StatusGone || out.Status == http.StatusRequestEntityTooLarge {
		d.log().WarnContext(ctx, "termination notice undeliverable", "subscription", del.Subscription, "category", out.Category)
		return forget, nil
	}
	_, err = d.writeNext(ctx, del, had, was, now.Add(wait))
	return nil, err
}
