//go:build unix

package harness

import (
	"errors"
	"os/exec"
	"strings"
	"testing"
)

// Command runs the built command line against the admin API of a target, as a principal.
func (t *Target) Command(tb testing.TB, who string, args ...string) (code int, out, errs string) {
	tb.Helper()
	var stdout, stderr strings.Builder
	cmd := exec.CommandContext(tb.Context(), Binary(tb, "./cmd/mcpevents", false), args...)
	cmd.Env = append(environment(), "MCPEVENTS_SERVER="+strings.TrimSuffix(t.Admin, "/"), "MCPEVENTS_KEY="+t.Keys[who])
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	var exit *exec.ExitError
	if err := cmd.Run(); err != nil && !errors.As(err, &exit) {
		tb.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), stdout.String(), stderr.String()
}
