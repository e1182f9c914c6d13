package queue_test

import (
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/shared/storage/queue"
)

// TestAMessageOfANewerVersionIsKeptForTenDays adds up the back-offs of a message that no function can read. SQS allows 1,000
// receives before it moves a message to a dead queue, and deletes messages after 14 days.
func TestAMessageOfANewerVersionIsKeptForTenDays(t *testing.T) {
	t.Run("AWS-06 it is retried for ten days before SQS moves it, and not deleted", func(t *testing.T) {
		var waited time.Duration
		for received := 1; received <= queue.MaxReceives; received++ {
			waited += queue.Backoff(received)
		}
		const day = 24 * time.Hour
		if waited < 10*day || waited > 13*day {
			t.Errorf("got %.1f days of back-offs, want 10 to 13", waited.Hours()/24)
		}
	})
}

// TestBackoffGrows (AWS-05) checks the back-offs, which both kinds of queues use.
func TestBackoffGrows(t *testing.T) {
	for received, want := range map[int]time.Duration{1: 1, 2: 2, 3: 4, 4: 8, 8: 128, 9: 256, 10: 300, 500: 300, 501: 1500, 1000: 1500} {
		want *= time.Second
		for range 100 {
			if got := queue.Backoff(received); got < want*4/5 || got > want*6/5 {
				t.Errorf("got %v after %d receives, want about %v", got, received, want)
			}
		}
	}
}
