package delivery

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mcp-events/mcpevents/shared/store"
)

// slowWrites is a store that takes its time to write what concerns one endpoint.
func slowWrites(db store.DB, id string, takes time.Duration) store.DB {
	return hooked{DB: db, write: func(_ context.Context, ops []store.Op) error {
		if ops[0].Item.Key.Partition == "t#"+id {
			time.Sleep(takes)
		}
		return nil
	}}
}

// TestEndpointRatesOverASlowStore: WHK-16.
func TestEndpointRatesOverASlowStore(t *testing.T) {
	t.Run("WHK-16 while the store writes for one endpoint, the attempts to others go on", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t)
			rates := newEndpointRates(slowWrites(r.db, "one", 20*time.Second), 20, time.Now)
			go rates.allow(t.Context(), "one")
			synctest.Wait()
			began := time.Now()
			if !rates.allow(t.Context(), "other") || time.Since(began) > 0 {
				t.Errorf("the other endpoint waited %v", time.Since(began))
			}
			time.Sleep(time.Minute)
		})
	})
	t.Run("WHK-16 an attempt that waited is one of the second in which it is made", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t)
			rates := newEndpointRates(slowWrites(r.db, "one", 1500*time.Millisecond), 20, time.Now)
			start := time.Now()
			go rates.allow(t.Context(), "one")
			synctest.Wait()
			if !rates.allow(t.Context(), "one") {
				t.Error("refused")
			}
			key := store.Key{Table: store.Deliveries, Partition: "t#one", Sort: fmt.Sprint(start.Add(1500 * time.Millisecond).Unix())}
			items, err := r.db.Get(t.Context(), key)
			if err != nil || items[0] == nil {
				t.Errorf("nothing was taken of its second: %v, %v", items, err)
			}
		})
	})
}
