//go:build unix

package e2e

import (
	"fmt"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/shared/events/delivery/deadletter"
	"github.com/mcp-events/mcpevents/test/expect"
	"github.com/mcp-events/mcpevents/test/harness"
)

// shaky is a system whose processes can be killed.
type shaky struct {
	*harness.Target
	kill, start func()
	// dead returns how many deliveries were given up, according to the metrics.
	dead func() int
	// The number of events to replay, and the rate per second. It is more than the start of a replay schedules
	// immediately.
	events, rate int
	outcomes     string // of the attempts of an event that is given up, the last one first
}

func TestStoryOfAnOutage(t *testing.T) {
	t.Parallel()
	s := harness.StartServer(t, harness.ServerOptions{Args: []string{"--delivery-log", "all", "--retry-schedule", "0s,1s"}})
	outage(t, shaky{&s.Target, s.Kill, s.Start, func() int { return total(s.Metrics(t), `mcpevents_dead_letters_total{queue="webhook"} (\d+)`) }, 30, 5, "dead failed"})
}

// TestStoryOfAnOutageOnAWS kills processes that are working on a replay. Their messages are redelivered to new
// processes after the visibility timeout.
func TestStoryOfAnOutageOnAWS(t *testing.T) {
	t.Parallel()
	aws := harness.StartAWS(t, harness.AWSOptions{
		// Functions have half of this time. With less, some time out on a busy machine, and repeat events that are
		// already dead letters.
		Visibility: 40 * time.Second, Env: map[string]string{"MCPEVENTS_RETRY_SCHEDULE": "0s", "MCPEVENTS_DELIVERY_LOG": "all"},
	})
	aws.ApplyCatalog(t, "operated", operatedCatalog(t))
	harness.Eventually(t, harness.Patience, "the catalog of the workspace is in use", func() bool {
		a, err := aws.Stateless("owner").Try(t.Context(), "resources/templates/list", nil)
		return err == nil && a.Error == nil && strings.Contains(string(a.Body), "event://")
	})
	kill := func() {
		for _, function := range []string{"RetryFunction", "DispatchFunction"} {
			aws.KillOf(function)
		}
		if n := aws.Killed(); n == 0 {
			t.Error("no process was killed")
		}
	}
	retire := sync.OnceFunc(func() { aws.Retire("DispatchFunction") }) // its processes then write their remaining metrics
	dead := func() int {
		retire()
		return total(aws.Output(), `"queue":"webhook","mcpevents_dead_letters":\[(\d+)\]`)
	}
	outage(t, shaky{&aws.Target, kill, func() {}, dead, 70, 1, "dead"})
}

// total returns the sum of the numbers that a pattern finds.
func total(text, pattern string) (sum int) {
	for _, found := range regexp.MustCompile(pattern).FindAllStringSubmatch(text, -1) {
		n, _ := strconv.Atoi(found[1]) // only digits
		sum += n
	}
	return sum
}

// outage plays a day of an operator: an endpoint fails, its dead letters are inspected, counted and replayed, and the
// processes that do so are killed on the way.
func outage(t *testing.T, s shaky) {
	const some = 10
	events, rate := s.events, s.rate
	o := operate(t, s.Target)
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
		var counted int
		// A function that timed out on a busy machine repeats events that are already dead letters.
		if !harness.Within(t, harness.Patience, func() bool { counted = s.dead(); return counted >= events }) {
			t.Errorf("the metrics count %d, want %d", counted, events)
		}
	})
	t.Run("OPS-03 the operator finds every attempt and its reason", func(t *testing.T) {
		for _, d := range o.list("deliveries?event=evt_7") {
			if d["category"] != "http_5xx" || d["status"] != "5xx" {
				t.Errorf("got %v", d)
			}
		}
		if got := o.members("deliveries?event=evt_7", "outcome"); got != s.outcomes {
			t.Errorf("got %s, want %s", got, s.outcomes)
		}
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
		s.kill()
		if n := arrived(); n >= events {
			t.Errorf("%d had arrived when they were killed", n)
		}
		s.start()
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
		if left := o.list("dead-letters"); len(left) != 0 {
			t.Errorf("left %v", left)
		}
	})
}
