package delivery

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/shared/events/event"
	"github.com/mcp-events/mcpevents/shared/events/subscription"
	"github.com/mcp-events/mcpevents/shared/events/webhook"
	"github.com/mcp-events/mcpevents/shared/storage/store"

	"github.com/mcp-events/mcpevents/shared/events/delivery/deadletter"
	"github.com/mcp-events/mcpevents/shared/events/delivery/state"
)

func TestASubscriptionIsErasedWhileAnAttemptIsInFlight(t *testing.T) {
	r := newRig(t)
	operations := r.operations()
	id := r.register("event://ci/build-finished").ID
	r.script = func(int) webhook.Outcome {
		for _, err := range []error{r.services.End(t.Context(), "default", "alice", id), operations.SweepLater(t.Context(), "default", []string{id})} {
			if err != nil {
				t.Fatal(err)
			}
		}
		return fails(1)
	}
	r.publish("evt_1")
	r.work()
	stored := func() (n int) {
		err := operations.Belongings(t.Context(), "default", id, func(b deadletter.Belonging) error {
			items, err := r.db.Get(t.Context(), b.Keys...)
			for _, it := range items {
				if it != nil {
					n++
				}
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	if stored() == 0 {
		t.Fatal("nothing was recorded after the erasure, so this shows nothing")
	}
	waits := func() int {
		page, err := r.db.Query(t.Context(), store.Query{Table: store.Deliveries, Partition: deadletter.ErasedPartition})
		if err != nil {
			t.Fatal(err)
		}
		return len(page.Items)
	}
	t.Run("OPS-07 WHK-21 what was in flight is deleted by the next round", func(t *testing.T) {
		if n, err := operations.SweepErased(t.Context()); err != nil || n == 0 || stored() != 0 || waits() != 1 {
			t.Errorf("swept %d (%v), left are %d, %d erasures to look after", n, err, stored(), waits())
		}
	})
	t.Run("OPS-07 a retry of it that still comes does nothing, and then it is forgotten", func(t *testing.T) {
		r.run()
		if n := stored(); n != 0 || len(r.posts) != 1 {
			t.Errorf("left are %d, after %d attempts", n, len(r.posts))
		}
		if _, err := operations.SweepErased(t.Context()); err != nil || waits() != 0 {
			t.Errorf("%d erasures to look after (%v)", waits(), err)
		}
	})
}

// OPS-07: an erasure of any number of subscriptions remembers all of them.
func TestAnErasureOfManySubscriptions(t *testing.T) {
	const many = 10_001
	r := newRig(t)
	ids := make([]string, many)
	for i := range ids {
		ids[i] = fmt.Sprintf("sub_%032x", i)
	}
	if err := r.operations().SweepLater(t.Context(), "default", ids); err != nil {
		t.Fatal(err)
	}
	page, err := r.db.Query(t.Context(), store.Query{Table: store.Deliveries, Partition: deadletter.ErasedPartition})
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for _, it := range page.Items {
		var erased struct{ IDs []byte }
		if err := json.Unmarshal(it.Value, &erased); err != nil {
			t.Fatal(err)
		}
		found += len(erased.IDs) / 16
	}
	if found != many {
		t.Errorf("got %d subscriptions to sweep, want %d", found, many)
	}
}

// TestAnErasedEventIsStoredAgain: OPS-07, WHK-21. Erasing the only subscriber of an event deletes the stored
// event. If a delivery to another subscriber fails later, the event is stored again for the retries.
func TestAnErasedEventIsStoredAgain(t *testing.T) {
	r := newRig(t)
	asked := map[string]int{}
	db := hooked{DB: r.db, write: func(_ context.Context, ops []store.Op) error {
		for _, op := range ops {
			asked[op.Item.Partition]++
		}
		return nil
	}}
	d := NewDispatcher(Config{DB: db, Now: func() time.Time { return r.now }})
	e := &event.Event{Workspace: "default", ID: "evt_1", URI: "event://ci/build-finished", Data: []byte(`{}`)}
	body := state.BodyKey("default", e.Key())
	kept := func() *store.Item {
		t.Helper()
		if err := d.deliveries.StoreBody(t.Context(), state.New(&subscription.Subscriber{}, e, r.now), e, state.RetriedFor); err != nil {
			t.Fatal(err)
		}
		items, err := r.db.Get(t.Context(), body)
		if err != nil {
			t.Fatal(err)
		}
		return items[0]
	}
	for range 3 {
		if kept() == nil {
			t.Fatal("it is not stored")
		}
	}
	if n := asked[body.Partition]; n != 1 {
		t.Errorf("OPS-07: stored %d times within a moment", n)
	}
	if err := r.db.Write(t.Context(), store.Delete(body)); err != nil {
		t.Fatal(err)
	}
	r.now = r.now.Add(state.RememberStored)
	if kept() == nil {
		t.Error("OPS-07: the event is gone for its later subscribers")
	}
}
