package stream_test

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mcp-events/mcpevents/shared/event"
	"github.com/mcp-events/mcpevents/shared/eventlog"
	"github.com/mcp-events/mcpevents/shared/fault"
	"github.com/mcp-events/mcpevents/shared/store"
	"github.com/mcp-events/mcpevents/shared/store/sqlite"
	"github.com/mcp-events/mcpevents/shared/stream"
	"github.com/mcp-events/mcpevents/shared/subscription"
)

// stumbling is a store whose reads fail while it is told to.
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

func embedded(t *testing.T) (*sqlite.DB, *eventlog.Sealer) {
	t.Helper()
	db, err := sqlite.Open(sqlite.Memory, sqlite.Options{SweepEvery: -1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	sealer, err := eventlog.NewSealer(make([]byte, 32))
	if err != nil {
		t.Fatal(err)
	}
	return db, sealer
}

// next is the id of what comes within the time given, or nothing.
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
		db, sealer := embedded(t)
		s := &stumbling{DB: db}
		log := &eventlog.Log{DB: s}
		tails := stream.New(log, s, sealer)
		defer tails.Close()
		f, err := tails.Open(t.Context(), stream.Request{Workspace: "default", Patterns: []subscription.Pattern{ownPattern}})
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if id := next(t, f, time.Second); id != "" {
			t.Fatalf("got %s before anything was published", id)
		}
		writer := &eventlog.Log{DB: db}
		s.fails.Store(1)
		if _, err := writer.Append(t.Context(), "default", ownPattern.Key, []event.Event{occurrence("a", ownPattern.Key)}, nil); err != nil {
			t.Fatal(err)
		}
		if id := next(t, f, 5*time.Second); id != "a" {
			t.Errorf("got %q, want a", id)
		}
	})
}

// With a short retention the interest of an open stream must not lapse.
func TestAnOpenStreamKeepsItsInterest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db, sealer := embedded(t)
		log := &eventlog.Log{DB: db, Retention: time.Minute}
		tails := stream.New(log, db, sealer)
		defer tails.Close()
		f, err := tails.Open(t.Context(), stream.Request{Workspace: "default", Patterns: []subscription.Pattern{parentPattern}})
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		for range 30 {
			time.Sleep(10 * time.Second)
			items, err := db.Get(t.Context(), eventlog.InterestKey("default", parentPattern.Key))
			if err != nil {
				t.Fatal(err)
			}
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
