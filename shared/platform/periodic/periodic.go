// Package periodic runs jobs at regular intervals, for example to send due retries or to remove expired subscriptions. Jobs run
// concurrently, each with its own time limit, so a slow job does not delay the others.
package periodic

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
)

// Job is work that is repeated in rounds. If a round runs out of time, the next round continues the work.
type Job struct {
	Name string
	// Run does one round of the job and returns the number of processed items.
	Run func(ctx context.Context) (done int, err error)
}

// Round runs one round of each job, concurrently and each for at most the given time, and returns their errors. Running out of time is
// not an error, because the next round continues the job. A panic only fails its own job.
func Round(ctx context.Context, each time.Duration, log *slog.Logger, jobs ...Job) error {
	errs := make([]error, len(jobs))
	var running sync.WaitGroup
	for i, j := range jobs {
		running.Go(func() { errs[i] = j.round(ctx, each, log) })
	}
	running.Wait()
	return errors.Join(errs...)
}

// Every repeats each job at the given interval until ctx ends, and then waits for the running jobs. The interval is also the time limit
// of a round. A panic only ends its own job's round.
func Every(ctx context.Context, interval time.Duration, log *slog.Logger, jobs ...Job) {
	var running sync.WaitGroup
	for _, j := range jobs {
		running.Go(func() {
			tick := time.NewTicker(interval)
			defer tick.Stop()
			for ctx.Err() == nil {
				_ = j.round(ctx, interval, log) // round logs the error
				select {
				case <-ctx.Done():
				case <-tick.C:
				}
			}
		})
	}
	running.Wait()
}

// Sleep waits for the duration d. If ctx ends first, it returns the error of ctx.
func Sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Clock returns now, or time.Now if now is nil.
func Clock(now func() time.Time) func() time.Time {
	if now == nil {
		return time.Now
	}
	return now
}

// Wait waits until the group's counter is zero. It returns the error of ctx if ctx ends first.
func Wait(ctx context.Context, group *sync.WaitGroup) error {
	done := make(chan struct{})
	go func() {
		group.Wait()
		close(done)
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Since returns how much time has passed between two readings of the clock. It returns the larger of the differences of the monotonic clock
// and of the wall clock, because the monotonic clock may stand still while Lambda has frozen the process or a machine sleeps, and the wall
// clock may be set back.
func Since(now, then time.Time) time.Duration { return max(now.Sub(then), now.Round(0).Sub(then)) }

// WallClock returns the current time without the monotonic clock, which may stand still while Lambda has frozen the process. So a time
// limit that was computed with WallClock ends on time, for example the pause of a failing webhook endpoint.
func WallClock() time.Time { return time.Now().Round(0) }

// Earlier returns the earlier of two times.
func Earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

// Later returns the later of two times.
func Later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

func (j Job) round(ctx context.Context, each time.Duration, log *slog.Logger) error {
	own, cancel := context.WithTimeout(ctx, each)
	defer cancel()
	done, err := j.run(own)
	switch {
	case err != nil && ctx.Err() != nil: // the process is stopping
		return nil
	case err != nil && own.Err() != nil:
		log.WarnContext(ctx, "periodic job out of time", "job", j.Name, "done", done)
		return nil
	case err != nil:
		log.ErrorContext(ctx, "periodic job failed", "job", j.Name, "done", done, "error", err)
		return fmt.Errorf("%s: %w", j.Name, err)
	}
	if done > 0 {
		log.InfoContext(ctx, "periodic job done", "job", j.Name, "done", done)
	}
	return nil
}

// run calls j.Run and returns a panic as an error, because a panic would end the process with all other jobs.
func (j Job) run(ctx context.Context) (done int, err error) {
	defer fault.Recovered(&err)
	return j.Run(ctx)
}
