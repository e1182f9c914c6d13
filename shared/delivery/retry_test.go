package delivery

import (
	"testing"
	"time"

	"mcpevents/shared/queue"
	"mcpevents/shared/webhook"
)

// owed makes a delivery that failed and whose message was lost: only the due
// entry knows of it.
func owed(r *rig) {
	r.t.Helper()
	sub := r.register("event://ci/build-finished")
	r.script = func(int) webhook.Outcome { return webhook.Outcome{Category: webhook.HTTP5xx, Status: 500} }
	_, d, _ := r.process()
	task := PageTask{V: taskVersion, Workspace: "default", Pattern: sub.Patterns[0].Key, Count: 1, Events: someEvents(1, 60)}
	if failed, err := d.Pages(r.t.Context(), []queue.Message{{ID: "1", Outgoing: queue.Outgoing{Body: encode(task)}}}); err != nil || len(failed) > 0 {
		r.t.Fatal(failed, err)
	}
	r.queues[queue.Slow] = nil
}

func (r *rig) round() {
	r.t.Helper()
	_, _, retry := r.process()
	if _, err := retry.Run(r.t.Context()); err != nil {
		r.t.Fatal(err)
	}
}

func TestRetriesSurviveDaysWithoutAServer(t *testing.T) {
	r := newRig(t)
	r.round()
	owed(r)
	r.now = r.now.Add(5 * 24 * time.Hour)
	r.round()
	if n := len(r.queues[queue.Slow]); n != 1 {
		t.Errorf("%d retries came back, want 1", n)
	}
}

func TestRetriesSurviveAClockThatIsSetBack(t *testing.T) {
	r := newRig(t)
	right := r.now
	r.now = right.Add(6 * time.Hour)
	r.round()
	r.now = right
	r.round()
	owed(r)
	for range 10 {
		r.now = r.now.Add(time.Minute)
		r.round()
	}
	if n := len(r.queues[queue.Slow]); n != 1 {
		t.Errorf("%d retries came back, want 1", n)
	}
}
