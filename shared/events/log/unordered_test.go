package eventlog_test

import (
	"context"
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
	"github.com/mcp-events/mcpevents/shared/storage/store"
	"github.com/mcp-events/mcpevents/test/expect"
)

// stamping is a store whose writers stamp, as DynamoDB's, and that counts what it is asked.
type stamping struct {
	store.DB
	mu         sync.Mutex
	reads      int
	partitions map[string]int // segments written
}

func (s *stamping) Stamps() bool { return false }
func (s *stamping) Local() bool  { return false }
func (s *stamping) End() int64   { return 0 }

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
	s := &stamping{DB: db, partitions: map[string]int{}}
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
		var at int64
		for more := true; more; {
			var entries []eventlog.Entry
			var err error
			if entries, more, at, err = log.Read(t.Context(), p, at, 3); err != nil {
				t.Fatal(err)
			}
			for _, e := range entries {
				ids = append(ids, e.Event.ID)
			}
		}
	}
	slices.Sort(ids)
	return ids
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
	if got := read(t, log, log.Of("default", uri, true)); !slices.Equal(got, want) {
		t.Errorf("%d events are read, want 210: %v", len(got), got)
	}
	expect.Equal(t, "events of the parent", len(read(t, log, eventlog.Pattern("default", parent))), 200)
	expect.Equal(t, "the number of partitions", len(db.partitions), 1+2*eventlog.Shards)
	latest, err := log.Latest(t.Context(), "default", uri, true, 5)
	if err != nil || len(latest) != 5 {
		t.Errorf("the latest are %v, %v", latest, err)
	}
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
	done, err := log.AppendUnordered(t.Context(), "default", uri, batch, []string{"event://ci/**"})
	if err != nil || !done.First {
		t.Fatalf("got %+v, %v", done, err)
	}
	writes := 0
	for _, n := range db.partitions {
		writes += n
	}
	if db.reads != 1 || writes != 2 {
		t.Errorf("%d reads and %d writes, want 1 and 2", db.reads, writes)
	}
	if done, err = log.AppendUnordered(t.Context(), "default", uri, numbered(2000, 2100), nil); err != nil || !done.First {
		t.Errorf("shards without an event of today: got %+v, %v", done, err)
	}
	if done, err = log.AppendUnordered(t.Context(), "default", uri, numbered(3000, 3010), nil); err != nil || done.First {
		t.Errorf("shards with one: got %+v, %v", done, err)
	}
	if done, err = log.AppendUnordered(t.Context(), "default", uri, numbered(3000, 3010), nil); err != nil || !done.First {
		t.Errorf("a repeated batch: got %+v, %v, want First", done, err)
	}
	expect.Equal(t, "events in the log", len(read(t, log, log.Of("default", uri, true))), 120)
}

func fnv32(s string) uint32 {
	h := fnv.New32a()
	h.Write([]byte(s))
	return h.Sum32()
}

// patient is a store like DynamoDB whose writes take a while.
type patient struct {
	unordered
	took time.Duration
}

func (p patient) Write(ctx context.Context, ops ...store.Op) error {
	time.Sleep(p.took)
	return p.unordered.Write(ctx, ops...)
}

// A function may run for seconds only. If the time of a batch grew with its size, a slow store would keep a full batch from
// ever being appended.
func TestGivenAStoreWithSlowWritesWhenAFullBatchIsAppendedToPatternsThenItTakesHardlyLongerThanOneEvent(t *testing.T) {
	patterns := []string{"event://ci/**", "event://**", "event://ci/*"}
	for name, ofType := range map[string]bool{"an ordered event type": false, "an unordered event type": true} {
		t.Run("EVX-26 "+name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				db := memory(t)
				log := &eventlog.Log{DB: patient{unordered: unordered{db}, took: 300 * time.Millisecond}}
				began := time.Now()
				expect.OK(t, log.AppendPatterns(t.Context(), eventlog.Appended{}, numbered(0, 10), patterns, ofType))
				if took := time.Since(began); took >= 600*time.Millisecond {
					t.Errorf("10 events and %d patterns took %v, want hardly more than the 300ms of one write", len(patterns), took)
				}
				for _, p := range patterns {
					expect.Equal(t, fmt.Sprintf("events of %s", p), len(read(t, log, eventlog.Pattern("default", p))), 10)
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
	got := read(t, log, log.Of("default", uri, true))
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
		if err := write(); err == nil || !strings.Contains(err.Error(), "panic: a defect") {
			t.Errorf("%s: got %v, want the panic as an error", name, err)
		}
	}
}
