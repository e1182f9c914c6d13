package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/mcp-events/mcpevents/shared/app/config"
	"github.com/mcp-events/mcpevents/test/expect"
)

func TestSources(t *testing.T) {
	t.Run("SRC-06 the page is what the ready-made sources say", func(t *testing.T) {
		expect.OK(t, run("../../docs/reference/ready-made-sources.md", true))
	})
	t.Run("SRC-06 a page of others is reported, and mended", func(t *testing.T) {
		page := filepath.Join(t.TempDir(), "sources.md")
		expect.OK(t, os.WriteFile(page, []byte("# Sources\n\n"+begin+"old\n"+end+"\nMore.\n"), 0o600))
		expect.Error(t, "the error", run(page, true), "go run ./tools/sources")
		expect.OK(t, run(page, false))
		text, err := os.ReadFile(page)
		if err != nil || strings.Contains(string(text), "old\n") || !strings.Contains(string(text), "`github.pull_request`") || !strings.HasSuffix(string(text), end+"\nMore.\n") {
			t.Errorf("got %s, %v", text, err)
		}
	})
	t.Run("SRC-01 the example of the page is a configuration", func(t *testing.T) {
		text := expect.Value(os.ReadFile("../../docs/reference/sources.md"))(t)
		_, after, _ := strings.Cut(string(text), "```yaml\n# config.yaml\n")
		example, _, _ := strings.Cut(after, "```")
		expect.Equal(t, "sources", len(expect.Value(config.Parse([]byte(example)))(t).Sources), 2)
	})
	t.Run("SRC-06 a page without the lines is refused", func(t *testing.T) {
		page := filepath.Join(t.TempDir(), "sources.md")
		expect.OK(t, os.WriteFile(page, []byte("# Sources\n"), 0o600))
		expect.Error(t, "the page", run(page, false))
	})
}
