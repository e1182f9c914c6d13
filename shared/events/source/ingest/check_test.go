package ingest_test

import (
	"context"
	"strings"
	"testing"

	"github.com/mcp-events/mcpevents/shared/app/config"
	"github.com/mcp-events/mcpevents/shared/events/catalog"
	"github.com/mcp-events/mcpevents/shared/events/source/ingest"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/platform/secret"
)

func TestChecksHaveLines(t *testing.T) {
	cat, err := catalog.Parse([]byte(catalogFile))
	if err != nil {
		t.Fatal(err)
	}
	cfg, err := config.Parse([]byte(`sources:
  - name: mixed
    verify: {scheme: github, secrets: ["env:MISSING"]}
    events:
      - {name: github.unknown, match: {body: {a: [1]}}}
      - {name: cloudwatch.alarm, match: {body: {a: [2]}}}
      - {name: github.pull_request, match: {body: {a: [3]}}, variables: {owner: /body/o}}
      - {name: cloudwatch.alarm, variables: {owner: /body/o}}
`))
	if err != nil {
		t.Fatal(err)
	}
	t.Run("SRC-01 a mapping that does not fit the catalog is reported with its line", func(t *testing.T) {
		err := ingest.CheckCatalog(cat, cfg.Sources[0])
		for _, want := range []string{
			"line 5: source mixed: github.unknown is not an event type", "line 7: source mixed: github.pull_request: the variable repo is missing",
			"line 8: source mixed: cloudwatch.alarm: the event type does not have owner (it has: none); delete it from variables",
		} {
			if !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), want) {
				t.Errorf("got %v, want %q", err, want)
			}
		}
		if strings.Contains(err.Error(), "line 6") {
			t.Errorf("a mapping that fits is refused: %v", err)
		}
	})
	t.Run("SRC-01 SRC-02 a missing secret is reported with its line", func(t *testing.T) {
		err := ingest.CheckSecrets(t.Context(), cfg.Sources, func(context.Context, secret.Value) (string, error) {
			return "", fault.New(fault.Invalid, "env:MISSING is not set")
		})
		if !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), "line 2: source mixed") {
			t.Errorf("got %v", err)
		}
	})
}
