package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/mcp-events/mcpevents/test/expect"
)

// TestTheTableOfTheScenarios: EVX-23. Each test that docs/reference/conformance-events.md names is one of the folder that it
// names before.
func TestTheTableOfTheScenarios(t *testing.T) {
	text := expect.Value(os.ReadFile("../../docs/reference/conformance-events.md"))(t)
	named := regexp.MustCompile("(?:((?:shared|test)/[a-z0-9/]+) )?`(Test[A-Za-z0-9_]+)`")
	sources := map[string]string{}
	found := 0
	for line := range strings.Lines(string(text)) {
		folder := ""
		for _, m := range named.FindAllStringSubmatch(line, -1) {
			if m[1] != "" {
				folder = m[1]
			}
			if sources[folder] == "" {
				files := expect.Value(filepath.Glob(filepath.Join("../..", folder, "*_test.go")))(t)
				for _, file := range files {
					source := expect.Value(os.ReadFile(file))(t)
					sources[folder] += string(source)
				}
			}
			if found++; folder == "" || !strings.Contains(sources[folder], "\nfunc "+m[2]+"(") {
				t.Errorf("%s has no test %s", folder, m[2])
			}
		}
	}
	if found < 50 {
		t.Errorf("only %d tests were found", found)
	}
}
