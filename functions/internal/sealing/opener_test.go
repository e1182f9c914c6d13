package sealing

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/test/expect"
)

// hanging is a wrapper that responds when its gate opens, or never.
type hanging struct {
	locked
	asked atomic.Int64
	gate  chan struct{}
}

func (h *hanging) Unwrap(ctx context.Context, wrapped []byte) ([]byte, error) {
	h.asked.Add(1)
	select {
	case <-h.gate:
		return h.locked.Unwrap(ctx, wrapped)
	case <-ctx.Done():
		return nil, fault.Wrap(fault.Unavailable, ctx.Err(), "unwrap")
	}
}

// hangs runs a test with an opener whose KMS does not respond until the gate opens.
func hangs(t *testing.T, test func(t *testing.T, o *Opener, w *hanging, sealed []byte)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		db, w := open(t), &hanging{gate: make(chan struct{})}
		expect.OK(t, Create(t.Context(), db, &w.locked))
		test(t, &Opener{DB: db, Wrapper: w}, w, seal(t, db))
	})
}

func TestAHangingKMSDelaysCallersOnce(t *testing.T) {
	hangs(t, func(t *testing.T, o *Opener, w *hanging, sealed []byte) {
		began := time.Now()
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				for range 5 { // one after another, as for the subscribers on a page
					if _, err := o.Open(t.Context(), sealed, binding); !fault.Is(err, fault.Unavailable) {
						t.Errorf("got %v", err)
					}
				}
			})
		}
		wg.Wait()
		if took := time.Since(began); took > 10*time.Second || w.asked.Load() != 1 {
			t.Errorf("got %s and %d requests to KMS, want one wait of 10 s", took, w.asked.Load())
		}
		time.Sleep(11 * time.Second)
		close(w.gate)
		if got, err := o.Open(t.Context(), sealed, binding); err != nil || string(got) != "secret" {
			t.Errorf("after KMS has recovered: %q, %v", got, err)
		}
	})
}

func TestACanceledCallerDoesNotCancelTheLoad(t *testing.T) {
	hangs(t, func(t *testing.T, o *Opener, w *hanging, sealed []byte) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		began := time.Now()
		var wg sync.WaitGroup
		wg.Go(func() {
			if _, err := o.Open(ctx, sealed, binding); !fault.Is(err, fault.Unavailable) {
				t.Errorf("got %v", err)
			}
			if took := time.Since(began); took != time.Second {
				t.Errorf("the caller waited for %s, its context for 1s", took)
			}
		})
		synctest.Wait()
		wg.Go(func() {
			if got, err := o.Open(t.Context(), sealed, binding); err != nil || string(got) != "secret" {
				t.Errorf("got %q, %v", got, err)
			}
		})
		time.Sleep(2 * time.Second)
		close(w.gate)
		wg.Wait()
		if w.asked.Load() != 1 {
			t.Errorf("KMS was asked %d times", w.asked.Load())
		}
	})
}
