package demand

import (
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/shared/events/subscription"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/storage/store"
	"github.com/mcp-events/mcpevents/shared/storage/store/sqlite"
	"github.com/mcp-events/mcpevents/test/expect"
)

const uri = "event://~shop/order.shipped/e30"

func newRegistry(t *testing.T) *Registry {
	t.Helper()
	db := expect.Value(sqlite.Open(sqlite.Memory, sqlite.Options{}))(t)
	t.Cleanup(func() { _ = db.Close() })
	return New(db)
}

func (r *Registry) isWanted(t *testing.T) bool {
	t.Helper()
	wanted := expect.Value(r.Wanted(t.Context(), "default", "shop"))(t)
	return len(wanted[uri]) > 0
}

// TestDemandEndsAfterItsGracePeriod rewrites the items instead of waiting.
func TestDemandEndsAfterItsGracePeriod(t *testing.T) {
	r := newRegistry(t)
	expect.OK(t, r.SetState(t.Context(), "default", uri, State{Active: true}))
	expect.OK(t, r.Want(t.Context(), "default", "alice", uri))
	if !r.isWanted(t) {
		t.Error("GWN-21 a demand does not last")
	}
	lapse := func() {
		it := item(wantKey("default", "alice", uri), uri, time.Now().Add(-keep-time.Second))
		expect.OK(t, r.DB.Write(t.Context(), store.Put(it)))
	}
	header := store.Item{Key: subscription.HeaderKey("default", uri), Counts: map[string]int64{"n": 1}}
	if subscription.HeaderCount(&header) != 1 {
		t.Fatal("the header has another count")
	}
	expect.OK(t, r.DB.Write(t.Context(), store.Put(header)))
	lapse()
	if !r.isWanted(t) {
		t.Error("GWN-21 a demand ends although a webhook subscription has the URI")
	}
	expect.OK(t, r.DB.Write(t.Context(), store.Delete(header.Key)))
	lapse()
	if r.isWanted(t) {
		t.Error("GWN-21 a demand lasts after its grace period")
	}
	items := expect.Value(r.DB.Get(t.Context(), wantKey("default", "alice", uri)))(t)
	if items[0] != nil {
		t.Error("GWN-21 an ended demand stays stored")
	}
}

// GWN-21: a client gets the error of a refused subscription, and cannot want more than its share.
func TestWantIsRefused(t *testing.T) {
	r := newRegistry(t)
	expect.OK(t, r.SetState(t.Context(), "default", uri, State{Error: "no such order"}))
	expect.Fault(t, "a refused subscription", r.Want(t.Context(), "default", "alice", uri), fault.Unavailable)
	for i := range maxWanted {
		other := "event://~shop/other/" + string(rune('a'+i%26)) + string(rune('a'+i/26))
		expect.OK(t, r.DB.Write(t.Context(), store.Put(item(wantKey("default", "bob", other), other, time.Now()))))
	}
	expect.OK(t, r.SetState(t.Context(), "default", uri, State{Active: true}))
	expect.Fault(t, "one more than allowed", r.Want(t.Context(), "default", "bob", uri), fault.Exhausted)
	expect.OK(t, r.Want(t.Context(), "default", "carol", uri))
}

// GWN-21: without a relay, a client waits for a few seconds only.
func TestWantDoesNotWaitForever(t *testing.T) {
	r := newRegistry(t)
	r.Start = 100 * time.Millisecond
	began := time.Now()
	expect.OK(t, r.Want(t.Context(), "default", "alice", uri))
	if took := time.Since(began); took < r.Start || took > 10*time.Second {
		t.Errorf("took %v, want %v", took, r.Start)
	}
}
