package stream_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/mcp-events/mcpevents/shared/event"
	"github.com/mcp-events/mcpevents/shared/eventlog"
	"github.com/mcp-events/mcpevents/shared/store"
	"github.com/mcp-events/mcpevents/shared/stream"
	"github.com/mcp-events/mcpevents/shared/subscription"
)

var openPattern = subscription.Pattern{
	Kind: subscription.Wildcard, Key: "event://sim/*", Entry: "sim",
	Shape: subscription.Shape{Scope: "entry:sim", Name: "m1"},
}

// counting counts what is asked of a store.
type counting struct {
	store.DB
	reads, writes atomic.Int64
}

func (c *counting) Get(ctx context.Context, keys ...store.Key) ([]*store.Item, error) {
	c.reads.Add(1)
	return c.DB.Get(ctx, keys...)
}

func (c *counting) Query(ctx context.Context, q store.Query) (store.Page, error) {
	c.reads.Add(1)
	return c.DB.Query(ctx, q)
}

func (c *counting) Write(ctx context.Context, ops ...store.Op) error {
	c.writes.Add(1)
	return c.DB.Write(ctx, ops...)
}

// EVX-05: an empty poll of one URI is one read of the store and no write; one of a
// wildcard is a read for each partition, and writes only now and then.
func TestWhatAnEmptyPollCosts(t *testing.T) {
	db, sealer := embedded(t)
	count := &counting{DB: db}
	log := &eventlog.Log{DB: count}
	tails := stream.New(log, count, sealer)
	defer tails.Close()
	for _, tc := range []struct {
		pattern      subscription.Pattern
		first, later int64 // reads
		writes       int64 // of the first
	}{
		{ownPattern, 0, 1, 0},
		{unorderedPattern, 0, 1, 0}, // an ordered store has one writer in any case
		{openPattern, 2, eventlog.Shards, 2},
	} {
		cursor := ""
		for n := range 5 {
			count.reads.Store(0)
			count.writes.Store(0)
			page, err := tails.Poll(t.Context(), stream.PollRequest{Workspace: "default", Pattern: tc.pattern, Cursor: cursor, Most: 50, Bytes: 1 << 20})
			if err != nil {
				t.Fatal(err)
			}
			cursor = page.Cursor
			reads, writes := tc.later, int64(0)
			if n == 0 {
				reads, writes = tc.first, tc.writes
			}
			if r, w := count.reads.Load(), count.writes.Load(); r != reads || w != writes {
				t.Errorf("poll %d of %s: %d reads and %d writes, want %d and %d", n, tc.pattern.Key, r, w, reads, writes)
			}
		}
		if n := tails.Running(); n != 0 {
			t.Errorf("a poll left %d tails", n)
		}
	}
}

// EVX-05: what the filters drop moves the cursor all the same, and no poll looks at more
// than its bound.
func TestAPollGoesPastWhatItDoesNotWant(t *testing.T) {
	db, sealer := embedded(t)
	log := &eventlog.Log{DB: db}
	tails := stream.New(log, db, sealer)
	defer tails.Close()
	request := stream.PollRequest{
		Workspace: "default", Pattern: ownPattern, Most: 50, Bytes: 1 << 20,
		Wants: func(e *event.Event) bool { return e.ID == "wanted" },
	}
	page, err := tails.Poll(t.Context(), request)
	if err != nil {
		t.Fatal(err)
	}
	var events []event.Event
	for i := range 5000 {
		events = append(events, occurrence(fmt.Sprint(i), ownPattern.Key))
	}
	events = append(events, occurrence("wanted", ownPattern.Key))
	for part := range slices.Chunk(events, 100) {
		if _, err := log.Append(t.Context(), "default", ownPattern.Key, part, nil); err != nil {
			t.Fatal(err)
		}
	}
	polls := 0
	for page.More = true; page.More; polls++ {
		request.Cursor = page.Cursor
		if page, err = tails.Poll(t.Context(), request); err != nil {
			t.Fatal(err)
		}
	}
	if polls != 3 || len(page.Events) != 1 || page.Events[0].ID != "wanted" {
		t.Errorf("after %d polls: %+v", polls, page)
	}
}

// EVX-05: large payloads count by their bytes, so that no poll filters for seconds.
func TestAPollLooksAtFewLargePayloads(t *testing.T) {
	db, sealer := embedded(t)
	log := &eventlog.Log{DB: db}
	tails := stream.New(log, db, sealer)
	defer tails.Close()
	looked := 0
	request := stream.PollRequest{
		Workspace: "default", Pattern: ownPattern, Most: 50, Bytes: 1 << 20,
		Wants: func(*event.Event) bool { looked++; return false },
	}
	page, err := tails.Poll(t.Context(), request)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 100 {
		e := occurrence(fmt.Sprint(i), ownPattern.Key)
		e.Data = []byte(`"` + strings.Repeat("a", 200<<10) + `"`)
		if _, err := log.Append(t.Context(), "default", ownPattern.Key, []event.Event{e}, nil); err != nil {
			t.Fatal(err)
		}
	}
	request.Cursor = page.Cursor
	if page, err = tails.Poll(t.Context(), request); err != nil {
		t.Fatal(err)
	}
	if looked != 41 || !page.More || len(page.Events) > 0 {
		t.Errorf("a poll looked at %d events of 200 KiB, want 8 MiB's worth; more is %v", looked, page.More)
	}
	for page.More {
		request.Cursor = page.Cursor
		if page, err = tails.Poll(t.Context(), request); err != nil {
			t.Fatal(err)
		}
	}
	if looked != 100 {
		t.Errorf("all polls together looked at %d events, want 100", looked)
	}
}
