package settings_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
	. "github.com/mcp-events/mcpevents/shared/storage/settings"
	"github.com/mcp-events/mcpevents/shared/storage/settings/settingstest"
	"github.com/mcp-events/mcpevents/shared/storage/store"
)

// slow is a store that takes its time, and gives up with its caller.
type slow struct {
	*settingstest.Store
	takes time.Duration
}

func (s *slow) Get(ctx context.Context, keys ...store.Key) ([]*store.Item, error) {
	select {
	case <-time.After(s.takes):
		return s.Store.Get(ctx, keys...)
	case <-ctx.Done():
		return nil, fault.Wrap(fault.Unavailable, ctx.Err(), "get")
	}
}

// TestCallersThatDisconnectDoNotDelayOthers checks that a written document is in use after MaxAge although callers keep
// starting to read it and disconnecting.
func TestCallersThatDisconnectDoNotDelayOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := &slow{settingstest.New(), 50 * time.Millisecond}
		c := cache(db)
		write(t, db, "one")
		if got, _, err := c.Get(t.Context(), "d"); got != "one" || err != nil {
			t.Fatal(got, err)
		}
		stop := make(chan struct{})
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			for {
				ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
				_, _, _ = c.Get(ctx, "d")
				cancel()
				select {
				case <-stop:
					return
				case <-time.After(10 * time.Millisecond):
				}
			}
		}()
		write(t, db, "two")
		time.Sleep(MaxAge)
		if got, _, err := c.Get(t.Context(), "d"); got != "two" || err != nil {
			t.Errorf("after %s: got %q, %v", MaxAge, got, err)
		}
		close(stop)
		<-ended
		time.Sleep(time.Minute)
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		if _, _, err := c.Get(ctx, "d"); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a caller waits beyond its own context: %v", err)
		}
		time.Sleep(time.Second) // the read ends with the bubble
	})
}

// Slow reads are used, and hanging reads end.
func TestASlowStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := &slow{settingstest.New(), MaxAge / 4}
		c := cache(db)
		write(t, db, "one")
		began := time.Now()
		for range 3 {
			if got, _, err := c.Get(t.Context(), "d"); got != "one" || err != nil {
				t.Fatalf("got %q, %v", got, err)
			}
			if got, _, err := c.Latest(t.Context(), "d"); got != "one" || err != nil {
				t.Fatalf("latest: got %q, %v", got, err)
			}
			time.Sleep(MaxAge)
		}
		if took := time.Since(began); took > 45*time.Second {
			t.Errorf("it took %s", took)
		}
		db.takes = time.Hour
		time.Sleep(MaxAge)
		began = time.Now()
		got, _, err := c.Get(t.Context(), "d")
		if took := time.Since(began); got != "one" || err != nil || took > MaxAge {
			t.Errorf("from a store that hangs: %q, %v after %s", got, err, took)
		}
	})
}
