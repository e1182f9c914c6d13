package lease

import (
	"context"
	"crypto/rand"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/storage/store"
	"github.com/mcp-events/mcpevents/shared/storage/store/sqlite"
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
func each(t *testing.T, name string, most int, refuse bool, test func(t *testing.T, k keeper)) {
	t.Helper()
	t.Run(name+": local", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) { test(t, NewLocal(same(most), refuse)) })
	})
	t.Run(name+": shared", func(t *testing.T) {
		over(t, func(t *testing.T, db store.DB, _ *Shared) {
			test(t, &Shared{DB: db, Max: same(most), Life: time.Minute, Check: 5 * time.Second, Refuse: refuse})
		})
	})
}

func take(t *testing.T, k keeper, p auth.Principal) *held {
	t.Helper()
	h := &held{lost: make(chan struct{})}
	var err error
	if h.Release, err = k.Take(t.Context(), p, func() { close(h.lost) }); err != nil {
		t.Fatal(err)
	}
	time.Sleep(time.Second) // the clock orders them
	return h
}

// lost says whether a lease is taken away as soon as that is looked at.
func lost(h *held) bool {
	time.Sleep(10 * time.Second)
	return isLost(h)
}

func TestWhatAPrincipalMayHaveOpen(t *testing.T) {
	each(t, "AUT-07 the oldest ends for one more", 2, false, func(t *testing.T, k keeper) {
		first, second, elsewhere := take(t, k, alice), take(t, k, alice), take(t, k, other)
		if lost(first) {
			t.Fatal("lost although there was room")
		}
		third := take(t, k, alice)
		if !lost(first) {
			t.Error("the oldest was not superseded")
		}
		for what, l := range map[string]*held{"second": second, "newest": third, "another workspace's": elsewhere} {
			if isLost(l) {
				t.Errorf("the %s was superseded", what)
			}
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
	each(t, "AUT-07 no one is known as the anonymous one", 2, false, func(t *testing.T, k keeper) {
		var all []*held
		for range 5 {
			all = append(all, take(t, k, auth.Principal{ID: "anonymous", Anonymous: true}))
		}
		if lost(all[0]) {
			t.Error("superseded")
		}
		for _, l := range all {
			l.Release()
		}
	})
	each(t, "AUT-07 EVX-06 one over the quota is refused", 2, true, func(t *testing.T, k keeper) {
		first, second := take(t, k, alice), take(t, k, alice)
		for range 3 {
			_, err := k.Take(t.Context(), alice, func() { t.Error("superseded") })
			if !fault.Is(err, fault.Exhausted) || fault.LimitOf(err) != "streams" {
				t.Fatalf("got %v", err)
			}
		}
		if lost(first) || isLost(second) {
			t.Error("an open stream was superseded")
		}
		take(t, k, other).Release()
		first.Release()
		take(t, k, alice).Release()
		second.Release()
	})
}

func TestAFleetHasRoomForSoMany(t *testing.T) {
	db, err := sqlite.Open(":memory:", sqlite.Options{})
	if err != nil {
		t.Fatal(err)
	}
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
	if len(open) != 8 || full != 12 {
		t.Fatalf("%d open, %d refused; want 8 and 12", len(open), full)
	}
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
	if _, err := instance().Take(t.Context(), alice, func() {}); fault.LimitOf(err) != "streams" {
		t.Errorf("got %v, want no room", err)
	}
	now = now.Add(time.Minute) // all of it must have ended
	one()
}
