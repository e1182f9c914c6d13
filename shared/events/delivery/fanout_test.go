package delivery

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/mcp-events/mcpevents/shared/events/catalog"
	"github.com/mcp-events/mcpevents/shared/events/catalog/catalogtest"
	"github.com/mcp-events/mcpevents/shared/events/event"
	"github.com/mcp-events/mcpevents/shared/events/fanout"
	eventlog "github.com/mcp-events/mcpevents/shared/events/log"
	"github.com/mcp-events/mcpevents/shared/events/match"
	"github.com/mcp-events/mcpevents/shared/events/subscription"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/platform/trace"
	"github.com/mcp-events/mcpevents/shared/storage/queue"
	"github.com/mcp-events/mcpevents/shared/storage/store"
	"github.com/mcp-events/mcpevents/test/expect"
)

// pushURI returns the URI of a github.push event with n bytes.
func pushURI(n int) string {
	const around = "event://github/acme//push"
	return "event://github/acme/" + strings.Repeat("r", n-len(around)) + "/push"
}

// fanOut passes the messages of the events queue to one fanout, and the page tasks that this creates to one dispatcher.
func (r *rig) fanOut(change func(*fanout.Fanout)) (failed []string, err error) {
	r.t.Helper()
	fanout, dispatch, _ := r.process()
	if change != nil {
		change(fanout)
	}
	batch := r.queues[queue.Events]
	r.queues[queue.Events] = nil
	failed, err = fanout.Handle(r.t.Context(), batch)
	r.hand(queue.Deliveries, dispatch.HandlePages)
	return failed, err
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
		r.publishTo(uri, "github.push", "evt_long", `{}`)
		if failed, err := r.fanOut(nil); len(failed) > 0 || err != nil {
			t.Fatalf("got failed %v, %v, want none", failed, err)
		}
		expect.Equal(t, "the posts of evt_long", posted(r)["evt_long"], 1)
		below, err := r.log.ListBelow(t.Context(), "default", "event://github/acme", 10)
		if err != nil || !slices.Equal(below, []string{uri}) {
			t.Errorf("got %d sub-resources, %v, want the URI", len(below), err)
		}
	})
	t.Run("AWS-05 an event whose keys are too long is dead-lettered, and the others of its batch are delivered", func(t *testing.T) {
		r, _ := registered(t)
		r.publishTo("event://github/acme/app/push", "github.push", "evt_long", `{}`)
		long := &r.queues[queue.Events][0]
		long.Body = []byte(strings.Replace(string(long.Body), `"default"`, `"`+strings.Repeat("w", 3000)+`"`, 1))
		r.publish("evt_1")
		failed, err := r.fanOut(nil)
		if len(failed) > 0 || err != nil {
			t.Fatalf("got failed %v, %v, want none", failed, err)
		}
		expect.Equal(t, "the posts of evt_1", posted(r)["evt_1"], 1)
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
			r, _ := registered(t)
			r.publish("evt_1", "evt_refused", "evt_2")
			refuse := hooked{DB: r.db, write: func(_ context.Context, ops []store.Op) error {
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
			failed, err := r.fanOut(func(f *fanout.Fanout) { f.Log.DB = refuse })
			if len(failed) > 0 || err != nil {
				t.Fatalf("got failed %v, %v, want none", failed, err)
			}
			if got := posted(r); got["evt_1"] != 1 || got["evt_2"] != 1 || got["evt_refused"] != 0 {
				t.Errorf("got posts %v, want one each of evt_1 and evt_2", got)
			}
			if got := r.deadReasons(); len(got) != 1 || !strings.Contains(got[0], "too large") {
				t.Errorf("got dead letters %q, want one of evt_refused", got)
			}
		})
	}
}

func TestFanoutDeliversAlthoughTheURICannotBeListed(t *testing.T) {
	r, _ := registered(t)
	r.publish("evt_1")
	throttled := hooked{DB: r.db, writeAll: func(_ context.Context, ops []store.Op) error {
		return fault.New(fault.Unavailable, "throttled")
	}}
	failed, err := r.fanOut(func(f *fanout.Fanout) { f.Log.DB = throttled })
	if len(failed) > 0 || err != nil || posted(r)["evt_1"] != 1 {
		t.Errorf("got failed %v, %v, posts %v, want evt_1 delivered", failed, err, posted(r))
	}
}

func TestFanoutWithAnOldCatalog(t *testing.T) {
	const added = testCatalog + "  - name: new.type\n    uri: event://new/type\n"
	parse := func(src string) *catalog.Catalog {
		return expect.Value(catalog.Parse([]byte(src)))(t)
	}
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
				expect.OK(t, catalogtest.Store(t.Context(), r.db, catalog.Shared, parse(testCatalog)))
				stored := catalog.NewStored(r.db, nil, slog.New(slog.DiscardHandler), nil)
				expect.OK(t, expect.ErrOf(stored.Catalog(t.Context(), "default"))) // of an earlier batch
				time.Sleep(time.Second)
				expect.OK(t, catalogtest.Store(t.Context(), r.db, catalog.Shared, parse(tc.latest)))
				r.catalogs = catalog.NewStatic(parse(added))
				r.services = r.service(r.db, r.log)
				r.register("event://new/type")
				r.publishTo("event://new/type", "new.type", "evt_new", `{}`)
				failed, err := r.fanOut(func(f *fanout.Fanout) { f.Catalog = stored })
				if len(failed) > 0 || err != nil {
					t.Fatalf("got failed %v, %v, want none", failed, err)
				}
				if got := r.deadReasons(); !slices.Equal(got, tc.dead) {
					t.Errorf("got dead letters %q, want %q", got, tc.dead)
				}
				expect.Equal(t, "posts", posted(r)["evt_new"], 1-len(tc.dead))
			})
		})
	}
}

func TestFanoutOfAWorkspaceWithoutACatalog(t *testing.T) {
	r := newRig(t)
	r.publish("evt_1")
	failed, err := r.fanOut(func(f *fanout.Fanout) { f.Catalog = catalog.NewStored(r.db, nil, slog.New(slog.DiscardHandler), nil) })
	if len(failed) > 0 || err != nil || len(r.queues[queue.Dead]) != 1 {
		t.Errorf("got failed %v, %v, dead letters %q, want one dead letter", failed, err, r.deadReasons())
	}
}

func TestFanoutSurvivesAPanicOfOneGroup(t *testing.T) {
	for _, received := range []int{1, 2} {
		r, _ := registered(t)
		r.publishTo("event://github/acme/app/push", "github.push", "evt_panics", `{}`)
		r.publish("evt_1")
		batch := r.queues[queue.Events]
		for i := range batch {
			batch[i].Received = received
		}
		panics := hooked{DB: r.db, write: func(_ context.Context, ops []store.Op) error {
			if strings.Contains(ops[0].Item.Partition, "github") {
				panic("a defect")
			}
			return nil
		}}
		failed, err := r.fanOut(func(f *fanout.Fanout) { f.Log.DB = panics })
		if err != nil || !slices.Equal(failed, []string{batch[0].ID}) {
			t.Errorf("receive %d: got failed %v, %v, want AWS-05 the event that panics only", received, failed, err)
		}
		expect.Equal(t, fmt.Sprintf("receive %d: posts of evt_1", received), posted(r)["evt_1"], 1)
	}
}

// OPS-13: given a batch of which some events fail, then their spans show that, and the spans of the others do not.
func TestFanoutMarksTheSpansOfEventsThatFail(t *testing.T) {
	r, _ := registered(t)
	traced := func(uri, name, id string) {
		e := event.Event{Workspace: "default", ID: id, URI: uri, Name: name, Time: r.now, Published: r.now, Data: []byte(`{"ok":true}`)}
		e.Trace = trace.Parse("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "")
		r.queues[queue.Events] = append(r.queues[queue.Events], queue.Message{ID: id, Outgoing: queue.Outgoing{Body: expect.Value(e.MarshalJSON())(t)}, Received: 2, Sent: r.now})
	}
	traced("event://ci/build-finished", "ci.build_finished", "evt_1")
	traced("event://ci/build-finished", "ci.build_finished", "evt_refused")
	traced("event://github/acme/app/push", "github.push", "evt_failed")
	db := hooked{DB: r.db, write: func(_ context.Context, ops []store.Op) error {
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
	failed, err := r.fanOut(func(f *fanout.Fanout) {
		f.Log.DB, f.Tracer = db, trace.New(sdk.NewTracerProvider(sdk.WithSpanProcessor(spans)))
	})
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
	if !maps.Equal(got, want) {
		t.Errorf("got spans with the failures %q, want %q", got, want)
	}
}

// Given a batch that has looked for readers but is not in the log yet, when clients begin to read a parent of its event, then they wait
// for the batch. Otherwise a client that subscribes and then reads the log would miss the event in both.
func TestNewReadersOfAParentWaitForTheBatchThatMissedThem(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const uri = "event://github/acme/web/push"
		r := newRig(t)
		parent := match.Pattern{Kind: match.Parent, Key: "event://github/acme/**", Shape: match.Shape{Scope: "parents", Name: "d2"}}
		fanout, _, _ := r.process()
		proceed := make(chan struct{})
		fanout.Log.DB = hooked{DB: r.db, write: func(_ context.Context, ops []store.Op) error {
			if ops[0].Item.Partition == eventlog.OwnPartition("default", uri).Name() {
				<-proceed
			}
			return nil
		}}
		r.publishTo(uri, "github.push", "evt_1", `{}`)
		var running sync.WaitGroup
		running.Go(func() {
			if failed, err := fanout.Handle(t.Context(), r.queues[queue.Events]); len(failed) > 0 || err != nil {
				t.Errorf("got failed %v, %v, want none", failed, err)
			}
		})
		synctest.Wait() // the batch hangs right before its append

		read := func(ctx context.Context) error {
			return expect.ErrOf(subscription.Interested(ctx, r.db, fanout.Log, "default", parent))
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

// slowStore is a store like DynamoDB in which each request takes a while.
type slowStore struct {
	unorderedStore
	took time.Duration
}

func (s slowStore) Get(ctx context.Context, keys ...store.Key) ([]*store.Item, error) {
	time.Sleep(s.took)
	return s.unorderedStore.Get(ctx, keys...)
}

func (s slowStore) Query(ctx context.Context, q store.Query) (store.Page, error) {
	time.Sleep(s.took)
	return s.unorderedStore.Query(ctx, q)
}

func (s slowStore) Write(ctx context.Context, ops ...store.Op) error {
	time.Sleep(s.took)
	return s.unorderedStore.Write(ctx, ops...)
}

// If a full batch took longer than the function may run, each attempt would start from the beginning, and the events would
// wait in the queue for as long as the store is slow.
func TestGivenASlowStoreAndReadersOfPatternsWhenABatchIsFullThenFanoutTakesHardlyLongerThanForOneEvent(t *testing.T) {
	took := func(t *testing.T, events, uris int) (took time.Duration) {
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t)
			log := &eventlog.Log{DB: unorderedStore{r.db}}
			for _, p := range []match.Pattern{
				{Kind: match.Parent, Key: "event://github/acme/**", Shape: match.Shape{Scope: "parents", Name: "d2"}},
				{Kind: match.Parent, Key: "event://github/**", Shape: match.Shape{Scope: "parents", Name: "d1"}},
			} {
				expect.OK(t, expect.ErrOf(subscription.Interested(t.Context(), unorderedStore{r.db}, log, "default", p)))
			}
			for i := range events {
				r.publishTo(fmt.Sprintf("event://github/acme/app%d/push", i%uris), "github.push", fmt.Sprint("evt_", i), `{}`)
			}
			began := time.Now()
			failed, err := r.fanOut(func(f *fanout.Fanout) {
				f.DB = slowStore{unorderedStore{r.db}, 100 * time.Millisecond}
				f.Log = &eventlog.Log{DB: f.DB}
				f.Now = time.Now
			})
			if len(failed) > 0 || err != nil {
				t.Fatalf("got failed %v, %v, want none", failed, err)
			}
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
		r.publishTo(uri, "github.push", "evt_first", `{}`)
		began := time.Now()
		failed, err := r.fanOut(func(f *fanout.Fanout) { f.Log = &eventlog.Log{DB: throttledList{r.db}} })
		if len(failed) > 0 || err != nil || posted(r)["evt_first"] != 1 {
			t.Errorf("got failed %v, %v, posts %v; want one post", failed, err, posted(r))
		}
		if took := time.Since(began); took > 2*time.Second {
			t.Errorf("fanout took %v, want at most 2 s", took)
		}
	})
}

// Given an event type that was renamed and has subscribers, when a process with the old catalog handles its next event, then
// the subscribers get it.
func TestAnEventOfARenamedType(t *testing.T) {
	for name, ids := range map[string][]string{"alone": {"evt_new"}, "behind one of the old name": {"evt_old", "evt_new"}, "before one of the old name": {"evt_new", "evt_old"}} {
		t.Run("WHK-18 "+name, func(t *testing.T) {
			r := newRig(t)
			r.script = succeeds
			old := expect.Value(r.catalogs.Catalog(t.Context(), "default"))(t)
			r.change("ci.build_finished", "ci.renamed")
			r.register("event://ci/build-finished")
			for _, id := range ids {
				r.publishTo("event://ci/build-finished", map[string]string{"evt_old": "ci.build_finished", "evt_new": "ci.renamed"}[id], id, `{"ok":true}`)
			}
			fanout, d, _ := r.process()
			fanout.Catalog = &aged{catalog.NewStatic(old), r.catalogs.(*catalog.Static)}
			r.hand(queue.Events, fanout.Handle)
			r.hand(queue.Deliveries, d.HandlePages)
			for _, id := range ids {
				expect.Equal(t, "the posts of "+id, posted(r)[id], 1)
			}
		})
	}
}
