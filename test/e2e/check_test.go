//go:build unix

package e2e

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/mcp-events/mcpevents/client/check"
	"github.com/mcp-events/mcpevents/test/expect"
	"github.com/mcp-events/mcpevents/test/harness"
)

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
	if err != nil {
		t.Fatalf("%v\n%s\n%s", err, said.String(), out)
	}
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
		if len(failed) > 0 || report.Profile != "released" {
			t.Errorf("failed: %q in the profile %q, want none in released", failed, report.Profile)
		}
	})
	t.Run("RCH-06 all but five rules are tested", func(t *testing.T) {
		if !slices.Equal(left, []string{"capability-absent", "error-mode", "webhook-https", "webhook-private", "terminated"}) {
			t.Errorf("not tested: %q", left)
		}
	})
	t.Run("RCH-06 progress is written to standard error", func(t *testing.T) {
		expect.Contains(t, "the output on standard error", said.String(), "wait for retries")
	})
	t.Run("RCH-06 a file for a CI is written", func(t *testing.T) {
		expect.Contains(t, "the report", string(expect.Value(os.ReadFile(junit))(t)), "<testsuite ")
	})
}
