package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/test/expect"
)

// SSE-06: --workspace-catalog is read strictly, like --catalog.
func TestWorkspaceCatalogs(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		expect.OK(t, os.WriteFile(path, []byte(text), 0o600))
		return path
	}
	good := write("good.yaml", "events:\n  - {name: a.b, uri: event://a/b}\n")
	for name, tc := range map[string]struct {
		files map[string]string
		want  string
	}{
		"a good one":       {map[string]string{"blue": good}, ""},
		"an invalid name":  {map[string]string{"b/lue": good}, "b/lue"},
		"a missing file":   {map[string]string{"blue": filepath.Join(dir, "none.yaml")}, "none.yaml"},
		"a faulty catalog": {map[string]string{"blue": write("bad.yaml", "events:\n  - {name: a.b}\n")}, "bad.yaml:2"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := readCatalogs(tc.files)
			if tc.want == "" {
				if err != nil || got["blue"].ByName("a.b") == nil {
					t.Errorf("got %v, %v", got, err)
				}
				return
			}
			expect.Fault(t, "the catalogs", err, fault.Invalid, tc.want)
		})
	}
}
