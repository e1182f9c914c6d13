package delivery

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mcp-events/mcpevents/shared/events/event"
	"github.com/mcp-events/mcpevents/shared/events/webhook"
	"github.com/mcp-events/mcpevents/shared/storage/queue"

	"github.com/mcp-events/mcpevents/shared/events/delivery/task"
)

// unhurried is an endpoint that takes its time.
type unhurried struct {
	takes time.Duration
	mu    sync.Mutex
	got   map[string]int
}

func (u *unhurried) Send(ctx context.Context, r webhook.Request) webhook.Outcome {
	select {
	case <-time.After(u.takes):
		u.mu.Lock()
		defer u.mu.Unlock()
		u.got[r.ID]++
		return webhook.Outcome{Status: 200, Took: u.takes}
	case <-ctx.Done():
		return webhook.Outcome{Category: webhook.Aborted, Err: ctx.Err()}
	}
}

func someEvents(n, size int) (events []event.Event) {
	data, _ := json.Marshal(string(make([]byte, size/6))) // each becomes \u0000
	for i := range n {
		events = append(events, event.Event{
			Workspace: "default", ID: fmt.Sprintf("e%d", i), URI: "event://ci/build-finished", Name: "ci.build_finished", Data: data,
		})
	}
	return events
}

// A page that cannot be sent within the time of its batch must not return unchanged, because it would be cut off at the same
// place again.
func TestAPageOfManyEventsForASlowEndpointEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		sub := r.register("event://ci/build-finished")
		_, d, _ := r.process()
		u := &unhurried{takes: 1500 * time.Millisecond, got: map[string]int{}}
		d.sender.poster, d.Now = u, time.Now
		events := someEvents(100, 60)
		batch := []queue.Message{pageMessage("1", pageOf(sub.Patterns[0].Key, events...))}
		for batches := 0; len(batch) > 0; batches++ {
			if batches == 20 {
				t.Fatalf("%d of %d events were delivered after %d batches", len(u.got), len(events), batches)
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			failed, err := d.Pages(ctx, batch)
			cancel()
			if err != nil || len(failed) > 0 {
				t.Fatalf("the batch failed: %v, %v", failed, err)
			}
			batch = r.queues[queue.Deliveries]
			r.queues[queue.Deliveries] = nil
		}
		for _, e := range events {
			if u.got[e.ID] != 1 {
				t.Errorf("%s was delivered %d times", e.ID, u.got[e.ID])
			}
		}
		if n := len(r.queues[queue.Slow]); n > 0 {
			t.Errorf("%d deliveries were retried", n)
		}
	})
}

// Tasks for the same range are handled together. Their remaining events have to fit into messages again.
func TestTheRestOfAPageFitsIntoMessages(t *testing.T) {
	r := newRig(t)
	var key string
	for range 4*task.PageTarget + 1 {
		key = r.register("event://ci/build-finished").Patterns[0].Key
	}
	_, d, _ := r.process()
	var batch []queue.Message
	for i, e := range someEvents(4, 180<<10) {
		batch = append(batch, pageMessage(fmt.Sprint(i), pageOf(key, e)))
	}
	r.done(d.Pages(t.Context(), batch))
	for _, m := range r.queues[queue.Deliveries] {
		if len(m.Body) > queue.MaxBody {
			t.Errorf("a task of %d bytes; a message holds %d", len(m.Body), queue.MaxBody)
		}
	}
	if n := len(r.queues[queue.Deliveries]); n == 0 {
		t.Error("got no task for another page, want at least one")
	}
}
