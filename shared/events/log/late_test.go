package eventlog_test

import (
	"context"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mcp-events/mcpevents/shared/events/event"
	eventlog "github.com/mcp-events/mcpevents/shared/events/log"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/platform/trace"
	"github.com/mcp-events/mcpevents/shared/storage/store"
	"github.com/mcp-events/mcpevents/shared/storage/store/sqlite"
	"github.com/mcp-events/mcpevents/shared/storage/store/sqlite/engine"
	"github.com/mcp-events/mcpevents/shared/storage/store/storetest"
	"github.com/mcp-events/mcpevents/test/expect"
)

// A writer may die over an append that took longer than the bound. Its batch
// comes again, and must get a key that readers have not passed.
func TestABatchThatComesAgainLateGetsANewKey(t *testing.T) {
	now := time.Now()
	log := &eventlog.Log{DB: storetest.Unordered{DB: memory(t)}, Now: func() time.Time { return now }}
	write := func() {
		expect.OK(t, expect.ErrOf(log.Append(t.Context(), "default", uri, numbered(1, 2), nil)))
	}
	read := func(after int64) []eventlog.Entry {
		entries, _, _, err := log.Read(t.Context(), eventlog.OwnPartition("default", uri), after, 100)
		expect.OK(t, err)
		return entries
	}
	write()
	write()
	expect.MustEqual(t, "SUB-08 the events of a batch that arrived twice", len(read(0)), 1)
	now = now.Add(eventlog.Window + time.Second)
	passed := now.Add(-eventlog.Window).UnixMicro() // by a reader that saw nothing
	write()
	expect.Equal(t, "SUB-08: events for a reader that passed the first key", len(read(passed)), 1)
	expect.Equal(t, "EVS-04: latest events", len(expect.Value(log.Latest(t.Context(), "default", uri, false, 10))(t)), 1)
}

// Several writers may stamp the same microsecond. A page that ends between two
// such events must not make the next one begin behind both.
func TestAPageEndsAfterAWholeStamp(t *testing.T) {
	now := time.Now()
	log := &eventlog.Log{DB: storetest.Unordered{DB: memory(t)}, Now: func() time.Time { return now }}
	const many = 250
	for i := range many {
		e := event.Event{Workspace: "default", ID: fmt.Sprint(i), URI: "event://ci/x", Data: []byte(`{}`)}
		expect.OK(t, log.AppendPatterns(t.Context(), eventlog.Appended{}, []event.Event{e}, []string{"event://ci/**"}, false))
		if i == many/2 {
			now = now.Add(time.Microsecond)
		}
	}
	got := slices.Compact(read(t, log, eventlog.PatternPartitions("default", "event://ci/**"))) // by pages of three
	expect.Equal(t, "SUB-08 EVX-07: events that were read", len(got), many)
}

// The texts of these events around their payloads are as long as they may be, and together the events nearly fill a segment.
func TestEventsWithLongTextsFitIntoASegment(t *testing.T) {
	log := &eventlog.Log{DB: storetest.Unordered{DB: memory(t)}}
	const many, uri, size = 10, "event://ci/x", (store.MaxItem - 4<<10) / 10
	var events []event.Event
	for i := range many {
		events = append(events, event.Event{
			Workspace: "default", ID: fmt.Sprintf("%0128d", i), URI: uri, Name: strings.Repeat("n", 128), Published: time.Now(),
			Data:  []byte(`"` + strings.Repeat("d", size-len(uri)-514) + `"`),
			Trace: trace.Context{Parent: strings.Repeat("0", 55), State: "a=" + strings.Repeat(`"`, 250) + ",b=" + strings.Repeat(`"`, 250)},
		})
	}
	expect.OK(t, log.AppendPatterns(t.Context(), eventlog.Appended{}, events, []string{"event://ci/**"}, false))
	expect.Equal(t, "events that were read", len(read(t, log, eventlog.PatternPartitions("default", "event://ci/**"))), many)
}

// After a rollback, a partition has an item of a later release between two events.
func TestReadersThatDoNotWaitPassAnItemOfALaterRelease(t *testing.T) {
	for name, db := range map[string]store.DB{"ordered": memory(t), "writers stamp": storetest.Unordered{DB: memory(t)}} {
		t.Run("EVX-26 "+name, func(t *testing.T) {
			now := time.Now()
			log := &eventlog.Log{DB: db, Now: func() time.Time { return now }}
			parts := log.PartitionsOf("default", uri, false)
			publish := func(id string) {
				t.Helper()
				now = now.Add(time.Second)
				e := event.Event{Workspace: "default", ID: id, URI: uri, Data: []byte(`{}`), Published: now}
				expect.OK(t, expect.ErrOf(log.Append(t.Context(), "default", uri, []event.Event{e}, nil)))
			}
			newest := func() store.Item {
				t.Helper()
				page := expect.Value(db.Query(t.Context(), store.Query{Table: store.Log, Partition: parts[0].Name(), Reverse: true, Limit: 1}))(t)
				return page.Items[0]
			}
			publish("before")
			publish("later")
			later := newest()
			later.Value = []byte(`{"v":2}`)
			expect.OK(t, db.Write(t.Context(), store.Put(later)))
			publish("after")

			want := []string{"before", "after"}
			ids := func(events []event.Event) (ids []string) {
				for _, e := range events {
					ids = append(ids, e.ID)
				}
				return ids
			}
			entries, more, _, err := log.ReadPast(t.Context(), parts[0], 0, 100)
			if lost := len(entries) == 3 && entries[1].Lost; err != nil || more || !lost {
				t.Errorf("ReadPast returned %+v, %v, %v; want two events with a lost entry between them", entries, more, err)
			}
			latest, err := log.Latest(t.Context(), "default", uri, false, 10)
			if got := ids(latest); err != nil || !slices.Equal(got, want) {
				t.Errorf("Latest returned %v, %v; want %v", got, err, want)
			}
			listed, _, err := log.Newest(t.Context(), parts, time.Time{}, time.Time{}, "", 10)
			slices.Reverse(listed)
			if got := ids(listed); err != nil || !slices.Equal(got, want) {
				t.Errorf("Newest returned %v, %v; want %v", got, err, want)
			}
			if e, err := log.Find(t.Context(), parts, "before", 10); err != nil || e == nil || e.ID != "before" {
				t.Errorf("Find returned %v, %v; want the event before the item", e, err)
			}
		})
	}
}

// A parent with more than a page of sub-resources has the sub-resources of all pages.
func TestAParentOfManySubResources(t *testing.T) {
	db := memory(t)
	log := &eventlog.Log{DB: db}
	const n = 2500
	child := func(i int) string { return fmt.Sprintf("event://many/%04d", i) }
	for i := range n {
		expect.OK(t, log.RecordChild(t.Context(), "default", child(i)))
	}
	last := child(n - 1)
	expect.OK(t, expect.ErrOf(log.Append(t.Context(), "default", last, []event.Event{{Workspace: "default", ID: "e", URI: last, Data: []byte(`{}`)}}, nil)))
	latest, err := log.LatestBelow(t.Context(), "default", "event://many", 5, func(uri string) (bool, bool) { return uri >= child(n-40), false })
	if err != nil || len(latest) != 1 || latest[0].ID != "e" {
		t.Errorf("latest: %v, %v", latest, err)
	}
	for _, want := range []int{10, 1000, 1001, n} {
		uris := expect.Value(log.ListBelow(t.Context(), "default", "event://many", want))(t)
		expect.Equal(t, "the number of URIs", len(uris), want)
	}
}

const uri = "event://ci/build-finished"

// Where the store stamps keys, a URI is recorded under its parents in the commit of its first event. So a reader that finds the
// event also finds the URI.
func TestARecordSharesTheCommitOfItsEvent(t *testing.T) {
	write := func(t *testing.T, db store.DB, uri string, n int, patterns ...string) (*eventlog.Log, eventlog.Appended) {
		t.Helper()
		events := numbered(0, n)
		for i := range events {
			events[i].URI = uri
		}
		log := &eventlog.Log{DB: db}
		return log, expect.Value(log.Append(t.Context(), "default", uri, events, patterns))(t)
	}
	below := func(t *testing.T, log *eventlog.Log, parent string, want ...string) {
		t.Helper()
		expect.List(t, "the sub-resources of "+parent, expect.Value(log.ListBelow(t.Context(), "default", parent, 10))(t), want)
	}
	t.Run("given the first event of a URI, when only one write succeeds, then each parent lists the URI", func(t *testing.T) {
		log, done := write(t, &cut{DB: memory(t), left: 1}, "event://a/b/c", 1, "event://a/**")
		expect.Equal(t, "Unrecorded", done.Unrecorded, false)
		below(t, log, "event://a", "event://a/b/c")
		below(t, log, "event://a/b", "event://a/b/c")
	})
	t.Run("given a batch of several segments, when only the first one is written, then the parent lists the URI", func(t *testing.T) {
		db := memory(t)
		log := &eventlog.Log{DB: &cut{DB: db, left: 1}}
		expect.Fault(t, "the append", expect.ErrOf(log.Append(t.Context(), "default", uri, numbered(0, 2*store.MaxTransaction), nil)), fault.Unavailable)
		below(t, log, "event://ci", uri)
	})
	t.Run("given more patterns than fit into a commit, when an event is appended, then the caller records the URI", func(t *testing.T) {
		var patterns []string
		for i := range store.MaxTransaction {
			patterns = append(patterns, fmt.Sprint("event://ci/", i))
		}
		log, done := write(t, memory(t), uri, 1, patterns...)
		expect.Equal(t, "Unrecorded", done.Unrecorded, true)
		below(t, log, "event://ci")
	})
}

// A new event needs no read of the log's end, but a repeated one does, because the log may have it already.
func TestNewEventsAreAppendedWithoutAReadOfTheEnd(t *testing.T) {
	clock := time.Now()
	counts := &asked{DB: memory(t)}
	log := &eventlog.Log{DB: counts, Now: func() time.Time { return clock }, Retention: 100 * time.Hour}
	add := func(from, to, queries int) eventlog.Appended {
		t.Helper()
		counts.queries = 0
		done := expect.Value(log.AppendNew(t.Context(), "default", uri, numbered(from, to), []string{"event://ci/**"}))(t)
		expect.Equal(t, "queries", counts.queries, queries)
		return done
	}
	add(0, 2, 1) // the day of the URI's last event is not known yet
	add(2, 4, 0)
	counts.queries = 0
	expect.OK(t, expect.ErrOf(log.Append(t.Context(), "default", uri, numbered(2, 6), []string{"event://ci/**"})))
	expect.Equal(t, "queries", counts.queries, 1)
	clock = clock.Add(24 * time.Hour)
	expect.Equal(t, "Unrecorded", add(6, 7, 0).Unrecorded, false)
	var want []string
	for _, e := range numbered(0, 7) {
		want = append(want, e.ID)
	}
	expect.List(t, "the URI's events", read(t, log, []eventlog.Partition{eventlog.OwnPartition("default", uri)}), want)
	expect.List(t, "the parent's events", read(t, log, eventlog.PatternPartitions("default", "event://ci/**")), want)
	expect.List(t, "the sub-resources", expect.Value(log.ListBelow(t.Context(), "default", "event://ci", 10))(t), []string{uri})
}

// While the clock is set back, new events have keys in its future. The log must keep them for its retention after the clock was corrected.
// But it must not keep them for long if the clock was ahead before.
func TestTheRetentionOfEventsWhileTheClockIsSetBack(t *testing.T) {
	for name, c := range map[string]struct {
		steps []time.Duration // of the clock, each before an event
		later time.Duration
		want  []string
	}{
		"set back and corrected": {[]time.Duration{0, time.Second, -20 * time.Hour, time.Second, time.Second, 20 * time.Hour}, 20 * time.Hour, []string{"e0", "e1", "e2", "e3", "e4", "e5"}},
		"ahead and corrected":    {[]time.Duration{0, time.Second, -1000 * time.Hour, time.Second, time.Second}, 50 * time.Hour, []string{"e0", "e1"}},
	} {
		t.Run(name, func(t *testing.T) {
			clock := time.Now()
			now := func() time.Time { return clock }
			db := expect.Value(sqlite.Open(sqlite.Memory, sqlite.Options{SweepEvery: -1, Engine: engine.Options{Now: now}}))(t)
			t.Cleanup(func() { _ = db.Close() })
			log := &eventlog.Log{DB: db, Now: now}
			for i, step := range c.steps {
				clock = clock.Add(step)
				write := log.AppendNew
				if i%2 == 0 {
					write = log.Append
				}
				expect.OK(t, expect.ErrOf(write(t.Context(), "default", uri, numbered(i, i+1), nil)))
			}
			clock = clock.Add(c.later)
			expect.List(t, "the events", read(t, log, []eventlog.Partition{eventlog.OwnPartition("default", uri)}), c.want)
		})
	}
}

func memory(t *testing.T) *sqlite.DB {
	t.Helper()
	db := expect.Value(sqlite.Open(sqlite.Memory, sqlite.Options{}))(t)
	t.Cleanup(func() { _ = db.Close() })
	return db
}

// cut is a store that takes so many writes and then no more.
type cut struct {
	store.DB
	left int
}

func (c *cut) Write(ctx context.Context, ops ...store.Op) error {
	if c.left--; c.left < 0 {
		return fault.New(fault.Unavailable, "cut off")
	}
	return c.DB.Write(ctx, ops...)
}

// Wherever a batch is interrupted, and however it is divided when it is redelivered, each
// of its events is in the log once.
func TestABatchThatComesAgainIsInTheLogOnce(t *testing.T) {
	var events []event.Event
	for i := range 8 { // of which a segment holds two
		data, _ := json.Marshal(fmt.Sprintf("%0*d", 180<<10, i))
		events = append(events, event.Event{Workspace: "default", ID: fmt.Sprintf("e%d", i), URI: uri, Data: data})
	}
	for writes := range 5 {
		for _, first := range []int{8, 3, 1} {
			t.Run(fmt.Sprintf("%d_writes_then_%d_events", writes, first), func(t *testing.T) {
				db := memory(t)
				_, err := (&eventlog.Log{DB: &cut{DB: db, left: writes}}).Append(t.Context(), "default", uri, events[:7], nil)
				if (err != nil) != (writes < 4) {
					t.Fatalf("%d writes: %v", writes, err)
				}
				log := &eventlog.Log{DB: db}
				for _, batch := range [][]event.Event{events[:first], events[first:], events[first:]} {
					if len(batch) == 0 {
						continue
					}
					known := expect.Value(log.Append(t.Context(), "default", uri, batch, nil))(t)
					if !known.Unrecorded && writes > 0 && &batch[0] == &events[0] {
						t.Error("what follows the first append of a URI would be left out")
					}
				}
				var got []string
				for _, e := range eventsOf(t, log, eventlog.OwnPartition("default", uri)) {
					got = append(got, e.ID)
				}
				expect.List(t, "the log", got, []string{"e0", "e1", "e2", "e3", "e4", "e5", "e6", "e7"})
			})
		}
	}
}

// stamping is a store whose writers stamp, as DynamoDB's, and that counts what it is asked.
type stamping struct {
	storetest.Unordered
	mu         sync.Mutex
	reads      int
	partitions map[string]int // segments written
}

func (s *stamping) Query(ctx context.Context, q store.Query) (store.Page, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reads++
	return s.DB.Query(ctx, q)
}

func (s *stamping) Write(ctx context.Context, ops ...store.Op) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, op := range ops {
		s.partitions[op.Item.Partition]++
	}
	return s.DB.Write(ctx, ops...)
}

func logOf(t *testing.T) (*stamping, *eventlog.Log) {
	db := memory(t)
	s := &stamping{Unordered: storetest.Unordered{DB: db}, partitions: map[string]int{}}
	return s, &eventlog.Log{DB: s}
}

func numbered(from, to int) (events []event.Event) {
	for i := from; i < to; i++ {
		events = append(events, event.Event{Workspace: "default", ID: fmt.Sprintf("e%d", i), URI: uri, Data: []byte(`{}`)})
	}
	return events
}

func read(t *testing.T, log *eventlog.Log, parts []eventlog.Partition) (ids []string) {
	t.Helper()
	for _, p := range parts {
		for _, e := range eventsOf(t, log, p) {
			ids = append(ids, e.ID)
		}
	}
	slices.Sort(ids)
	return ids
}

// eventsOf returns the events of a partition, oldest first.
func eventsOf(t *testing.T, log *eventlog.Log, p eventlog.Partition) (out []*event.Event) {
	t.Helper()
	for more, at := true, int64(0); more; {
		var entries []eventlog.Entry
		var err error
		entries, more, at, err = log.Read(t.Context(), p, at, 3)
		expect.OK(t, err)
		for _, e := range entries {
			out = append(out, e.Event)
		}
	}
	return out
}

// Several writers append to an unordered URI concurrently, so their segments overlap in time. A reader that reads page by page gets
// each event once, including the events from the time when the URI was ordered.
func TestAnUnorderedURI(t *testing.T) {
	db, log := logOf(t)
	expect.OK(t, expect.ErrOf(log.Append(t.Context(), "default", uri, numbered(0, 10), nil)))
	const parent = "event://ci/**"
	var writers sync.WaitGroup
	for i := 10; i < 210; i += 20 {
		writers.Go(func() {
			if _, err := log.AppendUnordered(t.Context(), "default", uri, numbered(i, i+20), []string{parent}); err != nil {
				t.Error(err)
			}
		})
	}
	writers.Wait()
	want := []string{}
	for _, e := range numbered(0, 210) {
		want = append(want, e.ID)
	}
	slices.Sort(want)
	expect.List(t, "the events", read(t, log, log.PartitionsOf("default", uri, true)), want)
	expect.Equal(t, "events of the parent", len(read(t, log, eventlog.PatternPartitions("default", parent))), 200)
	expect.Equal(t, "the number of partitions", len(db.partitions), 1+2*eventlog.Shards)
	latest := expect.Value(log.Latest(t.Context(), "default", uri, true, 5))(t)
	expect.Len(t, "the latest", latest, 5)
}

// A batch of one group costs a read and a write, like a batch of an ordered URI, and one more write for each pattern with readers.
func TestCostOfAnUnorderedBatch(t *testing.T) {
	db, log := logOf(t)
	var batch []event.Event
	for _, e := range numbered(0, 1000) { // of one of 16 groups
		if len(batch) < 10 && fnv32(e.ID)%16 == 3 {
			batch = append(batch, e)
		}
	}
	add := func(what string, events []event.Event, patterns []string, unrecorded bool) {
		t.Helper()
		done := expect.Value(log.AppendUnordered(t.Context(), "default", uri, events, patterns))(t)
		expect.Equal(t, what+": Unrecorded", done.Unrecorded, unrecorded)
	}
	add("a shard", batch, []string{"event://ci/**"}, true)
	writes := 0
	for _, n := range db.partitions {
		writes += n
	}
	expect.Equal(t, "the reads", db.reads, 1)
	expect.Equal(t, "the writes", writes, 2)
	add("shards without an event of today", numbered(2000, 2100), nil, true)
	add("shards with one", numbered(3000, 3010), nil, false)
	add("a repeated batch", numbered(3000, 3010), nil, true)
	expect.Equal(t, "events in the log", len(read(t, log, log.PartitionsOf("default", uri, true))), 120)
}

func fnv32(s string) uint32 {
	h := fnv.New32a()
	h.Write([]byte(s))
	return h.Sum32()
}

// A function may run for seconds only. If the time of a batch grew with its size, a slow store would keep a full batch from
// ever being appended.
func TestGivenAStoreWithSlowWritesWhenAFullBatchIsAppendedToPatternsThenItTakesHardlyLongerThanOneEvent(t *testing.T) {
	patterns := []string{"event://ci/**", "event://**", "event://ci/*"}
	for name, ofType := range map[string]bool{"an ordered event type": false, "an unordered event type": true} {
		t.Run("EVX-26 "+name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				db := memory(t)
				log := &eventlog.Log{DB: storetest.Slow{Unordered: storetest.Unordered{DB: db}, Took: 300 * time.Millisecond}}
				began := time.Now()
				expect.OK(t, log.AppendPatterns(t.Context(), eventlog.Appended{}, numbered(0, 10), patterns, ofType))
				expect.AtMost(t, "the time of 10 events, hardly more than the 300ms of one write", time.Since(began), 599*time.Millisecond)
				for _, p := range patterns {
					expect.Equal(t, fmt.Sprintf("events of %s", p), len(read(t, log, eventlog.PatternPartitions("default", p))), 10)
				}
			})
		})
	}
}

// The queue spreads an unordered event type over several groups. After a crash or a lost response a group's batch comes again,
// and another group may have appended to the log meanwhile.
func TestABatchOfAnUnorderedTypeThatComesAgainAfterAnotherOneIsInTheLogOnce(t *testing.T) {
	log := &eventlog.Log{DB: memory(t)}
	published := time.Now().Add(-time.Hour)
	group := func(ids ...string) (events []event.Event) {
		for _, id := range ids {
			events = append(events, event.Event{Workspace: "default", ID: id, URI: uri, Data: []byte(`{}`), Published: published})
		}
		return events
	}
	reused := group("a1")
	reused[0].Published = published.Add(6 * time.Minute) // so it is another event
	for _, batch := range [][]event.Event{group("a1", "a2"), group("b1"), group("a1", "a2", "a3"), group("b1"), reused, group("b2"), reused} {
		expect.OK(t, expect.ErrOf(log.AppendUnordered(t.Context(), "default", uri, batch, nil)))
	}
	got := read(t, log, log.PartitionsOf("default", uri, true))
	expect.List(t, "EVX-26: the log", got, []string{"a1", "a1", "a2", "a3", "b1", "b2"})
}

// panicking panics when a segment is written.
type panicking struct{ *stamping }

func (panicking) Write(context.Context, ...store.Op) error { panic("a defect") }

func TestAPanicInAWriterIsAnErrorOfItsBatch(t *testing.T) {
	s, _ := logOf(t)
	log := &eventlog.Log{DB: panicking{s}}
	events := numbered(0, 3)
	for name, write := range map[string]func() error{
		"unordered": func() error { _, err := log.AppendUnordered(t.Context(), "default", uri, events, nil); return err },
		"pattern copies": func() error {
			return log.AppendPatterns(t.Context(), eventlog.Appended{}, events, []string{"event://*"}, true)
		},
	} {
		expect.Error(t, name, write(), "panic: a defect")
	}
}
