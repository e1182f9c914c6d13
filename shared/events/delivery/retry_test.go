package delivery

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/shared/events/delivery/state"
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
