// Command conformance writes the table of requirements and the tests that show them.
//
//	go run ./tools/conformance -requirements docs/requirements.tsv -log build/test.json -out docs/internals/conformance.md
//
// A test shows a requirement if its name contains the number (TestX/WHK-02_…, TestWHK02…) or the comment of its function
// does. Tests in other languages are found by their titles in the output of the Go test that runs them. A requirement without
// a test is open. An optional third column of the requirements names the parts that the tests do not show. Such a
// requirement is at best passed in part.
package main

import (
	"bufio"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

func main() {
	requirements := flag.String("requirements", "docs/requirements.tsv", "file with one requirement per line: number, text and, optionally, the parts that its tests do not show, separated by tabs")
	log := flag.String("log", "build/test.json", "output of go test -json")
	out := flag.String("out", "docs/internals/conformance.md", "the table to write")
	flag.Parse()
	if err := run(*requirements, *log, *out, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "conformance:", err)
		os.Exit(1)
	}
}

func run(requirements, log, out string, report io.Writer) error {
	rf, err := os.Open(requirements)
	if err != nil {
		return err
	}
	defer rf.Close()
	groups, err := readRequirements(rf)
	if err != nil {
		return fmt.Errorf("%s: %w", requirements, err)
	}
	lf, err := os.Open(log)
	if err != nil {
		return fmt.Errorf("%w; run make test-full first", err)
	}
	defer lf.Close()
	tests, err := readLog(lf)
	if err != nil {
		return fmt.Errorf("%s: %w", log, err)
	}
	if err := document(".", tests); err != nil {
		return err
	}
	table, sum := write(groups, tests)
	if err := os.WriteFile(out, table, 0o644); err != nil {
		return err
	}
	fmt.Fprintf(report, "%s: %d requirements, %d passed, %d in part, %d failed, %d open\n",
		out, sum.total(), sum.passed, sum.partly, sum.failed, sum.open)
	return nil
}

var testName = regexp.MustCompile("^(Test|Fuzz)")

// document adds the comments of functions to the tests, which may name requirements too.
func document(root string, tests []test) error {
	type key struct{ pkg, name string }
	said := map[key]string{}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		dir, err := filepath.Rel(root, filepath.Dir(path))
		if err != nil {
			return err
		}
		for _, decl := range file.Decls {
			if f, ok := decl.(*ast.FuncDecl); ok && f.Recv == nil && testName.MatchString(f.Name.Name) {
				said[key{filepath.ToSlash(dir), f.Name.Name}] = f.Doc.Text()
			}
		}
		return nil
	})
	for i, t := range tests {
		tests[i].doc = said[key{t.pkg, t.name}] // of the function itself, not of its subtests
	}
	return err
}

type group struct {
	title        string
	requirements []requirement
}

type requirement struct {
	number string // WHK-02
	asks   string
	// missing names the parts of the requirement that its tests do not show. If it is not empty, the requirement is never
	// fully passed.
	missing string
}

var number = regexp.MustCompile(`^[A-Z]{3}-[0-9]{2}$`)

// readRequirements reads lines with a number, a tab and a sentence. Another tab and a sentence about the missing parts may
// follow. A line that begins with "# " is the heading of the next group.
func readRequirements(r io.Reader) ([]group, error) {
	var groups []group
	seen := map[string]bool{}
	lines := bufio.NewScanner(r)
	for n := 1; lines.Scan(); n++ {
		text := strings.TrimSpace(lines.Text())
		if text == "" {
			continue
		}
		if title, ok := strings.CutPrefix(text, "# "); ok {
			groups = append(groups, group{title: title})
			continue
		}
		id, asks, ok := strings.Cut(text, "\t")
		switch {
		case !ok || !number.MatchString(id) || strings.TrimSpace(asks) == "":
			return nil, fmt.Errorf("line %d: want a number, a tab and a sentence", n)
		case seen[id]:
			return nil, fmt.Errorf("line %d: %s is defined twice", n, id)
		case len(groups) == 0:
			return nil, fmt.Errorf("line %d: want a heading before the first requirement", n)
		}
		seen[id] = true
		asks, missing, _ := strings.Cut(asks, "\t")
		g := &groups[len(groups)-1]
		g.requirements = append(g.requirements, requirement{id, strings.TrimSpace(asks), strings.TrimSpace(missing)})
	}
	return groups, lines.Err()
}
