package relay

import (
	"context"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mcp-events/mcpevents/test/expect"
)

// busy returns a relay that looks for backends until it is canceled. It calls started before and ended after.
func busy(started, ended func()) *Relay {
	return &Relay{Log: slog.New(slog.DiscardHandler), Backends: func(ctx context.Context) []Backend {
		started()
		defer ended()
		<-ctx.Done()
		return nil
	}}
}

// GWN-03: an invocation of 15 minutes ends 15 s before Lambda would end it, after its backends were offered to the next
// invocation for 225 s. If it dies, others wait for 30 s.
func TestAnInvocationEndsBeforeItsTimeIsUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var relay *Relay
		invocations := NewInvocations(func() *Relay {
			relay = busy(func() {}, func() {})
			return relay
		})
		ctx, cancel := context.WithTimeout(t.Context(), 15*time.Minute)
		defer cancel()
		began := time.Now()
		expect.OK(t, invocations.Serve(ctx))
		if took := time.Since(began); took != 885*time.Second || relay.Handover != 225*time.Second || relay.Lease != 30*time.Second {
			t.Errorf("got an invocation of %s with a handover of %s and a lease of %s, want 14m45s, 3m45s and 30s", took, relay.Handover, relay.Lease)
		}
	})
}

func TestInvocationsRunOneAfterTheOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		running := 0
		invocations := NewInvocations(func() *Relay {
			return busy(func() {
				if running++; running > 1 {
					t.Error("got two relays at the same time, want one")
				}
			}, func() { running-- })
		})
		for range 2 {
			go func() {
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				_ = invocations.Serve(ctx)
			}()
		}
		time.Sleep(3 * time.Minute)
		invocations.Shutdown(time.Second)
	})
}

// GWN-03: Lambda sends SIGTERM before it ends the process, and the running invocation ends in time.
func TestShutdownEndsTheRunningInvocation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		started := make(chan struct{})
		invocations := NewInvocations(func() *Relay { return busy(func() { close(started) }, func() {}) })
		ended := make(chan struct{})
		go func() {
			_ = invocations.Serve(t.Context())
			close(ended)
		}()
		<-started
		began := time.Now()
		invocations.Shutdown(450 * time.Millisecond)
		<-ended
		expect.Equal(t, "the time until the invocation ended", time.Since(began), 0)
	})
}
