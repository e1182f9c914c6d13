package delivery

import (
	"testing"

	"github.com/mcp-events/mcpevents/shared/events/subscription"
	"github.com/mcp-events/mcpevents/shared/storage/queue"
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
}
