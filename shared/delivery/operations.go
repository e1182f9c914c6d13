package delivery

import (
	"context"
	"encoding/json"
	"time"

	"github.com/mcp-events/mcpevents/shared/event"
	"github.com/mcp-events/mcpevents/shared/eventlog"
	"github.com/mcp-events/mcpevents/shared/fault"
	"github.com/mcp-events/mcpevents/shared/metric"
	"github.com/mcp-events/mcpevents/shared/queue"
	"github.com/mcp-events/mcpevents/shared/store"
	"github.com/mcp-events/mcpevents/shared/subscription"
)

// Operations are what operators and owners do to deliveries. Make it with [NewOperations].
type Operations struct {
	// Log is needed to replay events.
	Log *eventlog.Log
	// Metrics counts the messages that a queue gave up; may be nil.
	Metrics *metric.Set
	// Ahead is how far ahead of the clock a replay schedules deliveries, which canceling it does not stop: at least the time
	// between two calls of RunReplays. 0 is a minute.
	Ahead time.Duration

	deliveries *deliveries
}

// NewOperations makes operations. The clock may be nil.
func NewOperations(db store.DB, q queue.Sender, now func() time.Time) *Operations {
	return &Operations{deliveries: newDeliveries(db, q, func() time.Time { return timeBy(now) }, nil)}
}

// SendTest delivers a test event to a subscription, marked as one, on the way of any other: signed,
// retried and recorded. It returns the event's id.
func (o *Operations) SendTest(ctx context.Context, sub *subscription.Subscription) (id string, err error) {
	now := o.deliveries.now().UTC()
	e := event.Event{
		Workspace: sub.Workspace, ID: "test_" + event.NewID(), URI: sub.EventURIs[0], Name: TestType, Time: now, Published: now,
		Data: json.RawMessage(`{"test":true}`),
	}
	if sub.Origin == subscription.MCPEvents { // its receivers know the names that they subscribed to
		e.Name = sub.Name
	}
	return e.ID, o.deliver(ctx, sub, &e, true)
}

// TestType is the type of a test event's webhook.
const TestType = "mcpevents.test"

// Deliver delivers an event to a subscription again, with its id. An event that is being delivered
// to it already is of kind Conflict.
func (o *Operations) Deliver(ctx context.Context, sub *subscription.Subscription, e *event.Event) error {
	return o.deliver(ctx, sub, e, false)
}

func (o *Operations) deliver(ctx context.Context, sub *subscription.Subscription, e *event.Event, test bool) error {
	now := o.deliveries.now()
	subscriber := sub.Subscriber()
	del := newDelivery(&subscriber, e, now)
	del.Test = test
	items, err := o.deliveries.db.Get(ctx, deliveryKey(sub.Workspace, sub.ID, del.key()))
	if err != nil {
		return fault.Wrap(fault.Unavailable, err, "read a delivery")
	}
	if items[0] != nil { // a dead letter keeps its place in the list, and its attempts
		before, err := decodeDelivery(items[0])
		if err != nil {
			return err
		}
		if before.State != stateDead {
			return fault.New(fault.Conflict, "the event is being delivered to the subscription already")
		}
		del.version, del.Attempts, del.Base = items[0].Version, before.Attempts, len(before.Attempts)
	}
	if err := o.deliveries.storeBody(ctx, e, del.key()); err != nil {
		return err
	}
	done, err := o.deliveries.writeNext(ctx, del, now)
	if err == nil && !done {
		return fault.New(fault.Conflict, "the event is being delivered to the subscription already")
	}
	return err
}

// Stored returns the event of a URI and an id, if it is stored for retries; nil if not.
func (o *Operations) Stored(ctx context.Context, workspace, uri, id string) (*event.Event, error) {
	items, err := o.deliveries.db.Get(ctx, bodyKey(workspace, event.Event{URI: uri, ID: id}.Key()))
	if err != nil || items[0] == nil {
		return nil, fault.Wrap(fault.Unavailable, err, "read a stored event")
	}
	var e event.Event
	if err := json.Unmarshal(items[0].Value, &e); err != nil {
		return nil, fault.Wrap(fault.Internal, err, "decode a stored event")
	}
	return &e, nil
}
