package sqlite

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mcp-events/mcpevents/shared/storage/queue"
	store "github.com/mcp-events/mcpevents/shared/storage/store/sqlite"
	"github.com/mcp-events/mcpevents/shared/storage/store/sqlite/engine"
)

// TestDelaysAfterTheClockWentBack sets the clock of the machine back by a day and by some minutes. Timers continue, as they do
// on a machine.
func TestDelaysAfterTheClockWentBack(t *testing.T) {
	text := func(body string, delay time.Duration) queue.Outgoing {
		return queue.Outgoing{Body: []byte(body), Delay: delay}
	}
	for name, back := range map[string]time.Duration{"by a day": 24 * time.Hour, "by ten minutes": 10 * time.Minute} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var ahead atomic.Int64
				ahead.Store(int64(back))
				now := func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }
				q, end := start(t, store.Memory, store.Options{SweepEvery: -1, Engine: engine.Options{Now: now}}, Options{})
				defer end()
				arrived := map[string]time.Duration{}
				var stop func()
				start := time.Now()
				read := func() {
					stop = run(q, queue.Slow, queue.ConsumeOptions{}, func(_ context.Context, batch []queue.Message) ([]string, error) {
						for _, m := range batch {
							if _, again := arrived[string(m.Body)]; again {
								t.Errorf("got %s twice, want it once", m.Body)
							}
							arrived[string(m.Body)] = time.Since(start)
						}
						return nil, nil
					})
				}
				read()
				send(t, q, queue.Slow, text("before", time.Second))
				time.Sleep(2 * time.Second)
				stop()
				if arrived["before"] != time.Second {
					t.Fatalf("got the first message after %v, want 1s", arrived["before"])
				}
				send(t, q, queue.Slow, text("in memory", time.Second)) // becomes ready while there is no consumer
				time.Sleep(2 * time.Second)
				send(t, q, queue.Slow, text("waiting", 5*time.Second))

				ahead.Store(0)
				start = time.Now()
				send(t, q, queue.Slow, text("after", 5*time.Second))
				read()
				time.Sleep(20 * time.Minute)
				stop()
				for body, want := range map[string][2]time.Duration{
					"in memory": {0, 0},
					"after":     {5 * time.Second, 5 * time.Second},
					"waiting":   {0, min(back, 2*time.Minute) + queue.MaxDelay}, // at most the longest delay, if the step of the clock is too small to be noticed
				} {
					if got, ok := arrived[body]; !ok || got < want[0] || got > want[1] {
						t.Errorf("got %q after %v (%v), want %v to %v", body, got, ok, want[0], want[1])
					}
				}
				if got := arrived["waiting"]; back > queue.MaxDelay && got > time.Minute {
					t.Errorf("got the message that was due in a day after %v, want it within a minute", got)
				}
				if n := rowsOf(t, q, queue.Slow); n != 0 {
					t.Errorf("got %d rows in the end, want 0", n)
				}
			})
		})
	}
}
