// Command sources generates the part of docs/reference/ready-made-sources.md that describes the ready-made sources of package
// shared/events/source/ready.
package main

import (
	"bytes"
	"flag"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/mcp-events/mcpevents/shared/events/catalog"
	"github.com/mcp-events/mcpevents/shared/events/source/ready"
)

// These lines enclose the generated part.
const (
	begin = "<!-- generated: go run ./tools/sources -->\n"
	end   = "<!-- end -->\n"
)

func main() {
	page := flag.String("page", "docs/reference/ready-made-sources.md", "the page to write")
	check := flag.Bool("check", false, "fail if the page is not up to date, instead of writing it")
	flag.Parse()
	if err := run(*page, *check); err != nil {
		fmt.Fprintln(os.Stderr, "sources:", err)
		os.Exit(1)
	}
}

func run(page string, check bool) error {
	got, err := os.ReadFile(page)
	if err != nil {
		return err
	}
	before, rest, found := bytes.Cut(got, []byte(begin))
	_, after, ended := bytes.Cut(rest, []byte(end))
	if !found || !ended {
		return fmt.Errorf("%s has no lines %q and %q", page, strings.TrimSpace(begin), strings.TrimSpace(end))
	}
	part, err := render(ready.Providers())
	if err != nil {
		return err
	}
	want := slices.Concat(before, []byte(begin), part, []byte(end), after)
	switch {
	case bytes.Equal(got, want):
		return nil
	case check:
		return fmt.Errorf("%s is out of date; run go run ./tools/sources", page)
	}
	return os.WriteFile(page, want, 0o644)
}

type source struct {
	Name, From string
	Verify     struct {
		Scheme  string
		Secrets []string
	}
	Events []struct{ Name, ID string }
}

func render(providers []ready.Provider) ([]byte, error) {
	var b bytes.Buffer
	b.WriteString("\n| `--from` | source | event types | the event's id | secret |\n|---|---|---|---|---|\n")
	for _, p := range providers {
		var c struct{ Sources []source }
		if err := yaml.Unmarshal(ready.Config(p), &c); err != nil {
			return nil, fmt.Errorf("%s: %w", p.Name, err)
		}
		for _, s := range c.Sources {
			fmt.Fprintf(&b, "| [`%s`](%s) | `%s` | %s | %s | %s |\n", p.Name, p.Documentation, s.Name, s.types(), s.ids(), s.secret())
		}
	}
	b.WriteString("\n| event type | URI | arguments in addition to the URI variables |\n|---|---|---|\n")
	for _, p := range providers {
		cat, err := catalog.Parse(ready.Catalog(p))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", p.Name, err)
		}
		for _, e := range cat.Entries() {
			fmt.Fprintf(&b, "| `%s` | `%s` | %s |\n", e.Name, e.Pattern(), arguments(e))
		}
	}
	for _, p := range providers {
		fmt.Fprintf(&b, "\n## %s\n\n", p.Title)
		for i, step := range p.Setup {
			fmt.Fprintf(&b, "%d. %s\n", i+1, step)
		}
	}
	b.WriteString("\n")
	return b.Bytes(), nil
}

func (s source) types() string {
	names := map[string]bool{}
	for _, e := range s.Events {
		names["`"+e.Name+"`"] = true
	}
	return strings.Join(slices.Sorted(maps.Keys(names)), ", ")
}

func (s source) ids() string {
	ids := map[string]bool{}
	for _, e := range s.Events {
		if e.ID == "" {
			ids["hash of the body"] = true
		} else {
			ids["`"+e.ID+"`"] = true
		}
	}
	return strings.Join(slices.Sorted(maps.Keys(ids)), ", ")
}

func (s source) secret() string {
	if s.From != "" {
		return "none: the policy of the inbox queue"
	}
	return "`" + s.Verify.Scheme + "`, `" + strings.Join(s.Verify.Secrets, "`, `") + "`"
}

func arguments(e *catalog.Entry) string {
	var all []string
	for _, name := range slices.Sorted(maps.Keys(e.Filters)) {
		all = append(all, "`"+name+"`")
	}
	if len(e.Redact) > 0 {
		all = append(all, "`redact`")
	}
	return strings.Join(all, ", ")
}
