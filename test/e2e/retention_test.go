//go:build unix

package e2e

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/test/expect"
	"github.com/mcp-events/mcpevents/test/harness"
)

// TestShortRetentionOnAWS keeps subscribers for longer than the retention of the log, which is a minute here and a day by
// default. During the test, processes that are frozen between events renew everything that a deployment renews only
// after hours: the interest in a pattern, subscriptions and cursors.
func TestShortRetentionOnAWS(t *testing.T) {
	t.Parallel()
	env := maps.Clone(harness.Quick)
	env["MCPEVENTS_LOG_RETENTION"] = "1m"
	env["MCPEVENTS_STREAM_MAX_AGE"] = "65s" // longer than the retention; the clients continue once
	aws := harness.StartAWS(t, harness.AWSOptions{Env: env})
	alice := aws.Stateless("alice")
	hook := harness.NewReceiver(t).Endpoint("refreshed")
	subscribe(t, alice, hook, "github.push", nil)
	polls := follow(t, &aws.Target, "github.push", object{})
	streams := map[string]*expect.Buffer{
		"events/stream": watch(t, &aws.Target, "following", "--name", "github.push", "--mode", "push"),
		"the stream of a session": watch(t, &aws.Target, "stream open", "--stream", "--revision", harness.V20251125,
			"--uri", "event://github/acme/app0/push", "--uri", "event://github/acme/app1/push", "--uri", "event://github/acme/app2"),
	}
	poll := func() {
		for more := true; more; {
			p := polls.poll(t, nil)
			if more = p.HasMore; p.Truncated {
				t.Error("EVX-07 a cursor that is used every few seconds has lost events")
			}
		}
	}
	var published []string
	const pause, rounds = 3 * time.Second, 30 // one and a half retentions
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
	for name, out := range streams {
		harness.Eventually(t, harness.Patience, "EVX-26 "+name+" brings all events", func() bool {
			text := out.String()
			return len(missing(func(id string) bool { return strings.Contains(text, `"`+id+`"`) })) == 0
		})
	}
	harness.Eventually(t, harness.Patience, "EVX-07 the polls get all events", func() bool {
		poll()
		polled := map[string]bool{}
		for _, e := range polls.got {
			polled[e.EventID] = true
		}
		return len(missing(func(id string) bool { return polled[id] })) == 0
	})
}

// watch starts mcpevents listen, which continues from its last position whenever the server ends its stream. watch returns the
// output when the log has the text ready.
func watch(t *testing.T, s *harness.Target, ready string, args ...string) *expect.Buffer {
	t.Helper()
	out, log := new(expect.Buffer), new(expect.Buffer)
	cmd := exec.CommandContext(t.Context(), harness.Binary(t, "./cmd/mcpevents", false), append([]string{"listen", "--log-format", "text"}, args...)...)
	cmd.Env = append(os.Environ(), "MCPEVENTS_SERVER="+s.MCP, "MCPEVENTS_KEY="+s.Keys["alice"])
	cmd.Stdout, cmd.Stderr = out, log
	expect.OK(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Wait() }) // the end of the context has killed it
	log.Await(t, ready, 1)
	return out
}
