package conversation

import (
	"context"
	"encoding/json"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/gateway/api"
	"github.com/mcp-events/mcpevents/test/expect"
)

// unready is a backend that answers only after it was prepared.
type unready struct {
	takes    time.Duration
	prepared atomic.Int32
	ready    atomic.Bool
}

func (*unready) Backends(context.Context, auth.Principal) []string { return []string{"notes"} }

func (u *unready) Converse(ctx context.Context, _ api.Client, _, _ string, _ json.RawMessage) (json.RawMessage, error) {
	if !u.ready.Load() {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return json.RawMessage(`{"context":"x"}`), nil
}

func (u *unready) Prepare(ctx context.Context, _ api.Client, name string) error {
	u.prepared.Add(1)
	select {
	case <-time.After(u.takes):
		u.ready.Store(name == "notes")
		return nil
	case <-ctx.Done():
		return errors.Join(ctx.Err(), errors.New("not ready"))
	}
}

const withBackend = `
backends: [{name: notes, url: "http://notes/"}]
conversation:
  userMessages: true
  providers: [{name: notes, backend: notes}]
`

// CNV-03: a backend that exceeded the budget is prepared after the response, once at a time, so that a later message
// gets its context. Without Prepares it is not.
func TestABackendIsPreparedAfterTheResponse(t *testing.T) {
	for _, prepares := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			b := &unready{takes: 2 * time.Second}
			r := newRig(t, withBackend, func(o *Options) { o.Backends, o.Prepares = b, prepares })
			r.consent("notes")
			for range 2 {
				began := time.Now()
				if got := r.say(); got.Text != "" || time.Since(began) != 500*time.Millisecond {
					t.Errorf("after %v got %q", time.Since(began), got.Text)
				}
			}
			time.Sleep(b.takes)
			synctest.Wait()
			if got := r.say(); (got.Text != "") != prepares || (b.prepared.Load() == 1) != prepares {
				t.Errorf("prepares %v: got %q, prepared %d times", prepares, got.Text, b.prepared.Load())
			}
		})
	}
}

// CNV-03: preparations end with the service, and their number is limited across all callers.
func TestPreparationsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &unready{takes: time.Hour}
		r := newRig(t, withBackend, func(o *Options) { o.Backends, o.Prepares = b, true })
		for i := range 2 * maxPreparing {
			r.prepare(Caller{Principal: ann, Client: api.Client{Session: string(rune('a' + i))}}, "notes")
		}
		synctest.Wait()
		expect.Equal(t, "concurrent preparations", b.prepared.Load(), maxPreparing)
		time.Sleep(prepareTime)
		synctest.Wait()
		r.prepare(Caller{Principal: ann}, "notes")
		synctest.Wait()
		began := time.Now()
		if err := r.Close(t.Context()); err != nil || time.Since(began) > 0 || b.prepared.Load() != maxPreparing+1 {
			t.Errorf("after %v and %d: %v", time.Since(began), b.prepared.Load(), err)
		}
	})
}
