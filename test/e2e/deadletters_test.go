//go:build unix

package e2e

import (
	"fmt"
	"net/http"
	"slices"
	"testing"
	"time"

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
		if len(inbox) != gaveUp || len(events) != gaveUp {
			t.Fatalf("%d of the inbox and %d events", len(inbox), len(events))
		}
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
	t.Run("OPS-04 only operators of their workspace see them", func(t *testing.T) {
		expect.Len(t, "the dead letters that chief sees", list("chief", "?queue=inbox"), 0)
		expect.Len(t, "the dead letters that alice sees", list("alice", "?queue=inbox"), 0)
		o.call("POST", "dead-letters/"+inbox[0].ID+"/retry", "", http.StatusNotFound, nil)
	})
	t.Run("OPS-04 an event that its queue gave up is delivered once when it is retried", func(t *testing.T) {
		retry := "dead-letters/" + events[0].ID + "/retry"
		o.callAs(operator, "POST", retry, "", http.StatusAccepted, nil)
		o.callAs(operator, "POST", retry, "", http.StatusNotFound, nil)
		if got := hook.Wait(t, 1)[0].ID(); !slices.Contains(stuck(), got) {
			t.Errorf("got %s", got)
		}
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
		if o.callAs(operator, "POST", "replays", ask+`,"dryRun":true}`, http.StatusOK, &count); count.Count != want {
			t.Errorf("got the count %d, want %d", count.Count, want)
		}
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
	t.Run("OPS-04 a replay without a queue is for webhooks", func(t *testing.T) {
		var count struct{ Count int }
		if o.callAs(operator, "POST", "replays", `{"select":{},"dryRun":true}`, http.StatusOK, &count); count.Count != 0 {
			t.Errorf("got the count %d", count.Count)
		}
	})
	t.Run("OPS-08 the audit trail has each retry and its caller", func(t *testing.T) {
		var trail struct{ Items []object }
		o.callAs(operator, "GET", "audit?limit=100", "", http.StatusOK, &trail)
		by := map[any]any{}
		for _, e := range trail.Items {
			by[e["action"]] = e["by"]
		}
		if by["dead-letter.retry"] != operator || by["replay.start"] != operator {
			t.Errorf("got %v", by)
		}
	})
}
