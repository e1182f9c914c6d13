package periodic_test

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/platform/periodic"
	"github.com/mcp-events/mcpevents/shared/platform/periodic/periodictest"
	"github.com/mcp-events/mcpevents/test/expect"
)

var quiet = slog.New(slog.DiscardHandler)

func hangs(ctx context.Context) (int, error) {
	<-ctx.Done()
	return 1, fault.Wrap(fault.Unavailable, ctx.Err(), "read")
}

func TestJobsDoNotHoldEachOtherUp(t *testing.T) {
	t.Run("AWS-16 in one round", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			began := time.Now()
			var took time.Duration
			err := periodic.Round(t.Context(), 50*time.Second, quiet,
				periodic.Job{Name: "hangs", Run: hangs},
				periodic.Job{Name: "fails", Run: func(context.Context) (int, error) { return 0, errors.New("broken") }},
				periodic.Job{Name: "works", Run: func(context.Context) (int, error) { took = time.Since(began); return 1, nil }},
			)
			expect.Equal(t, "the time of the good job", took, 0)
			expect.Equal(t, "the time", time.Since(began), 50*time.Second)
			if err == nil || err.Error() != "fails: broken" {
				t.Errorf("got %v, want what failed and not what ran out of time", err)
			}
		})
	})
	t.Run("AWS-16 round after round", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute-time.Second)
			defer cancel()
			rounds, cut := 0, 0
			periodic.Every(ctx, time.Minute, quiet,
				periodic.Job{Name: "hangs", Run: func(ctx context.Context) (int, error) { cut++; return hangs(ctx) }},
				periodic.Job{Name: "works", Run: func(context.Context) (int, error) { rounds++; return 0, nil }},
			)
			expect.Equal(t, "the rounds", rounds, 10)
			expect.Equal(t, "the runs of the hanging job", cut, 10)
		})
	})
}

func TestAPanicEndsOnlyItsJob(t *testing.T) {
	panics := periodic.Job{Name: "panics", Run: func(context.Context) (int, error) { panic("a defect") }}
	t.Run("AWS-16 in one round", func(t *testing.T) {
		worked := false
		err := periodic.Round(t.Context(), time.Minute, quiet, panics,
			periodic.Job{Name: "works", Run: func(context.Context) (int, error) { worked = true; return 1, nil }})
		if !worked || err == nil || !strings.HasPrefix(err.Error(), "panics: panic: a defect") {
			t.Errorf("got %v, other job done %v; want the panic as an error, and the other job done", err, worked)
		}
	})
	t.Run("AWS-16 round after round", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute-time.Second)
			defer cancel()
			rounds := 0
			periodic.Every(ctx, time.Minute, quiet, periodic.Job{Name: "panics", Run: func(context.Context) (int, error) {
				rounds++
				panic("a defect")
			}})
			expect.Equal(t, "rounds of a job that panics", rounds, 3)
		})
	})
}

func TestSinceCountsWhileTheProcessIsFrozen(t *testing.T) {
	then := time.Now()
	thawed := periodictest.AfterFreeze(then, time.Minute)
	expect.Equal(t, "the difference of the monotonic clock", thawed.Sub(then), 0)
	expect.Equal(t, "the time since the freeze", periodic.Since(thawed, then), time.Minute)
	expect.Equal(t, "the time after the wall clock was set back", periodic.Since(then.Add(time.Second), thawed), time.Second)
}
