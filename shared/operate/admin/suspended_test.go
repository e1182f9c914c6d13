package admin_test

import (
	"context"
	"errors"
	"fmt"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/client"
	"github.com/mcp-events/mcpevents/shared/app/standalone"
)

// suspend creates a subscription of MCP Events whose endpoint fails with every event, waits until it is suspended, and returns its
// id.
func suspend(f *fixture) string {
	f.Helper()
	hooks := &client.Handler{}
	hold := httptest.NewServer(hooks)
	f.Cleanup(hold.Close)
	hooks.URL = hold.URL
	c, err := client.Connect(f.Context(), f.s.URL, client.Options{Key: "alice", Agent: "test/1", Webhooks: hooks})
	if err != nil {
		f.Fatal(err)
	}
	sub, err := c.Subscribe(f.Context(), client.SubscribeOptions{
		Name: "ci.build_finished", Mode: client.ModeWebhook,
		Event: func(context.Context, client.Event) error { return errors.New("not now") },
	})
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { _ = sub.Close() })
	for i := range 110 {
		f.publish(built, fmt.Sprint("evt_failed_", i))
	}
	id := ""
	f.eventually("the suspension", func() bool {
		id = ids(f.list("op", "subscriptions?state=suspended"), "id")
		return id != ""
	})
	return id
}

func TestASuspendedSubscription(t *testing.T) {
	f := start(t, func(o *standalone.Options) { o.Limits.EventsSchedule = []time.Duration{0} })
	began := time.Now().Add(-time.Minute)
	id := suspend(f)
	t.Run("OPS-02 resume says that the subscriber must refresh the subscription", func(t *testing.T) {
		for _, who := range []string{"op", "alice"} {
			raw := string(f.call(who, "POST", "subscriptions/"+id+"/resume", "", 409, nil))
			if !strings.Contains(raw, "suspended") || !strings.Contains(raw, "events/subscribe") {
				t.Errorf("%s: %s", who, raw)
			}
		}
	})
	t.Run("OPS-02 one that is paused too is resumed, and suspended then", func(t *testing.T) {
		var got object
		f.call("op", "POST", "subscriptions/"+id+"/pause", `{"reason":"moving"}`, 200, &got)
		f.call("op", "POST", "subscriptions/"+id+"/resume", "", 200, &got)
		if got["state"] != "suspended" {
			t.Errorf("got state %v, want suspended", got["state"])
		}
	})
	job := func(what string) (got object) {
		f.call("op", "POST", "replays", what, 202, &got)
		replay := fmt.Sprint("replays/", got["id"])
		f.eventually("the end of "+replay, func() bool {
			f.call("op", "GET", replay, "", 200, &got)
			return got["state"] == "done"
		})
		return got
	}
	t.Run("OPS-04 a replay of events says how many it did not send, and why", func(t *testing.T) {
		got := job(fmt.Sprintf(`{"select":{"events":true,"subscription":%q,"since":%q}}`, id, began.Format(time.RFC3339)))
		if got["replayed"] != 0.0 || got["skipped"] != 110.0 || fmt.Sprint(got["skippedBecause"]) != "map[suspended:110]" {
			t.Errorf("got %v, want 0 replayed and 110 skipped because they are suspended", got)
		}
	})
	count := func() int {
		var got struct{ Count int }
		f.call("op", "POST", "replays", fmt.Sprintf(`{"select":{"subscription":%q},"dryRun":true}`, id), 200, &got)
		return got.Count
	}
	t.Run("OPS-04 a replay of dead letters leaves them, and says so", func(t *testing.T) {
		letters := count()
		got := job(fmt.Sprintf(`{"select":{"subscription":%q},"rate":1000}`, id))
		if letters == 0 || got["replayed"] != 0.0 || got["skipped"] != float64(letters) || fmt.Sprint(got["skippedBecause"]) != fmt.Sprintf("map[suspended:%d]", letters) {
			t.Errorf("%d letters: got %v", letters, got)
		}
		if left := count(); left != letters {
			t.Errorf("%d letters are left of %d", left, letters)
		}
	})
	t.Run("OPS-04 of one that has ended meanwhile, too", func(t *testing.T) {
		letters := count()
		f.call("op", "DELETE", "subscriptions/"+id, "", 204, nil)
		got := job(fmt.Sprintf(`{"select":{"subscription":%q},"rate":50}`, id))
		if fmt.Sprint(got["skippedBecause"]) != fmt.Sprintf("map[ended:%d]", letters) {
			t.Errorf("%d letters: got %v", letters, got)
		}
	})
}
