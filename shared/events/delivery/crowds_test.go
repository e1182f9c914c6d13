package delivery

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/shared/events/webhook"
)

// TestWhatCouldNotBeRecordedIsNotSentAgain: WHK-18. If an attempt of the slow lane succeeds while the store
// refuses writes, its outcome is written later, without another POST.
func TestWhatCouldNotBeRecordedIsNotSentAgain(t *testing.T) {
	inWorld(t, embedded(), func(w *world) {
		var broken atomic.Bool
		w.d.DB = hooked{DB: w.d.DB, writeAll: failing(&broken)}
		w.to("https://well.example.com/hook")
		w.answer = func(webhook.Request) webhook.Outcome {
			if !broken.Load() {
				return webhook.Outcome{Status: 500, Category: webhook.HTTP5xx, Took: time.Millisecond}
			}
			return webhook.Outcome{Status: 200, Took: time.Millisecond}
		}
		w.send("e", 1, time.Second)
		broken.Store(true)
		time.Sleep(3 * time.Hour)
		broken.Store(false)
		time.Sleep(time.Hour)
		w.mu.Lock()
		defer w.mu.Unlock()
		if n := len(w.attempts["e0 https://well.example.com/hook"]); n != 2 {
			t.Errorf("%d attempts, want the one that failed and the one that succeeded", n)
		}
	})
}
