package delivery

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mcp-events/mcpevents/shared/events/webhook"
	"github.com/mcp-events/mcpevents/shared/storage/queue"
)

// crowd is endpoints of which some hang.
type crowd struct {
	mu  sync.Mutex
	got map[string]int
}

func (c *crowd) Send(ctx context.Context, r webhook.Request) webhook.Outcome {
	c.mu.Lock()
	c.got[r.URL]++
	c.mu.Unlock()
	if !strings.Contains(r.URL, "hang") {
		return webhook.Outcome{Status: 200}
	}
	select {
	case <-time.After(r.Timeout):
		return webhook.Outcome{Category: webhook.Timeout, Took: r.Timeout}
	case <-ctx.Done():
		return webhook.Outcome{Category: webhook.Aborted, Err: ctx.Err()}
	}
}

func TestEndpointsThatHangDoNotHoldOthersUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		var key string
		for i := range 12 {
			target := fmt.Sprintf("https://hang%d.example.com/", i)
			if i == 11 {
				target = "https://well.example.com/"
			}
			key = r.to(target)[0].Patterns[0].Key
		}
		_, p, _ := r.process()
		p.Options.Concurrency, p.Options.Patience = 4, 2*time.Second
		c := &crowd{got: map[string]int{}}
		d := NewDispatcher(Config{
			DB: p.DB, Queue: p.Queue, Subscriptions: p.Subscriptions, Catalog: p.Catalog, Opener: p.Opener, Terminator: p.Terminator,
			Options: p.Options, Log: p.Log, Poster: c,
		})
		began := time.Now()
		batch := []queue.Message{pageMessage("1", pageOf(key, someEvents(3, 60)...))}
		for len(batch) > 0 {
			r.done(d.Pages(t.Context(), batch))
			if took := time.Since(began); took > hold+p.Options.Patience {
				t.Errorf("a page took %s, with a timeout of 20 s and a patience of 2 s", took)
			}
			batch, r.queues[queue.Deliveries], began = r.queues[queue.Deliveries], nil, time.Now()
		}
		c.mu.Lock()
		if c.got["https://well.example.com/"] != 3 {
			t.Errorf("the endpoint that is well got %d of 3 events", c.got["https://well.example.com/"])
		}
		for url, n := range c.got {
			if strings.Contains(url, "hang") && n != 1 {
				t.Errorf("%s was tried %d times by one page", url, n)
			}
		}
		c.mu.Unlock()
		d.Wait(t.Context())
		if n := len(r.queues[queue.Slow]); n < 3*11 {
			t.Errorf("%d deliveries went to the slow lane, want at least %d", n, 3*11)
		}
	})
}
