package main

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/alecthomas/kong"
)

// TestTheSettingsAreDocumented holds docs/operations.md to the flags of serve.
func TestTheSettingsAreDocumented(t *testing.T) {
	var cli CLI
	parser, err := kong.New(&cli, environment(), kong.Vars{"workspace": "default"})
	if err != nil {
		t.Fatal(err)
	}
	doc, err := os.ReadFile("../../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	rows := map[string]string{} // flag to its row
	for line := range strings.Lines(string(doc)) {
		first, _, _ := strings.Cut(strings.TrimPrefix(line, "|"), "|")
		for _, m := range regexp.MustCompile("`--([a-z-]+)`").FindAllStringSubmatch(first, -1) {
			if strings.HasPrefix(line, "|") {
				rows[m[1]] = line
			}
		}
	}
	var known []string
	for _, node := range parser.Model.Children {
		if node.Name != "serve" {
			continue
		}
		for _, group := range node.AllFlags(false) {
			for _, f := range group {
				if f.Name == "help" {
					continue
				}
				known = append(known, f.Name)
				row := rows[f.Name]
				switch {
				case row == "":
					t.Errorf("--%s is not in the table of settings", f.Name)
				case !strings.Contains(row, f.Envs[0]):
					t.Errorf("--%s: the row does not name %s: %s", f.Name, f.Envs[0], row)
				case f.Default != "" && !strings.Contains(row, f.Default):
					t.Errorf("--%s: the row does not name the default %s: %s", f.Name, f.Default, row)
				}
			}
		}
	}
	for name := range rows {
		if !slices.Contains(known, name) {
			t.Errorf("--%s is in the table of settings and is no flag of serve", name)
		}
	}
}
