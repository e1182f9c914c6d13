//go:build unix

package e2e

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/shared/events/delivery/deadletter"
	"github.com/mcp-events/mcpevents/test/expect"
	"github.com/mcp-events/mcpevents/test/harness"
)

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
	t.Run("OPS-03 the operator finds every attempt and its reason", func(t *testing.T) {
		for _, d := range o.list("deliveries?event=evt_7") {
			if d["category"] != "http_5xx" || d["status"] != "5xx" {
				t.Errorf("got %v", d)
			}
		}
		expect.Equal(t, "the outcomes, the latest first", o.members("deliveries?event=evt_7", "outcome"), "dead failed")
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
