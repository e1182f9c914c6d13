//go:build unix

package e2e

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/shared/events/delivery/deadletter"
	"github.com/mcp-events/mcpevents/shared/storage/queue"
	"github.com/mcp-events/mcpevents/test/expect"
	"github.com/mcp-events/mcpevents/test/harness"
)

// poison is a message of a direct sender that cannot be accepted.
const poison = `{"workspace":"beside","uri":"event://no/such"}`

// gaveUp is the number of dead letters each of the inbox and the events queue. A replay of one per second needs more
// than one step for them.
const gaveUp = 8

// stuck returns the ids of accepted events that the events queue has given up. stuckEvent returns the message that
// publish would have sent to fanout.
func stuck() (ids []string) {
	for i := range gaveUp {
		ids = append(ids, fmt.Sprint("evt_stuck_", i))
	}
	return ids
}

func stuckEvent(id string, published time.Time) string {
	micros := published.UnixMicro()
	return fmt.Sprintf(`{"v":1,"ws":"beside","id":%q,"uri":"event://ci/build-finished","name":"ci.build_finished","t":%d,"pub":%d,"data":{"build":1,"status":"passed"}}`,
		id, micros, micros)
}

// TestDeadLettersOfQueues tests the stand-alone server, whose queues are in its file. TestOnLocalAWS does the
// same on AWS.
func TestDeadLettersOfQueues(t *testing.T) {
	t.Parallel()
	s := harness.StartServer(t, harness.ServerOptions{})
	s.Stop()
	published := time.Now().Add(-time.Hour)
	for i, id := range stuck() {
		given := queue.Message{ID: fmt.Sprint(i), Outgoing: queue.Outgoing{Body: []byte(stuckEvent(id, published)), Group: "g"}, Received: 1000, Sent: published}
		s.Enqueue(t, queue.Dead, queue.NewDeadLetter(queue.Events, given, queue.ReasonReceives, nil, time.Now()))
		s.Enqueue(t, queue.Inbox, queue.Outgoing{Body: []byte(poison)})
	}
	s.Start()
	deadLettersOfQueues(t, &s.Target, published, time.Minute)
}

// deadLettersOfQueues tests a system whose inbox has given up [poison], and whose events queue has given up the
// [stuck] events. Every is the interval of the jobs that normally run every minute.
func deadLettersOfQueues(t *testing.T, target *harness.Target, published time.Time, every time.Duration) {
	const operator = "stranger"
	o := operate(t, target)
	type letter struct {
		ID, Queue, Reason string
		First, Dead       time.Time
		Attributes        map[string]string
	}
	list := func(who, query string) []letter {
		t.Helper()
		var l struct{ Items []letter }
		o.callAs(who, "GET", "dead-letters"+query, "", http.StatusOK, &l)
		return l.Items
	}
	hook := harness.NewReceiver(t).Endpoint("stuck")
	register(t, target.Stateless(operator), hook, "event://ci/build-finished")
	harness.Eventually(t, harness.Patience, "all are in the list", func() bool { return len(list(operator, "")) == 2*gaveUp })
	inbox, events := list(operator, "?queue=inbox"), list(operator, "?queue=events")
	t.Run("OPS-04 AWS-07 each has its queue, its reason and its first time", func(t *testing.T) {
		expect.MustEqual(t, "the dead letters of the inbox", len(inbox), gaveUp)
		expect.MustEqual(t, "the number of events", len(events), gaveUp)
		for _, l := range append(slices.Clone(inbox), events...) {
			if l.Reason == "" || l.First.IsZero() || l.Dead.Before(l.First) {
				t.Errorf("got %+v", l)
			}
			if l.Queue == "events" && (l.Reason != queue.ReasonReceives || l.First.Sub(published).Abs() > time.Second) {
				t.Errorf("got %+v, published %v", l, published)
			}
			if l.Queue == "inbox" && target.Name == "local AWS" && l.Attributes["team"] != "red" {
				t.Errorf("got %v", l.Attributes)
			}
		}
	})
	t.Run("OPS-04 an event that its queue gave up is delivered once when it is retried", func(t *testing.T) {
		retry := "dead-letters/" + events[0].ID + "/retry"
		o.callAs(operator, "POST", retry, "", http.StatusAccepted, nil)
		o.callAs(operator, "POST", retry, "", http.StatusNotFound, nil)
		expect.Has(t, "the dead letters", stuck(), hook.Wait(t, 1)[0].ID())
		expect.Len(t, "the dead letters that are left", list(operator, "?queue=events"), gaveUp-1)
	})
	replay := func(name string, want int) {
		t.Helper()
		rate := 1
		if every > 30*time.Second { // so a replay must be done in one step
			rate = 20
		}
		ask := fmt.Sprintf(`{"select":{"queue":%q},"rate":%d`, name, rate)
		var count struct{ Count int }
		o.callAs(operator, "POST", "replays", ask+`,"dryRun":true}`, http.StatusOK, &count)
		expect.Equal(t, "the count", count.Count, want)
		var r struct {
			ID, State                string
			Total, Replayed, Skipped int
		}
		o.callAs(operator, "POST", "replays", ask+"}", http.StatusAccepted, &r)
		harness.Eventually(t, harness.Patience, "the replay is done", func() bool {
			o.callAs(operator, "GET", "replays/"+r.ID, "", http.StatusOK, &r)
			return r.State == "done"
		})
		if r.Total != want || r.Replayed != want || r.Skipped != 0 {
			t.Errorf("got %+v, want %d", r, want)
		}
	}
	t.Run("OPS-04 a replay of a queue sends its messages back", func(t *testing.T) {
		replay("events", gaveUp-1)
		harness.Eventually(t, harness.Patience, "all events arrive", func() bool { return len(hook.IDs()) == gaveUp })
		expect.Len(t, "the dead letters that are left", list(operator, "?queue=events"), 0)
	})
	t.Run("OPS-04 a message that still cannot be accepted becomes another letter", func(t *testing.T) {
		replay("inbox", gaveUp)
		harness.Eventually(t, harness.Patience, "all are in the list again", func() bool {
			now := list(operator, "?queue=inbox")
			return len(now) == gaveUp && !slices.ContainsFunc(now, func(l letter) bool {
				return slices.ContainsFunc(inbox, func(was letter) bool { return was.ID == l.ID })
			})
		})
	})
}

// TestStoryOfAnOutage plays a day of an operator: an endpoint fails, its dead letters are inspected, counted and replayed, and the
// server that does so is killed on the way.
func TestStoryOfAnOutage(t *testing.T) {
	t.Parallel()
	const events, rate, some = 30, 5, 10 // events per second, fewer than the start of a replay schedules immediately
	s := harness.StartServer(t, harness.ServerOptions{Args: []string{"--delivery-log", "all", "--retry-schedule", "0s,1s"}})
	o := operate(t, &s.Target)
	hook := harness.NewReceiver(t).Endpoint("restored")
	id := strings.TrimPrefix(register(t, s.Stateless("owner"), hook, "event://ci/build-finished").Subscription.URI, "subscription://")
	type job struct {
		ID, State                string
		Total, Replayed, Skipped int
	}
	var begun job
	replay := `{"select":{"subscription":"` + id + fmt.Sprintf(`"},"rate":%d}`, rate)
	failed := map[string]int{} // attempts by webhook-id

	t.Run("WHK-20 an endpoint fails, and overview and metrics say so", func(t *testing.T) {
		hook.Answer(func(int, *harness.Delivery) harness.Reply {
			return harness.Reply{Status: http.StatusInternalServerError} // a 503 would reduce the number of attempts
		})
		for i := range events {
			expect.OK(t, expect.ErrOf(s.TryPublish(t.Context(), "owner", build(fmt.Sprintf("evt_%d", i), i+1))))
		}
		var overview struct {
			DeadLetters int
			Recent      struct {
				Failed  int
				Failing []struct{ Origin string }
			}
		}
		harness.Eventually(t, harness.Patience, "the dead letters are there", func() bool {
			o.call("GET", "overview", "", http.StatusOK, &overview)
			return overview.DeadLetters == events
		})
		failed = hook.IDs()
		if overview.Recent.Failed == 0 || len(overview.Recent.Failing) != 1 || !strings.HasPrefix(hook.URL(), overview.Recent.Failing[0].Origin) {
			t.Errorf("got %+v", overview)
		}
		want := fmt.Sprintf(`mcpevents_dead_letters_total{queue="webhook"} %d`, events)
		harness.Eventually(t, harness.Patience, want, func() bool { return strings.Contains(s.Metrics(t), want) })
	})
	hook.Answer(nil)
	o.call("POST", "replays", replay, http.StatusAccepted, &begun)
	if begun.State != "running" || begun.Total != events || begun.Replayed >= events {
		t.Errorf("the replay begins as %+v", begun)
	}
	t.Run("OPS-04 WHK-13 a replay continues after its processes were killed, and each event arrives with its original id", func(t *testing.T) {
		arrived := func() (n int) {
			for id, times := range hook.IDs() {
				if times > failed[id] {
					n++
				}
			}
			return n
		}
		harness.Eventually(t, harness.Patience, "some arrive", func() bool { return arrived() >= some })
		s.Kill()
		if n := arrived(); n >= events {
			t.Errorf("%d had arrived when they were killed", n)
		}
		s.Start()
		var ended job
		harness.Eventually(t, 2*harness.Patience, "the replay is done", func() bool {
			o.call("GET", "replays/"+begun.ID, "", http.StatusOK, &ended)
			return ended.State == "done"
		})
		// The letters of a step are counted at its end, so a process that is killed in a step leaves them uncounted.
		step := rate * int(deadletter.ReplayStep/time.Second)
		if ended.Total != events || ended.Skipped != 0 || ended.Replayed > events || ended.Replayed < events-step {
			t.Errorf("the replay ended as %+v, want %d in all, none skipped, and at most one step of %d uncounted", ended, events, step)
		}
		harness.Eventually(t, harness.Patience, "all arrive", func() bool { return arrived() == events })
		if _, different := hook.Count(); different != events {
			t.Errorf("%d events arrived, want %d", different, events)
		}
		expect.Len(t, "the dead letters that are left", o.list("dead-letters"), 0)
	})
}
