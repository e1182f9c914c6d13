package eventlog_test

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"

	eventlog "github.com/mcp-events/mcpevents/shared/events/log"
	"github.com/mcp-events/mcpevents/shared/storage/store"
)

func TestAnInterestThatIsNotRenewedLeavesNoItem(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := &eventlog.Log{DB: memory(t)}
		const key = "event://sim/*"
		begun, err := log.Interested(t.Context(), "default", key, time.Time{})
		if err != nil {
			t.Fatal(err)
		}
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
	if err := log.DB.Write(t.Context(), store.Put(store.Item{Key: k, Version: since, Counts: map[string]int64{"until": until.Unix()}})); err != nil {
		t.Fatal(err)
	}
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
