package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
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
		expect.Equal(t, tc.text, strings.Join(got, "\n"), tc.want)
	}
}

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
					sources[folder] += string(expect.Value(os.ReadFile(file))(t))
				}
			}
			if found++; folder == "" || !strings.Contains(sources[folder], "\nfunc "+m[2]+"(") {
				t.Errorf("%s has no test %s", folder, m[2])
			}
		}
	}
	expect.AtLeast(t, "the number of tests", found, 50)
}

// sections are the headings of SEP-3415 below Specification and Security Considerations, and those parts
// of its long ones that ask something of a server.
var sections = []string{
	"Extension Identifier", "Capability Negotiation", "Delivery Modes", "Listing Available Events", "Schema evolution",
	"Dynamic event types", "Event type removal and breaking changes", "Event Occurrences", "Poll-Based Delivery", "Push-Based Delivery",
	"stdio", "Heartbeat", "Webhook-Based Delivery", "Subscribing", "Subscription TTL", "Subscription identity", "Webhook event delivery",
	"Non-event webhook bodies", "Webhook delivery status", "SSRF", "Endpoint verification", "Server identity", "TLS requirement",
	"Signature scheme", "Secret generation, rotation", "Authentication to the callback endpoint", "Delivery profile", "Unsubscribing",
	"Cursor Lifecycle", "Subscription Termination", "Ordering and Delivery Guarantees", "Client-Owned Subscription State",
	"Error Handling", "Reservations", "Event payloads are untrusted data", "Payload minimality", "Authorization", "Governance",
}

func TestTheTableOfTheSpecification(t *testing.T) {
	text := expect.Value(os.ReadFile("../../docs/reference/sep-3415.md"))(t)
	says := map[string]string{}
	for line := range strings.Lines(string(text)) {
		if cells := strings.Split(line, "|"); len(cells) > 3 {
			says[strings.TrimSpace(cells[1])] = strings.TrimSpace(cells[2])
		}
	}
	t.Run("EVX-23 the reference says of each section of the specification what is done", func(t *testing.T) {
		for _, section := range sections {
			said := ""
			for name, what := range says {
				if strings.Contains(name, section) {
					said = what
				}
			}
			expect.Differ(t, "what docs/reference/sep-3415.md says about "+section, said, "")
		}
	})
}
