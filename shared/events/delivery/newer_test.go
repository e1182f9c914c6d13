package delivery

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"github.com/mcp-events/mcpevents/shared/events/delivery/state"
	"github.com/mcp-events/mcpevents/shared/events/delivery/task"
	"github.com/mcp-events/mcpevents/shared/events/fanout"
	"github.com/mcp-events/mcpevents/shared/storage/queue"
	"github.com/mcp-events/mcpevents/shared/storage/store"
)

// SQS would move a message to the dead queue after 1,000 receives, and delete it after 14 days.
func TestAMessageOfANewerVersionDoesNotReachTheLimitOfReceives(t *testing.T) {
	for name, c := range map[string]struct {
		received int
		broken   bool // the queue takes nothing
		left     bool
		copies   int
	}{
		"AWS-06 given a newer message, when it was received seldom, then it stays":                               {task.RenewAfter - 1, false, true, 0},
		"AWS-06 given a newer message, when it was received often, then a copy takes its place":                  {task.RenewAfter, false, false, 1},
		"AWS-06 given a newer message that was received often, when the copy cannot be sent, then it stays":      {task.RenewAfter, true, true, 0},
		"AWS-06 given a newer message of which sending a copy failed before, then the next receive sends a copy": {task.RenewAfter + 1, false, false, 1},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			_, d, _ := r.process()
			var log bytes.Buffer
			d.Queue, d.Log = &watched{Sender: d.Queue, broken: c.broken}, slog.New(slog.NewTextHandler(&log, nil))
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
			if got := strings.Contains(log.String(), "newer message not renewed"); got != c.broken {
				t.Errorf("got a line about the copy in the log: %v, want %v:\n%s", got, c.broken, &log)
			}
		})
	}
}

func TestFanoutRenewsANewerEventAndHandlesTheLaterOnes(t *testing.T) {
	for name, c := range map[string]struct {
		received int
		broken   bool // the events queue accepts no message
		left     bool // both events
	}{
		"AWS-06 given a newer event, when it was received seldom, then it and the later event of its group stay":             {task.RenewAfter - 1, false, true},
		"AWS-06 given a newer event, when it was received often, then a copy replaces it and the later event is delivered":   {task.RenewAfter, false, false},
		"AWS-06 given a newer event that was received often, when the copy cannot be sent, then it and the later event stay": {task.RenewAfter, true, true},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			r.register("event://ci/build-finished")
			r.publish("evt_newer", "evt_behind")
			batch := r.queues[queue.Events]
			for i := range batch {
				batch[i].Group, batch[i].Received = "ci", c.received
			}
			batch[0].Body = []byte(strings.Replace(string(batch[0].Body), `"v":1`, `"v":99`, 1))
			var left []string
			if c.left {
				left = []string{batch[0].ID, batch[1].ID}
			}
			var copies []queue.Message
			for range 2 { // the process dies before the queue deletes the events, so they are received again
				r.queues[queue.Events] = slices.Clone(batch)
				failed, err := r.fanOut(func(f *fanout.Fanout) { f.Queue = &watched{Sender: f.Queue, broken: c.broken} })
				if err != nil || !slices.Equal(failed, left) {
					t.Errorf("got failed %v and error %v, want failed %v", failed, err, left)
				}
				copies = append(copies, r.queues[queue.Events]...)
			}
			if got, want := posted(r)["evt_behind"] > 0, !c.left; got != want {
				t.Errorf("got the later event delivered: %v, want %v", got, want)
			}
			if n := len(r.queues[queue.Dead]); n > 0 {
				t.Errorf("got %d dead letters, want none", n)
			}
			if c.left {
				if len(copies) > 0 {
					t.Errorf("got %d copies, want none", len(copies))
				}
				return
			}
			if len(copies) != 2 || copies[0].Dedup == "" || copies[0].Dedup != copies[1].Dedup {
				t.Fatalf("got copies %+v, want one of each receive, both with one deduplication id", copies)
			}
			if got := copies[0]; string(got.Body) != string(batch[0].Body) || got.Group != "ci" {
				t.Errorf("got a copy %s of group %q, want the same body and group \"ci\"", got.Body, got.Group)
			}
		})
	}
}

// During a deployment, a process of the old version may come across a delivery that a newer process stored.
func TestADeliveryOfANewerVersionIsLeftAlone(t *testing.T) {
	for name, use := range map[string]func(r *rig, d *Dispatcher, message queue.Message){
		"when its message arrives": func(r *rig, d *Dispatcher, message queue.Message) {
			for _, message.Received = range []int{1, laterReceives} {
				failed, err := d.Singles(r.t.Context(), []queue.Message{message})
				if err != nil || len(failed) != 1 {
					r.t.Errorf("received %d times: got failed %v and error %v, want its message to stay", message.Received, failed, err)
				}
			}
		},
		"when its event is sent again": func(r *rig, d *Dispatcher, _ queue.Message) {
			r.publish("evt_1")
			fanout, _, _ := r.process()
			r.hand(queue.Events, fanout.Handle)
			r.hand(queue.Deliveries, d.Pages)
		},
		"when its subscription is reactivated": func(r *rig, d *Dispatcher, message queue.Message) {
			single, err := task.Decode(message.Body, func(s task.Single) int { return s.V })
			if err != nil {
				r.t.Fatal(err)
			}
			err = d.manager.ReactivateAll(r.t.Context(), "default", task.Reactivation{Principal: "alice", Subscription: single.Subscription})
			if !errors.Is(err, state.ErrNewer) {
				r.t.Errorf("got %v, want %v", err, state.ErrNewer)
			}
		},
	} {
		t.Run("AWS-06 "+name, func(t *testing.T) {
			r := newRig(t)
			sub, _ := r.subscribed()
			d, _ := r.storeFailed()
			message := r.queues[queue.Slow][0]
			key := state.Key("default", sub.ID, r.keyOf("evt_1"))
			newer := store.Item{Key: key, Version: 9, Value: fmt.Appendf(nil, `{"v":%d,"a":"of another type"}`, task.Version+1)}
			if err := r.db.Write(t.Context(), store.Put(newer)); err != nil {
				t.Fatal(err)
			}
			use(r, d, message)
			items, err := r.db.Get(t.Context(), key)
			if err != nil || items[0] == nil || items[0].Version != newer.Version || string(items[0].Value) != string(newer.Value) {
				t.Errorf("got the item %+v (%v), want %+v", items[0], err, newer)
			}
			if n := len(r.queues[queue.Dead]); n != 0 {
				t.Errorf("got %d dead letters, want none", n)
			}
		})
	}
}
