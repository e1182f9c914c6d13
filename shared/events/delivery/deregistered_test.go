package delivery

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mcp-events/mcpevents/shared/events/subscription"
	"github.com/mcp-events/mcpevents/shared/storage/queue"
	"github.com/mcp-events/mcpevents/shared/storage/store"
)

// TestNothingStartsAfterDeregistering: EVS-11. Wherever a delivery is when its subscription is
// deregistered, no attempt of it starts afterwards.
func TestNothingStartsAfterDeregistering(t *testing.T) {
	for name, until := range map[string]func(*testing.T, *rig){
		"an event that is not fanned out": func(*testing.T, *rig) {},
		"a page that waits": func(t *testing.T, r *rig) {
			fanout, _, _ := r.process()
			r.hand(queue.Events, fanout.Handle)
			if len(r.queues[queue.Deliveries]) == 0 {
				t.Fatal("no page")
			}
		},
		"a retry in the slow lane": func(t *testing.T, r *rig) {
			r.script = fails
			r.work()
			if len(r.posts) == 0 || len(r.queues[queue.Slow]) == 0 {
				t.Fatalf("%d posts, %d retries", len(r.posts), len(r.queues[queue.Slow]))
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			id := r.register("event://ci/build-finished").ID
			r.publish("evt_1")
			until(t, r)
			before := len(r.posts)
			if err := r.services.Deregister(t.Context(), r.principal(), subscription.URI(id)); err != nil {
				t.Fatal(err)
			}
			r.run()
			if n := len(r.posts) - before; n != 0 {
				t.Errorf("%d attempts started after the answer", n)
			}
		})
	}
	t.Run("EVS-11 a retry on AWS that waits for a slow store after its subscription was read", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t)
			id := r.register("event://ci/build-finished").ID
			d, _ := r.storeFailed()
			d.Options.EndpointRate = 10
			waited := false
			d.DB = hooked{DB: d.DB, write: func(_ context.Context, ops []store.Op) error {
				if !waited && strings.HasPrefix(ops[0].Item.Partition, "t#") { // the attempt takes a token of the rate limit
					waited = true
					if err := r.services.Deregister(t.Context(), r.principal(), subscription.URI(id)); err != nil {
						t.Error(err)
					}
					time.Sleep(1500 * time.Millisecond)
				}
				return nil
			}}
			before := len(r.posts)
			r.hand(queue.Slow, NewDispatcher(d.Config).Singles)
			if n := len(r.posts) - before; n != 0 || !waited {
				t.Errorf("got %d attempts 1.5 s after the answer (waited %v), want none", n, waited)
			}
		})
	})
}
