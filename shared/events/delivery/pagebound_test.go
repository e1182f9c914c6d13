package delivery

import (
	"context"
	"strings"
	"testing"

	"github.com/mcp-events/mcpevents/shared/events/event"
	"github.com/mcp-events/mcpevents/shared/events/switches"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/storage/queue"
	"github.com/mcp-events/mcpevents/shared/storage/store"

	"github.com/mcp-events/mcpevents/shared/events/delivery/task"
)

func TestPagesThatCannotBeWritten(t *testing.T) {
	for name, tc := range map[string]struct {
		refusal *fault.Error
		most    int // attempts
	}{
		"AWS-05 a failed delivery that can never be stored is dead-lettered after one attempt":        {fault.New(fault.TooLarge, "the item is too large"), 1},
		"AWS-05 failed deliveries of a page that cannot be stored are dead-lettered after some hours": {fault.New(fault.Unavailable, "the table is throttled"), maxPageRetries + 1},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			r.register("event://ci/build-finished")
			r.script = fails
			r.publish("evt_1")
			fanout, d, _ := r.process()
			r.hand(queue.Events, fanout.Handle)
			d.manager.Deliveries.DB = hooked{DB: r.db, write: func(_ context.Context, ops []store.Op) error {
				for _, op := range ops {
					if p := op.Item.Partition; strings.HasPrefix(p, "b#") || strings.HasPrefix(p, "d#") {
						return tc.refusal
					}
				}
				return nil
			}}
			for range 2 * maxPageRetries {
				r.hand(queue.Deliveries, d.Pages)
			}
			if len(r.posts) > tc.most {
				t.Errorf("got %d attempts, want at most %d", len(r.posts), tc.most)
			}
			if n := len(r.queues[queue.Deliveries]); n > 0 {
				t.Errorf("got %d page tasks that are left, want none", n)
			}
			if n := len(r.queues[queue.Dead]); n != 1 {
				t.Fatalf("got %d dead letters, want one", n)
			}
			l, err := queue.ParseDeadLetter(r.queues[queue.Dead][0].Body)
			if err != nil {
				t.Fatal(err)
			}
			task, err := task.Decode([]byte(l.Body), func(t task.Page) int { return t.V })
			if err != nil || task.Retries != 0 || len(task.Events) != 1 || task.Events[0].ID != "evt_1" {
				t.Errorf("got a dead letter of %+v, %v, want a new task for evt_1", task, err)
			}
		})
	}
}

// An event type is paused, and events with many quotes are published. As a string in JSON each quote takes two bytes.
func TestPausingLargePayloads(t *testing.T) {
	for name, data := range map[string]string{
		"plain text":      `{"ok":"` + strings.Repeat("x", 230<<10) + `"}`,
		"JSON in a text":  `{"ok":"` + strings.Repeat(`{\"id\":1}`, 23<<10) + `"}`,
		"array of texts":  `{"ok":[` + strings.TrimSuffix(strings.Repeat(`"",`, 79<<10), ",") + `]}`,
		"escaped newline": `{"ok":"` + strings.Repeat(`a\n`, 79<<10) + `"}`,
	} {
		t.Run("WHK-22 "+name, func(t *testing.T) {
			if len(data) > event.MaxPayload {
				t.Fatalf("the payload has %d bytes, more than publish accepts", len(data))
			}
			r := newRig(t)
			r.register("event://ci/build-finished")
			all := switches.Event("ci.build_finished")
			r.pause(all, nil)
			r.publishTo("event://ci/build-finished", "ci.build_finished", "evt_large", data)
			r.publish("evt_2")
			fanout, d, _ := r.process()
			d.Switches = r.switches()
			r.hand(queue.Events, fanout.Handle)
			r.hand(queue.Deliveries, d.Pages)
			if len(r.posts) > 0 {
				t.Fatalf("got %d posts while paused, want none", len(r.posts))
			}
			r.resume(all, nil)
			r.handle()
			if got := posted(r); got["evt_large"] != 1 || got["evt_2"] != 1 {
				t.Errorf("got posts %v after the pause, want one of each", got)
			}
			for _, p := range r.posts {
				if p.ID == "evt_large" && !strings.Contains(string(p.Body), data) {
					t.Errorf("the payload of evt_large came back changed")
				}
			}
		})
	}
}

// A page task that was sent again many times and a new one are in the same batch, and the store fails once more.
func TestANewPageHasAllItsRetries(t *testing.T) {
	r := newRig(t)
	r.register("event://ci/build-finished")
	r.script = fails
	fanout, d, _ := r.process()
	for _, id := range []string{"evt_old", "evt_new"} {
		r.publish(id)
		r.hand(queue.Events, fanout.Handle)
	}
	tasks := r.queues[queue.Deliveries]
	old, err := task.Decode(tasks[0].Body, func(t task.Page) int { return t.V })
	if err != nil || len(tasks) != 2 {
		t.Fatalf("got %d page tasks, %v, want two", len(tasks), err)
	}
	old.Retries = maxPageRetries
	tasks[0].Body = old.Encode()
	d.manager.Deliveries.DB = hooked{DB: r.db, write: func(context.Context, []store.Op) error {
		return fault.New(fault.Unavailable, "the table is throttled")
	}}
	r.hand(queue.Deliveries, d.Pages)
	if n := len(r.queues[queue.Dead]); n != 1 || !strings.Contains(string(r.queues[queue.Dead][0].Body), "evt_old") {
		t.Errorf("AWS-05: got %d dead letters, want one of the old page", n)
	}
	left := r.queues[queue.Deliveries]
	if len(left) != 1 {
		t.Fatalf("AWS-05: got %d page tasks that are left, want one of the new page", len(left))
	}
	task, err := task.Decode(left[0].Body, func(t task.Page) int { return t.V })
	if err != nil || task.Retries != 1 || len(task.Events) != 1 || task.Events[0].ID != "evt_new" {
		t.Errorf("AWS-05: got %d retries of %d events, %v, want the first retry of the new page", task.Retries, len(task.Events), err)
	}
}
