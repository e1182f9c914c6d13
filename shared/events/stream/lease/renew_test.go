package lease

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mcp-events/mcpevents/shared/storage/store"
	"github.com/mcp-events/mcpevents/shared/storage/store/sqlite"
	"github.com/mcp-events/mcpevents/test/expect"
)

// cut is the store as an instance sees it that is killed, or cut off, after some calls.
type cut struct {
	store.DB
	left atomic.Int64 // calls
}

var errCut = errors.New("cut off")

func (c *cut) call() error {
	if c.left.Add(-1) < 0 {
		return errCut
	}
	return nil
}

func (c *cut) Write(ctx context.Context, ops ...store.Op) error {
	if err := c.call(); err != nil {
		return err
	}
	return c.DB.Write(ctx, ops...)
}

func (c *cut) Query(ctx context.Context, q store.Query) (store.Page, error) {
	if err := c.call(); err != nil {
		return store.Page{}, err
	}
	return c.DB.Query(ctx, q)
}

// over runs a test with a store and the clock of the bubble.
func over(t *testing.T, test func(t *testing.T, db store.DB, fleet *Shared)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		db := expect.Value(sqlite.Open(":memory:", sqlite.Options{}))(t)
		defer func() { _ = db.Close() }()
		test(t, db, &Shared{DB: db, Max: same(3), Life: 5 * time.Minute})
	})
}

func isLost(h *held) bool {
	synctest.Wait()
	select {
	case <-h.lost:
		return true
	default:
		return false
	}
}

// ofInstance opens a stream of an instance that dies after so many calls to the store.
func ofInstance(t *testing.T, db store.DB, like *Shared, calls int64) *held {
	t.Helper()
	other := *like
	off := &cut{DB: db}
	off.left.Store(calls)
	other.DB = off
	return take(t, &other, alice)
}

// AUT-07: what is in the store of a stream that has died makes room before any stream that lives, though it be younger.
func TestLiveStreamsWinOverDeadOnes(t *testing.T) {
	for name, calls := range map[string]int64{"its instance was killed after a while": 6, "it never began": 2} {
		t.Run(name, func(t *testing.T) {
			over(t, func(t *testing.T, db store.DB, fleet *Shared) {
				first, second := take(t, fleet, alice), take(t, fleet, alice)
				dead := ofInstance(t, db, fleet, calls)
				time.Sleep(2 * time.Minute)
				third := take(t, fleet, alice)
				time.Sleep(time.Minute)
				for name, h := range map[string]*held{"oldest": first, "second": second, "newest": third} {
					if isLost(h) {
						t.Errorf("the %s stream, which is still open, was superseded", name)
					}
				}
				fourth := take(t, fleet, alice)
				time.Sleep(time.Minute)
				if !isLost(first) || isLost(second) || isLost(third) || isLost(fourth) {
					t.Errorf("superseded: oldest %t, second %t, third %t, fourth %t; want only the oldest of the open streams",
						isLost(first), isLost(second), isLost(third), isLost(fourth))
				}
				for _, h := range []*held{first, second, third, fourth, dead} {
					h.Release()
				}
			})
		})
	}
}

// AUT-07: a lease that could not be taken is not left behind.
func TestALeaseThatFailsLeavesNothing(t *testing.T) {
	over(t, func(t *testing.T, db store.DB, fleet *Shared) {
		broken := *fleet
		broken.DB = &queryless{db}
		if _, err := broken.Take(t.Context(), alice, func() {}); err == nil {
			t.Fatal("a lease was taken")
		}
		page, err := db.Query(t.Context(), store.Query{Table: store.Sessions, Partition: principalKey(alice, "-").Partition})
		if err != nil || len(page.Items) != 0 {
			t.Errorf("%d leases are left behind, %v", len(page.Items), err)
		}
	})
}

type queryless struct{ store.DB }

func (queryless) Query(context.Context, store.Query) (store.Page, error) {
	return store.Page{}, errCut
}

// AUT-07: a store that does not answer for minutes takes no lease away.
func TestAnOutageTakesNoLease(t *testing.T) {
	over(t, func(t *testing.T, db store.DB, fleet *Shared) {
		other := *fleet
		off := &cut{DB: db}
		off.left.Store(1000)
		other.DB = off
		first := take(t, &other, alice)
		off.left.Store(0)
		time.Sleep(3 * time.Minute)
		off.left.Store(1000)
		time.Sleep(20 * time.Second)
		second, third := take(t, fleet, alice), take(t, fleet, alice)
		time.Sleep(time.Minute)
		if isLost(first) || isLost(second) || isLost(third) {
			t.Error("a stream was superseded although there was room")
		}
		for _, h := range []*held{first, second, third} {
			h.Release()
		}
	})
}
