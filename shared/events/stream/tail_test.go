package stream_test

import (
	"context"
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

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func sealer(t *testing.T) *eventlog.Sealer {
	t.Helper()
	s, err := eventlog.NewSealer(make([]byte, 32))
	must(t, err)
	return s
}

func embedded(t *testing.T) store.DB {
	t.Helper()
	db, err := sqlite.Open(sqlite.Memory, sqlite.Options{SweepEvery: -1})
	must(t, err)
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
	page, err := r.tails.Poll(r.t.Context(), request)
	must(r.t, err)
	return page
}

// append puts events of one URI into the log, and where they are looked for by patterns.
func (r *rig) append(events []event.Event, patterns ...string) {
	r.t.Helper()
	_, err := r.log.Append(r.t.Context(), "default", events[0].URI, events, patterns)
	must(r.t, err)
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
		if id := next(t, f, 5*time.Second); id != "a" {
			t.Errorf("got %q, want a", id)
		}
	})
}

// With a short retention the interest of an open stream must not lapse.
func TestAnOpenStreamKeepsItsInterest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := embedded(t)
		defer reading(t, db, &eventlog.Log{DB: db, Retention: time.Minute}).open(from("", parentPattern)).Close()
		for range 30 {
			time.Sleep(10 * time.Second)
			items, err := db.Get(t.Context(), eventlog.InterestKey("default", parentPattern.Key))
			must(t, err)
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
