package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/mcp-events/mcpevents/test/expect"
)

func TestTheDocumentationHasNoFaults(t *testing.T) {
	faults := expect.Value(run("../.."))(t)
	for _, f := range faults {
		t.Error(f)
	}
}

func TestEachKindOfFaultIsFound(t *testing.T) {
	root := t.TempDir()
	for name, text := range map[string]string{
		"Makefile":         "run: ## serve\n\ttrue\n",
		"shared/a/a.go":    "package a\n",
		"docs/other.md":    "# Other page\n\n## A `code` heading, twice\n",
		"docs/page.md":     "",
		"functions/f/x.go": "package f\n",
		"server/s.go":      "package server\n",
		"client/c.go":      "package client\n",
		"cmd/c/c.go":       "package c\n",
	} {
		path := filepath.Join(root, name)
		expect.OK(t, os.MkdirAll(filepath.Dir(path), 0o755))
		expect.OK(t, os.WriteFile(path, []byte(text), 0o644))
	}
	if out, err := exec.CommandContext(t.Context(), "git", "-C", root, "init", "--quiet").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for _, tc := range []struct{ text, want string }{
		{"[a](other.md#a-code-heading-twice) `make run` `shared/a/a.go` [b](https://example.com/nowhere)", ""},
		{"[a](gone.md)", "docs/page.md:1: there is no gone.md"},
		{"\n[a](other.md#gone)", "docs/page.md:2: docs/other.md has no heading #gone"},
		{"[a](#gone)", "docs/page.md:1: docs/page.md has no heading #gone"},
		{"![a](gone.svg)", "docs/page.md:1: there is no gone.svg"},
		{"```\nmake gone\n```", "docs/page.md:2: the Makefile has no target gone"},
		{"run `make gone`", "docs/page.md:1: the Makefile has no target gone"},
		{"see `shared/gone.go`", "docs/page.md:1: the path shared/gone.go does not exist"},
	} {
		expect.OK(t, os.WriteFile(filepath.Join(root, "docs/page.md"), []byte(tc.text), 0o644))
		faults := expect.Value(run(root))(t)
		var got []string
		for _, f := range faults {
			if strings.HasPrefix(f, "docs/page.md") {
				got = append(got, f)
			}
		}
		if strings.Join(got, "\n") != tc.want {
			t.Errorf("%q: got %q, want %q", tc.text, got, tc.want)
		}
	}
}
