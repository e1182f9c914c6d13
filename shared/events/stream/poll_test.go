package stream_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/mcp-events/mcpevents/shared/events/event"
	eventlog "github.com/mcp-events/mcpevents/shared/events/log"
	"github.com/mcp-events/mcpevents/shared/events/match"
	"github.com/mcp-events/mcpevents/shared/events/stream"
	"github.com/mcp-events/mcpevents/shared/storage/store"
)

var openPattern = match.Pattern{
	Kind: match.Wildcard, Key: "event://sim/*", Entry: "sim",
	Shape: match.Shape{Scope: "entry:sim", Name: "m1"},
}

// counting is a store that counts its reads and writes.
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

// EVX-05: an empty poll of one URI costs one read of the store and no write. An empty poll of a wildcard costs a read per partition,
// and an occasional write.
func TestCostOfAnEmptyPoll(t *testing.T) {
	count := &counting{DB: embedded(t)}
	r := over(t, count)
	for _, tc := range []struct {
		pattern      match.Pattern
		first, later int64 // reads
		writes       int64 // of the first
	}{
		{ownPattern, 0, 1, 0},
		{unorderedPattern, 0, 1, 0}, // an ordered store has one writer in any case
		{openPattern, 2, eventlog.Shards, 2},
	} {
		cursor := ""
		for i := range 5 {
			count.reads.Store(0)
			count.writes.Store(0)
			cursor = r.poll(stream.PollRequest{Pattern: tc.pattern, Cursor: cursor, Most: 50, Bytes: 1 << 20}).Cursor
			reads, writes := tc.later, int64(0)
			if i == 0 {
				reads, writes = tc.first, tc.writes
			}
			if n, w := count.reads.Load(), count.writes.Load(); n != reads || w != writes {
				t.Errorf("poll %d of %s: %d reads and %d writes, want %d and %d", i, tc.pattern.Key, n, w, reads, writes)
			}
		}
		if n := r.tails.Running(); n != 0 {
			t.Errorf("a poll left %d tails", n)
		}
	}
}

// EVX-05: what the filters drop moves the cursor all the same, and no poll looks at more
// than its bound.
func TestAPollGoesPastWhatItDoesNotWant(t *testing.T) {
	r := over(t, embedded(t))
	request := stream.PollRequest{
		Pattern: ownPattern, Most: 50, Bytes: 1 << 20,
		Wants: func(e *event.Event) bool { return e.ID == "wanted" },
	}
	page := r.poll(request)
	var events []event.Event
	for i := range 5000 {
		events = append(events, occurrence(fmt.Sprint(i), ownPattern.Key))
	}
	events = append(events, occurrence("wanted", ownPattern.Key))
	for part := range slices.Chunk(events, 100) {
		r.append(part)
	}
	polls := 0
	for page.More = true; page.More; polls++ {
		request.Cursor = page.Cursor
		page = r.poll(request)
	}
	if polls != 3 || len(page.Events) != 1 || page.Events[0].ID != "wanted" {
		t.Errorf("after %d polls: %+v", polls, page)
	}
}

// EVX-05: large payloads count by their bytes, so that no poll filters for seconds.
func TestAPollLooksAtFewLargePayloads(t *testing.T) {
	r := over(t, embedded(t))
	looked := 0
	request := stream.PollRequest{
		Pattern: ownPattern, Most: 50, Bytes: 1 << 20,
		Wants: func(*event.Event) bool { looked++; return false },
	}
	page := r.poll(request)
	for i := range 100 {
		e := occurrence(fmt.Sprint(i), ownPattern.Key)
		e.Data = []byte(`"` + strings.Repeat("a", 200<<10) + `"`)
		r.append([]event.Event{e})
	}
	request.Cursor = page.Cursor
	page = r.poll(request)
	if looked != 41 || !page.More || len(page.Events) > 0 {
		t.Errorf("a poll looked at %d events of 200 KiB, want 8 MiB's worth; more is %v", looked, page.More)
	}
	for page.More {
		request.Cursor = page.Cursor
		page = r.poll(request)
	}
	if looked != 100 {
		t.Errorf("all polls together looked at %d events, want 100", looked)
	}
}
