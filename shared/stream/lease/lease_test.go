package lease

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/fault"
	"github.com/mcp-events/mcpevents/shared/store/sqlite"
)

var (
	alice = auth.Principal{ID: "alice", Workspace: "default"}
	other = auth.Principal{ID: "alice", Workspace: "other"}
)

// keeper is what both have in common.
type keeper interface {
	Take(ctx context.Context, p auth.Principal, superseded func()) (release func(), err error)
}

func same(most int) Max { return func(context.Context, auth.Principal) int { return most } }

type held struct {
	Release func()
	lost    chan struct{}
}

func keepers(t *testing.T, most int) map[string]keeper {
	t.Helper()
	db, err := sqlite.Open(":memory:", sqlite.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	return map[string]keeper{
		"local":  NewLocal(same(most), false),
		"shared": &Shared{DB: db, Max: same(most), Life: time.Minute, Check: 5 * time.Millisecond},
	}
}

func take(t *testing.T, k keeper, p auth.Principal) *held {
	t.Helper()
	h := &held{lost: make(chan struct{})}
	var err error
	if h.Release, err = k.Take(t.Context(), p, func() { close(h.lost) }); err != nil {
		t.Fatal(err)
	}
	return h
}

func lost(h *held) bool {
	select {
	case <-h.lost:
		return true
	case <-time.After(100 * time.Millisecond):
		return false
	}
}

func TestTheOldestStreamOfAPrincipalEnds(t *testing.T) {
	for name, k := range keepers(t, 2) {
		t.Run("AUT-07 "+name, func(t *testing.T) {
			first, second, elsewhere := take(t, k, alice), take(t, k, alice), take(t, k, other)
			if lost(first) {
				t.Fatal("lost although there was room")
			}
			third := take(t, k, alice)
			if !lost(first) {
				t.Error("the oldest was not superseded")
			}
			for what, l := range map[string]*held{"second": second, "newest": third, "another workspace's": elsewhere} {
				if lost(l) {
					t.Errorf("the %s was superseded", what)
				}
			}
			first.Release()
			second.Release()
			fourth := take(t, k, alice)
			if lost(third) || lost(fourth) {
				t.Error("a lease that was given back still takes room")
			}
			third.Release()
			fourth.Release()
			elsewhere.Release()
			if l, ok := k.(*Local); ok && len(l.open) != 0 {
				t.Errorf("%d principals are remembered", len(l.open))
			}
		})
		t.Run("AUT-07 nobody is known as the anonymous one: "+name, func(t *testing.T) {
			var all []*held
			for range 5 {
				all = append(all, take(t, k, auth.Principal{ID: "anonymous", Anonymous: true}))
			}
			if lost(all[0]) {
				t.Error("superseded")
			}
		})
	}
}

func TestAStreamOverTheQuotaIsRefused(t *testing.T) {
	db, err := sqlite.Open(":memory:", sqlite.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	for name, k := range map[string]keeper{
		"local":  NewLocal(same(2), true),
		"shared": &Shared{DB: db, Max: same(2), Life: time.Minute, Check: 5 * time.Millisecond, Refuse: true},
	} {
		t.Run("AUT-07 EVX-06 "+name, func(t *testing.T) {
			first, second := take(t, k, alice), take(t, k, alice)
			for range 3 {
				_, err := k.Take(t.Context(), alice, func() { t.Error("superseded") })
				if !fault.Is(err, fault.Exhausted) || fault.LimitOf(err) != "streams" {
					t.Fatalf("got %v", err)
				}
			}
			if lost(first) || lost(second) {
				t.Error("an open stream was superseded")
			}
			take(t, k, other).Release()
			first.Release()
			take(t, k, alice).Release()
			second.Release()
		})
	}
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
			release, err := instance().Take(t.Context(), alice, func() {})
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
	for range 3 {
		take(t, instance(), alice)
	}
	now = now.Add(time.Minute) // the next period: what was opened may still be open
	if _, err := instance().Take(t.Context(), alice, func() {}); fault.LimitOf(err) != "streams" {
		t.Errorf("got %v, want no room", err)
	}
	now = now.Add(time.Minute) // all of it must have ended
	take(t, instance(), alice)
}
