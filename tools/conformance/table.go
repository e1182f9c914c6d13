package main

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
)

const maxShown = 6

type summary struct{ passed, partly, failed, open int }

func (s summary) total() int { return s.passed + s.partly + s.failed + s.open }

type shows struct {
	label string
	state state
}

// write renders no times or dates, so that the page changes only when a result changes.
func write(groups []group, tests []test) ([]byte, summary) {
	rows := collect(groups, tests)
	var body bytes.Buffer
	var sum summary
	for _, g := range groups {
		fmt.Fprintf(&body, "\n## %s\n\n| number | asks | shown by | state |\n|---|---|---|---|\n", g.title)
		for _, r := range g.requirements {
			state := sum.add(r, rows[r.number])
			fmt.Fprintf(&body, "| %s | %s | %s | %s |\n", r.number, cell(r.asks), names(rows[r.number]), state)
		}
	}
	var out bytes.Buffer
	fmt.Fprintf(&out, `# Conformance

Written by `+"`make conformance-table`"+` from [requirements.tsv](../requirements.tsv) and the last run of the tests;
not to be edited. A row is *passed* when every test that carries its number passed and they show all that it asks,
*in part* when they passed and show only some of it, *failed* when one failed or was skipped, *open* when
no test carries it. What the tests do not show of a row stands beside its state.

%d requirements: %d passed, %d in part, %d failed, %d open.
`, sum.total(), sum.passed, sum.partly, sum.failed, sum.open)
	out.Write(body.Bytes())
	return out.Bytes(), sum
}

// add counts the row and returns its state. A row with missing parts is never passed. Its state always names them.
func (s *summary) add(r requirement, row []shows) string {
	state := ""
	switch {
	case len(row) == 0:
		s.open++
		state = "open"
	case slices.ContainsFunc(row, func(x shows) bool { return x.state != passed }):
		s.failed++
		state = "**failed**"
	case r.missing != "":
		s.partly++
		state = "in part"
	default:
		s.passed++
		return "passed"
	}
	if r.missing == "" {
		return state
	}
	return state + "; missing: " + cell(r.missing)
}

// collect finds the tests of every number. Subtests count towards the state of the test.
func collect(groups []group, tests []test) map[string][]shows {
	finder := finder(groups)
	rows := map[string][]shows{}
	for _, t := range tests {
		found := carried(finder, t.name)
		for _, number := range numbers(finder, t.doc) {
			found[number] = t.name
		}
		for number, name := range found {
			label := t.pkg + " " + name
			row := rows[number]
			i := slices.IndexFunc(row, func(x shows) bool { return x.label == label })
			if i < 0 {
				rows[number] = append(row, shows{label: label, state: t.state})
			} else {
				row[i].state = max(row[i].state, t.state)
			}
		}
	}
	for _, row := range rows {
		slices.SortFunc(row, func(a, b shows) int { // what did not pass first
			return cmp.Or(cmp.Compare(b.state, a.state), strings.Compare(a.label, b.label))
		})
	}
	return rows
}

func finder(groups []group) *regexp.Regexp {
	var prefixes []string
	for _, g := range groups {
		for _, r := range g.requirements {
			if p := r.number[:3]; !slices.Contains(prefixes, p) {
				prefixes = append(prefixes, p)
			}
		}
	}
	return regexp.MustCompile(`(?:^|[^A-Z])(` + strings.Join(prefixes, "|") + `)[-_]?([0-9]{2})(?:[^0-9]|$)`)
}

// carried maps the numbers in a test's name to the name up to the segment with the number.
func carried(finder *regexp.Regexp, name string) map[string]string {
	found := map[string]string{}
	title := ""
	if outer, inner, ok := strings.Cut(name, ": "); ok { // of another language: a title may hold slashes
		name, title = outer, inner
	}
	end := 0
	for segment := range strings.SplitSeq(name, "/") {
		end += len(segment)
		for _, number := range numbers(finder, segment) {
			if _, ok := found[number]; !ok {
				found[number] = name[:end]
			}
		}
		end++
	}
	for _, number := range numbers(finder, title) {
		if _, ok := found[number]; !ok {
			found[number] = name + ": " + title
		}
	}
	return found
}

func numbers(finder *regexp.Regexp, text string) []string {
	var all []string
	for {
		m := finder.FindStringSubmatchIndex(text)
		if m == nil {
			return all
		}
		all = append(all, text[m[2]:m[3]]+"-"+text[m[4]:m[5]])
		text = text[m[5]:]
	}
}

func names(row []shows) string {
	var b strings.Builder
	for i, x := range row {
		if i == maxShown {
			fmt.Fprintf(&b, "<br>and %d more", len(row)-i)
			break
		}
		if i > 0 {
			b.WriteString("<br>")
		}
		pkg, name, _ := strings.Cut(x.label, " ")
		fmt.Fprintf(&b, "%s `%s`", pkg, cell(name))
		switch x.state {
		case failed:
			b.WriteString(" (failed)")
		case skipped:
			b.WriteString(" (skipped)")
		}
	}
	return b.String()
}

func cell(s string) string {
	return strings.NewReplacer("|", `\|`, "\n", " ").Replace(s)
}

const module = "github.com/mcp-events/mcpevents/"

// state is the result of a test. Larger values are worse.
type state int

const (
	passed state = iota
	skipped
	failed
)

type test struct {
	pkg   string // below the module
	name  string
	doc   string // the comment of its function
	state state
}

// readLog reads the output of "go test -json". A test that started but did not end, because its package panicked or timed
// out, counts as failed. If a test ran more than once, the last run counts.
func readLog(r io.Reader) ([]test, error) {
	type key struct{ pkg, name string }
	running := map[key]int{}
	var tests []test
	lines := bufio.NewReaderSize(r, 1<<16)
	for {
		raw, err := lines.ReadBytes('\n')
		if len(raw) > 0 {
			var l struct{ Action, Package, Test, Output string }
			if json.Unmarshal(raw, &l) == nil && l.Test != "" {
				k := key{l.Package, l.Test}
				switch l.Action {
				case "run":
					if _, ok := running[k]; ok {
						forget(tests, short(l.Package), l.Test)
					}
					running[k] = len(tests)
					tests = append(tests, test{pkg: short(l.Package), name: l.Test, state: failed})
				case "pass", "fail", "skip":
					i, ok := running[k]
					if !ok {
						return nil, fmt.Errorf("the log contains the end of %s but not its start", l.Test)
					}
					tests[i].state = map[string]state{"pass": passed, "fail": failed, "skip": skipped}[l.Action]
				case "output":
					if title, st, ok := foreign(l.Output); ok {
						tests = append(tests, test{pkg: short(l.Package), name: l.Test + ": " + title, state: st})
					}
				}
			}
		}
		if err == io.EOF {
			return slices.DeleteFunc(tests, func(t test) bool { return t.name == "" }), nil
		}
		if err != nil {
			return nil, err
		}
	}
}

// forget removes the results of a test and its subtests.
func forget(tests []test, pkg, name string) {
	for i, t := range tests {
		if rest, ok := strings.CutPrefix(t.name, name); ok && t.pkg == pkg && (rest == "" || rest[0] == '/' || rest[0] == ':') {
			tests[i].name = ""
		}
	}
}

func short(pkg string) string {
	rest, ok := strings.CutPrefix(pkg, module)
	if !ok {
		return pkg
	}
	return rest
}

var (
	escapes  = regexp.MustCompile("\x1b\\[[0-9;]*[A-Za-z]")
	logged   = regexp.MustCompile(`^\s*[\w.-]+\.go:\d+: `)
	tap      = regexp.MustCompile(`^\s*(not )?ok \d+ (?:- )?(.+)$`)
	directed = regexp.MustCompile(`(?i)\s+# (skip|todo)\b.*$`)
	marked   = regexp.MustCompile(`^\s*([✔✓√✖✗×✕﹣↓]) (.+?)(?:\s+\(?\d+(?:\.\d+)? ?m?s\)?)?$`)
	pytest   = regexp.MustCompile(`^\S+\.py::(\S+) (PASSED|FAILED|ERROR|SKIPPED|XFAIL)\b`)
)

// foreign finds the result of a test of JavaScript (TAP; node, vitest and jest) or Python (pytest -v).
func foreign(text string) (title string, st state, ok bool) {
	text = strings.TrimRight(escapes.ReplaceAllString(text, ""), " \r\n")
	text = logged.ReplaceAllString(text, "")
	if m := tap.FindStringSubmatch(text); m != nil {
		title := directed.ReplaceAllString(m[2], "")
		switch {
		case title != m[2]:
			return title, skipped, true
		case m[1] != "":
			return title, failed, true
		}
		return title, passed, true
	}
	if m := marked.FindStringSubmatch(text); m != nil {
		switch m[1] {
		case "✔", "✓", "√":
			return m[2], passed, true
		case "﹣", "↓":
			return m[2], skipped, true
		}
		return m[2], failed, true
	}
	if m := pytest.FindStringSubmatch(text); m != nil {
		switch m[2] {
		case "PASSED":
			return m[1], passed, true
		case "FAILED", "ERROR":
			return m[1], failed, true
		}
		return m[1], skipped, true
	}
	return "", 0, false
}
