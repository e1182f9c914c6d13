package delivery

import (
	"slices"
	"testing"

	"github.com/mcp-events/mcpevents/shared/storage/queue"

	"github.com/mcp-events/mcpevents/shared/events/delivery/deadletter"
)

// SQS would move a message to the dead queue after 1,000 receives, and delete it after 14 days.
func TestAMessageOfANewerVersionDoesNotReachTheLimitOfReceives(t *testing.T) {
	for name, c := range map[string]struct {
		received int
		broken   bool // the queue takes nothing
		left     bool
		copies   int
	}{
		"AWS-06 given a newer message, when it was received seldom, then it stays":                               {renewAfter - 1, false, true, 0},
		"AWS-06 given a newer message, when it was received often, then a copy takes its place":                  {renewAfter, false, false, 1},
		"AWS-06 given a newer message that was received often, when the copy cannot be sent, then it stays":      {renewAfter, true, true, 0},
		"AWS-06 given a newer message of which sending a copy failed before, then the next receive sends a copy": {renewAfter + 1, false, false, 1},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			_, d, _ := r.process()
			d.Queue = &watched{Sender: d.Queue, broken: c.broken}
			for q, handle := range map[queue.Name]queue.Handler{queue.Deliveries: d.Pages, queue.Slow: d.Singles} {
				m := message("newer", `{"v":99}`)
				m.Group, m.Received = "endpoint", c.received
				failed, err := handle(t.Context(), []queue.Message{m})
				if err != nil || slices.Contains(failed, "newer") != c.left {
					t.Errorf("%s: got failed %v and error %v, want it left: %v", q, failed, err, c.left)
				}
				copies := r.queues[q]
				if len(copies) != c.copies {
					t.Fatalf("%s: got %d copies, want %d", q, len(copies), c.copies)
				}
				for _, got := range copies {
					if string(got.Body) != `{"v":99}` || got.Group != "endpoint" {
						t.Errorf("%s: got a copy %s of group %q, want the same body and group", q, got.Body, got.Group)
					}
				}
			}
			if n := len(r.queues[queue.Dead]); n != 0 {
				t.Errorf("got %d dead letters, want none", n)
			}
		})
	}
}

// After 1,000 receives, SQS moves an event to the dead-letter queue of the events queue, from which retry files dead letters.
func TestAnEventOfANewerVersionGoesBackToItsQueue(t *testing.T) {
	for name, c := range map[string]struct {
		body    string
		broken  bool // the queue accepts no message
		failed  []string
		copies  int
		letters int
	}{
		"AWS-06 given a newer event that was moved, when retry reads it, then it goes back to the events queue": {`{"v":99}`, false, nil, 1, 0},
		"AWS-06 given that the events queue accepts nothing, then the event stays where SQS moved it":           {`{"v":99}`, true, []string{"moved"}, 0, 0},
		"AWS-06 given an event that no version reads, then it is a dead letter":                                 {`no event`, false, nil, 0, 1},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			o := r.operations()
			o.Deliveries.Queue = &watched{Sender: o.Deliveries.Queue, broken: c.broken}
			m := message("moved", c.body)
			m.From, m.Group, m.Received, m.Sent = queue.Events, "group", queue.MaxReceives, r.now
			failed, err := o.File(t.Context(), []queue.Message{m})
			if err != nil || !slices.Equal(failed, c.failed) {
				t.Errorf("got failed %v and error %v, want failed %v", failed, err, c.failed)
			}
			copies := r.queues[queue.Events]
			if len(copies) != c.copies {
				t.Fatalf("got %d messages in the events queue, want %d", len(copies), c.copies)
			}
			for _, got := range copies {
				if string(got.Body) != c.body || got.Group != "group" {
					t.Errorf("got %s in group %q, want the same body in group \"group\"", got.Body, got.Group)
				}
			}
			letters, _, err := o.Letters(t.Context(), "default", deadletter.LetterQuery{}, "", 10)
			if err != nil || len(letters) != c.letters {
				t.Errorf("got dead letters %v and error %v, want %d", letters, err, c.letters)
			}
		})
	}
}
