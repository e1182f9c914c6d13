package lane

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mcp-events/mcpevents/shared/storage/store"
	"github.com/mcp-events/mcpevents/shared/storage/store/sqlite"
	"github.com/mcp-events/mcpevents/test/expect"
)

func openStore(t *testing.T) store.DB {
	t.Helper()
	db := expect.Value(sqlite.Open(":memory:", sqlite.Options{}))(t)
	t.Cleanup(func() { _ = db.Close() })
	return db
}

// slowStore is a store with slow writes of one endpoint's leases.
type slowStore struct {
	store.DB
	id    string
	takes time.Duration
}

func (s slowStore) Write(ctx context.Context, ops ...store.Op) error {
	if ops[0].Item.Key.Partition == "t#"+s.id {
		time.Sleep(s.takes)
	}
	return s.DB.Write(ctx, ops...)
}

func newRates(db store.DB, limit int64) *endpointRates {
	return &endpointRates{db: db, limit: limit, now: time.Now}
}

// TestEndpointRatesOverASlowStore: WHK-16.
func TestEndpointRatesOverASlowStore(t *testing.T) {
	t.Run("WHK-16 while the store writes for one endpoint, the attempts to others go on", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			rates := newRates(slowStore{openStore(t), "one", 20 * time.Second}, 20)
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
			db := openStore(t)
			rates := newRates(slowStore{db, "one", 1500 * time.Millisecond}, 20)
			start := time.Now()
			go rates.allow(t.Context(), "one")
			synctest.Wait()
			if !rates.allow(t.Context(), "one") {
				t.Error("refused")
			}
			key := store.Key{Table: store.Deliveries, Partition: "t#one", Sort: fmt.Sprint(start.Add(1500 * time.Millisecond).Unix())}
			items, err := db.Get(t.Context(), key)
			if err != nil || items[0] == nil {
				t.Errorf("got no lease of its second: %v, %v", items, err)
			}
		})
	})
}

// TestEndpointRates: WHK-16. Several processes share the rate limit of an endpoint.
func TestEndpointRates(t *testing.T) {
	t.Run("WHK-16 two processes together make as many attempts a second as the endpoint may have, not one more", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			db := openStore(t)
			const limit = 20
			two := []*endpointRates{newRates(db, limit), newRates(db, limit)}
			var mu sync.Mutex
			perSecond := map[int64]int{}
			var wg sync.WaitGroup
			for i := range 8 {
				wg.Go(func() {
					for range 500 {
						now := time.Now()
						if two[i%2].allow(t.Context(), "one") {
							mu.Lock()
							perSecond[now.Unix()]++
							mu.Unlock()
						}
						time.Sleep(10 * time.Millisecond)
					}
				})
			}
			wg.Wait()
			for second, n := range perSecond {
				expect.Equal(t, fmt.Sprintf("attempts in second %d", second), n, limit)
			}
			if len(perSecond) < 5 {
				t.Errorf("%d seconds", len(perSecond))
			}
		})
	})
	t.Run("WHK-16 the turns of all processes together are as many per second as the endpoint can have", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			db := openStore(t)
			const limit, processes, deliveries = 8, 4, 800
			now := time.Now()
			turns := map[int64]int{}
			var last int64
			var rates []*endpointRates
			for range processes {
				rates = append(rates, newRates(db, limit))
			}
			for i := range deliveries {
				second := now.Add(rates[i%processes].reserve(t.Context(), "one", now)).Unix()
				turns[second]++
				last = max(last, second)
			}
			for second, n := range turns {
				if n > limit || second <= now.Unix() {
					t.Errorf("%d deliveries have their turn after %d s, want at most %d, later than now", n, second-now.Unix(), limit)
				}
			}
			if took := last - now.Unix(); took > 3*deliveries/limit {
				t.Errorf("the last turn is after %d s, want about %d", took, deliveries/limit)
			}
			if !rates[0].hasWaiting("one", now) || rates[0].hasWaiting("other", now) {
				t.Error("a first attempt to the endpoint must wait, and one to another endpoint must not")
			}
		})
	})
}
