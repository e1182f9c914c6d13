package delivery

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/shared/events/subscription"
	"github.com/mcp-events/mcpevents/shared/storage/queue"

	"github.com/mcp-events/mcpevents/shared/events/delivery/deadletter"
)

// slow is a store of subscriptions that takes a second for each.
type slow struct {
	deadletter.Finder
	clock *atomic.Int64
}

func (s slow) Lookup(ctx context.Context, workspace, principal, id string) (*subscription.Subscription, error) {
	s.clock.Add(int64(time.Second))
	return s.Finder.Lookup(ctx, workspace, principal, id)
}

// TestAReplayBeginsAtOnce: OPS-04. The request that begins a replay schedules the letters that are due before the periodic
// job continues it, so that the operator does not wait for the job.
func TestAReplayBeginsAtOnce(t *testing.T) {
	const letters, rate = 150, 2
	begin := func(t *testing.T, finder func(deadletter.Finder, *atomic.Int64) deadletter.Finder) (*deadletter.Replay, *deadletter.Replays, *rig, *atomic.Int64) {
		r := newRig(t)
		r.register("event://ci/build-finished")
		r.script = tooLarge
		for i := range letters {
			r.publish(fmt.Sprintf("evt_%d", i))
		}
		r.run()
		clock := new(atomic.Int64)
		clock.Store(r.now.UnixNano())
		ops := deadletter.NewOperations(deadletter.Options{DB: r.db, Queue: mortal{r.db, r}, Now: func() time.Time { return time.Unix(0, clock.Load()) }})
		replays := deadletter.NewReplays(deadletter.ReplayOptions{Operations: ops, Subscriptions: finder(r.services, clock)})
		job, err := replays.Start(t.Context(), "default", "chief", nil, deadletter.ReplaySelect{}, rate)
		if err != nil || job.Total != letters {
			t.Fatal(job, err)
		}
		if job, err = replays.Begin(t.Context(), job); err != nil {
			t.Fatal(err)
		}
		return job, replays, r, clock
	}
	t.Run("OPS-04 it has what is due within the minute, each letter at its time", func(t *testing.T) {
		job, replays, r, clock := begin(t, func(f deadletter.Finder, _ *atomic.Int64) deadletter.Finder { return f })
		ahead := job.Next.Sub(time.Unix(0, clock.Load()))
		if job.State != deadletter.ReplayRunning || ahead <= deadletter.ReplayAhead || ahead > deadletter.ReplayAhead+deadletter.ReplayStep || job.Replayed != int(ahead/time.Second)*rate {
			t.Errorf("%v ahead it is %+v", ahead, job)
		}
		delays := map[time.Duration]int{}
		for _, m := range r.queues[queue.Slow] {
			delays[m.Delay]++
		}
		for second := range int(ahead / time.Second) {
			if n := delays[time.Duration(second)*time.Second]; n < 1 || n > 2*rate {
				t.Errorf("in second %d there are %d", second, n)
			}
		}
		clock.Add(int64(time.Minute))
		for range 2 {
			if _, err := replays.Run(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		if job, err := replays.Find(t.Context(), "default", job.ID); err != nil || job.State != deadletter.ReplayDone || job.Replayed != letters {
			t.Errorf("a minute later it is %+v, %v", job, err)
		}
	})
	t.Run("OPS-04 it takes no longer than a moment", func(t *testing.T) {
		job, _, _, _ := begin(t, func(f deadletter.Finder, clock *atomic.Int64) deadletter.Finder { return slow{f, clock} })
		if step := rate * int(deadletter.ReplayStep/time.Second); job.State != deadletter.ReplayRunning || job.Replayed != step {
			t.Errorf("it is %+v, want %d replayed", job, step)
		}
	})
}
