package schedule_test

import (
	"context"
	"encoding/json"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mcp-events/mcpevents/localstack/internal/schedule"
	"github.com/mcp-events/mcpevents/test/expect"
)

func TestParse(t *testing.T) {
	for expression, want := range map[string]time.Duration{
		"rate(1 minute)":          time.Minute,
		"rate(5 minutes)":         5 * time.Minute,
		"rate(2 hours)":           2 * time.Hour,
		"rate(1 day)":             24 * time.Hour,
		"rate(0 minutes)":         0,
		"rate(1 second)":          0,
		"cron(0 12 * * ? *)":      0,
		"at(2026-11-20T13:00:00)": 0,
		"rate(999999999 minutes)": 0,
		"":                        0,
	} {
		got, err := schedule.Parse(expression)
		if got != want || (err == nil) != (want > 0) {
			t.Errorf("Parse(%q): got %v, %v, want %v", expression, got, err, want)
		}
	}
}

func TestTicks(t *testing.T) {
	t.Run("come at the rate and end with the context", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			var calls atomic.Int32
			done := make(chan struct{})
			go func() {
				defer close(done)
				schedule.Run(ctx, time.Minute, "rule", func(_ context.Context, payload []byte) {
					var event struct {
						DetailType string `json:"detail-type"`
					}
					if err := json.Unmarshal(payload, &event); err != nil || event.DetailType != "Scheduled Event" {
						t.Errorf("got event %s, %v", payload, err)
					}
					calls.Add(1)
				})
			}()
			time.Sleep(3*time.Minute + time.Second)
			cancel()
			<-done
			expect.Equal(t, "the number of calls", calls.Load(), 3)
		})
	})
	t.Run("are not delayed by a slow call, up to a limit", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			var calls atomic.Int32
			release, done := make(chan struct{}), make(chan struct{})
			go func() {
				defer close(done)
				schedule.Run(ctx, time.Minute, "rule", func(ctx context.Context, _ []byte) {
					calls.Add(1)
					<-release
					if ctx.Err() != nil {
						t.Error("a running call was cancelled")
					}
				})
			}()
			time.Sleep(10*time.Minute + time.Second)
			expect.Equal(t, "the number of concurrent calls", calls.Load(), 4)
			cancel()
			synctest.Wait()
			close(release)
			<-done
		})
	})
}
