package delivery

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	eventlog "github.com/mcp-events/mcpevents/shared/events/log"
	"github.com/mcp-events/mcpevents/shared/events/subscription"
	"github.com/mcp-events/mcpevents/shared/events/switches"
	"github.com/mcp-events/mcpevents/shared/events/webhook"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/storage/queue"
	"github.com/mcp-events/mcpevents/shared/storage/store"

	"github.com/mcp-events/mcpevents/shared/events/delivery/state"

	"github.com/mcp-events/mcpevents/shared/events/delivery/lifecycle"

	"github.com/mcp-events/mcpevents/shared/events/delivery/retry"
)

// end ends a subscription of alice. It may be called from any goroutine.
func (r *rig) end(id string) {
	r.t.Helper()
	if err := r.services.End(r.t.Context(), "default", "alice", id); err != nil {
		r.t.Errorf("end a subscription: %v", err)
	}
}

// subscribeFrom subscribes alice from a cursor.
func (r *rig) subscribeFrom(cursor string) {
	r.t.Helper()
	r.subscribe(func(ask *subscription.SubscribeRequest) { ask.Cursor = cursor })
}

// subscribed subscribes alice. It returns the subscription and a cursor that is older than all events to come.
func (r *rig) subscribed() (sub *subscription.SubscribeResult, cursor string) {
	r.t.Helper()
	sub = r.subscribe()
	cursor = r.sealer.Seal("default", eventlog.Cursor{At: r.log.Position()})
	r.now = r.now.Add(time.Second)
	return sub, cursor
}

// storeFailed publishes evt_1, whose first attempt fails, so that its delivery is stored. It returns the parts of the process that
// made the attempt.
func (r *rig) storeFailed() (*Dispatcher, *retry.Job) {
	r.t.Helper()
	r.script = fails
	r.publish("evt_1")
	fanout, d, retry := r.process()
	r.hand(queue.Events, fanout.Handle)
	r.hand(queue.Deliveries, d.Pages)
	return d, retry
}

// interrupted finds subscriptions, and calls a function after it found one of them missing.
type interrupted struct {
	lifecycle.Subscriptions
	missing func()
}

func (i interrupted) Find(ctx context.Context, workspace, id string) (*subscription.Selected, error) {
	found, err := i.Subscriptions.Find(ctx, workspace, id)
	if found == nil {
		i.missing()
	}
	return found, err
}

// The client subscribes again from a cursor before an event whose delivery is still stored. The first attempt of its replay
// fails, so the event's delivery depends on what is stored.
func TestGivenAStoredDeliveryWhenItsClientSubscribesAgainBeforeItIsDeletedThenTheEventIsDeliveredAgain(t *testing.T) {
	type step struct {
		*rig
		d          *Dispatcher
		id, cursor string
	}
	again := func(s *step) {
		s.script = fails
		s.subscribeFrom(s.cursor)
		s.hand(queue.Deliveries, s.d.Pages)
		s.script = succeeds
	}
	for name, interrupt := range map[string]func(*step){
		"after its subscription was found missing": func(s *step) {
			s.end(s.id)
			s.d.Subscriptions = interrupted{s.d.Subscriptions, func() { again(s) }}
		},
		"after its endpoint accepted it": func(s *step) {
			s.script = succeeds
			once := true
			s.d.DB = hooked{DB: s.d.DB, writeAll: func(context.Context, []store.Op) error {
				if once {
					once = false
					s.end(s.id)
					again(s)
				}
				return nil
			}}
		},
	} {
		t.Run("WHK-18 EVX-11 "+name, func(t *testing.T) {
			r := newRig(t)
			sub := r.subscribe()
			s := &step{rig: r, id: sub.ID, cursor: r.sealer.Seal("default", eventlog.Cursor{At: r.log.Position()})}
			r.now = r.now.Add(time.Second)
			r.script = fails
			r.publish("evt_1")
			fanout, d, _ := r.process()
			s.d = d
			r.hand(queue.Events, fanout.Handle)
			r.hand(queue.Deliveries, d.Pages)
			if st := r.deliveryState(sub.ID, "evt_1"); st != state.Pending {
				t.Fatalf("the delivery is %s, want it pending", st)
			}
			interrupt(s)
			r.hand(queue.Slow, d.Singles)
			if st := r.deliveryState(sub.ID, "evt_1"); st != state.Pending {
				t.Errorf("the delivery is %s after the client subscribed again, want it pending", st)
			}
			r.script = succeeds
			before := posted(r)["evt_1"]
			r.run()
			if n := posted(r)["evt_1"] - before; n != 1 {
				t.Errorf("the event was posted %d more times, want once", n)
			}
			if st := r.deliveryState(sub.ID, "evt_1"); st != "none" {
				t.Errorf("the delivery is %s at the end, want none", st)
			}
		})
	}
}

// during makes a request of a dispatcher to its endpoint, and first calls a function once.
type during struct {
	Poster
	do func()
}

func (p *during) Send(ctx context.Context, r webhook.Request) webhook.Outcome {
	if do := p.do; do != nil {
		p.do = nil
		do()
	}
	return p.Poster.Send(ctx, r)
}

// A delivery's message may come from the due table or from a switch that was resumed. Then its entry there is gone.
func TestGivenAnAttemptWithoutADueEntryWhenTheEventIsRequestedAgainMeanwhileThenItsDeliveryGoesOn(t *testing.T) {
	origin := switches.Origin("https://hooks.example.com")
	for name, wait := range map[string]func(*rig, *Dispatcher, *retry.Job){
		"a retry from the due table": func(r *rig, _ *Dispatcher, retry *retry.Job) {
			r.queues[queue.Slow] = nil // the message was lost
			if _, err := retry.Run(r.t.Context()); err != nil {
				r.t.Fatal(err)
			}
			r.now = r.now.Add(5 * time.Minute)
			if n, err := retry.Run(r.t.Context()); n != 1 || err != nil {
				r.t.Fatalf("%d deliveries were due, want 1 (%v)", n, err)
			}
		},
		"a retry that was paused": func(r *rig, d *Dispatcher, _ *retry.Job) {
			r.pause(origin, nil)
			r.now = r.now.Add(2 * switches.MaxAge)
			r.hand(queue.Slow, d.Singles)
			r.resume(origin, nil)
			r.now = r.now.Add(2 * switches.MaxAge)
		},
	} {
		t.Run("WHK-18 EVX-11 "+name, func(t *testing.T) {
			r := newRig(t)
			sub, cursor := r.subscribed()
			r.script = fails
			r.publish("evt_1")
			fanout, d, retry := r.process()
			d.Switches = r.switches()
			r.hand(queue.Events, fanout.Handle)
			r.hand(queue.Deliveries, d.Pages)
			wait(r, d, retry)
			if n := len(r.queues[queue.Slow]); n != 1 {
				t.Fatalf("%d messages wait in the slow lane, want 1", n)
			}
			d.sender.poster = &during{d.sender.poster, func() {
				_, other, _ := r.process()
				r.end(sub.ID)
				r.subscribeFrom(cursor)
				r.hand(queue.Deliveries, other.Pages) // it fails, and meets the stored delivery
			}}
			r.hand(queue.Slow, d.Singles)
			r.script = succeeds
			before := posted(r)["evt_1"]
			r.run()
			if n := posted(r)["evt_1"] - before; n != 1 {
				t.Errorf("the event was posted %d more times, want once", n)
			}
			if st := r.deliveryState(sub.ID, "evt_1"); st != "none" {
				t.Errorf("the delivery is %s at the end, want none", st)
			}
		})
	}
}

// EVX-11: the message of the attempt was the only one, so the worker must schedule the next attempt although the delivery has
// changed.
func TestGivenAnAttemptUnderWayWhenItsEventIsRequestedAgainAndItFailsThenTheNextOneIsDueByTheSchedule(t *testing.T) {
	r := newRig(t)
	sub, cursor := r.subscribed()
	d, _ := r.storeFailed()
	d.sender.poster = &during{d.sender.poster, func() {
		_, other, _ := r.process()
		r.end(sub.ID)
		r.subscribeFrom(cursor)
		r.hand(queue.Deliveries, other.Pages) // it fails, and meets the stored delivery
	}}
	r.hand(queue.Slow, d.Singles)
	const attempts = 2 // of the stored delivery
	longest := time.Duration(float64(retry.EventsSchedule[attempts])*(1+retry.Jitter)) + time.Second
	if m := r.queues[queue.Slow]; len(m) != 1 || m[0].Delay > longest {
		t.Fatalf("the slow lane has the messages %v, want one with a delay of at most %v", m, longest)
	}
	r.script = succeeds
	before := posted(r)["evt_1"]
	r.hand(queue.Slow, d.Singles)
	if n := posted(r)["evt_1"] - before; n != 1 || r.deliveryState(sub.ID, "evt_1") != "none" {
		t.Errorf("it was posted %d more times, and the delivery is %s; want once and none", n, r.deliveryState(sub.ID, "evt_1"))
	}
}

// refreshed finds a subscription, and calls a function after it found it suspended.
type refreshed struct {
	lifecycle.Subscriptions
	suspended func()
}

func (s *refreshed) Lookup(ctx context.Context, workspace, principal, id string) (*subscription.Subscription, error) {
	found, err := s.Subscriptions.Lookup(ctx, workspace, principal, id)
	if do := s.suspended; do != nil && found != nil && found.State == subscription.Suspended {
		s.suspended = nil
		do()
	}
	return found, err
}

// EVX-14: the worker that suspends the delivery has its only message.
func TestGivenARetryToASuspendedSubscriptionWhenItsClientRefreshesMeanwhileThenTheRetryIsMadeSoon(t *testing.T) {
	r := newRig(t)
	sub, cursor := r.subscribed()
	d, _ := r.storeFailed()
	r.suspend(sub.ID)
	find := &refreshed{d.Subscriptions, func() {
		_, other, _ := r.process()
		r.subscribeFrom(cursor)
		r.hand(queue.Deliveries, other.Pages) // it reactivates what is suspended, fails, and meets the stored delivery
	}}
	d.Subscriptions, d.manager.Subscriptions = find, find
	r.hand(queue.Slow, d.Singles)
	r.script = succeeds
	before := posted(r)["evt_1"]
	r.hand(queue.Slow, d.Singles)
	if n := posted(r)["evt_1"] - before; n != 1 {
		t.Errorf("it was posted %d times without a wait, want once", n)
	}
}

// EVX-14: a delivery is suspended, and the client's refresh asks for its event again before it has reactivated the
// delivery. No message of the delivery is under way, so it is sent immediately.
func TestGivenASuspendedDeliveryWhenItsEventIsRequestedAgainThenItIsDeliveredAtOnce(t *testing.T) {
	r := newRig(t)
	sub, cursor := r.subscribed()
	r.suspend(sub.ID)
	r.publish("evt_1")
	r.work()
	_, d, _ := r.process()
	r.script = fails
	r.subscribeFrom(cursor)
	r.queues[queue.Deliveries] = r.queues[queue.Deliveries][1:] // hold back the message that reactivates the delivery
	r.hand(queue.Deliveries, d.Pages)
	r.script = succeeds
	before := posted(r)["evt_1"]
	r.hand(queue.Slow, d.Singles)
	if n := posted(r)["evt_1"] - before; n != 1 {
		t.Errorf("it was posted %d times immediately, want once", n)
	}
}

// EVX-11: requesting an event again and again does not postpone its delivery, also if each request comes when the delivery
// is due already and its minute has not been visited yet.
func TestADeliveryIsNotPostponedByRequestsForItsEvent(t *testing.T) {
	for _, second := range []time.Duration{0, 30, 57} {
		t.Run(fmt.Sprintf("the requests come at second %d of a minute", second), func(t *testing.T) { requestAgainAndAgain(t, second*time.Second) })
	}
}

func requestAgainAndAgain(t *testing.T, second time.Duration) {
	r := newRig(t)
	r.now = r.now.Truncate(time.Minute).Add(second)
	sub, cursor := r.subscribed()
	d, retry := r.storeFailed()
	if st := r.deliveryState(sub.ID, "evt_1"); st != state.Pending {
		t.Fatalf("the delivery is %s, want it pending", st)
	}
	r.queues[queue.Slow] = nil // the message is lost, so the delivery depends on its due entry
	const every = state.Backup / 2
	for range 10 {
		r.now = r.now.Add(every)
		r.end(sub.ID)
		r.subscribeFrom(cursor)
		r.hand(queue.Deliveries, d.Pages)
		n, err := retry.Run(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if n > 0 {
			return
		}
	}
	t.Errorf("the delivery was not due within %v", 10*every)
}

// EVX-11: a server that was off for an hour catches up. It sends the message of a due delivery and deletes the due entry.
// Meanwhile the client subscribes again from an older cursor, so the event has to be delivered once more, although the worker
// with that message has read the delivery before. No walk visits that minute again.
func TestGivenADueDeliveryWhenItsEntryIsMovedWhileItsEventIsRequestedAgainThenTheEventIsDeliveredAgain(t *testing.T) {
	for name, deletedBefore := range map[string]bool{
		"the entry is deleted before the delivery is renewed": true,
		"the entry is deleted after the delivery was renewed": false,
	} {
		t.Run("EVX-11 "+name, func(t *testing.T) {
			r := newRig(t)
			sub, cursor := r.subscribed()
			_, retry := r.storeFailed()
			r.queues[queue.Slow] = nil // the message is lost, so the delivery depends on its due entry
			r.now = r.now.Add(time.Hour)
			_, worker, _ := r.process()
			requestAgain := func() {
				_, other, _ := r.process()
				once, place := deletedBefore, r.storedDelivery(sub.ID, "evt_1").Place
				other.deliveries.DB = hooked{DB: r.db, write: func(ctx context.Context, ops []store.Op) error {
					renews := slices.ContainsFunc(ops, func(op store.Op) bool { return op.Item.Key == place })
					if once && renews {
						once = false
						return r.db.Write(ctx, store.Delete(place))
					}
					return nil
				}}
				r.end(sub.ID)
				r.subscribeFrom(cursor)
				r.script = fails
				r.hand(queue.Deliveries, other.Pages) // it meets the stored delivery
				if once {
					t.Error("the due entry was not written or deleted")
				}
			}
			once := true
			worker.DB = hooked{DB: worker.DB, writeAll: func(context.Context, []store.Op) error {
				if once {
					once = false
					requestAgain()
				}
				return nil
			}}
			retry.Queue = &watched{Sender: retry.Queue, sent: func(q queue.Name) {
				r.script = succeeds
				r.hand(q, worker.Singles)
			}}
			if n, err := retry.Run(t.Context()); n != 1 || err != nil || once {
				t.Fatalf("%d deliveries were moved (%v), and the worker was interrupted: %v; want 1 and true", n, err, !once)
			}
			r.script = succeeds
			before := posted(r)["evt_1"]
			r.run()
			if n, st := posted(r)["evt_1"]-before, r.deliveryState(sub.ID, "evt_1"); n != 1 || st != "none" {
				t.Errorf("the event was posted %d more times, and the delivery is %s; want once and none", n, st)
			}
		})
	}
}

// EVX-11, WHK-22: the switch that a delivery waits for is resumed, and its message is sent. Before the worker with that
// message has written its outcome, the event is requested again in a process that still sees the switch as paused.
func TestGivenAPausedDeliveryWhenItsEventIsRequestedAgainWhileItIsRequeuedThenTheEventIsDeliveredAgain(t *testing.T) {
	origin := switches.Origin("https://hooks.example.com")
	r := newRig(t)
	sub, cursor := r.subscribed()
	d, _ := r.storeFailed()
	r.pause(origin, nil)
	d.Switches = r.switches()
	r.hand(queue.Slow, d.Singles)
	if r.storedDelivery(sub.ID, "evt_1").PausedAt.IsZero() {
		t.Fatal("the delivery does not wait for its switch")
	}
	if _, err := r.switches().Resume(t.Context(), "default", origin); err != nil {
		t.Fatal(err)
	}
	_, worker, _ := r.process()
	once := true
	worker.DB = hooked{DB: worker.DB, writeAll: func(context.Context, []store.Op) error {
		if once {
			once = false
			r.end(sub.ID)
			r.subscribeFrom(cursor)
			r.hand(queue.Deliveries, d.Pages) // its attempt is paused, and meets the stored delivery
		}
		return nil
	}}
	requeuing := r.switches()
	requeuing.Queue = &watched{Sender: requeuing.Queue, sent: func(q queue.Name) {
		r.script = succeeds
		r.hand(q, worker.Singles)
	}}
	if n, err := requeuing.Requeue(t.Context()); n != 1 || err != nil || once {
		t.Fatalf("%d messages were requeued (%v), and the worker was interrupted: %v; want 1 and true", n, err, !once)
	}
	before := posted(r)["evt_1"]
	r.now = r.now.Add(2 * switches.MaxAge)
	if _, err := r.switches().Requeue(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.run()
	if n, st := posted(r)["evt_1"]-before, r.deliveryState(sub.ID, "evt_1"); n != 1 || st != "none" {
		t.Errorf("the event was posted %d more times, and the delivery is %s; want once and none", n, st)
	}
}

// storedDelivery returns the stored delivery of an event.
func (r *rig) storedDelivery(sub, eventID string) *state.Delivery {
	r.t.Helper()
	items, err := r.db.Get(r.t.Context(), state.Key("default", sub, r.keyOf(eventID)))
	if err != nil || items[0] == nil {
		r.t.Fatalf("read the delivery of %s: %v, %v", eventID, items, err)
	}
	del, err := state.Decode(items[0])
	if err != nil {
		r.t.Fatal(err)
	}
	return del
}

// OPS-05: an operator who asks for an event while it is delivered gets a conflict, and does not delay the delivery.
func TestAConflictLeavesTheDeliveryAsItIs(t *testing.T) {
	r := newRig(t)
	sub := r.register("event://ci/build-finished")
	fanout, d, _ := r.process()
	r.script = fails
	r.publish("evt_1")
	r.hand(queue.Events, fanout.Handle)
	r.hand(queue.Deliveries, d.Pages)
	d.sender.poster = &during{d.sender.poster, func() {
		if err := r.tryDeliverAgain(sub, "evt_1"); !fault.Is(err, fault.Conflict) {
			t.Errorf("an operator who asked for the event got %v, want a conflict", err)
		}
	}}
	r.script = succeeds
	r.hand(queue.Slow, d.Singles)
	if st := r.deliveryState(sub.ID, "evt_1"); st != "none" {
		t.Errorf("the delivery is %s after its endpoint accepted it, want none", st)
	}
}
