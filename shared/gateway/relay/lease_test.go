package relay

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mcp-events/mcpevents/shared/gateway/api"
	"github.com/mcp-events/mcpevents/shared/storage/store"
	"github.com/mcp-events/mcpevents/shared/storage/store/sqlite"
	"github.com/mcp-events/mcpevents/test/expect"
)

// faulty is a store whose writes of leases fail while a test demands it.
type faulty struct {
	store.DB
	mu     sync.Mutex
	writes int // of leases, since fault was set
	fault  func(n int, write func() error) error
}

var errStore = errors.New("the store does not answer")

func (f *faulty) Write(ctx context.Context, ops ...store.Op) error {
	write := func() error { return f.DB.Write(ctx, ops...) }
	f.mu.Lock()
	fault := f.fault
	if ops[0].Kind != store.OpPut || fault == nil {
		f.mu.Unlock()
		return write()
	}
	f.writes++
	n := f.writes
	f.mu.Unlock()
	if err := fault(n, write); !errors.Is(err, errHangs) {
		return err
	}
	<-ctx.Done()
	return ctx.Err()
}

var errHangs = errors.New("the store hangs")

func (f *faulty) set(fault func(n int, write func() error) error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.fault, f.writes = fault, 0
}

// named is a backend with only a name.
type named struct{ Backend }

func (named) Place() api.Place { return api.Place{Workspace: "default", Backend: "b"} }

// GWN-03: a lease survives failed renewals while it lasts. A holder that cannot renew it stops before the lease expires for others.
func TestRenewalsAreTriedAgain(t *testing.T) {
	for name, tc := range map[string]struct {
		fault    func(n int, write func() error) error
		keeps    bool
		attempts int // at the least
	}{
		"one renewal fails": {func(n int, write func() error) error {
			if n == 1 {
				return errStore
			}
			return write()
		}, true, 2},
		"four renewals fail": {func(n int, write func() error) error {
			if n <= 4 {
				return errStore
			}
			return write()
		}, true, 5},
		"a renewal is written, and the answer lost": {func(n int, write func() error) error {
			if err := write(); n == 1 && err == nil {
				return errStore
			}
			return nil
		}, true, 2},
		"the store is gone": {func(int, func() error) error { return errStore }, false, 4},
		"the store hangs":   {func(int, func() error) error { return errHangs }, false, 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				db := expect.Value(sqlite.Open(":memory:", sqlite.Options{}))(t)
				defer func() { _ = db.Close() }()
				store, backend := &faulty{DB: db}, &follower{Backend: named{}}
				first := &Relay{DB: store, Log: slog.New(slog.DiscardHandler), Lease: 30 * time.Second}
				second := &Relay{DB: db, Log: first.Log, Lease: first.Lease}
				held, err := first.acquire(t.Context(), backend)
				if held == nil || err != nil {
					t.Fatalf("got %v, %v", held, err)
				}
				defer held.release()
				store.set(tc.fault)
				for began := time.Now(); time.Since(began) < 2*time.Minute && held.ctx.Err() == nil; time.Sleep(100 * time.Millisecond) {
					rival := expect.Value(second.acquire(t.Context(), backend))(t)
					if rival != nil {
						rival.release()
						t.Fatalf("after %s another one has the lease, too", time.Since(began))
					}
				}
				expect.Equal(t, "whether the lease is kept", held.ctx.Err() == nil, tc.keeps)
				if store.writes < tc.attempts || !tc.keeps && store.writes > 10 {
					t.Errorf("%d renewals were tried", store.writes)
				}
				if !tc.keeps {
					item, err := held.read(t.Context())
					if err != nil || item == nil || time.Until(item.Expires) < 4*time.Second {
						t.Errorf("the holder acted until its lease %+v expired: %v", item, err)
					}
				}
			})
		})
	}
}

// TestSpread draws the pauses of a thousand relays whose backend cannot be reached.
func TestSpread(t *testing.T) {
	t.Run("GWN-07 the jitter of reconnecting, from 1 s to 60 s", func(t *testing.T) {
		least, most := new(Relay).pauses()
		if least != time.Second || most != time.Minute {
			t.Errorf("by default from %v to %v", least, most)
		}
		for wait := least; ; wait = min(2*wait, most) {
			from, to := min(wait, most/2), min(2*wait, most)
			early, late := 0, 0
			for range 1000 {
				pause := spread(wait, most)
				if pause < from || pause > to || pause < time.Second || pause > time.Minute {
					t.Fatalf("a pause of %v, want %v to %v", pause, from, to)
				}
				if pause < from+(to-from)/2 {
					early++
				} else {
					late++
				}
			}
			if early < 400 || late < 400 { // 500 ± 16; seven of these are one in 10^9
				t.Errorf("%d of 1000 pauses are in the first half of %v to %v", early, from, to)
			}
			if wait == most {
				return
			}
		}
	})
}
