package retry

import (
	"strconv"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/shared/events/subscription"
	"github.com/mcp-events/mcpevents/shared/events/webhook"
	"github.com/mcp-events/mcpevents/shared/platform/bounded"
	"github.com/mcp-events/mcpevents/shared/storage/store"
	"github.com/mcp-events/mcpevents/shared/storage/store/sqlite"
	"github.com/mcp-events/mcpevents/test/expect"
)

// TestStatusesOfOneEventToVeryMany: AWS-15. Statuses of a wide fan-out are bounded.
func TestStatusesOfOneEventToVeryMany(t *testing.T) {
	s := statuses{seen: bounded.NewMap[string, seenStatus](maxStatuses)}
	at := time.Unix(1_800_000_000, 0)
	written := func(id string, retried bool, now time.Time) bool {
		_, due := s.afterSuccess("default", id, retried, now)
		return due
	}
	first, rest := 0, 0
	for n := range 16_000 {
		switch due := written(strconv.Itoa(n), false, at); {
		case due && n < statusBudget:
			first++
		case due:
			rest++
		}
	}
	expect.Equal(t, "AWS-15 first successes that were written", first, statusBudget)
	if rest < 800 || rest > 1200 { // a thousand on average; four deviations are 120
		t.Errorf("AWS-15 %d of about 16,000 further ones were written, want about a thousand", rest)
	}
	expect.True(t, "the success of a retry is written", written("retried", true, at))
	s.seen.Put("default#failing", seenStatus{written: at, failing: true})
	expect.True(t, "the success after a failure is written", written("failing", false, at))
	expect.True(t, "a status is not written twice in a minute", !written("failing", false, at.Add(time.Second)))
	expect.True(t, "the next minute has a budget of its own", written("quiet", false, at.Add(time.Minute)))
}

// A page writes the statuses of its attempts when all of them have ended. So a failure may read a status that lacks the success of another
// event in the same page.
func TestAFailureAfterASuccessThatIsNotWrittenYet(t *testing.T) {
	db := expect.Value(sqlite.Open(sqlite.Memory, sqlite.Options{SweepEvery: -1}))(t)
	defer db.Close()
	s := statuses{seen: bounded.NewMap[string, seenStatus](maxStatuses)}
	sub := &subscription.Subscriber{ID: "sub_1"}
	at := time.Unix(1_800_000_000, 0).UTC()
	fail := func(now time.Time) store.Op {
		st := expect.Value(s.afterFailure(t.Context(), db, "default", sub, webhook.Outcome{Category: webhook.HTTP5xx, Status: 500}, now))(t)
		return store.Put(st.Encode("default", sub.ID))
	}
	expect.OK(t, db.Write(t.Context(), fail(at)))
	for day := range 6 { // in each page, an event succeeds and then two others fail
		now := at.Add(time.Duration(day+1) * 24 * time.Hour)
		st, due := s.afterSuccess("default", sub.ID, false, now)
		expect.Equal(t, "WHK-12 the success is written", due, true)
		notes := []store.Op{store.Put(st.Encode("default", sub.ID)), fail(now.Add(100 * time.Millisecond)), fail(now.Add(200 * time.Millisecond))}
		for _, op := range notes {
			expect.OK(t, db.Write(t.Context(), op))
		}
		fail(now.Add(time.Second))
		st = expect.Value(subscription.DecodeStatus(expect.Value(store.One(t.Context(), db, subscription.StatusKey("default", sub.ID), "read"))(t)))(t)
		if st.FailedSince.Before(now) || st.LastDelivery.Before(now) || st.LastError == "" {
			t.Errorf("WHK-12 got %+v after a success at %v, want failures since then", st, now)
		}
	}
}
