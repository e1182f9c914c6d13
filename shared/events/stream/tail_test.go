package stream_test

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/events/catalog"
	"github.com/mcp-events/mcpevents/shared/events/demand"
	"github.com/mcp-events/mcpevents/shared/events/event"
	eventlog "github.com/mcp-events/mcpevents/shared/events/log"
	"github.com/mcp-events/mcpevents/shared/events/match"
	"github.com/mcp-events/mcpevents/shared/events/stream"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/storage/store"
	"github.com/mcp-events/mcpevents/shared/storage/store/sqlite"
	"github.com/mcp-events/mcpevents/shared/storage/store/storetest"
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
	return expect.Value(eventlog.NewSealer(make([]byte, 32)))(t)
}

func embedded(t *testing.T) store.DB {
	t.Helper()
	db := expect.Value(sqlite.Open(sqlite.Memory, sqlite.Options{SweepEvery: -1}))(t)
	t.Cleanup(func() { _ = db.Close() })
	return db
}

// slowest returns a store like DynamoDB, whose writes take up to the given time.
func slowest(d time.Duration) func(*testing.T) store.DB {
	return func(t *testing.T) store.DB {
		return dynamo{storetest.Unordered{DB: embedded(t)}, func(string) time.Duration { return upTo(d) }}
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
	return expect.Value(r.tails.Poll(r.t.Context(), request))(r.t)
}

// append puts events of one URI into the log, and where they are looked for by patterns.
func (r *rig) append(events []event.Event, patterns ...string) {
	r.t.Helper()
	expect.OK(r.t, expect.ErrOf(r.log.Append(r.t.Context(), "default", events[0].URI, events, patterns)))
}

// start returns the cursor with which a new stream of patterns begins.
func (r *rig) start(patterns ...match.Pattern) (cursor string) {
	r.t.Helper()
	f := r.open(from("", patterns...))
	defer f.Close()
	return f.Cursor()
}

// idsOf returns the ids of the events of a page.
func idsOf(page *stream.Page) (ids []string) {
	for _, e := range page.Events {
		ids = append(ids, e.ID)
	}
	return ids
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
		expect.MustEqual(t, "the event before anything was published", next(t, f, time.Second), "")
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
			expect.AtLeast(t, "the time for which the interest lasts", time.Until(eventlog.ReadInterest(items[0]).Until), 10*time.Second)
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

// dynamo is a store like DynamoDB as the log sees it: not ordered, with small pages, and with puts that take their time.
type dynamo struct {
	storetest.Unordered
	delay func(partition string) time.Duration
}

func (d dynamo) Query(ctx context.Context, q store.Query) (store.Page, error) {
	q.Limit = min(q.Limit, 3) // polls take several pages
	return d.DB.Query(ctx, q)
}

func (d dynamo) Write(ctx context.Context, ops ...store.Op) error {
	for _, op := range ops {
		if op.Kind == store.OpPut {
			time.Sleep(d.delay(op.Item.Partition))
		}
	}
	return d.DB.Write(ctx, ops...)
}

func (d dynamo) WriteAll(ctx context.Context, ops ...store.Op) error { return d.Write(ctx, ops...) }

// upTo returns a random time below d.
func upTo(d time.Duration) time.Duration { return time.Duration(rand.Int64N(int64(d))) }

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
	filters := map[string]func(*event.Event) bool{
		"": nil, " with a filter": func(e *event.Event) bool { return !strings.HasSuffix(e.ID, "0") },
	}
	for name, open := range bothStores() {
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
					expect.MustEqual(t, "the committed events", len(published), 40*len(uris))
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
					if skipped > 0 || repeated > 0 && r.db.Local() {
						t.Errorf("of %d events, polls skipped %d and repeated %d, want 0 and 0", len(published), skipped, repeated)
					}
				})
			}
		}
	}
}

// GWN-21: given an open stream of events that a backend sends to its caller, when the backend has refused the caller's token, then
// the stream ends, so that its client presents a token again. The streams of other principals stay open.
func TestAStreamEndsWithItsToken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := over(t, embedded(t))
		d := demand.New(r.db)
		d.Start, d.Key = time.Nanosecond, func(context.Context) ([]byte, error) { return []byte("the key of the deployment"), nil }
		r.tails.Demand = d
		uri := func(principal string) string { return "event://~mail/received/e30." + catalog.CallerID(principal) }
		open := func(principal, token, cursor string) *stream.Feed {
			return expect.Value(r.tails.Open(auth.WithToken(t.Context(), auth.Token{Header: token}), stream.Request{
				Workspace: "default", Principal: principal, Patterns: []match.Pattern{{Kind: match.Concrete, Key: uri(principal)}}, Cursor: cursor, Sole: true,
			}))(t)
		}
		alice, bob := open("alice", "Bearer first", ""), open("bob", "Bearer bobs", "")
		defer bob.Close()
		time.Sleep(2 * demand.RenewEvery) // a stream renews its demand without a token
		expect.Equal(t, "alice's events", next(t, alice, time.Second), "")
		expect.OK(t, d.DropToken(t.Context(), "default", uri("alice"), auth.Token{Header: "Bearer first"}))
		ctx, cancel := context.WithTimeout(t.Context(), 2*demand.RenewEvery)
		defer cancel()
		if _, err := await(ctx, alice); !errors.Is(err, stream.ErrToken) {
			t.Fatalf("alice's stream ends with %v, want %v", err, stream.ErrToken)
		}
		cursor := alice.Cursor()
		alice.Close()
		r.append([]event.Event{occurrence("a", uri("alice"))})
		again := open("alice", "Bearer second", cursor)
		defer again.Close()
		expect.Equal(t, "the event between alice's streams", next(t, again, time.Second), "a")
		expect.Equal(t, "alice's token", expect.Value(d.LoadToken(t.Context(), "default", uri("alice")))(t).Header, "Bearer second")
		r.append([]event.Event{occurrence("b", uri("bob"))})
		expect.Equal(t, "bob's event", next(t, bob, time.Minute), "b")
	})
}

// GWN-21: given open streams of two principals for the same events of a backend, when one of them closes its stream, then only the
// demand of the other one is renewed.
func TestAStreamRenewsTheDemandOfItsPrincipal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const uri = "event://~mail/received/e30"
		r := over(t, embedded(t))
		d := demand.New(r.db)
		d.Start = time.Nanosecond
		r.tails.Demand = d
		open := func(principal string) *stream.Feed {
			return r.open(stream.Request{Principal: principal, Patterns: []match.Pattern{{Kind: match.Concrete, Key: uri}}})
		}
		check := func(when string, principals ...string) {
			t.Helper()
			got := expect.Value(d.ListWanted(t.Context(), "default", "mail"))(t)[uri]
			var want []string
			for _, p := range principals {
				want = append(want, catalog.CallerID(p))
			}
			slices.Sort(want)
			if slices.Sort(got); !slices.Equal(got, want) {
				t.Errorf("%s, the events are wanted by %v, want %v: %v", when, got, principals, want)
			}
		}
		alice, bob := open("alice"), open("bob")
		time.Sleep(time.Hour)
		check("with both streams", "alice", "bob")
		alice.Close()
		time.Sleep(time.Hour)
		check("without alice's stream", "bob")
		bob.Close()
		time.Sleep(time.Hour)
		check("without streams")
	})
}
