package delivery

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mcp-events/mcpevents/shared/events/webhook"
	"github.com/mcp-events/mcpevents/shared/storage/store"
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

// TestWaitingForTheRate: WHK-16, WHK-18. Several processes share the rate limit of an endpoint and have far more deliveries
// than it takes during the schedule of one.
func TestWaitingForTheRate(t *testing.T) {
	t.Run("WHK-16 the turns of all processes together are as many per second as the endpoint can have", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t)
			const limit, processes, deliveries = 8, 4, 800
			now := time.Now()
			turns := map[int64]int{}
			var last int64
			var rates []*endpointRates
			for range processes {
				rates = append(rates, newEndpointRates(r.db, limit, time.Now))
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
			if !rates[0].awaited("one", now) || rates[0].awaited("other", now) {
				t.Error("a first attempt to the endpoint must wait, and one to another endpoint must not")
			}
		})
	})
	t.Run("WHK-18 each delivery is made, and none is given up without an attempt", func(t *testing.T) {
		options := embedded()
		options.EndpointRate = 2
		options.Schedule = Schedule{0, time.Second}
		inWorld(t, options, func(w *world) {
			url := oneOrigin(1)[0]
			sub := w.to(url)[0]
			w.answer = func(webhook.Request) webhook.Outcome {
				return webhook.Outcome{Status: 200, Took: 10 * time.Millisecond}
			}
			foreign := newEndpointRates(w.db, options.EndpointRate, time.Now) // another process uses half of the rate
			stop := time.Now().Add(40 * time.Minute)
			go func() {
				for time.Now().Before(stop) {
					foreign.allow(context.WithoutCancel(w.t.Context()), endpointID(url))
					time.Sleep(time.Second)
				}
			}()
			at := w.send("e", 1500, time.Second)
			time.Sleep(3 * time.Hour)
			if _, missing := w.lags(url, at); missing > 0 {
				t.Errorf("%d of %d events are missing", missing, len(at))
			}
			dead := 0
			err := store.Each(w.t.Context(), w.db, store.Key{Table: store.Deliveries, Partition: lettersOf("default", sub.ID)}, "list dead letters", func(*store.Item) error {
				dead++
				return nil
			})
			if err != nil || dead > 0 {
				t.Errorf("%d dead letters (%v), want none", dead, err)
			}
			if n := w.perSecond(url); n > int(options.EndpointRate) {
				t.Errorf("%d attempts in a second, want at most %d", n, options.EndpointRate)
			}
		})
	})
}
