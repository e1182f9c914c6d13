package fanout_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/events/catalog"
	"github.com/mcp-events/mcpevents/shared/events/catalog/catalogtest"
	"github.com/mcp-events/mcpevents/shared/events/delivery/task"
	"github.com/mcp-events/mcpevents/shared/events/event"
	"github.com/mcp-events/mcpevents/shared/events/fanout"
	eventlog "github.com/mcp-events/mcpevents/shared/events/log"
	"github.com/mcp-events/mcpevents/shared/events/match"
	"github.com/mcp-events/mcpevents/shared/events/publish"
	"github.com/mcp-events/mcpevents/shared/events/subscription"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/platform/trace"
	"github.com/mcp-events/mcpevents/shared/storage/queue"
	"github.com/mcp-events/mcpevents/shared/storage/store"
	"github.com/mcp-events/mcpevents/shared/storage/store/sqlite"
	"github.com/mcp-events/mcpevents/shared/storage/store/storetest"
	"github.com/mcp-events/mcpevents/test/expect"
)

const testCatalog = `events:
  - name: ci.build_finished
    uri: event://ci/build-finished
  - name: github.push
    uriTemplate: event://github/{owner}/{repo}/push
`

// rig is a fanout with a store and with queues that only keep their messages.
type rig struct {
	t      *testing.T
	db     *sqlite.DB
	log    *eventlog.Log
	fanout *fanout.Fanout
	broken bool // the queues accept no message

	mu     sync.Mutex
	queues map[queue.Name][]queue.Message
	sent   int
}

func newRig(t *testing.T) *rig {
	t.Helper()
	db := expect.Value(sqlite.Open(":memory:", sqlite.Options{}))(t)
	t.Cleanup(func() { _ = db.Close() })
	r := &rig{t: t, db: db, log: &eventlog.Log{DB: db}, queues: map[queue.Name][]queue.Message{}}
	r.fanout = &fanout.Fanout{DB: db, Log: &eventlog.Log{DB: db}, Catalog: parse(t, testCatalog), Queue: r, Logger: slog.New(slog.DiscardHandler)}
	return r
}

func parse(t *testing.T, src string) *catalog.Static {
	t.Helper()
	return catalog.NewStatic(expect.Value(catalog.Parse([]byte(src)))(t))
}

// registered returns a rig with a subscription to event://ci/build-finished.
func registered(t *testing.T) *rig {
	t.Helper()
	r := newRig(t)
	r.register("event://ci/build-finished")
	return r
}

func (r *rig) Send(_ context.Context, q queue.Name, msgs ...queue.Outgoing) error {
	if r.broken {
		return fault.New(fault.Unavailable, "the queue accepts no message")
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, o := range msgs {
		r.sent++
		r.queues[q] = append(r.queues[q], queue.Message{ID: fmt.Sprint(r.sent), Outgoing: o, Sent: time.Now()})
	}
	return nil
}

// targets accepts every endpoint, and does not seal secrets.
type targets struct{}

func (targets) Check(string) error                                   { return nil }
func (targets) Verify(context.Context, string, string, []byte) error { return nil }
func (targets) ParseSecret(s string) ([]byte, error)                 { return []byte(s), nil }
func (targets) NewSecret(subscription.SecretType) (string, []byte)   { return "secret", []byte("secret") }

func (targets) Seal(_ context.Context, key []byte, _ subscription.Binding) ([]byte, error) {
	return key, nil
}

func (r *rig) register(uri string) {
	r.t.Helper()
	service := &subscription.Service{
		Store:   subscription.Store{DB: r.db, QuotaOf: func(context.Context, string, string) int64 { return 10 }},
		Catalog: r.fanout.Catalog, Log: r.log,
	}
	registrar := subscription.Registrar{Service: service, Targets: targets{}}
	alice := auth.Principal{ID: "alice", Workspace: "default", Scopes: auth.Scopes()}
	expect.OK(r.t, expect.ErrOf(registrar.Register(r.t.Context(), alice, subscription.RegisterRequest{URIs: []string{uri}, Target: "https://hooks.example.com/a"})))
}

func (r *rig) publish(ids ...string) {
	for _, id := range ids {
		r.publishTo("event://ci/build-finished", "ci.build_finished", id)
	}
}

func (r *rig) publishTo(uri, name, id string) {
	r.t.Helper()
	r.publishEvent(&event.Event{Workspace: "default", ID: id, URI: uri, Name: name, Time: time.Now(), Published: time.Now(), Data: []byte(`{"ok":true}`)})
}

func (r *rig) publishEvent(e *event.Event) {
	r.t.Helper()
	expect.OK(r.t, r.Send(r.t.Context(), queue.Events, queue.Outgoing{Body: expect.Value(e.MarshalJSON())(r.t)}))
}

// fanOut passes the messages of the events queue to the fanout.
func (r *rig) fanOut() (failed []string, err error) {
	r.t.Helper()
	batch := r.queues[queue.Events]
	r.queues[queue.Events] = nil
	return r.fanout.Handle(r.t.Context(), batch)
}

// fanOutAll does the same, and no message may fail.
func (r *rig) fanOutAll() {
	r.t.Helper()
	if failed, err := r.fanOut(); len(failed) > 0 || err != nil {
		r.t.Fatalf("got failed %v, %v, want none", failed, err)
	}
}

// inTasks returns in how many page tasks each event is, by its id.
func (r *rig) inTasks() map[string]int {
	r.t.Helper()
	n := map[string]int{}
	for _, m := range r.queues[queue.Deliveries] {
		page := expect.Value(task.Decode(m.Body, func(p task.Page) int { return p.V }))(r.t)
		for _, e := range page.Events {
			n[e.ID]++
		}
	}
	return n
}

// pushURI returns the URI of a github.push event with n bytes.
func pushURI(n int) string {
	const around = "event://github/acme//push"
	return "event://github/acme/" + strings.Repeat("r", n-len(around)) + "/push"
}

// deadReasons returns the reasons of the dead letters of the events queue.
func (r *rig) deadReasons() (reasons []string) {
	r.t.Helper()
	for _, m := range r.queues[queue.Dead] {
		reasons = append(reasons, expect.Value(queue.ParseDeadLetter(m.Body))(r.t).Reason)
	}
	return reasons
}

func TestFanoutOfLongURIs(t *testing.T) {
	t.Run("AWS-05 an event with the longest URI is logged, listed and delivered", func(t *testing.T) {
		r := newRig(t)
		uri := pushURI(event.MaxURI)
		r.register(uri)
		r.publishTo(uri, "github.push", "evt_long")
		r.fanOutAll()
		expect.Equal(t, "the page tasks with evt_long", r.inTasks()["evt_long"], 1)
		below := expect.Value(r.log.ListBelow(t.Context(), "default", "event://github/acme", 10))(t)
		expect.List(t, "the sub-resources", below, []string{uri})
	})
	t.Run("AWS-05 an event whose keys are too long is dead-lettered, and the others of its batch are delivered", func(t *testing.T) {
		r := registered(t)
		r.publishTo("event://github/acme/app/push", "github.push", "evt_long")
		long := &r.queues[queue.Events][0]
		long.Body = []byte(strings.Replace(string(long.Body), `"default"`, `"`+strings.Repeat("w", 3000)+`"`, 1))
		r.publish("evt_1")
		r.fanOutAll()
		expect.Equal(t, "the page tasks with evt_1", r.inTasks()["evt_1"], 1)
		if got := r.deadReasons(); len(got) != 1 || !strings.Contains(got[0], "partition key") {
			t.Errorf("got dead letters %q, want one about the key", got)
		}
	})
}

// Given events that are redelivered or not written yet, when the log refuses one of them, then it sends no webhook, because
// the log comes first.
func TestFanoutDeadLettersEventsThatTheLogRefuses(t *testing.T) {
	for name, change := range map[string]func(m *queue.Message){
		"redelivered":     func(m *queue.Message) { m.Received = 2 },
		"not written yet": func(m *queue.Message) { m.Unwritten = true },
	} {
		t.Run("AWS-05 "+name, func(t *testing.T) {
			r := registered(t)
			r.publish("evt_1", "evt_refused", "evt_2")
			refuse := storetest.Hooked{DB: r.db, OnWrite: func(_ context.Context, ops []store.Op) error {
				for _, op := range ops {
					if strings.Contains(string(op.Item.Value), "evt_refused") {
						return fault.New(fault.TooLarge, "the item is too large")
					}
				}
				return nil
			}}
			for i := range r.queues[queue.Events] {
				change(&r.queues[queue.Events][i])
			}
			r.fanout.Log.DB = refuse
			r.fanOutAll()
			if got := r.inTasks(); got["evt_1"] != 1 || got["evt_2"] != 1 || got["evt_refused"] != 0 {
				t.Errorf("got page tasks %v, want one each with evt_1 and evt_2", got)
			}
			if got := r.deadReasons(); len(got) != 1 || !strings.Contains(got[0], "too large") {
				t.Errorf("got dead letters %q, want one of evt_refused", got)
			}
		})
	}
}

func TestFanoutWithAnOldCatalog(t *testing.T) {
	const added = testCatalog + "  - name: new.type\n    uri: event://new/type\n"
	for name, tc := range map[string]struct {
		latest string
		dead   []string
	}{
		"AWS-05 an event of a type that was added a moment ago is delivered": {latest: added},
		"AWS-05 an event of a type that was removed is dead-lettered":        {testCatalog, []string{"the URI matches no event type of the catalog"}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t)
				expect.OK(t, catalogtest.Store(t.Context(), r.db, catalog.Shared, expect.Value(catalog.Parse([]byte(testCatalog)))(t)))
				stored := catalog.NewStored(r.db, nil, slog.New(slog.DiscardHandler), nil)
				expect.OK(t, expect.ErrOf(stored.Catalog(t.Context(), "default"))) // of an earlier batch
				time.Sleep(time.Second)
				expect.OK(t, catalogtest.Store(t.Context(), r.db, catalog.Shared, expect.Value(catalog.Parse([]byte(tc.latest)))(t)))
				r.fanout.Catalog = parse(t, added)
				r.register("event://new/type")
				r.publishTo("event://new/type", "new.type", "evt_new")
				r.fanout.Catalog = stored
				r.fanOutAll()
				expect.List(t, "the reasons of dead letters", r.deadReasons(), tc.dead)
				expect.Equal(t, "the page tasks with evt_new", r.inTasks()["evt_new"], 1-len(tc.dead))
			})
		})
	}
}

func TestFanoutOfAWorkspaceWithoutACatalog(t *testing.T) {
	r := newRig(t)
	r.publish("evt_1")
	r.fanout.Catalog = catalog.NewStored(r.db, nil, slog.New(slog.DiscardHandler), nil)
	r.fanOutAll()
	expect.Equal(t, "the dead letters", len(r.queues[queue.Dead]), 1)
}

func TestFanoutSurvivesAPanicOfOneGroup(t *testing.T) {
	for _, received := range []int{1, 2} {
		r := registered(t)
		r.publishTo("event://github/acme/app/push", "github.push", "evt_panics")
		r.publish("evt_1")
		batch := r.queues[queue.Events]
		for i := range batch {
			batch[i].Received = received
		}
		panics := storetest.Hooked{DB: r.db, OnWrite: func(_ context.Context, ops []store.Op) error {
			if strings.Contains(ops[0].Item.Partition, "github") {
				panic("a defect")
			}
			return nil
		}}
		r.fanout.Log.DB = panics
		failed := expect.Value(r.fanOut())(t)
		expect.List(t, fmt.Sprintf("receive %d: the failed events, AWS-05 the one that panics", received), failed, []string{batch[0].ID})
		expect.Equal(t, fmt.Sprintf("receive %d: page tasks with evt_1", received), r.inTasks()["evt_1"], 1)
	}
}

// OPS-13: given a batch of which some events fail, then their spans show that, and the spans of the others do not.
func TestFanoutMarksTheSpansOfEventsThatFail(t *testing.T) {
	r := registered(t)
	traced := func(uri, name, id string) {
		r.publishEvent(&event.Event{
			Workspace: "default", ID: id, URI: uri, Name: name, Time: time.Now(), Published: time.Now(), Data: []byte(`{"ok":true}`),
			Trace: trace.Parse("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", ""),
		})
		last := &r.queues[queue.Events][len(r.queues[queue.Events])-1]
		last.ID, last.Received = id, 2
	}
	traced("event://ci/build-finished", "ci.build_finished", "evt_1")
	traced("event://ci/build-finished", "ci.build_finished", "evt_refused")
	traced("event://github/acme/app/push", "github.push", "evt_failed")
	db := storetest.Hooked{DB: r.db, OnWrite: func(_ context.Context, ops []store.Op) error {
		for _, op := range ops {
			switch text := string(op.Item.Value); {
			case strings.Contains(text, "evt_refused"):
				return fault.New(fault.TooLarge, "the item is too large")
			case strings.Contains(text, "evt_failed"):
				return fault.New(fault.Unavailable, "throttled")
			}
		}
		return nil
	}}
	spans := tracetest.NewSpanRecorder()
	r.fanout.Log.DB, r.fanout.Tracer = db, trace.New(sdk.NewTracerProvider(sdk.WithSpanProcessor(spans)))
	failed, err := r.fanOut()
	if err != nil || !slices.Equal(failed, []string{"evt_failed"}) || len(r.deadReasons()) != 1 {
		t.Fatalf("got failed %v, %v, dead letters %q, want evt_failed and one dead letter", failed, err, r.deadReasons())
	}
	got := map[string]string{}
	for _, s := range spans.Ended() {
		for _, a := range s.Attributes() {
			if a.Key == "messaging.message.id" {
				got[a.Value.AsString()] = s.Status().Description
			}
		}
	}
	want := map[string]string{"evt_1": "", "evt_refused": "too large", "evt_failed": "unavailable"}
	expect.Map(t, "the failures of the spans", got, want)
}

// Given a batch that has looked for readers but is not in the log yet, when clients begin to read a parent of its event, then they wait
// for the batch. Otherwise a client that subscribes and then reads the log would miss the event in both.
func TestNewReadersOfAParentWaitForTheBatchThatMissedThem(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const uri = "event://github/acme/web/push"
		r := newRig(t)
		parent := match.Pattern{Kind: match.Parent, Key: "event://github/acme/**", Shape: match.Shape{Scope: "parents", Name: "d2"}}
		proceed := make(chan struct{})
		r.fanout.Log.DB = storetest.Hooked{DB: r.db, OnWrite: func(_ context.Context, ops []store.Op) error {
			if ops[0].Item.Partition == eventlog.OwnPartition("default", uri).Name() {
				<-proceed
			}
			return nil
		}}
		r.publishTo(uri, "github.push", "evt_1")
		var running sync.WaitGroup
		running.Go(func() {
			if failed, err := r.fanOut(); len(failed) > 0 || err != nil {
				t.Errorf("got failed %v, %v, want none", failed, err)
			}
		})
		synctest.Wait() // the batch hangs right before its append

		read := func(ctx context.Context) error {
			return expect.ErrOf(subscription.RecordInterest(ctx, r.db, r.fanout.Log, "default", parent))
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := read(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v while the batch hangs, want the error of the context", err)
		}
		for range 2 { // they find the interest that the first reader has recorded
			running.Go(func() {
				err := read(t.Context())
				if events, _ := r.log.Latest(t.Context(), "default", uri, false, 1); len(events) != 1 || err != nil {
					t.Errorf("got %d events, %v when the interest was recorded, want evt_1", len(events), err)
				}
			})
		}
		synctest.Wait()
		close(proceed)
		running.Wait()
	})
}

// Several processes write the events of an unordered URI. If writers stamp keys, they must use the shards, because readers of the URI's own
// partition expect one writer, and skip entries of another one with smaller keys.
func TestEVX26GivenAnUnorderedTypeWhenItsMessagesAreNewThenAStampedLogHasTheEventsInShards(t *testing.T) {
	r := newRig(t)
	r.fanout.Catalog = parse(t, "events:\n  - {name: tick, uri: \"event://tick\", order: none}\n")
	log := &eventlog.Log{DB: storetest.Unordered{DB: r.db}}
	r.fanout.DB, r.fanout.Log = log.DB, log
	for i := range 5 {
		r.publishTo("event://tick", "tick", fmt.Sprint("evt_", i))
	}
	for i := range r.queues[queue.Events] {
		r.queues[queue.Events][i].First = true
	}
	r.fanOutAll()
	own := eventlog.OwnPartition("default", "event://tick")
	sharded := 0
	for _, p := range log.PartitionsOf("default", "event://tick", true) {
		entries, _, _, err := log.Read(t.Context(), p, 0, 100)
		expect.OK(t, err)
		if p.Name() == own.Name() {
			expect.Len(t, "the events in the URI's own partition", entries, 0)
		} else {
			sharded += len(entries)
		}
	}
	expect.Equal(t, "the events in the shards", sharded, 5)
}

// The same holds while this process still has the catalog in which the type was ordered. Publish spreads the events of the URI over several
// groups already, so several processes have them at the same time.
func TestEVX26GivenACatalogFromBeforeATypeBecameUnorderedThenAStampedLogHasTheEventsInShards(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const tick = "event://tick"
		r := newRig(t)
		catalogOf := func(order string) *catalog.Catalog {
			return expect.Value(catalog.Parse([]byte("events:\n  - {name: tick, uri: \"" + tick + "\", order: " + order + "}\n")))(t)
		}
		expect.OK(t, catalogtest.Store(t.Context(), r.db, catalog.Shared, catalogOf("uri")))
		stored := catalog.NewStored(r.db, nil, slog.New(slog.DiscardHandler), nil)
		expect.OK(t, expect.ErrOf(stored.Catalog(t.Context(), "default"))) // of an earlier batch
		time.Sleep(time.Second)
		expect.OK(t, catalogtest.Store(t.Context(), r.db, catalog.Shared, catalogOf("none")))
		log := &eventlog.Log{DB: storetest.Unordered{DB: r.db}}
		r.fanout.DB, r.fanout.Log, r.fanout.Catalog = log.DB, log, stored
		r.publishTo(tick, "tick", "evt_1")
		r.queues[queue.Events][0].Group = publish.OrderedGroup("default", tick) // of a publisher with the same catalog
		r.publishTo(tick, "tick", "evt_2")
		r.queues[queue.Events][1].Group = "one_of_several"
		r.fanOutAll()
		expect.Len(t, "the events in the shards", expect.Value(log.Latest(t.Context(), "default", tick, true, 10))(t), 2)
		expect.Len(t, "the events in the URI's own partition", expect.Value(log.Latest(t.Context(), "default", tick, false, 10))(t), 0)
	})
}

// If a full batch took longer than the function may run, each attempt would start from the beginning, and the events would
// wait in the queue for as long as the store is slow.
func TestGivenASlowStoreAndReadersOfPatternsWhenABatchIsFullThenFanoutTakesHardlyLongerThanForOneEvent(t *testing.T) {
	took := func(t *testing.T, events, uris int) (took time.Duration) {
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t)
			fast := storetest.Slow{Unordered: storetest.Unordered{DB: r.db}}
			log := &eventlog.Log{DB: fast}
			for _, p := range []match.Pattern{
				{Kind: match.Parent, Key: "event://github/acme/**", Shape: match.Shape{Scope: "parents", Name: "d2"}},
				{Kind: match.Parent, Key: "event://github/**", Shape: match.Shape{Scope: "parents", Name: "d1"}},
			} {
				expect.OK(t, expect.ErrOf(subscription.RecordInterest(t.Context(), fast, log, "default", p)))
			}
			for i := range events {
				r.publishTo(fmt.Sprintf("event://github/acme/app%d/push", i%uris), "github.push", fmt.Sprint("evt_", i))
			}
			began := time.Now()
			r.fanout.DB = storetest.Slow{Unordered: storetest.Unordered{DB: r.db}, Took: 100 * time.Millisecond}
			r.fanout.Log = &eventlog.Log{DB: r.fanout.DB}
			r.fanOutAll()
			took = time.Since(began)
			for _, key := range []string{"event://github/acme/**", "event://github/**"} {
				n := 0
				for _, p := range eventlog.PatternPartitions("default", key) {
					entries, _, _, err := log.Read(t.Context(), p, 0, 100)
					expect.OK(t, err)
					n += len(entries)
				}
				expect.Equal(t, fmt.Sprintf("events of %s", key), n, events)
			}
		})
		return took
	}
	one := took(t, 1, 1)
	for _, uris := range []int{1, 10} {
		t.Run(fmt.Sprintf("EVX-26 ten events of %d URIs", uris), func(t *testing.T) {
			if got := took(t, 10, uris); got >= 2*one {
				t.Errorf("ten events took %v, want hardly more than the %v of one", got, one)
			}
		})
	}
}

// throttledList is a store whose partitions with the sub-resources of parents are throttled for as long as a caller waits.
type throttledList struct{ store.DB }

func (d throttledList) WriteAll(ctx context.Context, ops ...store.Op) error {
	for _, op := range ops {
		if strings.HasPrefix(op.Item.Key.Partition, "c#") {
			<-ctx.Done()
			return ctx.Err()
		}
	}
	return d.DB.WriteAll(ctx, ops...)
}

// AWS-16: the first events of a day are not held up by a throttled list of sub-resources.
func TestFanoutAtMidnight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		uri := pushURI(100)
		r.register(uri)
		r.publishTo(uri, "github.push", "evt_first")
		began := time.Now()
		r.fanout.Log = &eventlog.Log{DB: throttledList{storetest.Unordered{DB: r.db}}}
		r.fanOutAll()
		expect.Equal(t, "the page tasks with evt_first", r.inTasks()["evt_first"], 1)
		expect.AtMost(t, "the time of fanout", time.Since(began), 2*time.Second)
	})
}

func TestFanoutRenewsANewerEventAndHandlesTheLaterOnes(t *testing.T) {
	for name, c := range map[string]struct {
		received int
		broken   bool // the events queue accepts no message
		left     bool // both events
	}{
		"AWS-06 given a newer event, when it was received seldom, then it and the later event of its group stay":             {task.RenewAfter - 1, false, true},
		"AWS-06 given a newer event, when it was received often, then a copy replaces it and the later event is delivered":   {task.RenewAfter, false, false},
		"AWS-06 given a newer event that was received often, when the copy cannot be sent, then it and the later event stay": {task.RenewAfter, true, true},
	} {
		t.Run(name, func(t *testing.T) {
			r := registered(t)
			r.publish("evt_newer", "evt_behind")
			batch := append(r.queues[queue.Events], queue.Message{ID: "poison", Outgoing: queue.Outgoing{Body: []byte(`{"v":1`)}})
			for i := range batch {
				batch[i].Group, batch[i].Received = "ci", c.received
			}
			batch[0].Body = []byte(strings.Replace(string(batch[0].Body), `"v":1`, `"v":99`, 1))
			var left []string
			dead := 2 // the poison, at each receive
			if c.left {
				left, dead = []string{batch[0].ID, batch[1].ID, batch[2].ID}, 0
			}
			var copies []queue.Message
			for range 2 { // the process dies before the queue deletes the events, so they are received again
				r.queues[queue.Events] = slices.Clone(batch)
				r.broken = c.broken
				expect.List(t, "the failed messages", expect.Value(r.fanOut())(t), left)
				copies = append(copies, r.queues[queue.Events]...)
			}
			expect.Equal(t, "the later event is in a page task", r.inTasks()["evt_behind"] > 0, !c.left)
			expect.Equal(t, "the messages of the queue Dead", len(r.queues[queue.Dead]), dead)
			if c.left {
				expect.Len(t, "the copies", copies, 0)
				return
			}
			if len(copies) != 2 || copies[0].Dedup == "" || copies[0].Dedup != copies[1].Dedup {
				t.Fatalf("got copies %+v, want one of each receive, both with one deduplication id", copies)
			}
			if got := copies[0]; string(got.Body) != string(batch[0].Body) || got.Group != "ci" {
				t.Errorf("got a copy %s of group %q, want the same body and group \"ci\"", got.Body, got.Group)
			}
		})
	}
}
