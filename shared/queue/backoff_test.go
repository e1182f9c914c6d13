package queue_test

import (
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/shared/queue"
)

// TestBackoffGrows: AWS-05. Both kinds of queues hide for so long what failed.
func TestBackoffGrows(t *testing.T) {
	for received, want := range map[int]time.Duration{1: 1, 2: 2, 3: 4, 4: 8, 8: 128, 9: 256, 10: 300, 100: 300} {
		want *= time.Second
		for range 100 {
			if got := queue.Backoff(received); got < want*4/5 || got > want*6/5 {
				t.Errorf("after %d receives %v, want about %v", received, got, want)
			}
		}
	}
}
