package delivery

import (
	"slices"
	"testing"

	"github.com/mcp-events/mcpevents/shared/events/webhook"
	"github.com/mcp-events/mcpevents/shared/storage/queue"
)

func message(id, body string) queue.Message {
	return queue.Message{ID: id, Outgoing: queue.Outgoing{Body: []byte(body)}}
}

// originsOfDead checks that each dead letter has its queue, its reason and its message (AWS-07).
func (r *rig) originsOfDead(want ...queue.Name) {
	r.t.Helper()
	for i, m := range r.queues[queue.Dead] {
		l, err := queue.ParseDeadLetter(m.Body)
		if err != nil {
			r.t.Fatal(err)
		}
		body, err := l.Content()
		if err != nil || len(body) == 0 || l.Queue != want[i] || l.Reason == "" || l.Message == "" || l.Dead.IsZero() {
			r.t.Errorf("AWS-07: dead letter %d is %+v, %v; want one of %s", i, l, err, want[i])
		}
	}
}

func TestBatches(t *testing.T) {
	t.Run("WHK-19 events that cannot be read are dead-lettered, the others of the batch go on", func(t *testing.T) {
		r := newRig(t)
		r.register("event://ci/build-finished")
		r.publish("evt_1")
		good := r.queues[queue.Events][0]
		r.queues[queue.Events] = nil
		fanout, dispatch, _ := r.process()
		batch := []queue.Message{
			message("broken", `{"v":1`),
			message("no version", `{"id":"evt_3"}`),
			message("newer", `{"v":99}`),
			message("nobody's", `{"v":1,"ws":"default","id":"evt_2","uri":"event://gone/type","data":{}}`),
			good,
		}
		failed, err := fanout.Handle(t.Context(), batch)
		if err != nil || !slices.Equal(failed, []string{"newer"}) {
			t.Fatalf("failed %v, error %v, want AWS-06 the newer one only: a poison message would come again for ever", failed, err)
		}
		if n := len(r.queues[queue.Dead]); n != 3 {
			t.Errorf("%d messages in the dead-letter queue, want the three", n)
		}
		pages := append(r.queues[queue.Deliveries], message("no page", `[]`),
			message("newer", `{"v":99}`), message("newer event", `{"v":1,"ev":[{"v":99}]}`))
		failed, err = dispatch.Pages(t.Context(), pages)
		if err != nil || !slices.Equal(failed, []string{"newer", "newer event"}) {
			t.Errorf("failed %v, error %v, want AWS-06 the newer ones only", failed, err)
		}
		if len(r.posts) != 1 || r.posts[0].ID != "evt_1" {
			t.Errorf("%d posts, want that of the good event", len(r.posts))
		}
		if n := len(r.queues[queue.Dead]); n != 4 {
			t.Errorf("%d messages in the dead-letter queue, want four", n)
		}
		r.originsOfDead(queue.Events, queue.Events, queue.Events, queue.Deliveries)
	})
	t.Run("WHK-19 a batch of retries reports the failed ones only", func(t *testing.T) {
		r := newRig(t)
		r.register("event://ci/build-finished")
		r.script = func(n int) webhook.Outcome {
			if n <= 2 {
				return webhook.Outcome{Status: 500, Category: webhook.HTTP5xx}
			}
			if n == 3 { // the process canceled it, so its outcome is unknown
				return webhook.Outcome{Category: webhook.Aborted, Err: errDied}
			}
			return webhook.Outcome{Status: 200}
		}
		r.publish("evt_1", "evt_2")
		fanout, dispatch, _ := r.process()
		r.hand(queue.Events, fanout.Handle)
		r.hand(queue.Deliveries, dispatch.Pages)
		retries := append(slices.Clone(r.queues[queue.Slow]), message("poison", `"x"`), message("newer", `{"v":99}`))
		if len(retries) != 4 {
			t.Fatalf("%d retries, want two, the poison and the newer", len(retries)-2)
		}
		failed, err := dispatch.Singles(t.Context(), retries)
		if err != nil || len(failed) != 2 || !slices.Contains(failed, "newer") || slices.Contains(failed, "poison") {
			t.Errorf("failed %v, error %v; want the newer one and the one that was broken off", failed, err)
		}
		if n := len(r.queues[queue.Dead]); n != 1 {
			t.Errorf("%d messages in the dead-letter queue, want the poison", n)
		}
		r.originsOfDead(queue.Slow)
	})
}
