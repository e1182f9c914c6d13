package delivery

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/events/catalog"
	"github.com/mcp-events/mcpevents/shared/events/delivery/deadletter"
	"github.com/mcp-events/mcpevents/shared/events/delivery/lane"
	"github.com/mcp-events/mcpevents/shared/events/delivery/lifecycle"
	"github.com/mcp-events/mcpevents/shared/events/delivery/records"
	"github.com/mcp-events/mcpevents/shared/events/delivery/retry"
	"github.com/mcp-events/mcpevents/shared/events/delivery/state"
	"github.com/mcp-events/mcpevents/shared/events/delivery/task"
	"github.com/mcp-events/mcpevents/shared/events/event"
	"github.com/mcp-events/mcpevents/shared/events/fanout"
	eventlog "github.com/mcp-events/mcpevents/shared/events/log"
	"github.com/mcp-events/mcpevents/shared/events/subscription"
	"github.com/mcp-events/mcpevents/shared/events/subscription/review"
	"github.com/mcp-events/mcpevents/shared/events/switches"
	"github.com/mcp-events/mcpevents/shared/events/webhook"
	"github.com/mcp-events/mcpevents/shared/platform/metric"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
	"github.com/mcp-events/mcpevents/shared/storage/queue"
	"github.com/mcp-events/mcpevents/shared/storage/store"
	"github.com/mcp-events/mcpevents/shared/storage/store/sqlite"
	"github.com/mcp-events/mcpevents/test/expect"
)

// The stores and queues of the tests in this package: mortal dies at a step, and watched fails or interrupts chosen calls of a queue.
// Package storetest has the others.

func (r *rig) enter(ctx context.Context) {
	if r.before != nil {
		r.before(ctx)
	}
}

// mortal is the store and the queues as a process sees them.
type mortal struct {
	store.DB
	r *rig
}

func (m mortal) Local() bool { return m.DB.Local() && !m.r.unordered }

func (m mortal) Get(ctx context.Context, keys ...store.Key) (items []*store.Item, err error) {
	m.r.enter(ctx)
	err = m.r.step(func() (err error) { items, err = m.DB.Get(ctx, keys...); return err })
	return items, err
}

func (m mortal) Query(ctx context.Context, q store.Query) (page store.Page, err error) {
	m.r.enter(ctx)
	if strings.HasPrefix(q.Partition, "due#") || strings.HasPrefix(q.Partition, "x#") {
		return m.DB.Query(ctx, q) // one for every minute and shard; all reads alike
	}
	err = m.r.step(func() (err error) { page, err = m.DB.Query(ctx, q); return err })
	return page, err
}

func (m mortal) Write(ctx context.Context, ops ...store.Op) error {
	m.r.enter(ctx)
	return m.r.step(func() error { return m.DB.Write(ctx, ops...) })
}

func (m mortal) WriteAll(ctx context.Context, ops ...store.Op) error {
	m.r.enter(ctx)
	return m.r.step(func() error { return m.DB.WriteAll(ctx, ops...) })
}

func (m mortal) Send(ctx context.Context, q queue.Name, msgs ...queue.Outgoing) error {
	m.r.enter(ctx)
	if len(msgs) == 0 {
		return nil
	}
	return m.r.step(func() error {
		for _, o := range msgs {
			m.r.sent++
			o.Value = nil // only queues in one process keep it
			m.r.queues[q] = append(m.r.queues[q], queue.Message{ID: fmt.Sprint(m.r.sent), Outgoing: o, Sent: m.r.now})
		}
		return nil
	})
}

// failing fails while it is true.
func failing(broken *atomic.Bool) func(context.Context, []store.Op) error {
	return func(context.Context, []store.Op) error {
		if broken.Load() {
			return errDied
		}
		return nil
	}
}

// watched is a queue that can fail, and that calls functions before and after messages are sent.
type watched struct {
	queue.Sender
	broken bool
	seen   func(q queue.Name) // before messages are sent
	sent   func(q queue.Name) // afterwards
}

func (w *watched) Send(ctx context.Context, q queue.Name, msgs ...queue.Outgoing) error {
	if w.seen != nil && len(msgs) > 0 {
		w.seen(q)
	}
	if w.broken {
		return errDied
	}
	err := w.Sender.Send(ctx, q, msgs...)
	if w.sent != nil && err == nil {
		w.sent(q)
	}
	return err
}

const testCatalog = `events:
  - name: ci.build_finished
    uri: event://ci/build-finished
    webhookType: ci.build
    payloadSchema: {type: object, properties: {ok: {}}}
  - name: github.push
    uriTemplate: event://github/{owner}/{repo}/push
    filters: {branch: /branch}
`

// rig is the environment of the pipeline, with a store, queues that only hold their messages, a clock that tests set, and an
// endpoint with a script.
type rig struct {
	t        *testing.T
	db       *sqlite.DB
	now      time.Time
	queues   map[queue.Name][]queue.Message
	sent     int
	posts    []webhook.Request
	script   func(n int) webhook.Outcome // n counts from 1
	services *subscriptions
	catalogs catalog.Source
	log      *eventlog.Log
	sealer   *eventlog.Sealer
	plain    []string // targets without control messages
	profile  spec.Profile
	// unordered has processes stamp events themselves, as they do over DynamoDB.
	unordered bool
	// slow has each process know that the endpoint fails. Pages then hand their first attempts over to the slow lane.
	slow bool
	// before, if not nil, is called before each step of a process, with the context of the step.
	before func(context.Context)
	// directory and metrics may be nil.
	directory auth.Directory
	metrics   *metric.Set

	// alive counts down the steps of the current process to its death; 0 lives on.
	mu     sync.Mutex
	budget int
	late   bool // dies after the step that it dies at, not before
	dead   bool
}

var errDied = errors.New("the process died")

// step runs one side effect of a process, such as a write, a message or a POST. At the last step of its budget, the process dies
// before the side effect or, if late is set, after it.
func (r *rig) step(do func() error) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.dead {
		return errDied
	}
	if r.budget > 0 {
		if r.budget--; r.budget == 0 {
			r.dead = true
			if !r.late {
				return errDied
			}
			_ = do()
			return errDied
		}
	}
	return do()
}

type endpoint struct{ r *rig }

func (e endpoint) Send(_ context.Context, req webhook.Request) (out webhook.Outcome) {
	err := e.r.step(func() error {
		e.r.posts = append(e.r.posts, req)
		out = e.r.script(len(e.r.posts))
		return nil
	})
	if err != nil {
		return webhook.Outcome{Category: webhook.Aborted, Err: err}
	}
	return out
}

type plain struct{}

func (plain) Open(_ context.Context, sealed []byte, _ webhook.Binding) ([]byte, error) {
	return sealed, nil
}
func (plain) Check(string) error                                   { return nil }
func (plain) Verify(context.Context, string, string, []byte) error { return nil }
func (plain) ParseSecret(s string) ([]byte, error)                 { return []byte(s), nil }
func (plain) NewSecret(subscription.SecretType) (string, []byte)   { return "secret", []byte("secret") }

func (plain) Seal(_ context.Context, key []byte, _ subscription.Binding) ([]byte, error) {
	return key, nil
}

func newRig(t *testing.T) *rig {
	t.Helper()
	db := expect.Value(sqlite.Open(":memory:", sqlite.Options{}))(t)
	t.Cleanup(func() { _ = db.Close() })
	cat := expect.Value(catalog.Parse([]byte(testCatalog)))(t)
	sealer := expect.Value(eventlog.NewSealer(make([]byte, 32)))(t)
	r := &rig{t: t, db: db, now: time.Now(), queues: map[queue.Name][]queue.Message{}, catalogs: catalog.NewStatic(cat)}
	r.log = &eventlog.Log{DB: db}
	r.sealer = sealer
	r.services = r.service(db, r.log)
	r.script = succeeds
	return r
}

// did returns the error of a call, or an error if the call did nothing.
func did(done bool, err error) error {
	if err == nil && !done {
		err = errors.New("the call did nothing")
	}
	return err
}

// registered returns a rig with a SEP-1803 subscription.
func registered(t *testing.T) (*rig, *subscription.Subscription) {
	t.Helper()
	r := newRig(t)
	return r, r.register("event://ci/build-finished")
}

// subscriber returns a rig with an MCP Events subscription, and its id.
func subscriber(t *testing.T) (*rig, string) {
	t.Helper()
	r := newRig(t)
	return r, r.subscribe().ID
}

// firstAttempts publishes events, and has a process make the first attempts of all waiting events.
func (r *rig) firstAttempts(ids ...string) (*Dispatcher, *retry.Job) {
	r.t.Helper()
	r.publish(ids...)
	fanout, d, retry := r.process()
	r.hand(queue.Events, fanout.Handle)
	r.hand(queue.Deliveries, d.HandlePages)
	return d, retry
}

// subscriptions are all that a process does with them.
type subscriptions struct {
	*subscription.Service
	*subscription.Registrar
	*subscription.Lists
}

// service returns the subscription service of one process.
func (r *rig) service(db store.DB, log *eventlog.Log) *subscriptions {
	now := func() time.Time { return r.now }
	s := &subscription.Service{
		Store:   subscription.Store{DB: db, Now: now, QuotaOf: func(context.Context, string, string) int64 { return 10_000 }},
		Catalog: r.catalogs, Log: log,
	}
	return &subscriptions{s, &subscription.Registrar{Service: s, Sealer: r.sealer, Targets: plain{}}, &subscription.Lists{DB: db, Now: now}}
}

// terminator returns the terminator of one process.
func (r *rig) terminator(m mortal, services *subscriptions) *lifecycle.Terminator {
	return &lifecycle.Terminator{
		Queue: m, Subscriptions: services, Lists: services.Lists, Now: func() time.Time { return r.now }, Log: slog.New(slog.DiscardHandler),
		Plain:       r.plain,
		Review:      &review.Review{DB: m, Catalog: r.catalogs, Directory: r.directory},
		ErrorObject: func(_ spec.Profile, reason error) json.RawMessage { return []byte(fmt.Sprintf("%q", reason)) },
	}
}

func (r *rig) principal() auth.Principal {
	return auth.Principal{ID: "alice", Workspace: "default", Scopes: auth.Scopes()}
}

func (r *rig) register(uris ...string) *subscription.Subscription {
	r.t.Helper()
	return r.registerAs(r.principal(), "https://hooks.example.com/a", uris...)
}

func (r *rig) registerAs(p auth.Principal, target string, uris ...string) *subscription.Subscription {
	r.t.Helper()
	got := expect.Value(r.services.Register(r.t.Context(), p, subscription.RegisterRequest{URIs: uris, Target: target}))(r.t)
	return got.Subscription
}

// to registers a subscription to one URI for each target.
func (r *rig) to(targets ...string) (subs []*subscription.Subscription) {
	r.t.Helper()
	for _, target := range targets {
		subs = append(subs, r.registerAs(r.principal(), target, "event://ci/build-finished"))
	}
	return subs
}

// operations returns the operations of another process.
func (r *rig) operations() *deadletter.Operations {
	return r.operationsOn(r.db, mortal{r.db, r})
}

// operationsOn returns the operations of a process with this store and these queues.
func (r *rig) operationsOn(db store.DB, q queue.Sender) *deadletter.Operations {
	return deadletter.NewOperations(deadletter.Options{DB: db, Queue: q, Now: func() time.Time { return r.now }})
}

// replays returns the replays of another process.
func (r *rig) replays() *deadletter.Replays { return r.replaysOf(r.operations()) }

func (r *rig) replaysOf(o *deadletter.Operations) *deadletter.Replays {
	return &deadletter.Replays{Operations: o, Subscriptions: r.services, EventLog: r.log}
}

// replay starts a replay and runs it until it is done or far ahead of the clock.
func (r *rig) replay(rs *deadletter.Replays, sub *subscription.Subscription, ask deadletter.ReplaySelect) *deadletter.Replay {
	r.t.Helper()
	job, err := rs.Start(r.t.Context(), "default", "op", sub, ask, 20)
	if err == nil {
		job, err = rs.Begin(r.t.Context(), job)
	}
	expect.OK(r.t, err)
	return job
}

// process starts a new process, without the memory of the previous one.
func (r *rig) process() (*fanout.Fanout, *Dispatcher, *retry.Job) {
	m := mortal{r.db, r}
	clock := func() time.Time { return r.now }
	log := &eventlog.Log{DB: m, Now: r.log.Now}
	services := r.service(m, log)
	d := NewDispatcher(Config{
		DB: m, Queue: m, Subscriptions: services.Service, Catalog: r.catalogs, Poster: endpoint{r}, Opener: plain{}, Terminator: r.terminator(m, services),
		Now: clock, Options: Options{Records: records.All, Profile: r.profile}, Log: slog.New(slog.DiscardHandler),
		Gaps:    &lifecycle.Gaps{Log: log, Sealer: func(context.Context) (*eventlog.Sealer, error) { return r.sealer, nil }},
		Metrics: r.metrics,
	})
	if r.slow {
		d.Options.SlowLaneDelay = state.EarlyMessage // as on AWS
		const url = "https://hooks.example.com/a"
		for v := lane.Granted; v == lane.Granted; {
			var s *lane.FastSlot
			if s, v = d.lanes.Reserve(r.t.Context(), lane.Call{Endpoint: task.EndpointID(url), URL: url}, lane.PageWait{}); v == lane.Granted {
				s.Start(r.t.Context(), url)
				s.Done(webhook.Outcome{Category: webhook.HTTP5xx, Status: 500})
			}
		}
	}
	return &fanout.Fanout{DB: m, Log: log, Catalog: r.catalogs, Queue: m}, d, &retry.Job{DB: m, Queue: m, Now: clock}
}

// unhurt returns the retry job of a process that cannot fail to read the store.
func (r *rig) unhurt() *retry.Job {
	return &retry.Job{DB: r.db, Queue: mortal{r.db, r}, Now: func() time.Time { return r.now }}
}

// run publishes events and lets processes work until their queues stay empty, and moves the clock when they wait. If a process
// dies, another one follows and receives its unacknowledged messages again.
func (r *rig) run(ids ...string) {
	r.publish(ids...)
	fanout, dispatch, retry := r.process()
	ctx := r.t.Context()
	if _, err := r.unhurt().Run(ctx); err != nil {
		if !r.dead {
			r.t.Fatal(err) // it has run every minute before
		}
		r.dead, r.budget = false, 0
	}
	for idle := 0; idle < 3; {
		worked := false
		for _, q := range []struct {
			name   queue.Name
			handle queue.Handler
		}{{queue.Events, fanout.Handle}, {queue.Deliveries, dispatch.HandlePages}, {queue.Slow, dispatch.HandleSingles}} {
			batch := r.queues[q.name]
			if len(batch) == 0 {
				continue
			}
			r.queues[q.name] = nil
			failed, err := q.handle(ctx, batch)
			r.mu.Lock()
			died := r.dead
			r.mu.Unlock()
			for _, m := range batch {
				if died || err != nil || slices.Contains(failed, m.ID) {
					m.Received++
					r.queues[q.name] = append(r.queues[q.name], m)
					continue
				}
				worked = true
			}
			worked = worked || died
			if died {
				r.dead, r.budget = false, 0
				fanout, dispatch, retry = r.process()
			}
		}
		if worked {
			idle = 0
			continue
		}
		r.now = r.now.Add(40 * time.Minute)
		if n, err := retry.Run(ctx); err != nil {
			r.dead, r.budget = false, 0
			fanout, dispatch, retry = r.process()
		} else if n == 0 && len(r.queues[queue.Slow])+len(r.queues[queue.Deliveries]) == 0 {
			idle++
		}
	}
}

func (r *rig) publish(ids ...string) {
	for _, id := range ids {
		r.publishTo("event://ci/build-finished", "ci.build_finished", id, `{"ok":true}`)
	}
}

func (r *rig) publishTo(uri, name, id, data string) {
	r.sent++
	r.queues[queue.Events] = append(r.queues[queue.Events], queue.Message{ID: fmt.Sprint(r.sent), Outgoing: r.message(uri, name, id, data, r.now), Sent: r.now})
}

// message returns the message that publishes an event.
func (r *rig) message(uri, name, id, data string, at time.Time) queue.Outgoing {
	e := event.Event{Workspace: "default", ID: id, URI: uri, Name: name, Time: at, Published: at, Data: []byte(data)}
	return queue.Outgoing{Body: expect.Value(e.MarshalJSON())(r.t)}
}

// storedDelivery returns the stored delivery of an event, or nil.
func (r *rig) storedDelivery(sub, eventID string) *state.Delivery {
	r.t.Helper()
	items := expect.Value(r.db.Get(r.t.Context(), state.Key("default", sub, r.keyOf(eventID))))(r.t)
	if items[0] == nil {
		return nil
	}
	return expect.Value(state.Decode(items[0]))(r.t)
}

// items returns the items of a partition of deliveries.
func (r *rig) items(partition string) []store.Item {
	r.t.Helper()
	return expect.Value(r.db.Query(r.t.Context(), store.Query{Table: store.Deliveries, Partition: partition, Limit: 1000}))(r.t).Items
}

// deliveryState returns the state of the stored delivery, or "none".
func (r *rig) deliveryState(sub, eventID string) string {
	r.t.Helper()
	if del := r.storedDelivery(sub, eventID); del != nil {
		return del.State
	}
	return "none"
}

// TestOneChain: WHK-23, WHK-02. A process is killed at every single step of the pipeline, before the step takes effect and
// after it: the endpoint gets the attempts of one chain, and at most one more. The page makes the first attempt, or hands it
// over to the slow lane.
func TestOneChain(t *testing.T) {
	const failing = 3 // attempts that fail before one succeeds
	for name, slow := range map[string]bool{"WHK-23 the page makes the first attempt": false, "WHK-23 the slow lane makes the first attempt": true} {
		t.Run(name, func(t *testing.T) {
			atEachStep(t, 15, func(point int, late bool) bool {
				r, sub := registered(t)
				r.script, r.slow = failsFirst(failing), slow
				r.publish("evt_1")
				r.budget, r.late = point, late
				r.run()
				if extra := len(r.posts) - (failing + 1); extra < 0 || extra > 1 || posted(r)["evt_1"] != len(r.posts) {
					t.Fatalf("death at step %d (late %v): posts %v, want the %d of one delivery and at most one more", point, late, posted(r), failing+1)
				}
				expect.MustEqual(t, fmt.Sprintf("death at step %d (late %v): the delivery", point, late), r.deliveryState(sub.ID, "evt_1"), "none")
				return r.budget > 0 // the point lies beyond the last step
			})
		})
	}
}

// subscribe makes, or refreshes, a subscription of the MCP Events extension.
func (r *rig) subscribe(change ...func(*subscription.SubscribeRequest)) *subscription.SubscribeResult {
	r.t.Helper()
	services := r.service(mortal{r.db, r}, r.log)
	services.Replay = &deadletter.Replayer{Log: r.log, Queue: mortal{r.db, r}}
	services.Watermark = &lifecycle.Watermark{DB: mortal{r.db, r}}
	ask := subscription.SubscribeRequest{
		Name: "ci.build_finished", URL: "https://hooks.example.com/a", Secret: "whsec_a",
		TTL: subscription.TTL{Asked: true, For: 7 * 24 * time.Hour},
	}
	for _, f := range change {
		f(&ask)
	}
	got, err := services.Subscribe(r.t.Context(), r.principal(), ask)
	if err != nil && !r.dead {
		r.t.Fatal(err)
	}
	return got
}

func (r *rig) suspend(id string) {
	r.t.Helper()
	expect.OK(r.t, r.services.Suspend(r.t.Context(), "default", "alice", id, r.resumed(id)))
}

// lookup returns a subscription of alice, or nil if it has ended.
func (r *rig) lookup(id string) *subscription.Subscription {
	r.t.Helper()
	return expect.Value(r.services.Lookup(r.t.Context(), "default", "alice", id))(r.t)
}

func (r *rig) state(id string) subscription.State { return r.lookup(id).State }

func (r *rig) served(id string) bool { return r.lookup(id) != nil }

// resumed returns when a subscription was last resumed, or 0 if it has ended.
func (r *rig) resumed(id string) subscription.Seconds {
	if record := r.lookup(id); record != nil {
		return record.Resumed
	}
	return 0
}

// letterOf returns the only dead letter of a subscription.
func (r *rig) letterOf(sub *subscription.Subscription) deadletter.Letter {
	r.t.Helper()
	return r.letters(deadletter.LetterQuery{Subscription: sub.ID}, 1)[0]
}

// letters returns the dead letters that match a query. There must be as many as wanted.
func (r *rig) letters(q deadletter.LetterQuery, want int) []deadletter.Letter {
	r.t.Helper()
	letters, _, err := r.operations().ListLetters(r.t.Context(), "default", q, "", 100)
	if err != nil || len(letters) != want {
		r.t.Fatalf("got the dead letters %+v, %v; want %d", letters, err, want)
	}
	return letters
}

// everyPoint is the distance between the tested crash points. With the race detector, each takes ten times as long, and a few of
// them are enough to find the races.
var everyPoint = func() int {
	if info, ok := debug.ReadBuildInfo(); ok && slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"}) {
		return 5
	}
	return 1
}()

// atEachStep has a process die before and after each of its steps. Try reports whether it survived, because the point lies
// beyond its last step.
func atEachStep(t *testing.T, least int, try func(point int, late bool) (survived bool)) {
	t.Helper()
	for _, late := range []bool{false, true} {
		point := 1
		for !try(point, late) {
			point += everyPoint
		}
		expect.AtLeast(t, "the steps that were tried", point, least)
	}
}

// work publishes events and handles the messages of each queue once. It does not run the retry job, so deliveries that are due
// later stay there.
func (r *rig) work(ids ...string) {
	r.t.Helper()
	r.publish(ids...)
	dispatch, _ := r.firstAttempts()
	r.hand(queue.Slow, dispatch.HandleSingles)
}

// hand gives all messages of a queue to a handler.
func (r *rig) hand(q queue.Name, handle queue.Handler) {
	r.t.Helper()
	batch := r.queues[q]
	r.queues[q] = nil
	if len(batch) > 0 {
		r.done(handle(r.t.Context(), batch))
	}
}

// done fails the test if a part of a batch failed.
func (r *rig) done(failed []string, err error) {
	r.t.Helper()
	if err != nil || len(failed) > 0 {
		r.t.Fatalf("failed %v, %v", failed, err)
	}
}

func posted(r *rig) map[string]int {
	n := map[string]int{}
	for _, p := range r.posts {
		n[p.ID]++
	}
	return n
}

func succeeds(int) webhook.Outcome { return webhook.Outcome{Status: 200} }
func fails(int) webhook.Outcome    { return webhook.Outcome{Status: 500, Category: webhook.HTTP5xx} }

// takes returns a success after some time.
func takes(d time.Duration) webhook.Outcome { return webhook.Outcome{Status: 200, Took: d} }

func tooLarge(int) webhook.Outcome { return webhook.Outcome{Status: 413, Category: webhook.HTTP4xx} }

// failsFirst fails the first n attempts.
func failsFirst(n int) func(int) webhook.Outcome {
	return func(post int) webhook.Outcome {
		if post <= n {
			return fails(post)
		}
		return succeeds(0)
	}
}

func (r *rig) switches() *switches.Set {
	return &switches.Set{DB: r.db, Queue: mortal{r.db, r}, Now: func() time.Time { return r.now }}
}

// handle publishes events and has a process with fresh switches work until its queues are empty.
func (r *rig) handle(ids ...string) {
	r.t.Helper()
	r.publish(ids...)
	fanout, dispatch, _ := r.process()
	dispatch.Switches = r.switches()
	for range 50 {
		r.hand(queue.Events, fanout.Handle)
		r.hand(queue.Deliveries, dispatch.HandlePages)
		r.hand(queue.Slow, dispatch.HandleSingles)
	}
}

func (r *rig) pause(n switches.Name, sub *subscription.Subscription) {
	r.t.Helper()
	sw := switches.Switch{Name: n, By: "op", Reason: "maintenance"}
	if _, mine := n.SubscriptionID(); mine {
		expect.OK(r.t, expect.ErrOf(r.services.SetPaused(r.t.Context(), "default", sub.Principal, sub.ID, true, r.switches().PauseOps("default", sw)...)))
		return
	}
	expect.OK(r.t, r.switches().Pause(r.t.Context(), "default", sw))
}

func (r *rig) resume(n switches.Name, sub *subscription.Subscription) {
	r.t.Helper()
	if _, mine := n.SubscriptionID(); mine {
		expect.OK(r.t, expect.ErrOf(r.services.SetPaused(r.t.Context(), "default", sub.Principal, sub.ID, false, r.switches().ResumeOps("default", n)...)))
	} else if ok, err := r.switches().Resume(r.t.Context(), "default", n); err != nil || !ok {
		r.t.Fatal(ok, err)
	}
	expect.OK(r.t, expect.ErrOf(r.switches().Requeue(r.t.Context())))
}

// keyOf returns the key of an event that publish sent.
func (r *rig) keyOf(id string) string {
	e := event.Event{Workspace: "default", ID: id, URI: "event://ci/build-finished", Name: "ci.build_finished"}
	return e.Key()
}

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
	return r.firstAttempts("evt_1")
}

// deliverAgain delivers an event that is stored for its retries again.
func (r *rig) deliverAgain(sub *subscription.Subscription, id string) {
	r.t.Helper()
	expect.OK(r.t, r.tryDeliverAgain(sub, id))
}

// tryDeliverAgain does the same and returns the error. It may be called from any goroutine.
func (r *rig) tryDeliverAgain(sub *subscription.Subscription, id string) error {
	e, err := r.operations().FindStoredEvent(r.t.Context(), "default", "event://ci/build-finished", id)
	if err != nil {
		return err
	}
	return r.operations().Deliver(r.t.Context(), sub, e)
}

// drain lets one dispatcher work, which remembers the health of its endpoints, until all deliveries have ended.
func (r *rig) drain(d *Dispatcher, retry *retry.Job) {
	r.t.Helper()
	for idle := 0; idle < 200; idle++ {
		worked := false
		for name, handle := range map[queue.Name]queue.Handler{queue.Deliveries: d.HandlePages, queue.Slow: d.HandleSingles} {
			batch := r.queues[name]
			r.queues[name] = nil
			if len(batch) == 0 {
				continue
			}
			failed, err := handle(r.t.Context(), batch)
			for _, m := range batch {
				if err != nil || slices.Contains(failed, m.ID) {
					m.Received++
					r.queues[name] = append(r.queues[name], m)
					continue
				}
				worked = true
			}
		}
		if worked {
			idle = -1
			continue
		}
		r.now = r.now.Add(40 * time.Minute)
		expect.OK(r.t, expect.ErrOf(retry.Run(r.t.Context())))
	}
}

// overloaded returns an answer after which the dispatcher pauses the endpoint.
func overloaded(int) webhook.Outcome { return webhook.Outcome{Status: 503, Category: webhook.HTTP5xx} }

// change replaces the catalog by testCatalog with one text put in place of another.
func (r *rig) change(replacements ...string) {
	r.t.Helper()
	cat := expect.Value(catalog.Parse([]byte(strings.NewReplacer(replacements...).Replace(testCatalog))))(r.t)
	r.catalogs.(*catalog.Static).Replace(cat)
}

func (r *rig) record(id string) *subscription.Selected {
	r.t.Helper()
	s, err := r.services.Find(r.t.Context(), "default", id)
	if err != nil || s == nil {
		r.t.Fatal(s, err)
	}
	return s
}
