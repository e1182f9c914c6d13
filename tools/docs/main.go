// Command docs checks the documentation: links, anchors, make targets and paths of the repository.
//
//	go run ./tools/docs
//
// Tests in cmd/mcpevents, test/docs and tools/reference check the rest.
package main

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/mcp-events/mcpevents/tools/docs/page"
)

func main() {
	root := flag.String("root", ".", "the repository")
	flag.Parse()
	faults, err := run(*root)
	if err != nil {
		fmt.Fprintln(os.Stderr, "docs:", err)
		os.Exit(1)
	}
	for _, f := range faults {
		fmt.Println(f)
	}
	if len(faults) > 0 {
		os.Exit(1)
	}
}

func run(root string) ([]string, error) {
	names, err := listPages(root)
	if err != nil {
		return nil, err
	}
	makefile, err := os.ReadFile(filepath.Join(root, "Makefile"))
	if err != nil {
		return nil, err
	}
	c := checker{root: root, targets: findTargets(string(makefile)), pages: map[string]*page.Page{}}
	for _, name := range names {
		if err := c.page(name); err != nil {
			return nil, err
		}
	}
	return c.faults, nil
}

// listPages returns the pages that are not ignored by git.
func listPages(root string) ([]string, error) {
	cmd := exec.Command("git", "ls-files", "--cached", "--others", "--exclude-standard", "--deduplicate", "*.md")
	cmd.Dir = root
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("list the pages: %w", err)
	}
	var names []string
	for name := range strings.FieldsSeq(string(out)) {
		if _, err := os.Stat(filepath.Join(root, name)); err == nil {
			names = append(names, name)
		}
	}
	return names, nil
}

func findTargets(makefile string) []string {
	var all []string
	for _, m := range regexp.MustCompile(`(?m)^([a-z][a-z-]*):`).FindAllStringSubmatch(makefile, -1) {
		all = append(all, m[1])
	}
	return all
}

type checker struct {
	root    string
	targets []string
	pages   map[string]*page.Page
	faults  []string
}

func (c *checker) fault(name string, line int, format string, args ...any) {
	c.faults = append(c.faults, fmt.Sprintf("%s:%d: %s", name, line, fmt.Sprintf(format, args...)))
}

func (c *checker) read(name string) (*page.Page, error) {
	if p := c.pages[name]; p != nil {
		return p, nil
	}
	p, err := page.Read(filepath.Join(c.root, name))
	c.pages[name] = p
	return p, err
}

var makes = regexp.MustCompile("(?m)(?:^|`|&& |; )make ([a-z][a-z-]*)")

var places = regexp.MustCompile("`((?:bench|cmd|docs|examples|functions|localstack|shared|test|tools)/[A-Za-z0-9_./-]*[A-Za-z0-9_])`")

func (c *checker) page(name string) error {
	p, err := c.read(name)
	if err != nil {
		return err
	}
	for _, l := range p.Links {
		if err := c.link(name, l); err != nil {
			return err
		}
	}
	src, err := os.ReadFile(filepath.Join(c.root, name))
	if err != nil {
		return err
	}
	n := 0
	for line := range strings.Lines(string(src)) {
		n++
		for _, m := range makes.FindAllStringSubmatch(line, -1) {
			if !slices.Contains(c.targets, m[1]) {
				c.fault(name, n, "the Makefile has no target %s", m[1])
			}
		}
		if name == "CHANGELOG.md" { // may name paths that existed earlier
			continue
		}
		for _, m := range places.FindAllStringSubmatch(line, -1) {
			if strings.HasPrefix(m[1], "tools/") && slices.Contains([]string{"list", "call"}, m[1][len("tools/"):]) {
				continue // methods of MCP
			}
			if _, err := os.Stat(filepath.Join(c.root, m[1])); err != nil {
				c.fault(name, n, "the path %s does not exist", m[1])
			}
		}
	}
	return nil
}

func (c *checker) link(name string, l page.Link) error {
	if strings.Contains(l.To, "://") || strings.HasPrefix(l.To, "mailto:") {
		return nil // what others have is not checked
	}
	to, anchor, _ := strings.Cut(l.To, "#")
	target := name
	if to != "" {
		target = filepath.Join(filepath.Dir(name), to)
	}
	if _, err := os.Stat(filepath.Join(c.root, target)); err != nil {
		c.fault(name, l.Line, "there is no %s", l.To)
		return nil
	}
	if anchor == "" {
		return nil
	}
	p, err := c.read(target)
	if err != nil {
		return err
	}
	if !p.Anchors[anchor] {
		c.fault(name, l.Line, "%s has no heading #%s", target, anchor)
	}
	return nil
}
