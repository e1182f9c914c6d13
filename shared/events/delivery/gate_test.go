package delivery

import (
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/shared/storage/queue"
)

func TestGate(t *testing.T) {
	g := &Gate{}
	read := time.Now()
	if !g.enter("a", read) {
		t.Error("closed before anything ended")
	}
	g.Ended("a")
	if g.enter("a", read) {
		t.Error("open for what was read before the end")
	}
	if !g.enter("a", time.Now().Add(time.Nanosecond)) {
		t.Error("closed for what was read after the end")
	}
}

// The end of a subscription and its creation under the same id may reach the gate in the wrong order.
func TestALateEndDoesNotSilenceASubscriptionMadeAnew(t *testing.T) {
	r := newRig(t)
	sub := r.register("event://ci/build-finished")
	_, d, _ := r.process()
	d.Gate = &Gate{}
	d.Gate.Started(sub.ID)
	d.Gate.Ended(sub.ID) // of the one before it
	r.done(d.Pages(t.Context(), []queue.Message{pageMessage("1", pageOf(sub.Patterns[0].Key, someEvents(1, 60)...))}))
	if len(r.posts) != 1 {
		t.Errorf("%d deliveries, want 1", len(r.posts))
	}
}
