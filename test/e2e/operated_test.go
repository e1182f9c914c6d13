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

// live publishes an event while it reads the stream that the console's live tail reads.
func live(t *testing.T, o *operated, publish func(string)) {
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
	var failed []string
	for _, r := range report.Results {
		if r.Result == check.Failed {
			failed = append(failed, r.ID+": "+r.Detail)
		}
	}
	t.Run("RCH-06 EVX-25 WHK-06 no rule fails, e.g. on rotated secrets, and the profile is the default one", func(t *testing.T) {
		expect.Len(t, "the failed rules", failed, 0)
		expect.Equal(t, "the profile", report.Profile, "released")
	})
	t.Run("RCH-06 a file for a CI is written", func(t *testing.T) {
		expect.Contains(t, "the report", string(expect.Value(os.ReadFile(junit))(t)), "<testsuite ")
	})
}
