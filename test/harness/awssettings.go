//go:build unix

package harness

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/mcp-events/mcpevents/test/awslocal"
	"github.com/mcp-events/mcpevents/test/expect"
)

// ApplyCatalog writes a catalog for a workspace as an operator does. The
// functions have it within five seconds.
func (a *AWS) ApplyCatalog(tb testing.TB, workspace, catalog string) {
	tb.Helper()
	a.apply(tb, workspace, writeFile(tb, tb.TempDir(), "catalog.yaml", catalog))
}

// ApplyConfig writes a configuration, to which the keys of the callers are added, as an operator does. The
// functions have it within five seconds.
func (a *AWS) ApplyConfig(tb testing.TB, text string) {
	tb.Helper()
	catalog := filepath.Join(Root(tb), "catalog.yaml")
	if a.catalog != "" {
		catalog = writeFile(tb, tb.TempDir(), "catalog.yaml", a.catalog)
	}
	a.apply(tb, "default", catalog, "--config", writeFile(tb, tb.TempDir(), "config.yaml", a.keys+text))
}

// AnnounceCatalog applies a catalog as ApplyCatalog does, and waits until clients have been notified.
func (a *AWS) AnnounceCatalog(tb testing.TB, workspace, catalog string) {
	tb.Helper()
	a.apply(tb, workspace, writeFile(tb, tb.TempDir(), "catalog.yaml", catalog), "--log-table", a.stack.Outputs()["LogTable"])
}

// SetCatalog replaces the text of the default workspace's catalog. It may be called from any goroutine.
func (a *AWS) SetCatalog(ctx context.Context, tb testing.TB, text string) error {
	dir, err := os.MkdirTemp("", "mcpevents-catalog-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	catalog, config := filepath.Join(dir, "catalog.yaml"), filepath.Join(dir, "config.yaml")
	if err := errors.Join(os.WriteFile(catalog, []byte(text), 0o600), os.WriteFile(config, []byte(a.keys), 0o600)); err != nil {
		return err
	}
	return a.tryApply(ctx, tb, "default", catalog, "--config", config)
}

// apply runs mcpevents catalog apply.
func (a *AWS) apply(tb testing.TB, workspace, file string, args ...string) {
	tb.Helper()
	expect.OK(tb, a.tryApply(tb.Context(), tb, workspace, file, args...))
}

func (a *AWS) tryApply(ctx context.Context, tb testing.TB, workspace, file string, args ...string) error {
	outputs := a.stack.Outputs()
	args = append([]string{"catalog", "apply", file, "--workspace", workspace, "--table", outputs["SettingsTable"], "--allow-breaking"}, args...)
	cmd := exec.CommandContext(ctx, Binary(tb, "./cmd/mcpevents", false), args...)
	cmd.Env = append(
		environment(), "AWS_ENDPOINT_URL="+endpoints(tb).DynamoDB, "AWS_REGION="+awslocal.Region,
		"AWS_ACCESS_KEY_ID="+awslocal.AccessKey, "AWS_SECRET_ACCESS_KEY="+awslocal.SecretKey,
	)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("mcpevents catalog apply: %w\n%s", err, out)
	}
	return nil
}

// PutSecret writes a parameter that the configuration can refer to as ssm:NAME.
func (a *AWS) PutSecret(tb testing.TB, name, value string) {
	tb.Helper()
	expect.OK(tb, awslocal.PutParameter(tb.Context(), endpoints(tb).MiniStack, name, value))
}
