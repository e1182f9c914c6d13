package stream_test

import (
	"context"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mcp-events/mcpevents/shared/events/event"
	eventlog "github.com/mcp-events/mcpevents/shared/events/log"
	"github.com/mcp-events/mcpevents/shared/events/match"
	"github.com/mcp-events/mcpevents/shared/events/stream"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/storage/store"
	"github.com/mcp-events/mcpevents/shared/storage/store/sqlite"
	"github.com/mcp-events/mcpevents/test/expect"
)

// stumbling is a store whose reads can be made to fail.
type stumbling struct {
	*sqlite.DB
	fails atomic.Int32
}

func (s *stumbling) Query(ctx context.Context, q store.Query) (store.Page, error) {
	if s.fails.Load() > 0 {
		s.fails.Add(-1)
		return store.Page{}, fault.New(fault.Unavailable, "no answer")
	}
	return s.DB.Query(ctx, q)
}

// rig is a log over a store, with tails that read it.
type rig struct {
	t     *testing.T
	db    store.DB
	log   *eventlog.Log
	tails *stream.Tails
}

func over(t *testing.T, db store.DB) *rig {
	t.Helper()
	return reading(t, db, &eventlog.Log{DB: db})
}

func reading(t *testing.T, db store.DB, log *eventlog.Log) *rig {
	t.Helper()
	r := &rig{t: t, db: db, log: log, tails: stream.New(log, db, sealer(t))}
	t.Cleanup(r.tails.Close)
	return r
}

func sealer(t *testing.T) *eventlog.Sealer {
	t.Helper()
	s := expect.Value(eventlog.NewSealer(make([]byte, 32)))(t)
	return s
}

func embedded(t *testing.T) store.DB {
	t.Helper()
	db := expect.Value(sqlite.Open(sqlite.Memory, sqlite.Options{SweepEvery: -1}))(t)
	t.Cleanup(func() { _ = db.Close() })
	return db
}

// slowest returns a store like DynamoDB, whose writes take up to the given time.
func slowest(d time.Duration) func(*testing.T) store.DB {
	return func(*testing.T) store.DB {
		return &memory{items: map[string][]store.Item{}, delay: func(string) time.Duration { return upTo(d) }}
	}
}

// open opens a feed that has no gap.
func (r *rig) open(request stream.Request) *stream.Feed {
	r.t.Helper()
	request.Workspace = "default"
	f, err := r.tails.Open(r.t.Context(), request)
	if err != nil || f.Truncated {
		r.t.Fatal(f.Truncated, err)
	}
	return f
}

// from returns a request for patterns, from a cursor on.
func from(cursor string, patterns ...match.Pattern) stream.Request {
	return stream.Request{Patterns: patterns, Cursor: cursor}
}

func (r *rig) poll(request stream.PollRequest) *stream.Page {
	r.t.Helper()
	request.Workspace = "default"
	page := expect.Value(r.tails.Poll(r.t.Context(), request))(r.t)
	return page
}

// append puts events of one URI into the log, and where they are looked for by patterns.
func (r *rig) append(events []event.Event, patterns ...string) {
	r.t.Helper()
	_, err := r.log.Append(r.t.Context(), "default", events[0].URI, events, patterns)
	expect.OK(r.t, err)
}

// next returns the id of the next event within the given time, or "".
func next(t *testing.T, f *stream.Feed, within time.Duration) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	d, err := await(ctx, f)
	if err != nil {
		return ""
	}
	return d.Event.ID
}

func TestATailReadsAgainWhatItCouldNotRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &stumbling{DB: embedded(t).(*sqlite.DB)}
		f := over(t, s).open(from("", ownPattern))
		defer f.Close()
		if id := next(t, f, time.Second); id != "" {
			t.Fatalf("got %s before anything was published", id)
		}
		s.fails.Store(1)
		over(t, s.DB).append([]event.Event{occurrence("a", ownPattern.Key)})
		expect.Equal(t, "the event of the stream", next(t, f, 5*time.Second), "a")
	})
}

// With a short retention the interest of an open stream must not lapse.
func TestAnOpenStreamKeepsItsInterest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := embedded(t)
		defer reading(t, db, &eventlog.Log{DB: db, Retention: time.Minute}).open(from("", parentPattern)).Close()
		for range 30 {
			time.Sleep(10 * time.Second)
			items := expect.Value(db.Get(t.Context(), eventlog.InterestKey("default", parentPattern.Key)))(t)
			if left := time.Until(eventlog.ReadInterest(items[0]).Until); left < 10*time.Second {
				t.Fatalf("the interest lasts another %v", left)
			}
		}
	})
}

// await waits for the next delivery of a feed.
func await(ctx context.Context, f *stream.Feed) (stream.Delivery, error) {
	for {
		if d, ok, err := f.Poll(ctx); ok || err != nil {
			return d, err
		}
		select {
		case <-f.Ready():
		case <-ctx.Done():
			return stream.Delivery{}, ctx.Err()
		}
	}
}

// bubble runs a subtest that has a clock of its own.
func bubble(t *testing.T, name string, f func(t *testing.T)) {
	t.Run(name, func(t *testing.T) { synctest.Test(t, f) })
}

// memory is a store like DynamoDB as the log sees it: strongly consistent, not
// ordered, small pages, and a put that may take its time before it is there.
type memory struct {
	mu    sync.Mutex
	items map[string][]store.Item // partition, sorted
	delay func(partition string) time.Duration
}

func (m *memory) Stamps() bool { return false }
func (m *memory) Local() bool  { return false }
func (m *memory) End() int64   { return 0 }
func (m *memory) Close() error { return nil }

func (m *memory) Get(_ context.Context, keys ...store.Key) ([]*store.Item, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := make([]*store.Item, len(keys))
	for i, k := range keys {
		for _, it := range m.items[k.Partition] {
			if it.Sort == k.Sort {
				out[i] = &it
			}
		}
	}
	return out, nil
}

func (m *memory) Query(_ context.Context, q store.Query) (store.Page, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var page store.Page
	items := m.items[q.Partition]
	if q.Reverse {
		items = slices.Clone(items)
		slices.Reverse(items)
	}
	for _, it := range items {
		if it.Sort <= q.After || q.Until != "" && it.Sort > q.Until {
			continue
		}
		if len(page.Items) == min(q.Limit, 3) { // polls take several pages
			page.More = true
			break
		}
		page.Items = append(page.Items, it)
		page.Last = it.Sort
	}
	return page, nil
}

func (m *memory) Write(ctx context.Context, ops ...store.Op) error {
	for _, op := range ops {
		if op.Kind == store.OpPut {
			time.Sleep(m.delay(op.Item.Partition))
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, op := range ops {
		items := m.items[op.Item.Partition]
		i, found := slices.BinarySearchFunc(items, op.Item.Sort, func(it store.Item, s string) int { return strings.Compare(it.Sort, s) })
		switch kind, version := op.Cond.Unpack(); {
		case kind == "absent" && found, kind == "version" && (!found || items[i].Version != version):
			return store.ErrConflict
		}
		it := op.Item
		if op.Kind == store.OpRaise && found {
			it = items[i]
			it.Counts = op.Item.Counts
		}
		if found {
			items[i] = it
		} else {
			m.items[it.Partition] = slices.Insert(items, i, it)
		}
	}
	return nil
}

func (m *memory) WriteAll(ctx context.Context, ops ...store.Op) error { return m.Write(ctx, ops...) }

// upTo returns a random time below d.
func upTo(d time.Duration) time.Duration { return time.Duration(rand.Int64N(int64(d))) }
