package delivery

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mcp-events/mcpevents/shared/events/delivery/deadletter"
	"github.com/mcp-events/mcpevents/shared/events/delivery/lifecycle"
	"github.com/mcp-events/mcpevents/shared/events/delivery/retry"
	"github.com/mcp-events/mcpevents/shared/events/delivery/state"
	"github.com/mcp-events/mcpevents/shared/events/delivery/task"
	"github.com/mcp-events/mcpevents/shared/events/event"
	"github.com/mcp-events/mcpevents/shared/events/fanout"
	eventlog "github.com/mcp-events/mcpevents/shared/events/log"
	"github.com/mcp-events/mcpevents/shared/events/subscription"
	"github.com/mcp-events/mcpevents/shared/events/switches"
	"github.com/mcp-events/mcpevents/shared/events/webhook"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/storage/queue"
	"github.com/mcp-events/mcpevents/shared/storage/store"
	"github.com/mcp-events/mcpevents/shared/storage/store/storetest"
	"github.com/mcp-events/mcpevents/test/expect"
)

// storedLife is everything that the store has of a delivery.
type storedLife struct {
	stage                string
	due, waiting, bodies int
	letters              int
}

// storedLives has what is stored after the step to each state. A step to [state.None] deletes the delivery, because it succeeded or has no
// receiver anymore. Only a pending delivery has a due entry, which brings back a lost message, and only a dead one has a letter.
var storedLives = map[string]storedLife{
	state.None:      {bodies: 1},
	state.Pending:   {stage: state.Pending, due: 1, bodies: 1},
	state.Paused:    {stage: state.Paused, waiting: 1, bodies: 1},
	state.Suspended: {stage: state.Suspended, bodies: 1},
	state.Dead:      {stage: state.Dead, bodies: 1, letters: 1},
}

// steps has the states to which a step is possible from each state.
var steps = map[string][]string{
	state.None:      {state.Pending, state.Paused, state.Suspended, state.Dead},
	state.Pending:   {state.Pending, state.Paused, state.Suspended, state.Dead, state.None},
	state.Paused:    {state.Pending, state.Paused, state.Suspended, state.Dead, state.None},
	state.Suspended: {state.Pending},
	state.Dead:      {state.Pending, state.Paused, state.Suspended, state.Dead},
}

// lives is a rig in which one delivery is brought into states and makes steps.
type lives struct {
	*rig
	sub   *subscription.Subscription
	event event.Event
}

const lifeOrigin = "https://hooks.example.com"

func newLives(t *testing.T) *lives {
	r := newRig(t)
	l := &lives{rig: r, sub: r.register("event://ci/build-finished")}
	l.event = event.Event{
		Workspace: "default", ID: "evt_1", URI: "event://ci/build-finished", Name: "ci.build_finished", Time: r.now, Published: r.now, Data: []byte(`{"ok":true}`),
	}
	r.pause(switches.OriginSwitch(lifeOrigin), nil)
	r.suspend(l.sub.ID)
	return l
}

// worker is a process that has read the delivery. It is nil where a message is stale.
type worker struct {
	*lives
	d   *Dispatcher
	del *state.Delivery
}

// reads starts a worker in the way in which its message would. A page and an operator bring a new delivery, a message of
// the slow lane the stored one, and a refresh the suspended one.
func (l *lives) reads(stage string, attempt int) (worker, error) {
	_, d, _ := l.process()
	d.Switches = &switches.Set{DB: d.DB, Now: d.Now}
	w := worker{l, d, nil}
	sub := l.sub.Subscriber()
	var err error
	switch stage {
	case state.None, state.Dead:
		w.del = state.New(&sub, &l.event, l.now)
	case state.Pending, state.Paused:
		w.del, _, err = d.deliveries.LoadCurrent(l.t.Context(), task.Single{Workspace: "default", Subscription: sub.ID, Event: l.event.ID, Key: l.event.Key(), Attempt: attempt})
		if w.del != nil && w.del.State == state.Suspended {
			w.del = nil // SuspendDelivery continues it
		}
	case state.Suspended:
		items, getErr := d.DB.Get(l.t.Context(), state.Key("default", sub.ID, l.event.Key()))
		if err = getErr; err == nil && items[0] != nil {
			if w.del, err = state.Decode(items[0]); w.del.State != state.Suspended {
				w.del = nil
			}
		}
	}
	return w, err
}

// make makes the step to a state.
func (w worker) make(to string) (written bool, err error) {
	ctx := w.t.Context()
	failed := func() {
		w.del.Attempts = append(w.del.Attempts, state.Result{At: w.now, Category: "http_5xx", Status: 500})
	}
	switch to {
	case state.Pending:
		if w.del.Stored != state.Suspended {
			failed()
		}
		return w.d.deliveries.Schedule(ctx, w.del, &w.event, w.now.Add(5*time.Minute))
	case state.Paused:
		return w.d.deliveries.Pause(ctx, w.del, &w.event, w.d.Switches, switches.OriginSwitch(lifeOrigin))
	case state.Suspended:
		return w.d.deliveries.Suspend(ctx, w.del, &w.event)
	case state.Dead:
		failed()
		return w.d.outcomes.DeadLetter(ctx, w.del, &w.event)
	}
	return true, state.WriteNotes(ctx, w.d.DB, w.del.DeletionNotes())
}

// bring brings the delivery into a state and returns the number of its next attempt.
func (l *lives) bring(stage string) (attempt int) {
	l.t.Helper()
	if stage == state.None {
		return 1
	}
	w, err := l.reads(state.None, 1)
	if err == nil {
		_, err = w.make(stage)
	}
	expect.OK(l.t, err)
	return len(w.del.Attempts) + 1
}

func (l *lives) storedLife() (s storedLife) {
	l.t.Helper()
	items := expect.Value(l.db.Get(l.t.Context(), state.Key("default", l.sub.ID, l.event.Key()), state.BodyKey("default", l.event.Key())))(l.t)
	if items[0] != nil {
		s.stage = expect.Value(state.Decode(items[0]))(l.t).Stored
	}
	if items[1] != nil {
		s.bodies = 1
	}
	count := func(partition string) int { return len(l.items(partition)) }
	for minute := range 120 {
		for shard := range state.DueShards {
			s.due += count(state.DuePartition(shard, l.now.Add(time.Duration(minute-60)*time.Minute)))
		}
	}
	for shard := range 4 {
		s.waiting += count(fmt.Sprintf("paused#default#%d#%s", shard, switches.OriginSwitch(lifeOrigin)))
	}
	s.letters = count(state.LettersOf("default", l.sub.ID).Partition)
	return s
}

// TestADeliveryLivesByItsTable: WHK-18, WHK-23. From each state each step leads to the state that the table names, with its
// due entry or dead letter, although the process dies before or after any write of it and another one repeats the step.
func TestADeliveryLivesByItsTable(t *testing.T) {
	for from, steps := range steps {
		for _, to := range steps {
			t.Run(fmt.Sprintf("WHK-18 to %q when it is %q", to, from), func(t *testing.T) {
				crashes := 0
				atEachStep(t, 2, func(point int, late bool) bool {
					l := newLives(t)
					attempt := l.bring(from)
					l.now = l.now.Add(time.Minute)
					l.budget, l.late = point, late
					for {
						w, err := l.reads(from, attempt)
						if err == nil && w.del != nil {
							_, err = w.make(to)
						}
						if err == nil {
							break
						}
						if !l.dead {
							t.Fatal(err)
						}
						l.dead, l.budget = false, 0
						l.now = l.now.Add(time.Second)
						crashes++
					}
					expect.MustEqual(t, fmt.Sprintf("death at step %d (late %v): what is stored", point, late), l.storedLife(), storedLives[to])
					return l.budget > 0
				})
				expect.AtLeast(t, "the processes that died", crashes, 1)
			})
		}
	}
}

// TestTwoWorkersHaveOneDelivery: WHK-23. Two workers read the same delivery, and both make a step. Only one of them writes it, unless both
// have a new delivery and the first one gave up: then the second delivery takes the place of the first one.
func TestTwoWorkersHaveOneDelivery(t *testing.T) {
	for from, steps := range steps {
		for _, first := range steps {
			for _, second := range steps {
				if second == state.None {
					continue // it is never refused
				}
				t.Run(fmt.Sprintf("WHK-23 first to %q, then to %q when it was %q", first, second, from), func(t *testing.T) {
					l := newLives(t)
					attempt := l.bring(from)
					a := expect.Value(l.reads(from, attempt))(t)
					b := expect.Value(l.reads(from, attempt))(t)
					expect.Equal(t, "the first worker writes it", expect.Value(a.make(first))(t), true)
					isNew := from == state.None || from == state.Dead
					expect.Equal(t, "the second worker writes it", expect.Value(b.make(second))(t), isNew && first == state.Dead)
				})
			}
		}
	}
}

// WHK-18: given a suspended delivery, then it can only be scheduled.
func TestAStepThatIsNotInTheTableIsRefused(t *testing.T) {
	for _, to := range []string{state.Paused, state.Suspended, state.Dead} {
		t.Run("WHK-18 to "+to, func(t *testing.T) {
			l := newLives(t)
			l.bring(state.Suspended)
			w := expect.Value(l.reads(state.Suspended, 1))(t)
			if written, err := w.make(to); written || err == nil || !strings.Contains(err.Error(), "can only be scheduled") {
				t.Errorf("got %v, %v, want an error that names the only possible step", written, err)
			}
		})
	}
}

// interrupted finds subscriptions, and calls functions after it found one of them missing or suspended.
type interrupted struct {
	lifecycle.Subscriptions
	missing, suspended func()
}

func (i *interrupted) Find(ctx context.Context, workspace, id string) (*subscription.Selected, error) {
	found, err := i.Subscriptions.Find(ctx, workspace, id)
	if found == nil {
		i.missing()
	}
	return found, err
}

func (i *interrupted) Lookup(ctx context.Context, workspace, principal, id string) (*subscription.Subscription, error) {
	found, err := i.Subscriptions.Lookup(ctx, workspace, principal, id)
	if do := i.suspended; do != nil && found != nil && found.State == subscription.Suspended {
		i.suspended = nil
		do()
	}
	return found, err
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

// firstTime calls a function before the first batch of writes.
func firstTime(do func()) func(context.Context, []store.Op) error {
	return func(context.Context, []store.Op) error {
		if now := do; now != nil {
			do = nil
			now()
		}
		return nil
	}
}

// requested is a rig in which a client requests evt_1 again while its delivery is stored.
type requested struct {
	*rig
	id, cursor string // the cursor is older than the event
	d          *Dispatcher
	retry      *retry.Job
}

// newRequested returns a rig in which the first attempt has failed, at the given second of a minute.
func newRequested(t *testing.T, second time.Duration) *requested {
	t.Helper()
	q := &requested{rig: newRig(t)}
	q.now = q.now.Truncate(time.Minute).Add(second * time.Second)
	sub, cursor := q.subscribed()
	q.id, q.cursor = sub.ID, cursor
	q.d, q.retry = q.storeFailed()
	return q
}

// again subscribes from the cursor. A process makes the first attempt of the replay, which fails, so the event depends on the
// stored delivery that the attempt meets.
func (q *requested) again(d *Dispatcher) {
	q.script = fails
	q.subscribeFrom(q.cursor)
	q.hand(queue.Deliveries, d.HandlePages)
}

// startOver ends the subscription first, and uses another process.
func (q *requested) startOver() {
	_, other, _ := q.process()
	q.end(q.id)
	q.again(other)
}

// arrives checks that the event is posted once more when the endpoint is well, and that its delivery is deleted.
func (q *requested) arrives(run func()) {
	q.t.Helper()
	q.script = succeeds
	before := posted(q.rig)["evt_1"]
	run()
	if n, st := posted(q.rig)["evt_1"]-before, q.deliveryState(q.id, "evt_1"); n != 1 || st != "none" {
		q.t.Errorf("the event was posted %d more times, and its delivery is %s; want once and none", n, st)
	}
}

// The message of a delivery may come from the due table or from a switch that was resumed. Then its entry there is gone.
func TestGivenAStoredDeliveryWhenItsEventIsRequestedAgainThenItIsDeliveredAgain(t *testing.T) {
	origin := switches.OriginSwitch("https://hooks.example.com")
	attempt := func(q *requested) {
		if n := len(q.queues[queue.Slow]); n != 1 {
			q.t.Fatalf("%d messages wait in the slow lane, want 1", n)
		}
		q.d.sender.poster = &during{q.d.sender.poster, q.startOver}
	}
	for name, interrupt := range map[string]func(*requested){
		"after its subscription was found missing": func(q *requested) {
			q.end(q.id)
			q.d.Subscriptions = &interrupted{Subscriptions: q.d.Subscriptions, missing: func() { q.again(q.d) }}
		},
		"after its endpoint accepted it": func(q *requested) {
			q.script = succeeds
			q.d.DB = storetest.Hooked{DB: q.d.DB, OnWriteAll: firstTime(func() { q.end(q.id); q.again(q.d) })}
		},
		"during a retry from the due table": func(q *requested) {
			q.queues[queue.Slow] = nil // the message was lost
			expect.OK(q.t, expect.ErrOf(q.retry.Run(q.t.Context())))
			q.now = q.now.Add(5 * time.Minute)
			expect.OK(q.t, expect.ErrOf(q.retry.Run(q.t.Context())))
			attempt(q)
		},
		"during a retry that was paused": func(q *requested) {
			q.d.Switches = q.switches()
			q.pause(origin, nil)
			q.now = q.now.Add(2 * switches.MaxAge)
			q.hand(queue.Slow, q.d.HandleSingles)
			q.resume(origin, nil)
			q.now = q.now.Add(2 * switches.MaxAge)
			attempt(q)
		},
	} {
		t.Run("WHK-18 EVX-11 "+name, func(t *testing.T) {
			q := newRequested(t, 0)
			interrupt(q)
			q.hand(queue.Slow, q.d.HandleSingles)
			expect.Equal(t, "the delivery after the client subscribed again", q.deliveryState(q.id, "evt_1"), state.Pending)
			q.arrives(func() { q.run() })
		})
	}
}

// EVX-11: the message of the attempt was the only one, so the worker must schedule the next attempt although the delivery has
// changed.
func TestGivenAnAttemptUnderWayWhenItsEventIsRequestedAgainAndItFailsThenTheNextOneIsDueByTheSchedule(t *testing.T) {
	q := newRequested(t, 0)
	q.d.sender.poster = &during{q.d.sender.poster, q.startOver}
	q.hand(queue.Slow, q.d.HandleSingles)
	const attempts = 2 // of the stored delivery
	longest := time.Duration(float64(retry.EventsSchedule[attempts])*(1+retry.Jitter)) + time.Second
	if m := q.queues[queue.Slow]; len(m) != 1 || m[0].Delay > longest {
		t.Fatalf("the slow lane has the messages %v, want one with a delay of at most %v", m, longest)
	}
	q.arrives(func() { q.hand(queue.Slow, q.d.HandleSingles) })
}

// EVX-14: the worker that suspends the delivery has its only message.
func TestGivenARetryToASuspendedSubscriptionWhenItsClientRefreshesMeanwhileThenTheRetryIsMadeSoon(t *testing.T) {
	q := newRequested(t, 0)
	q.suspend(q.id)
	find := &interrupted{Subscriptions: q.d.Subscriptions, suspended: func() {
		_, other, _ := q.process()
		q.again(other) // it also reactivates the suspended deliveries
	}}
	q.d.Subscriptions, q.d.manager.Subscriptions = find, find
	q.hand(queue.Slow, q.d.HandleSingles)
	q.arrives(func() { q.hand(queue.Slow, q.d.HandleSingles) })
}

// EVX-14: a delivery is suspended, and the client's refresh asks for its event again before it has reactivated the
// delivery. No message of the delivery is under way, so it is sent immediately.
func TestGivenASuspendedDeliveryWhenItsEventIsRequestedAgainThenItIsDeliveredAtOnce(t *testing.T) {
	q := &requested{rig: newRig(t)}
	sub, cursor := q.subscribed()
	q.id, q.cursor = sub.ID, cursor
	q.suspend(q.id)
	q.work("evt_1")
	_, d, _ := q.process()
	q.script = fails
	q.subscribeFrom(q.cursor)
	q.queues[queue.Deliveries] = q.queues[queue.Deliveries][1:] // hold back the message that reactivates the delivery
	q.hand(queue.Deliveries, d.HandlePages)
	q.arrives(func() { q.hand(queue.Slow, d.HandleSingles) })
}

// EVX-11: requesting an event again and again does not postpone its delivery, also if each request comes when the delivery
// is due already and its minute has not been visited yet.
func TestADeliveryIsNotPostponedByRequestsForItsEvent(t *testing.T) {
	const every, requests = state.Backup / 2, 10
	for _, second := range []time.Duration{0, 30, 57} {
		t.Run(fmt.Sprintf("the requests come at second %d of a minute", second), func(t *testing.T) {
			q := newRequested(t, second)
			q.queues[queue.Slow] = nil // the message is lost, so the delivery depends on its due entry
			for range requests {
				q.now = q.now.Add(every)
				q.end(q.id)
				q.again(q.d)
				n := expect.Value(q.retry.Run(t.Context()))(t)
				if n > 0 {
					return
				}
			}
			t.Errorf("the delivery was not due within %v", requests*every)
		})
	}
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
			q := newRequested(t, 0)
			q.queues[queue.Slow] = nil // the message is lost, so the delivery depends on its due entry
			q.now = q.now.Add(time.Hour)
			_, worker, _ := q.process()
			interrupted := false
			worker.DB = storetest.Hooked{DB: worker.DB, OnWriteAll: firstTime(func() {
				interrupted = true
				_, other, _ := q.process()
				left, place := deletedBefore, q.storedDelivery(q.id, "evt_1").Place
				other.deliveries.DB = storetest.Hooked{DB: q.db, OnWrite: func(ctx context.Context, ops []store.Op) error {
					if left && slices.ContainsFunc(ops, func(op store.Op) bool { return op.Item.Key == place }) {
						left = false
						return q.db.Write(ctx, store.Delete(place))
					}
					return nil
				}}
				q.end(q.id)
				q.again(other)
				expect.True(t, "the due entry was written or deleted", !left)
			})}
			q.retry.Queue = &watched{Sender: q.retry.Queue, sent: func(name queue.Name) {
				q.script = succeeds
				q.hand(name, worker.HandleSingles)
			}}
			if n, err := q.retry.Run(t.Context()); n != 1 || err != nil || !interrupted {
				t.Fatalf("%d deliveries were moved (%v), and the worker was interrupted: %v; want 1 and true", n, err, interrupted)
			}
			q.arrives(func() { q.run() })
		})
	}
}

// EVX-11, WHK-22: the switch that a delivery waits for is resumed, and its message is sent. Before the worker with that
// message has written its outcome, the event is requested again in a process that still sees the switch as paused.
func TestGivenAPausedDeliveryWhenItsEventIsRequestedAgainWhileItIsRequeuedThenTheEventIsDeliveredAgain(t *testing.T) {
	origin := switches.OriginSwitch("https://hooks.example.com")
	q := newRequested(t, 0)
	q.pause(origin, nil)
	q.d.Switches = q.switches()
	q.hand(queue.Slow, q.d.HandleSingles)
	expect.MustEqual(t, "the delivery waits for its switch", !q.storedDelivery(q.id, "evt_1").PausedAt.IsZero(), true)
	expect.OK(t, expect.ErrOf(q.switches().Resume(t.Context(), "default", origin)))
	_, worker, _ := q.process()
	interrupted := false
	worker.DB = storetest.Hooked{DB: worker.DB, OnWriteAll: firstTime(func() {
		interrupted = true
		q.end(q.id)
		q.again(q.d) // its attempt is paused, and meets the stored delivery
	})}
	requeuing := q.switches()
	requeuing.Queue = &watched{Sender: requeuing.Queue, sent: func(name queue.Name) {
		q.script = succeeds
		q.hand(name, worker.HandleSingles)
	}}
	if n, err := requeuing.Requeue(t.Context()); n != 1 || err != nil || !interrupted {
		t.Fatalf("%d messages were requeued (%v), and the worker was interrupted: %v; want 1 and true", n, err, interrupted)
	}
	q.arrives(func() {
		q.now = q.now.Add(2 * switches.MaxAge)
		expect.OK(t, expect.ErrOf(q.switches().Requeue(t.Context())))
		q.run()
	})
}

// OPS-05: an operator who asks for an event while it is delivered gets a conflict, and does not delay the delivery.
func TestAConflictLeavesTheDeliveryAsItIs(t *testing.T) {
	r, sub := registered(t)
	d, _ := r.storeFailed()
	d.sender.poster = &during{d.sender.poster, func() {
		expect.Fault(t, "an operator who asks for the event", r.tryDeliverAgain(sub, "evt_1"), fault.Conflict)
	}}
	r.script = succeeds
	r.hand(queue.Slow, d.HandleSingles)
	expect.Equal(t, "the delivery of evt_1", r.deliveryState(sub.ID, "evt_1"), "none")
}

// ofTheClient marks the context of the steps that the client makes.
type ofTheClient struct{}

// A client that was killed unsubscribes when it starts again, and subscribes from the cursor that it has saved. Both happen
// at any step of the way of an event that was published after the cursor.
func TestGivenASavedCursorWhenAClientSubscribesAgainWhileAnEventIsOnItsWayThenItGetsTheEvent(t *testing.T) {
	for _, unordered := range []bool{false, true} {
		for name, arguments := range map[string]string{"a URI": `{"owner":"a","repo":"b"}`, "a pattern": `{"owner":"a"}`} {
			t.Run(fmt.Sprintf("EVX-11 EVX-26 %s, ordered store %v", name, !unordered), func(t *testing.T) {
				for leaves, beyond := 0, false; !beyond; leaves++ {
					for returns := leaves; ; returns++ {
						steps, delivered := returnAt(t, unordered, arguments, leaves, returns)
						if beyond = steps <= leaves; steps <= returns {
							break
						}
						if !delivered {
							t.Errorf("the client left before step %d and returned before step %d of %d, and did not get the event", leaves, returns, steps)
						}
					}
				}
			})
		}
	}
}

// returnAt has the client leave and return before the steps given, and reports how many steps the event took and whether
// the client got it.
func returnAt(t *testing.T, unordered bool, arguments string, leaves, returns int) (steps int, delivered bool) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		before := func() {}
		turn := make(chan struct{}, 1) // fanout appends and sends concurrently
		r.unordered = unordered
		r.before = func(ctx context.Context) {
			if ctx.Value(ofTheClient{}) == nil {
				turn <- struct{}{}
				defer func() { <-turn }()
				before()
			}
		}
		m := mortal{r.db, r}
		client := context.WithValue(t.Context(), ofTheClient{}, true)
		var plainStore store.DB = r.db
		if unordered {
			plainStore = storetest.Unordered{DB: r.db}
		}
		r.log = &eventlog.Log{DB: plainStore}
		services := r.service(plainStore, r.log)
		services.Replay = &deadletter.Replayer{Log: r.log, Queue: m}
		request := subscription.SubscribeRequest{
			Name: "github.push", Arguments: []byte(arguments), URL: "https://hooks.example.com/a", Secret: "whsec_a",
		}
		subscribe := func() {
			if _, err := services.Subscribe(client, r.principal(), request); err != nil {
				t.Error(err)
			}
		}
		fanoutLog := r.log
		if unordered { // another process
			fanoutLog = &eventlog.Log{DB: m}
		} else {
			r.log.DB = m
		}
		d := NewDispatcher(Config{
			DB: m, Queue: m, Subscriptions: r.service(m, r.log).Service, Catalog: r.catalogs, Poster: endpoint{r}, Opener: plain{},
			Terminator: r.terminator(m, services), Now: func() time.Time { return r.now }, Log: slog.New(slog.DiscardHandler),
		})
		fanout := &fanout.Fanout{DB: m, Log: fanoutLog, Catalog: r.catalogs, Queue: m}
		handle := func() {
			for synctest.Wait(); len(r.queues[queue.Events])+len(r.queues[queue.Deliveries]) > 0; synctest.Wait() {
				for name, h := range map[queue.Name]queue.Handler{queue.Events: fanout.Handle, queue.Deliveries: d.HandlePages} {
					batch := r.queues[name]
					r.queues[name] = nil
					r.done(h(t.Context(), batch))
					synctest.Wait()
				}
			}
		}
		publish := func(id string) {
			time.Sleep(time.Second)
			r.now = time.Now()
			r.publishTo("event://github/a/b/push", "github.push", id, `{"branch":"main"}`)
		}

		subscribe()
		publish("evt_before")
		handle()
		time.Sleep(10 * time.Second) // so that the replay does not look back that far
		request.Cursor = r.sealer.Seal("default", eventlog.Cursor{At: r.log.Position()})
		publish("evt_1")
		before = func() {
			if steps == leaves {
				if err := services.Unsubscribe(client, r.principal(), request.Name, request.Arguments, request.URL); err != nil {
					t.Error(err)
				}
			}
			if steps == returns {
				go subscribe()
				synctest.Wait() // until it has subscribed, or waits for the fanout
			}
			steps++
		}
		handle()
		synctest.Wait()
		before = func() {}
		handle() // the replay
		for _, post := range r.posts {
			delivered = delivered || post.ID == "evt_1"
		}
	})
	return steps, delivered
}
