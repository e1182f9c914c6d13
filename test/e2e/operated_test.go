//go:build unix

package e2e

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/mcp-events/mcpevents/client/check"
	"github.com/mcp-events/mcpevents/shared/operate/admin/admintest"
	"github.com/mcp-events/mcpevents/test/expect"
	"github.com/mcp-events/mcpevents/test/harness"
)

// operated is a system as its operators see it. It validates every response against the OpenAPI document that the
// system serves.
type operated struct {
	*testing.T
	target   *harness.Target
	contract *admintest.Contract
}

func operate(t *testing.T, target *harness.Target) *operated {
	t.Helper()
	o := &operated{T: t, target: target}
	_, raw := o.send("chief", "GET", "openapi.json", "")
	var err error
	if o.contract, err = admintest.Parse(raw); err != nil {
		t.Fatalf("%v: %s", err, raw)
	}
	return o
}

// send sends a request as a principal, or without credentials if the principal is "".
func (o *operated) send(who, method, path, body string) (*http.Response, []byte) {
	o.Helper()
	req := expect.Value(http.NewRequestWithContext(o.Context(), method, o.target.Admin+path, strings.NewReader(body)))(o)
	if who != "" {
		req.Header.Set("Authorization", "Bearer "+cmp.Or(o.target.Keys[who], "key_of_nobody"))
	}
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	resp := expect.Value(http.DefaultClient.Do(req))(o)
	defer resp.Body.Close()
	raw := expect.Value(io.ReadAll(resp.Body))(o)
	return resp, raw
}

// ask sends a request and validates the response.
func (o *operated) ask(who, method, path, body string) (status int, raw []byte) {
	o.Helper()
	resp, raw := o.send(who, method, path, body)
	if err := o.contract.Check(method, strings.TrimPrefix(resp.Request.URL.Path, "/admin/v1"), resp, raw); err != nil {
		o.Errorf("OPS-01 %s %s: %s does not match the document: %v", method, path, raw, err)
	}
	return resp.StatusCode, raw
}

// call sends the operator's request and checks the status. It decodes the response into out, unless out is nil.
func (o *operated) call(method, path, body string, status int, out any) {
	o.Helper()
	o.callAs("chief", method, path, body, status, out)
}

func (o *operated) callAs(who, method, path, body string, status int, out any) {
	o.Helper()
	got, raw := o.ask(who, method, path, body)
	if got != status {
		o.Errorf("%s %s as %s: got %d %s, want %d", method, path, who, got, raw, status)
	}
	if out != nil && got == status {
		if err := json.Unmarshal(raw, out); err != nil {
			o.Fatalf("%v: %s", err, raw)
		}
	}
}

func (o *operated) list(path string) []object {
	o.Helper()
	var l struct{ Items []object }
	o.call("GET", path, "", http.StatusOK, &l)
	return l.Items
}

// members returns a member of each item of a list, in order.
func (o *operated) members(path, member string) string {
	o.Helper()
	var all []string
	for _, it := range o.list(path) {
		all = append(all, fmt.Sprint(it[member]))
	}
	return strings.Join(all, " ")
}

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
	expect.Contains(t, "the page", page, "<script")
	expect.Contains(t, "the header Content-Security-Policy", resp.Header.Get("Content-Security-Policy"), "default-src 'none'")
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
		expect.Equal(t, kind, dry.Counts[kind], n)
	}
	expect.Equal(t, "the data after a dry run", o.members("subscriptions?principal=neighbour", "id"), id)
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
		"backends": `^NAME +STATE +URL +PREFIX +RULES +WARNINGS\n$`,
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
