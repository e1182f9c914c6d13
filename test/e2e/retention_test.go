//go:build unix

package e2e

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/test/harness"
)

// TestShortRetentionOnAWS keeps subscribers for several retentions of the log, which last a minute here and a day by
// default. Everything that a deployment renews after hours is renewed within the test, by processes that are frozen
// between their events: the interest in a pattern, subscriptions and cursors.
func TestShortRetentionOnAWS(t *testing.T) {
	t.Parallel()
	env := maps.Clone(harness.Quick)
	env["MCPEVENTS_LOG_RETENTION"] = "1m"
	aws := harness.StartAWS(t, harness.AWSOptions{Env: env})
	alice := aws.Stateless("alice")
	hook := harness.NewReceiver(t).Endpoint("refreshed")
	subscribe(t, alice, hook, "github.push", nil)
	polls := follow(t, &aws.Target, "github.push", object{})
	poll := func() {
		for more := true; more; {
			p := polls.poll(t, nil)
			if more = p.HasMore; p.Truncated {
				t.Error("EVX-07 a cursor that is used every few seconds does not reach back to the events since")
			}
		}
	}
	var published []string
	const pause, rounds = 5 * time.Second, 42 // three and a half retentions
	ticker := time.NewTicker(pause)
	defer ticker.Stop()
	for n := range rounds {
		id := fmt.Sprint("push-", n)
		published = append(published, id)
		aws.Publish(t, harness.Event{ID: id, URI: fmt.Sprintf("event://github/acme/app%d/push", n%3), Data: object{"ref": "refs/heads/main", "after": "0123456789abcdef0123456789abcdef01234567"}})
		if n%4 == 3 {
			subscribe(t, alice, hook, "github.push", nil)
		}
		if n%2 == 1 {
			poll()
		}
		<-ticker.C
	}
	missing := func(got func(id string) bool) []string {
		return slices.DeleteFunc(slices.Clone(published), got)
	}
	harness.Eventually(t, harness.Patience, "EVX-11 the webhook gets all events", func() bool {
		ids := hook.IDs()
		return len(missing(func(id string) bool { return ids[id] > 0 })) == 0
	})
	harness.Eventually(t, harness.Patience, "EVX-07 the polls get all events", func() bool {
		poll()
		polled := map[string]bool{}
		for _, e := range polls.got {
			polled[e.EventID] = true
		}
		return len(missing(func(id string) bool { return polled[id] })) == 0
	})
}
