package eventlog_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mcp-events/mcpevents/shared/events/event"
	eventlog "github.com/mcp-events/mcpevents/shared/events/log"
	"github.com/mcp-events/mcpevents/shared/storage/store"
	"github.com/mcp-events/mcpevents/shared/storage/store/storetest"
	"github.com/mcp-events/mcpevents/test/expect"
)

// asked is a store that counts what it is asked.
type asked struct {
	store.DB
	queries, gets int
}

func (a *asked) Query(ctx context.Context, q store.Query) (store.Page, error) {
	a.queries++
	return a.DB.Query(ctx, q)
}

func (a *asked) Get(ctx context.Context, keys ...store.Key) ([]*store.Item, error) {
	a.gets += len(keys)
	return a.DB.Get(ctx, keys...)
}

// TestAnEventIsFoundByItsID: OPS-05.
func TestAnEventIsFoundByItsID(t *testing.T) {
	db := memory(t)
	counts := &asked{DB: db}
	log := &eventlog.Log{DB: counts}
	write := func(uri string, keys []string, ids ...string) {
		t.Helper()
		var events []event.Event
		for i, id := range ids {
			events = append(events, event.Event{Workspace: "default", ID: id, URI: uri, Data: fmt.Append(nil, i)})
		}
		expect.OK(t, expect.ErrOf(log.Append(t.Context(), "default", uri, events, keys)))
	}
	find := func(workspace, id, uri string) *event.Event {
		t.Helper()
		counts.queries, counts.gets = 0, 0
		e, indexed, err := log.ByID(t.Context(), workspace, id, uri)
		if err != nil || !indexed {
			t.Fatalf("the log has an index of ids: %v, want true (error: %v)", indexed, err)
		}
		return e
	}
	for i := range 300 {
		write(fmt.Sprintf("event://ci/%d", i), nil, fmt.Sprintf("e%d", i), fmt.Sprintf("f%d", i))
	}
	t.Run("OPS-05 by one query and one read, among any number of URIs", func(t *testing.T) {
		if e := find("default", "f123", ""); e == nil || e.URI != "event://ci/123" || e.ID != "f123" || string(e.Data) != "1" {
			t.Errorf("got %+v", e)
		}
		expect.Equal(t, "the queries", counts.queries, 1)
		expect.Equal(t, "the reads", counts.gets, 1)
		if e := find("default", "e999", ""); e != nil || counts.queries != 1 || counts.gets != 0 {
			t.Errorf("got %+v by %d queries, %d reads", e, counts.queries, counts.gets)
		}
		expect.Equal(t, "the event in another workspace", find("other", "e1", ""), nil)
	})
	t.Run("OPS-05 the newest of an id, or that of a URI", func(t *testing.T) {
		write("event://ci/1", nil, "same", "same")
		write("event://ci/2", nil, "same")
		for uri, want := range map[string]string{"": "event://ci/2", "event://ci/1": "event://ci/1", "event://ci/2": "event://ci/2"} {
			if e := find("default", "same", uri); e == nil || e.URI != want {
				t.Errorf("of %q got %+v", uri, e)
			}
		}
		expect.Equal(t, "the event of another URI", find("default", "same", "event://ci/3"), nil)
	})
	t.Run("OPS-05 of a batch and patterns that fill more than a transaction", func(t *testing.T) {
		var ids, keys []string
		for i := range 150 {
			ids = append(ids, fmt.Sprintf("b%d", i))
		}
		for i := range 120 {
			keys = append(keys, fmt.Sprintf("event://ci/*/%d", i))
		}
		write("event://ci/batch", keys[:30], ids...)
		write("event://ci/patterns", keys, "p1", "p2")
		for _, id := range append(ids, "p1", "p2") {
			if e := find("default", id, ""); e == nil || e.ID != id {
				t.Fatalf("%s: got %+v", id, e)
			}
		}
	})
}

// TestAnEventIsLookedFor: OPS-05, where writers stamp.
func TestAnEventIsLookedFor(t *testing.T) {
	counts, log := logOf(t)
	var ours string
	for i, e := range numbered(0, 60) {
		if i == 30 {
			e.ID = event.NewID()
			ours = e.ID
		}
		expect.OK(t, expect.ErrOf(log.Append(t.Context(), "default", uri, []event.Event{e}, nil)))
	}
	for id, want := range map[string]bool{"e59": true, "e51": true, ours: true, "e1": false} {
		counts.reads = 0
		e, err := log.Find(t.Context(), log.PartitionsOf("default", uri, false), id, 40)
		if err != nil || (e != nil) != want || e != nil && e.ID != id {
			t.Errorf("OPS-05 %s: got %+v, %v", id, e, err)
		}
		expect.Equal(t, fmt.Sprintf("OPS-05 queries for %s", id), counts.reads, 1)
	}
	expect.Equal(t, "OPS-05: items of its id", counts.partitions["id#default#e1"], 0)
}

// Given two URIs with batches of events, some written at the same time, a page has at most as many events as the limit, and all pages
// together have each event once.
func TestALimitCountsEvents(t *testing.T) {
	const batches, size = 5, 7
	for name, db := range map[string]store.DB{"ordered": memory(t), "writers stamp": storetest.Unordered{DB: memory(t)}} {
		t.Run("OPS-19 "+name, func(t *testing.T) {
			now := time.Now()
			log := &eventlog.Log{DB: db, Now: func() time.Time { return now }}
			var parts []eventlog.Partition
			for i := range batches {
				now = now.Add(time.Second)
				for _, uri := range []string{"event://a/x", "event://a/y"} {
					batch := make([]event.Event, size)
					for k := range batch {
						batch[k] = event.Event{Workspace: "default", ID: fmt.Sprintf("%s/%d/%d", uri, i, k), URI: uri, Data: []byte(`{}`), Published: now}
					}
					expect.OK(t, expect.ErrOf(log.Append(t.Context(), "default", uri, batch, nil)))
					if i == 0 {
						parts = append(parts, log.PartitionsOf("default", uri, false)...)
					}
				}
			}
			for _, n := range []int{1, 2, size, 10, 2*size + 1, 100} {
				seen, last := map[string]int{}, now
				next, pages := "", 0
				for pages == 0 || next != "" {
					var page []event.Event
					var err error
					page, next, err = log.Newest(t.Context(), parts, time.Time{}, time.Time{}, next, n)
					expect.OK(t, err)
					if pages++; len(page) > n || pages > 2*batches*size+2 {
						t.Fatalf("OPS-19 limit %d: page %d has %d events", n, pages, len(page))
					}
					for _, e := range page {
						expect.True(t, e.ID+" is not newer than the one before it", !e.Published.After(last))
						last = e.Published
						seen[e.ID]++
					}
				}
				expect.Equal(t, fmt.Sprintf("OPS-19 limit %d: events", n), len(seen), 2*batches*size)
				for id, times := range seen {
					expect.Equal(t, fmt.Sprintf("OPS-19 limit %d: how often %s is listed", n, id), times, 1)
				}
			}
		})
	}
}

func TestAnInterestThatIsNotRenewedLeavesNoItem(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := &eventlog.Log{DB: memory(t)}
		const key = "event://sim/*"
		begun := expect.Value(log.RecordInterest(t.Context(), "default", key, time.Time{}))(t)
		for range 10 { // renewed for a week
			time.Sleep(17 * time.Hour)
			in, err := log.RecordInterest(t.Context(), "default", key, time.Time{})
			if err != nil || in.Since-begun.Since > 10 || !in.Until.Equal(log.KeptUntil().Truncate(time.Second)) {
				t.Fatalf("the interest is %+v and %v, want since %d until %v", in, err, begun.Since, log.KeptUntil())
			}
		}
		time.Sleep(48 * time.Hour)
		items := expect.Value(log.DB.Get(t.Context(), eventlog.InterestKey("default", key)))(t)
		expect.Equal(t, "the item two days later", items[0], nil)
	})
}

// Items of the previous release do not expire. A renewal lets them, and keeps their beginning.
func TestAnInterestOfThePreviousReleaseIsRenewed(t *testing.T) {
	log := &eventlog.Log{DB: memory(t)}
	since, until := time.Now().Add(-time.Hour).UnixMicro(), time.Now().Add(time.Hour)
	k := eventlog.InterestKey("default", "event://sim/*")
	expect.OK(t, log.DB.Write(t.Context(), store.Put(store.Item{Key: k, Version: since, Counts: map[string]int64{"until": until.Unix()}})))
	in, err := log.RecordInterest(t.Context(), "default", "event://sim/*", time.Time{})
	if err != nil || in.Since-since > 1 || !in.Until.After(until) {
		t.Errorf("the interest is %+v and %v, want since %d and renewed", in, err, since)
	}
	if items, err := log.DB.Get(t.Context(), k); err != nil || items[0] == nil || items[0].Expires.Before(in.Until) {
		t.Errorf("the store has %+v and %v, want an item that expires after %v", items[0], err, in.Until)
	}
}

// Of several concurrent renewals the longest holds: a poll must not cut short the interest of a webhook subscription.
func TestTheLongestOfConcurrentRenewalsHolds(t *testing.T) {
	log := &eventlog.Log{DB: memory(t)}
	for range 20 {
		var all sync.WaitGroup
		longest := time.Now().Add(8 * 24 * time.Hour)
		key := "event://sim/" + longest.String()
		for i := range 8 {
			all.Go(func() {
				if _, err := log.RecordInterest(t.Context(), "default", key, longest.Add(-time.Duration(i)*24*time.Hour)); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
		items, err := log.DB.Get(t.Context(), eventlog.InterestKey("default", key))
		if err != nil || items[0] == nil {
			t.Fatal(items, err)
		}
		if in := eventlog.ReadInterest(items[0]); longest.Sub(in.Until) > 2*time.Hour || items[0].Expires.Before(in.Until) {
			t.Errorf("the interest ends %v and its item %v, want %v", in.Until, items[0].Expires, longest)
		}
	}
}

func TestSubResourcesThatPublishAllDayAreNotAllRecordedAtMidnight(t *testing.T) {
	const children = 1000
	midnight := time.Now().UTC().Truncate(24 * time.Hour).Add(24 * time.Hour)
	var now time.Time
	log := &eventlog.Log{DB: storetest.Unordered{DB: memory(t)}, Retention: 24 * time.Hour, Now: func() time.Time { return now }}
	recorded := map[string]int{}
	// publish appends an event of each sub-resource and returns how many of them fanout would record.
	publish := func(at time.Time) (n int) {
		now = at
		for i := range children {
			uri := fmt.Sprintf("event://many/%04d", i)
			e := event.Event{Workspace: "default", ID: fmt.Sprint(uri, at.Unix()), URI: uri, Data: []byte(`{}`), Published: at}
			done := expect.Value(log.Append(t.Context(), "default", uri, []event.Event{e}, nil))(t)
			if done.Unrecorded {
				n++
				recorded[uri]++
			}
		}
		return n
	}
	expect.Equal(t, "sub-resources that are recorded with their first event", publish(midnight.Add(-30*time.Second)), children)
	expect.AtMost(t, "sub-resources that are recorded in the minute around midnight", publish(midnight.Add(30*time.Second)), children/100)
	for hour := 3; hour < 24; hour += 3 {
		expect.AtMost(t, "sub-resources that are recorded within three hours", publish(midnight.Add(time.Duration(hour)*time.Hour)), children/4)
	}
	publish(midnight.Add(24*time.Hour - 30*time.Second))
	for uri, n := range recorded {
		expect.Equal(t, fmt.Sprintf("how often %s is recorded", uri), n, 2)
	}
}

// payloads returns the payloads of the events of [uri] in the log, oldest first.
func payloads(t *testing.T, log *eventlog.Log) (out []string) {
	t.Helper()
	for _, e := range eventsOf(t, log, eventlog.OwnPartition("default", uri)) {
		out = append(out, string(e.Data))
	}
	return out
}

// An id that is published again after the deduplication period is another event: the log keeps both, also if they
// arrive in one batch, and it still writes each only once if the batch is repeated.
func TestTheLogKeepsAnEventWhoseIDIsPublishedAgain(t *testing.T) {
	first := time.UnixMicro(1_700_000_000_000_000)
	nightly := func(data string, at time.Time) event.Event {
		return event.Event{Workspace: "default", ID: "nightly", URI: uri, Data: []byte(data), Published: at}
	}
	one, two := nightly(`1`, first), nightly(`2`, first.Add(6*time.Minute))
	large := nightly(`"`+strings.Repeat("x", 360<<10)+`"`, first.Add(time.Minute)) // fills a segment
	large.ID = "large"
	for name, batches := range map[string][][]event.Event{
		"in two batches":                  {{one}, {two}, {two}},
		"in one batch":                    {{one, two}, {one, two}},
		"after a segment named the first": {{one, large}, {two}, {two}},
	} {
		t.Run(name, func(t *testing.T) {
			log := &eventlog.Log{DB: memory(t)}
			for _, batch := range batches {
				expect.OK(t, expect.ErrOf(log.Append(t.Context(), "default", uri, batch, nil)))
			}
			got := slices.DeleteFunc(payloads(t, log), func(s string) bool { return len(s) > 1 })
			expect.List(t, "the payloads in the log", got, []string{"1", "2"})
			latest := expect.Value(log.Latest(t.Context(), "default", uri, false, 10))(t)
			expect.AtLeast(t, "the number of latest events", len(latest), 2)
			e, _, err := log.ByID(t.Context(), "default", "nightly", uri)
			if err != nil || e == nil || string(e.Data) != "2" {
				t.Errorf("ByID returned %+v and %v, want the newer event", e, err)
			}
		})
	}
}

// The previous release did not keep the publication times of events that are in earlier segments of their batch.
func TestARepeatedBatchOfThePreviousReleaseIsWrittenOnce(t *testing.T) {
	log := &eventlog.Log{DB: memory(t)}
	segment := store.Item{
		Key:   store.Key{Table: store.Log, Partition: eventlog.OwnPartition("default", uri).Name(), Sort: store.AtCommit},
		Value: []byte(`{"v":1,"b":["nightly"],"e":[]}`),
	}
	expect.OK(t, log.DB.Write(t.Context(), store.Put(segment)))
	now := time.Now()
	for _, e := range []event.Event{
		{Workspace: "default", ID: "nightly", URI: uri, Data: []byte(`1`), Published: now.Add(-time.Second)},
		{Workspace: "default", ID: "nightly", URI: uri, Data: []byte(`2`), Published: now.Add(6 * time.Minute)},
	} {
		expect.OK(t, expect.ErrOf(log.Append(t.Context(), "default", uri, []event.Event{e}, nil)))
	}
	expect.List(t, "the payloads in the log", payloads(t, log), []string{"2"})
}
