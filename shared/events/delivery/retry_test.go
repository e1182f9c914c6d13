package delivery

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/shared/events/delivery/retry"
	"github.com/mcp-events/mcpevents/shared/events/delivery/state"
	"github.com/mcp-events/mcpevents/shared/events/subscription"
	"github.com/mcp-events/mcpevents/shared/events/webhook"
	"github.com/mcp-events/mcpevents/shared/storage/queue"
	"github.com/mcp-events/mcpevents/shared/storage/store"
	"github.com/mcp-events/mcpevents/test/expect"
)

// owed creates a failed delivery whose message was lost, so that only its due entry can bring it back.
func owed(r *rig) {
	r.t.Helper()
	sub := r.register("event://ci/build-finished")
	r.script = fails
	_, d, _ := r.process()
	r.done(d.Pages(r.t.Context(), []queue.Message{pageMessage("1", pageOf(sub.Patterns[0].Key, someEvents(1, 60)...))}))
	r.queues[queue.Slow] = nil
}

func (r *rig) round() {
	r.t.Helper()
	_, _, retry := r.process()
	expect.OK(r.t, expect.ErrOf(retry.Run(r.t.Context())))
}

// back checks the number of retries in the slow queue.
func (r *rig) back(t *testing.T, want int) {
	t.Helper()
	if n := len(r.queues[queue.Slow]); n != want {
		t.Fatalf("%d retries came back, want %d", n, want)
	}
}

func TestRetriesSurviveDaysWithoutAServer(t *testing.T) {
	r := newRig(t)
	r.round()
	owed(r)
	r.now = r.now.Add(5 * 24 * time.Hour)
	r.round()
	r.back(t, 1)
}

// A retry that is due by the clock as it is now comes when it is due, and not before.
func TestRetriesSurviveAClockThatIsSetBack(t *testing.T) {
	r := newRig(t)
	right := r.now
	r.now = right.Add(6 * time.Hour)
	r.round()
	r.now = right
	owed(r)
	r.round()
	r.back(t, 0)
	for range 10 {
		r.now = r.now.Add(time.Minute)
		r.round()
	}
	r.back(t, 1)
}

// undecodable puts an item into the due table that no version of the program wrote.
func (r *rig) undecodable(at time.Time) store.Key {
	r.t.Helper()
	key := state.DueKey("default", "sub_broken", "evt_broken", at)
	expect.OK(r.t, r.db.Write(r.t.Context(), store.Put(store.Item{Key: key, Value: []byte("{broken")})))
	return key
}

// TestAnUndecodableDueEntryHoldsNothingUp: AWS-16, AWS-07.
func TestAnUndecodableDueEntryHoldsNothingUp(t *testing.T) {
	r := newRig(t)
	r.round()
	var keys []store.Key
	for minute := range 8 { // wherever it lies, before or behind the others of its round
		keys = append(keys, r.undecodable(r.now.Add(time.Duration(minute)*time.Minute)))
	}
	owed(r)
	r.now = r.now.Add(10 * time.Minute)
	_, _, retry := r.process()
	if moved, err := retry.Run(t.Context()); err != nil || moved != 1 {
		t.Errorf("AWS-16: %d retries came back, %v; want 1", moved, err)
	}
	items, err := r.db.Get(t.Context(), keys...)
	if err != nil || slices.ContainsFunc(items, func(it *store.Item) bool { return it != nil }) {
		t.Errorf("an entry is still in the way, %v", err)
	}
	if n := len(r.queues[queue.Dead]); n != len(keys) {
		t.Fatalf("%d dead letters, want %d", n, len(keys))
	}
	l, err := queue.ParseDeadLetter(r.queues[queue.Dead][0].Body)
	if err != nil || l.Queue != "table:deliveries" || l.Body != "{broken" || l.Reason == "" || !strings.HasPrefix(l.Message, "due#") {
		t.Errorf("AWS-07: got %+v, %v", l, err)
	}
}

// A clock that is set back leaves retries in minutes that will not come for as long as it was
// set back by.
func TestRetriesThatWereScheduledBeforeTheClockWasSetBack(t *testing.T) {
	for name, back := range map[string]time.Duration{
		"an hour": time.Hour,
		"a day":   24 * time.Hour,
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			r.round()
			owed(r)
			r.now = r.now.Add(-back)
			r.round()
			r.back(t, 1)
			r.queues[queue.Slow] = nil
			began := r.now
			r.round()
			if items, err := r.db.Get(t.Context(), store.Key{Table: store.Deliveries, Partition: "due#ahead", Sort: "-"}); err != nil || items[0] != nil || len(r.queues[queue.Slow]) > 0 {
				t.Errorf("the search continues after its end: %v, %v", items, err)
			}
			r.now = began.Add(10 * time.Minute)
			r.round()
			r.back(t, 0)
		})
	}
}

func TestASearchThatIsCutOffGoesOn(t *testing.T) {
	r := newRig(t)
	r.round()
	owed(r)
	r.now = r.now.Add(-24 * time.Hour)
	for rounds := 1; len(r.queues[queue.Slow]) == 0; rounds++ {
		if rounds > 40 {
			t.Fatal("the retry does not come")
		}
		ctx, cancel := context.WithCancel(t.Context())
		_, _, retry := r.process()
		retry.DB = &tiring{DB: r.db, left: 700, tired: cancel}
		_, err := retry.Run(ctx)
		if cancel(); err != nil && rounds == 40 {
			t.Log(err)
		}
		r.now = r.now.Add(time.Minute)
		if len(r.queues[queue.Slow]) > 0 && rounds < 3 {
			t.Errorf("it came in round %d: the search was not cut off", rounds)
		}
	}
}

// tiring ends a context after some queries.
type tiring struct {
	store.DB
	left  int
	tired func()
}

func (d *tiring) Query(ctx context.Context, q store.Query) (store.Page, error) {
	if d.left--; d.left == 0 {
		d.tired()
	}
	if ctx.Err() != nil {
		return store.Page{}, ctx.Err()
	}
	return d.DB.Query(ctx, q)
}

func TestSchedules(t *testing.T) {
	t.Run("WHK-10 the delays of each kind, by default and as configured", func(t *testing.T) {
		const s, m, h = time.Second, time.Minute, time.Hour
		standard := retry.Schedule{0, 5 * s, 5 * m, 30 * m, 2 * h, 5 * h, 10 * h, 14 * h, 20 * h, 24 * h} // of Standard Webhooks
		for name, tc := range map[string]struct {
			options Options
			want    map[subscription.Origin]retry.Schedule
		}{
			"by default": {Options{}, map[subscription.Origin]retry.Schedule{subscription.SEP1803: standard, subscription.MCPEvents: retry.EventsSchedule}},
			"configured": {Options{Schedule: retry.Schedule{0, s}, EventsSchedule: retry.Schedule{0, m}}, map[subscription.Origin]retry.Schedule{
				subscription.SEP1803: {0, s}, subscription.MCPEvents: {0, m},
			}},
		} {
			d := NewDispatcher(Config{DB: newRig(t).db, Options: tc.options})
			for origin, want := range tc.want {
				if got := d.outcomes.Schedules.Of(origin); !slices.Equal(got, want) {
					t.Errorf("%s: %v has %v, want %v", name, origin, got, want)
				}
			}
		}
		if n, took := len(retry.EventsSchedule), retry.EventsSchedule.Total(); n != 5 || took > 15*m {
			t.Errorf("MCP Events: %d attempts within %v, want 5 within 15 minutes", n, took)
		}
	})

	t.Run("WHK-10 a delay varies by a fifth either way, and the last attempt has none after it", func(t *testing.T) {
		for i, delay := range retry.StandardSchedule {
			if i == 0 {
				continue
			}
			least, most := delay*2, time.Duration(0)
			for range 2000 {
				got, ok := retry.StandardSchedule.Next(i, 0)
				if !ok {
					t.Fatalf("no attempt %d", i+1)
				}
				least, most = min(least, got), max(most, got)
			}
			if least < delay*4/5 || least > delay*9/10 || most < delay*11/10 || most > delay*6/5 {
				t.Errorf("the delay before attempt %d is from %v to %v, want a fifth about %v", i+1, least, most, delay)
			}
		}
		if _, ok := retry.StandardSchedule.Next(len(retry.StandardSchedule), 0); ok {
			t.Error("an attempt after the last")
		}
	})

	for _, category := range []webhook.Category{
		webhook.DNSError, webhook.TLSError, webhook.ConnectionRefused, webhook.Timeout, webhook.HTTP5xx, webhook.HTTP4xx,
	} {
		t.Run(fmt.Sprintf("WHK-10 %s is tried again to the end of each schedule", category), func(t *testing.T) {
			r := newRig(t)
			plain, events := r.register("event://ci/build-finished").ID, r.subscribe().ID
			r.script = func(int) webhook.Outcome { return webhook.Outcome{Category: category, Status: statusOf(category)} }
			r.publish("evt_1")
			for end := r.now.Add(retry.StandardSchedule.Total()); r.now.Before(end); {
				r.run()
			}
			got := map[string]int{}
			for _, p := range r.posts {
				if p.ID != "evt_1" {
					continue // a gap notice, which is retried for longer
				}
				got[p.SubscriptionID]++
			}
			if got[plain] != len(retry.StandardSchedule) || got[events] != len(retry.EventsSchedule) {
				t.Errorf("%d attempts of %d, and %d of %d", got[plain], len(retry.StandardSchedule), got[events], len(retry.EventsSchedule))
			}
		})
	}
}

func statusOf(c webhook.Category) int {
	return map[webhook.Category]int{webhook.HTTP4xx: 404, webhook.HTTP5xx: 500}[c]
}
