// Package judge decides whether a subscriber receives an event, and explains afterwards why it did or did not.
//
// Package delivery asks [Judge.Event] before each attempt. [Explainer] finds the outcome of an event for each subscription: from
// the stored delivery, from the delivery log, or else from the same judge. So the explanation cannot differ from the decision.
package judge

import (
	"context"
	"errors"

	"github.com/mcp-events/mcpevents/shared/events/delivery/lifecycle"
	"github.com/mcp-events/mcpevents/shared/events/event"
	"github.com/mcp-events/mcpevents/shared/events/subscription"
	"github.com/mcp-events/mcpevents/shared/events/subscription/review"
	"github.com/mcp-events/mcpevents/shared/events/switches"
)

// Decision tells whether to send an event that passes the filters of its subscriber.
type Decision int

const (
	// Send means that nothing keeps the subscriber from receiving the event.
	Send Decision = iota
	// NotPermitted means that the principal has no right to the event.
	NotPermitted
	// TypeRemoved means that the event's type is no longer in the catalog, so its access rule is unknown.
	TypeRemoved
	// Replayed means that the subscription is suspended, and its next refresh replays the event from the log.
	Replayed
	// Suspended means that the subscription is suspended, and the event joins its backlog.
	Suspended
	// Paused means that a switch pauses the delivery.
	Paused
)

// Ruling is a decision. Switch names the switch of [Paused].
type Ruling struct {
	Decision
	Switch switches.Name
}

// Judge decides about events. Without switches, it pauses no deliveries.
type Judge struct{ Switches *switches.Set }

// Event decides whether a subscriber receives an event now. The caller has checked the subscriber's filters.
func (j Judge) Event(ctx context.Context, right review.Right, sub *subscription.Subscriber, e *event.Event) (Ruling, error) {
	may, err := right.May(ctx, e)
	switch {
	case errors.Is(err, review.ErrTypeRemoved):
		return Ruling{Decision: TypeRemoved}, nil
	case err != nil:
		return Ruling{}, err
	case !may:
		return Ruling{Decision: NotPermitted}, nil
	case sub.Suspended != 0 && lifecycle.Replays(sub, e):
		return Ruling{Decision: Replayed}, nil
	case sub.Suspended != 0:
		return Ruling{Decision: Suspended}, nil
	case j.Switches == nil:
		return Ruling{}, nil
	}
	which, err := j.Switches.Paused(ctx, e.Workspace, e.Name, subscription.OriginOf(sub.Target.URL))
	switch {
	case err != nil:
		return Ruling{}, err
	case which != "":
		return Ruling{Decision: Paused, Switch: which}, nil
	case sub.Paused != 0:
		return Ruling{Decision: Paused, Switch: switches.Subscription(sub.ID)}, nil
	}
	return Ruling{}, nil
}
