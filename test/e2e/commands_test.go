//go:build unix

package e2e

import (
	"encoding/json"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/mcp-events/mcpevents/client/check"
	"github.com/mcp-events/mcpevents/test/expect"
	"github.com/mcp-events/mcpevents/test/harness"
)

// commanding runs each operator command of the built binary against AWS. The commands' own tests run them against a
// stand-alone server, and check their output in detail.
func commanding(t *testing.T, target *harness.Target) {
	hook := harness.NewReceiver(t).Endpoint("commanded")
	id := strings.TrimPrefix(register(t, target.Stateless("owner"), hook, "event://ci/build-finished").Subscription.URI, "subscription://")
	publish := func(event string) {
		t.Helper()
		expect.OK(t, expect.ErrOf(target.TryPublish(t.Context(), "owner", build(event, 1))))
	}
	says := func(line string) string {
		t.Helper()
		code, out, errs := target.Command(t, "chief", strings.Fields(line)...)
		if code != 0 {
			t.Fatalf("%s: exit code %d: %s", line, code, errs)
		}
		return out
	}
	letters := "deadletters list --subscription " + id
	hook.Answer(func(int, *harness.Delivery) harness.Reply {
		return harness.Reply{Status: http.StatusRequestEntityTooLarge}
	})
	publish("evt_dead")
	var letter string
	harness.Eventually(t, harness.Patience, "the dead letter is listed", func() bool {
		letter = strings.TrimSpace(says(letters + " -o name"))
		return letter != ""
	})
	hook.Answer(nil)
	publish("evt_fine")
	harness.Eventually(t, harness.Patience, "evt_fine arrives", func() bool { return hook.IDs()["evt_fine"] > 0 })
	for line, want := range map[string]string{
		"subscriptions list --principal owner --state active": `(?m)^ID +PRINCIPAL .*\n` + id + ` +owner +active `,
		"subscriptions show " + id:                            `(?m)^principal: owner$`,
		"subscriptions test " + id:                            `^event: test_`,
		"deliveries list --event evt_dead":                    `dead +evt_dead .* http_4xx`,
		letters:                                               letter + ` +20.* webhooks +http_4xx +evt_dead`,
		"deadletters show " + letter:                          `(?m)^reason: http_4xx$`,
		"deadletters replay --dry-run --subscription " + id:   `^count: 1\n$`,
		"events list --name ci.build_finished":                `(?s)evt_fine .*evt_dead `,
		"events types":                                        `ci\.build_finished +event://ci/build-finished`,
		"events show evt_fine":                                `(?ms)^data:\n  build: 1$.*^OUTCOME +WHY `,
		"events outcomes evt_fine":                            `(?m)^(delivered|unrecorded) +`, // by the delivery log that is kept
		"switches list":                                       `^NAME +STATE +BY +AT +REASON +WAITING +OLDEST\n$`,
		"principals erase no-one-is-called-so --dry-run":      `complete: true`,
		"backends": `^NAME +URL +PREFIX +RULES +WARNINGS\n$`,
		"overview": `(?m)^subscriptions:\n  active: 1$`,
	} {
		t.Run("OPS-10 "+strings.NewReplacer(id, "ID", letter, "ID").Replace(line), func(t *testing.T) {
			if out := says(line); !regexp.MustCompile(want).MatchString(out) {
				t.Errorf("it printed\n%s\nwant %s", out, want)
			}
		})
	}
	for _, step := range []struct{ line, want string }{ // in this order
		{"subscriptions pause " + id + " --reason moving", `state: paused`},
		{"subscriptions resume " + id, `state: active`},
		{"switches set event/ci.build_finished --reason moving", `name: event/ci\.build_finished`},
		{"switches list", `event/ci\.build_finished +paused +chief +20.* +moving`},
		{"switches clear event/ci.build_finished", `Done`},
		{"deadletters retry " + letter, `event: evt_dead`},
		{"events deliver evt_fine --subscription " + id, `subscription: ` + id},
		{"events replay --since 1h --subscription " + id + " --json", `"state":"done"`},
	} {
		t.Run("OPS-10 "+strings.NewReplacer(id, "ID", letter, "ID").Replace(step.line), func(t *testing.T) {
			if out := says(step.line); !regexp.MustCompile(step.want).MatchString(out) {
				t.Errorf("it printed\n%s\nwant %s", out, step.want)
			}
		})
	}
	t.Run("OPS-10 a caller without permission gets the exit code for it", func(t *testing.T) {
		if code, _, errs := target.Command(t, "onlooker", "audit", "list"); code != 4 || !strings.Contains(errs, "events:operate") {
			t.Errorf("exit code %d: %s", code, errs)
		}
	})
	t.Run("OPS-10 a subscription is ended, and the audit trail has every action", func(t *testing.T) {
		expect.Equal(t, "the output", says("subscriptions end "+id+" --yes"), "Done.\n")
		out := says("audit list --since 1h")
		for _, action := range []string{"subscription.pause", "subscription.end", "switch.pause", "replay.start", "dead-letter.retry", "event.deliver"} {
			if !regexp.MustCompile(`(?m)^20.* chief +\S+ +` + regexp.QuoteMeta(action) + ` `).MatchString(out) {
				t.Errorf("%s is missing in\n%s", action, out)
			}
		}
	})
}

// TestCheck tests the server against the specification with the check command, which users can run against their
// servers.
func TestCheck(t *testing.T) {
	t.Parallel()
	checked(t, &harness.StartServer(t, harness.ServerOptions{
		Args: []string{"--events-retry-schedule", "0s,1s,1s", "--min-ttl", "1s"},
	}).Target)
}

func checked(t *testing.T, s *harness.Target) {
	binary := harness.Binary(t, "./cmd/mcpevents", false)
	junit := filepath.Join(t.TempDir(), "report.xml")
	cmd := exec.CommandContext(t.Context(), binary, "check", s.MCP, "--event", "ci.build_finished", "--wait", harness.Patience.String(), "--json", "--junit", junit,
		"--publish", binary+` publish --quiet --uri event://ci/build-finished --data '{"build":7,"status":"passed"}'`)
	cmd.Env = append(os.Environ(), "MCPEVENTS_KEY="+s.Keys["alice"], "MCPEVENTS_SERVER="+strings.TrimSuffix(s.Events, "/events"))
	var said strings.Builder
	cmd.Stderr = &said
	out, err := cmd.Output()
	expect.OK(t, err, said.String(), out)
	var report check.Report
	expect.OK(t, json.Unmarshal(out, &report))
	var failed, left []string
	for _, r := range report.Results {
		switch r.Result {
		case check.Failed:
			failed = append(failed, r.ID+": "+r.Detail)
		case check.NotTestable:
			left = append(left, r.ID)
		}
	}
	t.Run("RCH-06 EVX-25 WHK-06 no rule fails, e.g. on rotated secrets, and the profile is the default one", func(t *testing.T) {
		expect.Len(t, "the failed rules", failed, 0)
		expect.Equal(t, "the profile", report.Profile, "released")
	})
	t.Run("RCH-06 all but five rules are tested", func(t *testing.T) {
		expect.List(t, "the rules that were not tested", left, []string{"capability-absent", "error-mode", "webhook-https", "webhook-private", "terminated"})
	})
	t.Run("RCH-06 progress is written to standard error", func(t *testing.T) {
		expect.Contains(t, "the output on standard error", said.String(), "wait for retries")
	})
	t.Run("RCH-06 a file for a CI is written", func(t *testing.T) {
		expect.Contains(t, "the report", string(expect.Value(os.ReadFile(junit))(t)), "<testsuite ")
	})
}
