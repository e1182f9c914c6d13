package delivery

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/events/catalog"
	"github.com/mcp-events/mcpevents/shared/events/event"
	eventlog "github.com/mcp-events/mcpevents/shared/events/log"
	"github.com/mcp-events/mcpevents/shared/events/subscription"
	"github.com/mcp-events/mcpevents/shared/events/subscription/review"
	"github.com/mcp-events/mcpevents/shared/events/webhook"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
	"github.com/mcp-events/mcpevents/shared/storage/queue"
	"github.com/mcp-events/mcpevents/shared/storage/store"
	"github.com/mcp-events/mcpevents/shared/storage/store/sqlite"

	"github.com/mcp-events/mcpevents/shared/events/delivery/deadletter"
	"github.com/mcp-events/mcpevents/shared/events/delivery/records"
	"github.com/mcp-events/mcpevents/shared/events/delivery/state"
	"github.com/mcp-events/mcpevents/shared/events/fanout"

	"github.com/mcp-events/mcpevents/shared/events/delivery/lifecycle"

	"github.com/mcp-events/mcpevents/shared/events/delivery/retry"
)

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
	// before, if not nil, is called before each step of a process, with the context of the step.
	before func(context.Context)
	// directory may be nil.
	directory auth.Directory

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
	db, err := sqlite.Open(":memory:", sqlite.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	cat, err := catalog.Parse([]byte(testCatalog))
	if err != nil {
		t.Fatal(err)
	}
	sealer, err := eventlog.NewSealer(make([]byte, 32))
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{t: t, db: db, now: time.Now(), queues: map[queue.Name][]queue.Message{}, catalogs: catalog.NewStatic(cat)}
	r.log = &eventlog.Log{DB: db}
	r.sealer = sealer
	r.services = r.service(db, r.log)
	r.script = succeeds
	return r
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
		Records: subscription.Records{DB: db, Now: now, QuotaOf: func(context.Context, string, string) int64 { return 10_000 }},
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
	got, err := r.services.Register(r.t.Context(), p, subscription.RegisterRequest{URIs: uris, Target: target})
	if err != nil {
		r.t.Fatal(err)
	}
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
	return deadletter.NewReplays(deadletter.ReplayOptions{Operations: o, Subscriptions: r.services, EventLog: r.log})
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
		Gaps: &lifecycle.Gaps{Log: log, Sealer: func(context.Context) (*eventlog.Sealer, error) { return r.sealer, nil }},
	})
	return &fanout.Fanout{DB: m, Log: log, Catalog: r.catalogs, Queue: m}, d, &retry.Job{DB: m, Queue: m, Now: clock}
}

// unhurt returns the retry job of a process that cannot fail to read the store.
func (r *rig) unhurt() *retry.Job {
	return &retry.Job{DB: r.db, Queue: mortal{r.db, r}, Now: func() time.Time { return r.now }}
}

// run lets processes work until their queues stay empty, and moves the clock when they wait. If a process dies, another one
// follows and receives its unacknowledged messages again.
func (r *rig) run() {
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
		}{{queue.Events, fanout.Handle}, {queue.Deliveries, dispatch.Pages}, {queue.Slow, dispatch.Singles}} {
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
	body, err := e.MarshalJSON()
	if err != nil {
		r.t.Fatal(err)
	}
	return queue.Outgoing{Body: body}
}

// deliveryState returns the state of the stored delivery, or "none".
func (r *rig) deliveryState(sub, eventID string) string {
	items, err := r.db.Get(r.t.Context(), state.Key("default", sub, event.Event{ID: eventID, URI: "event://ci/build-finished"}.Key()))
	if err != nil {
		r.t.Fatal(err)
	}
	if items[0] == nil {
		return "none"
	}
	del, err := state.Decode(items[0])
	if err != nil {
		r.t.Fatal(err)
	}
	return del.State
}

// TestOneChain: WHK-23, WHK-02. A process is killed at every single step of the pipeline, before the step takes effect and
// after it: the endpoint gets the attempts of one chain, and at most one more.
func TestOneChain(t *testing.T) {
	const failing = 3 // attempts that fail before one succeeds
	atEachStep(t, 15, func(point int, late bool) bool {
		r := newRig(t)
		sub := r.register("event://ci/build-finished")
		r.script = failsFirst(failing)
		r.publish("evt_1")
		r.budget, r.late = point, late
		r.run()
		if extra := len(r.posts) - (failing + 1); extra < 0 || extra > 1 || posted(r)["evt_1"] != len(r.posts) {
			t.Fatalf("death at step %d (late %v): posts %v, want the %d of one delivery and at most one more", point, late, posted(r), failing+1)
		}
		if st := r.deliveryState(sub.ID, "evt_1"); st != "none" {
			t.Fatalf("death at step %d (late %v): a delivery is left %s", point, late, st)
		}
		return r.budget > 0 // the point lies beyond the last step
	})
}
