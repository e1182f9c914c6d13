package main

import (
	"bytes"
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// maxShown is the number of tests that a row names.
const maxShown = 6

type summary struct{ passed, partly, failed, open int }

func (s summary) total() int { return s.passed + s.partly + s.failed + s.open }

// shows is one test of a row.
type shows struct {
	label string
	state state
}

// write renders the page. The page has no times or dates, so that it changes only when a result changes.
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

// collect finds the tests of every number. A row names a test up to the segment
// that carries the number; its subtests count towards its state.
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

// finder matches the numbers of the groups: WHK-02, WHK_02, WHK02.
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

// carried maps the numbers in a test's name to the name up to the segment that
// carries them.
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

// cell keeps a text inside a cell of a Markdown table.
func cell(s string) string {
	return strings.NewReplacer("|", `\|`, "\n", " ").Replace(s)
}
