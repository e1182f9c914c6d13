package eventlog_test

import (
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
	"github.com/mcp-events/mcpevents/test/expect"
)

func TestAnInterestThatIsNotRenewedLeavesNoItem(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := &eventlog.Log{DB: memory(t)}
		const key = "event://sim/*"
		begun := expect.Value(log.Interested(t.Context(), "default", key, time.Time{}))(t)
		for range 10 { // renewed for a week
			time.Sleep(17 * time.Hour)
			in, err := log.Interested(t.Context(), "default", key, time.Time{})
			if err != nil || in.Since-begun.Since > 10 || !in.Until.Equal(log.KeptUntil().Truncate(time.Second)) {
				t.Fatalf("the interest is %+v and %v, want since %d until %v", in, err, begun.Since, log.KeptUntil())
			}
		}
		time.Sleep(48 * time.Hour)
		items, err := log.DB.Get(t.Context(), eventlog.InterestKey("default", key))
		if err != nil || items[0] != nil {
			t.Errorf("two days later the store has %+v and %v, want no item", items[0], err)
		}
	})
}

// Items of the previous release do not expire. A renewal lets them, and keeps their beginning.
func TestAnInterestOfThePreviousReleaseIsRenewed(t *testing.T) {
	log := &eventlog.Log{DB: memory(t)}
	since, until := time.Now().Add(-time.Hour).UnixMicro(), time.Now().Add(time.Hour)
	k := eventlog.InterestKey("default", "event://sim/*")
	expect.OK(t, log.DB.Write(t.Context(), store.Put(store.Item{Key: k, Version: since, Counts: map[string]int64{"until": until.Unix()}})))
	in, err := log.Interested(t.Context(), "default", "event://sim/*", time.Time{})
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
				if _, err := log.Interested(t.Context(), "default", key, longest.Add(-time.Duration(i)*24*time.Hour)); err != nil {
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

// stampless is a store whose writers stamp, like DynamoDB, so that the test chooses the time.
type stampless struct{ store.DB }

func (stampless) Stamps() bool { return false }
func (stampless) Local() bool  { return false }

func TestSubResourcesThatPublishAllDayAreNotAllRecordedAtMidnight(t *testing.T) {
	const children = 1000
	midnight := time.Now().UTC().Truncate(24 * time.Hour).Add(24 * time.Hour)
	var now time.Time
	log := &eventlog.Log{DB: stampless{memory(t)}, Retention: 24 * time.Hour, Now: func() time.Time { return now }}
	recorded := map[string]int{}
	// publish appends an event of each sub-resource and returns how many of them fanout would record.
	publish := func(at time.Time) (n int) {
		now = at
		for i := range children {
			uri := fmt.Sprintf("event://many/%04d", i)
			e := event.Event{Workspace: "default", ID: fmt.Sprint(uri, at.Unix()), URI: uri, Data: []byte(`{}`), Published: at}
			done := expect.Value(log.Append(t.Context(), "default", uri, []event.Event{e}, nil))(t)
			if done.First {
				n++
				recorded[uri]++
			}
		}
		return n
	}
	expect.Equal(t, "sub-resources that are recorded with their first event", publish(midnight.Add(-30*time.Second)), children)
	if got := publish(midnight.Add(30 * time.Second)); got > children/100 {
		t.Errorf("%d of %d sub-resources are recorded in the minute around midnight, want at most %d", got, children, children/100)
	}
	for hour := 3; hour < 24; hour += 3 {
		if got := publish(midnight.Add(time.Duration(hour) * time.Hour)); got > children/4 {
			t.Errorf("%d of %d sub-resources are recorded within three hours, want about %d", got, children, children/8)
		}
	}
	publish(midnight.Add(24*time.Hour - 30*time.Second))
	for uri, n := range recorded {
		expect.Equal(t, fmt.Sprintf("how often %s is recorded", uri), n, 2)
	}
}

// payloads returns the payloads of the events of [uri] in the log, oldest first.
func payloads(t *testing.T, log *eventlog.Log) (out []string) {
	t.Helper()
	for more, after := true, int64(0); more; {
		var entries []eventlog.Entry
		var err error
		if entries, more, after, err = log.Read(t.Context(), eventlog.Own("default", uri), after, 100); err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			out = append(out, string(e.Event.Data))
		}
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
			latest, err := log.Latest(t.Context(), "default", uri, false, 10)
			if err != nil || len(latest) < 2 {
				t.Errorf("Latest returned %d events and %v, want both", len(latest), err)
			}
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
		Key:   store.Key{Table: store.Log, Partition: eventlog.Own("default", uri).Name(), Sort: store.AtCommit},
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
