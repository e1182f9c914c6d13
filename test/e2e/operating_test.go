//go:build unix

package e2e

import (
	"bufio"
	"context"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/mcp-events/mcpevents/test/expect"
	"github.com/mcp-events/mcpevents/test/harness"
)

// console gets the console's page, and sends the requests that only this page sends.
func console(t *testing.T, o *operated, publish func(string)) {
	get := func(url string) (*http.Response, string) {
		t.Helper()
		resp := expect.Value(http.Get(url))(t)
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		if err != nil || resp.StatusCode != http.StatusOK {
			t.Errorf("%s: got %d %s, %v", url, resp.StatusCode, body, err)
		}
		return resp, string(body)
	}
	host := strings.TrimSuffix(o.target.Admin, "/admin/v1/")
	resp, page := get(host + "/console")
	if policy := resp.Header.Get("Content-Security-Policy"); !strings.Contains(page, "<script") || !strings.Contains(policy, "default-src 'none'") {
		t.Errorf("got %s under %q", page, policy)
	}
	if _, config := get(host + "/console/config.json"); !strings.Contains(config, `"auth":"keys"`) {
		t.Errorf("got %s", config)
	}
	expect.Contains(t, "the event types", o.members("event-types", "name"), "ci.build_finished")
	ctx, cancel := context.WithTimeout(t.Context(), harness.Patience)
	defer cancel()
	req := expect.Value(http.NewRequestWithContext(ctx, http.MethodGet, o.target.Admin+"live", nil))(t)
	req.Header.Set("Authorization", "Bearer "+o.target.Keys["chief"])
	live := expect.Value(http.DefaultClient.Do(req))(t)
	defer live.Body.Close()
	seen, lines := false, bufio.NewScanner(live.Body)
	for !seen && lines.Scan() {
		if lines.Text() == ": live" {
			publish("evt_live")
		}
		seen = strings.Contains(lines.Text(), "evt_live")
	}
	if !seen {
		t.Errorf("the live stream ended with %v", lines.Err())
	}
}

// erasing erases a principal that has data of every kind that an operator can cause.
func erasing(t *testing.T, o *operated, publish func(string), items func() []string) {
	hook := harness.NewReceiver(t).Endpoint("erased")
	hook.Answer(func(int, *harness.Delivery) harness.Reply {
		return harness.Reply{Status: http.StatusRequestEntityTooLarge}
	})
	id := strings.TrimPrefix(register(t, o.target.Stateless("neighbour"), hook, "event://ci/build-finished").Subscription.URI, "subscription://")
	o.target.SessionBased(t, "neighbour", harness.V20251125)
	publish("evt_erased")
	harness.Eventually(t, harness.Patience, "the dead letter is there", func() bool { return len(o.list("dead-letters?subscription="+id)) == 1 })
	o.call("POST", "subscriptions/"+id+"/pause", `{"reason":"they asked"}`, http.StatusOK, nil)
	stored := func() (of []string) { // items that contain its name or belong to it
		for _, it := range items() {
			names := strings.Contains(it, "neighbour") && !strings.Contains(it, "pk=config\n") // except the item with everyone's keys
			if names || strings.Contains(it, hook.URL()) || strings.Contains(it, id) {
				of = append(of, it)
			}
		}
		return of
	}
	if items != nil && len(stored()) < 10 {
		t.Errorf("stored is %s", strings.Join(stored(), "\n"))
	}
	type answer struct {
		Complete bool
		Counts   map[string]int
	}
	var dry, done answer
	o.call("DELETE", "principals/neighbour?dryRun=true", "", http.StatusOK, &dry)
	for kind, n := range map[string]int{"subscriptions": 1, "deadLetters": 1, "sessions": 1, "quotas": 1} {
		if dry.Counts[kind] != n {
			t.Errorf("%d %s, want %d", dry.Counts[kind], kind, n)
		}
	}
	if o.members("subscriptions?principal=neighbour", "id") != id {
		t.Error("a dry run erased data")
	}
	if o.call("DELETE", "principals/neighbour", "", http.StatusOK, &done); !done.Complete || done.Counts["subscriptions"] != 1 {
		t.Errorf("got %+v", done)
	}
	harness.Eventually(t, harness.Patience, "nothing is left of what was in flight", func() bool {
		var again answer
		o.call("DELETE", "principals/neighbour?dryRun=true", "", http.StatusOK, &again)
		return again.Complete && len(again.Counts) == 0
	})
	if items == nil {
		return
	}
	if left := stored(); len(left) > 0 {
		t.Errorf("remaining items: %s", strings.Join(left, "\n"))
	}
}
