package stream_test

import (
	"context"
	"fmt"
	"hash/fnv"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/shared/events/event"
	eventlog "github.com/mcp-events/mcpevents/shared/events/log"
	"github.com/mcp-events/mcpevents/shared/events/match"
	"github.com/mcp-events/mcpevents/shared/events/stream"
	"github.com/mcp-events/mcpevents/shared/storage/store"
	"github.com/mcp-events/mcpevents/test/expect"
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
		expect.Equal(t, "tails after a poll", r.tails.Running(), 0)
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
	expect.Equal(t, "events that all polls together looked at", looked, 100)
}

// interleaved is a store in which publishers commit an event to every shard of a pattern after each read of one of them.
// So no two shards are read at the same moment.
type interleaved struct {
	store.DB
	turn    chan struct{} // of the bubble, unlike a mutex, so that its clock runs while a commit takes its time
	rounds  int           // how many more reads are followed by commits
	publish func()
}

func (s *interleaved) Query(ctx context.Context, q store.Query) (store.Page, error) {
	s.turn <- struct{}{}
	defer func() { <-s.turn }()
	page, err := s.DB.Query(ctx, q)
	if err == nil && s.rounds > 0 && strings.HasPrefix(q.Partition, "w#") && !q.Reverse {
		s.rounds--
		s.publish()
	}
	return page, err
}

// uriPerShard returns one URI for each shard of [openPattern].
func uriPerShard() (uris []string) {
	found := map[uint32]bool{}
	for i := 0; len(uris) < eventlog.Shards; i++ {
		uri := fmt.Sprintf("event://sim/%d", i)
		h := fnv.New32a()
		h.Write([]byte(uri))
		if shard := h.Sum32() % eventlog.Shards; !found[shard] {
			found[shard] = true
			uris = append(uris, uri)
		}
	}
	return uris
}

// A chain of polls returns every event of a wildcard although events are committed between the reads of its shards:
// SQLite exactly once, and a store in which writers stamp at least once.
func TestPollsOfAWildcardWhileEventsAreCommittedBetweenTheReadsOfItsShards(t *testing.T) {
	stores := map[string]func(*testing.T) store.DB{
		"SQLite": embedded, "stamped by writers": slowest(20 * time.Millisecond),
	}
	filters := map[string]func(*event.Event) bool{
		"": nil, " with a filter": func(e *event.Event) bool { return !strings.HasSuffix(e.ID, "0") },
	}
	for name, open := range stores {
		for filter, wants := range filters {
			for _, most := range []int{1, 3, 500} {
				bubble(t, fmt.Sprintf("EVX-26 %s, pages of %d%s", name, most, filter), func(t *testing.T) {
					db := &interleaved{DB: open(t), turn: make(chan struct{}, 1)}
					r := over(t, db)
					uris := uriPerShard()
					var published []string
					db.publish = func() {
						for _, uri := range uris {
							e := occurrence(fmt.Sprint(len(published)), uri)
							if wants == nil || wants(&e) {
								published = append(published, e.ID)
							} else {
								published = append(published, "")
							}
							if _, err := (&eventlog.Log{DB: db.DB}).Append(t.Context(), "default", uri, []event.Event{e}, []string{openPattern.Key}); err != nil {
								t.Error(err)
							}
						}
					}
					request := stream.PollRequest{Pattern: openPattern, Most: most, Bytes: 1 << 20, Wants: wants}
					request.Cursor = r.poll(request).Cursor
					db.rounds = 40

					got := map[string]int{}
					for quiet := 0; quiet < 2; {
						page := r.poll(request)
						for _, e := range page.Events {
							got[e.ID]++
						}
						request.Cursor = page.Cursor
						if quiet++; len(page.Events) > 0 || page.More {
							quiet = 0
						} else {
							time.Sleep(2 * eventlog.Window)
						}
					}
					if len(published) != 40*len(uris) {
						t.Fatalf("the publishers committed %d events, want %d", len(published), 40*len(uris))
					}
					skipped, repeated := 0, 0
					for _, id := range published {
						if id == "" {
							continue
						}
						if got[id] == 0 {
							skipped++
						}
						repeated += max(0, got[id]-1)
					}
					if skipped > 0 || repeated > 0 && r.db.Stamps() {
						t.Errorf("of %d events, polls skipped %d and repeated %d, want 0 and 0", len(published), skipped, repeated)
					}
				})
			}
		}
	}
}
