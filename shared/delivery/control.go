package delivery

import (
	"context"
	"encoding/json"
	"net/http"

	"github.com/mcp-events/mcpevents/shared/store"
	"github.com/mcp-events/mcpevents/shared/subscription"
	"github.com/mcp-events/mcpevents/shared/webhook"
)

// control is, in a chain, a message about a subscription in place of an event (SEP-3415,
// Non-event webhook bodies). The subscription may be gone, so it holds where it goes.
type control struct {
	Body   json.RawMessage     `json:"b"`
	Target subscription.Target `json:"t"`
}

// tell makes one attempt to send the message of a chain. It is retried as an event is,
// and leaves no trace in the end: there is nobody left to ask for it.
func (d *Dispatcher) tell(ctx context.Context, c *chain, had int64, was store.Key, at poster) ([]store.Op, error) {
	forget := []store.Op{store.Delete(chainKey(c.Workspace, c.Subscription, c.key())), store.Delete(was)}
	// Who has subscribed again would take the old end for that of the new subscription.
	again, err := d.Subscriptions.Lookup(ctx, c.Workspace, c.Principal, c.Subscription)
	if err != nil {
		return nil, err
	}
	if again != nil {
		return forget, nil
	}
	now := d.now()
	out, err := at(c.Control.Target.URL, len(c.Control.Body), func() webhook.Outcome {
		return d.send(ctx, attempted{
			workspace: c.Workspace, subscription: c.Subscription, target: c.Control.Target.URL,
			event: c.Event, name: c.Name, published: c.First, n: len(c.Attempts) + 1,
		}, func(r *webhook.Request) error {
			r.Timeout, r.Body = d.Options.EventsTimeout, c.Control.Body
			return d.sign(ctx, r, c.Workspace, c.Subscription, c.Control.Target)
		})
	})
	switch {
	case err != nil:
		return nil, err
	case ours(out):
		return nil, errOurs(out)
	case out.Category == "":
		return forget, nil
	}
	c.Attempts = append(c.Attempts, attempt{At: now, Category: string(out.Category), Status: out.Status, TookMS: out.Took.Milliseconds()})
	wait, more := d.schedule(c.Origin).Next(len(c.Attempts), out.RetryAfter)
	if !more || out.Status == http.StatusGone || out.Status == http.StatusRequestEntityTooLarge {
		d.log().WarnContext(ctx, "an endpoint could not be told of the end of its subscription", "subscription", c.Subscription, "category", out.Category)
		return forget, nil
	}
	_, err = d.writeNext(ctx, c, had, was, now.Add(wait))
	return nil, err
}
