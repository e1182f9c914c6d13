//go:build unix

package e2e

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/mcp-events/mcpevents/test/harness"
)

// TestStoryOfAnOutage is an operator's day: an endpoint fails, its dead letters are looked at, counted and replayed, and
// the server is killed in the middle of that.
func TestStoryOfAnOutage(t *testing.T) {
	const events, rate = 30, 5 // a replay takes five seconds' worth of letters at a time, so one step is not all
	s := harness.StartServer(t, harness.ServerOptions{Args: []string{"--delivery-log", "all", "--retry-schedule", "0s,1s"}})
	o := operate(t, &s.Target)
	hook := harness.NewReceiver(t).Endpoint("restored")
	id := strings.TrimPrefix(register(t, s.Modern("owner"), hook, "event://ci/build-finished").Subscription.URI, "subscription://")
	type job struct {
		ID, State                string
		Total, Replayed, Skipped int
	}
	var begun job
	replay := `{"select":{"subscription":"` + id + fmt.Sprintf(`"},"rate":%d}`, rate)
	failed := map[string]int{} // attempts by webhook-id

	t.Run("WHK-20 an endpoint fails, and overview and metrics say so", func(t *testing.T) {
		hook.Answer(func(int, *harness.Delivery) harness.Reply {
			return harness.Reply{Status: http.StatusInternalServerError} // 503 would ask for fewer attempts
		})
		for i := range events {
			if _, err := s.TryPublish(t.Context(), "owner", build(fmt.Sprintf("evt_%d", i), i+1)); err != nil {
				t.Fatal(err)
			}
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
		if want, got := fmt.Sprintf("mcpevents_dead_letters_total{queue=\"webhook\"} %d\n", events), metrics(t, s); !strings.Contains(got, want) {
			t.Errorf("no %s in %s", want, got)
		}
	})
	t.Run("OPS-03 the operator finds the reason", func(t *testing.T) {
		letters := o.list("dead-letters?limit=100&subscription=" + id)
		if len(letters) != events {
			t.Errorf("got %d", len(letters))
		}
		for _, l := range letters {
			if l["reason"] != "http_5xx" {
				t.Errorf("got %v", l)
			}
		}
		for _, d := range o.list("deliveries?event=evt_7") {
			if d["category"] != "http_5xx" || d["status"] != "5xx" {
				t.Errorf("got %v", d)
			}
		}
		if got := o.members("deliveries?event=evt_7", "outcome"); got != "dead failed" {
			t.Errorf("got %s", got)
		}
	})
	t.Run("WHK-13 a dry run counts, and a replay asked twice runs once", func(t *testing.T) {
		hook.Answer(nil)
		var count struct{ Count int }
		o.call("POST", "replays", strings.Replace(replay, "{", `{"dryRun":true,`, 1), http.StatusOK, &count)
		if all, _ := hook.Count(); count.Count != events || all != len(failed)*2 {
			t.Errorf("it counts %d, with %d attempts made", count.Count, all)
		}
		var same job
		o.call("POST", "replays", replay, http.StatusAccepted, &begun)
		o.call("POST", "replays", replay, http.StatusAccepted, &same)
		if begun.State != "running" || begun.Total != events || begun.Replayed >= events || same != begun {
			t.Errorf("got %+v, and then %+v", begun, same)
		}
	})
	t.Run("OPS-04 a replay goes on after the server was killed, and each event arrives under its first id", func(t *testing.T) {
		arrived := func() (n int) {
			for id, times := range hook.IDs() {
				if times > failed[id] {
					n++
				}
			}
			return n
		}
		harness.Eventually(t, harness.Patience, "some arrive", func() bool { return arrived() >= rate })
		s.Kill()
		if n := arrived(); n >= begun.Replayed {
			t.Errorf("%d had arrived when the server was killed", n)
		}
		s.Start()
		var ended job
		harness.Eventually(t, harness.Patience, "the replay is done", func() bool {
			o.call("GET", "replays/"+begun.ID, "", http.StatusOK, &ended)
			return ended.State == "done"
		})
		if ended.Total != events || ended.Replayed != events || ended.Skipped != 0 {
			t.Errorf("it ended as %+v", ended)
		}
		harness.Eventually(t, harness.Patience, "all arrive", func() bool { return arrived() == events })
		if all, different := hook.Count(); different != events || all > 3*events+rate {
			t.Errorf("%d attempts of %d events", all, different)
		}
		if left := o.list("dead-letters"); len(left) != 0 {
			t.Errorf("left %v", left)
		}
	})
	t.Run("OPS-08 the audit trail tells who replayed what", func(t *testing.T) {
		started := 0
		for _, e := range o.list("audit?limit=100") {
			if e["action"] != "replay.start" {
				continue
			}
			if started++; e["by"] != "chief" || !strings.Contains(fmt.Sprint(e["after"]), id) {
				t.Errorf("got %v", e)
			}
		}
		if started != 2 {
			t.Errorf("%d replays were asked for by the audit trail", started)
		}
	})
}

// metrics are what the server tells its operator.
func metrics(t *testing.T, s *harness.Server) string {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.Base()+"/metrics", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+s.Keys["chief"])
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("%d %v: %s", resp.StatusCode, err, raw)
	}
	return string(raw)
}
