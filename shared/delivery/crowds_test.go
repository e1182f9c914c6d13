package delivery

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/shared/store"
	"github.com/mcp-events/mcpevents/shared/webhook"
)

// TestAHealthyEndpointBesideCrowds: WHK-16. What many bad endpoints hold together (slots, bytes,
// workers of the slow lane) is bounded, so that a healthy one is served as without them.
func TestAHealthyEndpointBesideCrowds(t *testing.T) {
	const (
		healthy = "https://well.example.com/hook"
		well    = 50 * time.Millisecond
	)
	large := `{"ok":"` + strings.Repeat("x", 180<<10) + `"}`
	for name, c := range map[string]struct {
		crowd   func(i int) string
		n       int
		takes   time.Duration
		payload string
		retried bool // the first attempt at the healthy one fails
		most    time.Duration
	}{
		"of two endpoints with many subscriptions, almost slow": {
			func(i int) string { return fmt.Sprintf("https://slow%d.example.com/hook?%d", i%2, i) }, 300, 1900 * time.Millisecond, "", false, time.Second,
		},
		"of endpoints that hang, with large bodies": {
			func(i int) string { return fmt.Sprintf("https://hang%d.example.com/hook", i) }, 15, time.Hour, large, false, 3 * time.Second,
		},
		"of endpoints that hang at one origin": {
			func(i int) string { return fmt.Sprintf("https://hang.example.com/hook/%d", i) }, 400, time.Hour, "", true, 13 * time.Second,
		},
	} {
		t.Run("WHK-16 a crowd "+name, func(t *testing.T) {
			options := embedded()
			options.Bytes = 32 << 20 // as the server has it
			inWorld(t, options, func(w *world) {
				w.payload = c.payload
				urls := []string{healthy}
				for i := range c.n {
					urls = append(urls, c.crowd(i))
				}
				w.to(urls...)
				w.answer = func(r webhook.Request) webhook.Outcome {
					if r.URL != healthy {
						return webhook.Outcome{Status: 200, Took: c.takes}
					}
					w.mu.Lock()
					defer w.mu.Unlock()
					if c.retried && len(w.attempts[r.ID+" "+r.URL]) == 1 {
						return webhook.Outcome{Status: 500, Category: webhook.HTTP5xx, Took: well}
					}
					return webhook.Outcome{Status: 200, Took: well}
				}
				at := w.send("e", 20, 20*time.Second)
				time.Sleep(time.Minute)
				lags, missing := w.lags(healthy, at)
				if missing > 0 || lags[len(lags)-1] > c.most {
					t.Errorf("%d events are missing, the others took %v, want %v at the most", missing, lags, c.most)
				}
			})
		})
	}
}

// TestWhatCouldNotBeRecordedIsNotSentAgain: WHK-18. An attempt of the slow lane that succeeded while the store
// takes nothing is written later, without another POST.
func TestWhatCouldNotBeRecordedIsNotSentAgain(t *testing.T) {
	inWorld(t, embedded(), func(w *world) {
		var broken atomic.Bool
		w.d.DB = recordless{w.d.DB, &broken}
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

// recordless is a store that takes no records while it is broken.
type recordless struct {
	store.DB
	broken *atomic.Bool
}

func (r recordless) WriteAll(ctx context.Context, ops ...store.Op) error {
	if r.broken.Load() {
		return errDied
	}
	return r.DB.WriteAll(ctx, ops...)
}
