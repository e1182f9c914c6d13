package lease

import (
	"context"
	"crypto/rand"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/storage/store"
	"github.com/mcp-events/mcpevents/shared/storage/store/sqlite"
	"github.com/mcp-events/mcpevents/test/expect"
)

var (
	alice = auth.Principal{ID: "alice", Workspace: "default"}
	other = auth.Principal{ID: "alice", Workspace: "other"}
)

// keeper is the interface of [Local] and [Shared].
type keeper interface {
	Take(ctx context.Context, p auth.Principal, superseded func()) (release func(), err error)
}

func same(most int) Max { return func(context.Context, auth.Principal) int { return most } }

type held struct {
	Release func()
	lost    chan struct{}
}

// each runs a test with both kinds, in a bubble of its own.
func each(t *testing.T, name string, most int, test func(t *testing.T, k keeper)) {
	t.Helper()
	t.Run(name+": local", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) { test(t, NewLocal(same(most))) })
	})
	t.Run(name+": shared", func(t *testing.T) {
		over(t, func(t *testing.T, db store.DB, _ *Shared) {
			test(t, &Shared{DB: db, Max: same(most), Life: time.Minute, Check: 5 * time.Second})
		})
	})
}

func take(t *testing.T, k keeper, p auth.Principal) *held {
	t.Helper()
	h := &held{lost: make(chan struct{})}
	h.Release = expect.Value(k.Take(t.Context(), p, func() { close(h.lost) }))(t)
	time.Sleep(time.Second) // the clock orders them
	return h
}

// lost says whether a lease is taken away as soon as that is looked at.
func lost(h *held) bool {
	time.Sleep(10 * time.Second)
	return isLost(h)
}

func TestWhatAPrincipalMayHaveOpen(t *testing.T) {
	each(t, "AUT-07 the oldest ends for one more", 2, func(t *testing.T, k keeper) {
		first, second, elsewhere := take(t, k, alice), take(t, k, alice), take(t, k, other)
		expect.MustEqual(t, "the first is lost although there was room", lost(first), false)
		third := take(t, k, alice)
		expect.True(t, "the oldest was superseded", lost(first))
		for what, l := range map[string]*held{"second": second, "newest": third, "another workspace's": elsewhere} {
			expect.True(t, "the "+what+" stays", !isLost(l))
		}
		first.Release()
		second.Release()
		fourth := take(t, k, alice)
		if lost(third) || isLost(fourth) {
			t.Error("a lease that was given back still takes room")
		}
		for _, l := range []*held{third, fourth, elsewhere} {
			l.Release()
		}
		if l, ok := k.(*Local); ok && len(l.open) != 0 {
			t.Errorf("%d principals are remembered", len(l.open))
		}
	})
	each(t, "AUT-07 no one is known as the anonymous one", 2, func(t *testing.T, k keeper) {
		var all []*held
		for range 5 {
			all = append(all, take(t, k, auth.Principal{ID: "anonymous", Anonymous: true}))
		}
		expect.True(t, "it is not superseded", !lost(all[0]))
		for _, l := range all {
			l.Release()
		}
	})
}

func TestAFleetHasRoomForSoMany(t *testing.T) {
	db := expect.Value(sqlite.Open(":memory:", sqlite.Options{}))(t)
	t.Cleanup(func() { _ = db.Close() })
	now := time.Now().Truncate(time.Minute)
	instance := func() *Shared {
		return &Shared{DB: db, Max: same(1000), Fleet: 8, Life: time.Minute, Now: func() time.Time { return now }}
	}
	var (
		mu   sync.Mutex
		wg   sync.WaitGroup
		open []*held
		full int
	)
	for range 20 {
		wg.Go(func() {
			release, err := instance().Take(t.Context(), auth.Principal{ID: rand.Text(), Workspace: "default"}, func() {})
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err == nil:
				open = append(open, &held{Release: release})
			case fault.LimitOf(err) == "streams":
				full++
			default:
				t.Error(err)
			}
		})
	}
	wg.Wait()
	expect.MustEqual(t, "the open streams", len(open), 8)
	expect.MustEqual(t, "the refused streams", full, 12)
	for _, l := range open[:3] { // the others' instance is killed
		l.Release()
	}
	one := func() {
		if _, err := instance().Take(t.Context(), auth.Principal{ID: rand.Text(), Workspace: "default"}, func() {}); err != nil {
			t.Error(err)
		}
	}
	for range 3 {
		one()
	}
	now = now.Add(time.Minute) // the next period: what was opened may still be open
	expect.Equal(t, "the limit for the next stream", fault.LimitOf(expect.ErrOf(instance().Take(t.Context(), alice, func() {}))), "streams")
	now = now.Add(time.Minute) // all of it must have ended
	one()
}

// smallFleet has the two slots of a deployment with default parameters. Its instances do not notice that a client left.
func smallFleet(db store.DB) *Shared {
	return &Shared{DB: db, Max: same(100), Fleet: 2, Life: 5 * time.Minute, Check: 15 * time.Second}
}

// abandon opens a stream whose client leaves: it ends when it is superseded or at its maximum age.
func abandon(t *testing.T, s *Shared, p auth.Principal) (ended <-chan struct{}) {
	t.Helper()
	done, release := make(chan struct{}), make(chan func(), 1)
	end := sync.OnceFunc(func() {
		(<-release)()
		close(done)
	})
	r := expect.Value(s.Take(t.Context(), p, end))(t)
	release <- r
	time.AfterFunc(s.Life, end)
	time.Sleep(time.Second) // the clock orders them
	return done
}

func hasEnded(stream <-chan struct{}) bool {
	synctest.Wait()
	select {
	case <-stream:
		return true
	default:
		return false
	}
}

func TestAbandonedStreams(t *testing.T) {
	anonymous := auth.Principal{Workspace: "default", ID: "anonymous", Anonymous: true}
	for name, p := range map[string]auth.Principal{"a principal": alice, "an anonymous caller": anonymous} {
		t.Run("AWS-19 two abandoned streams in all slots make room for the next of "+name, func(t *testing.T) {
			over(t, func(t *testing.T, db store.DB, _ *Shared) {
				fleet := smallFleet(db)
				first, second := abandon(t, fleet, p), abandon(t, fleet, p)
				third := abandon(t, fleet, p)
				expect.Equal(t, "the limit for a fourth stream while the first one still runs", fault.LimitOf(expect.ErrOf(fleet.Take(t.Context(), p, func() {}))), "streams")
				time.Sleep(20 * time.Second)
				if !hasEnded(first) || hasEnded(second) || hasEnded(third) {
					t.Errorf("after 20 s ended are first %t, second %t, third %t; want only the first", hasEnded(first), hasEnded(second), hasEnded(third))
				}
				fourth := abandon(t, fleet, p)
				time.Sleep(20 * time.Second)
				if !hasEnded(second) || hasEnded(third) || hasEnded(fourth) {
					t.Errorf("20 s after the fourth ended are second %t, third %t, fourth %t; want only the second", hasEnded(second), hasEnded(third), hasEnded(fourth))
				}
				time.Sleep(5 * time.Minute)
				for range 2 { // the counts are right again
					abandon(t, fleet, alice)
				}
			})
		})
	}
	t.Run("AWS-19 a principal without streams does not end those of others", func(t *testing.T) {
		over(t, func(t *testing.T, db store.DB, _ *Shared) {
			fleet := smallFleet(db)
			first := abandon(t, fleet, alice)
			abandon(t, fleet, alice)
			expect.Equal(t, "the limit for the next stream of the fleet", fault.LimitOf(expect.ErrOf(fleet.Take(t.Context(), other, func() {}))), "streams")
			time.Sleep(20 * time.Second)
			expect.True(t, "another principal's stream stays open", !hasEnded(first))
		})
	})
}

// expired is a store whose partitions begin with expired items that are not deleted yet, so a query's first page is empty.
type expired struct{ store.DB }

func (e expired) Query(ctx context.Context, q store.Query) (store.Page, error) {
	if q.After == "" {
		return store.Page{More: true, Last: "0"}, nil
	}
	return e.DB.Query(ctx, q)
}

// After a crash, DynamoDB may keep an expired lease for two days before it deletes the lease.
func TestAnExpiredLeaseDoesNotHideOpenStreams(t *testing.T) {
	t.Run("AWS-19 a new stream still replaces an abandoned one", func(t *testing.T) {
		over(t, func(t *testing.T, db store.DB, _ *Shared) {
			fleet := smallFleet(expired{db})
			first := abandon(t, fleet, alice)
			abandon(t, fleet, alice)
			abandon(t, fleet, alice)
			time.Sleep(20 * time.Second)
			expect.True(t, "the oldest stream was replaced", hasEnded(first))
		})
	})
}

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

func isLost(h *held) bool { return hasEnded(h.lost) }

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
					expect.True(t, "the "+name+" stream, which is still open, stays", !isLost(h))
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
		page := expect.Value(db.Query(t.Context(), store.Query{Table: store.Sessions, Partition: principalKey(alice, "-").Partition}))(t)
		expect.Len(t, "the leases that are left behind", page.Items, 0)
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
