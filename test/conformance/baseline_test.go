//go:build unix

package conformance

import (
	"bufio"
	"bytes"
	"flag"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
)

// baselineFile holds what is known to fail: lines of target, revision, scenario and
// reason, separated by tabs. Lines that begin with # are for the reader.
const baselineFile = "baseline.tsv"

var record = flag.Bool("record", false, "write the baseline anew instead of comparing with it")

type entry struct{ target, revision, scenario string }

func readBaseline() (map[entry]string, error) {
	b, err := os.ReadFile(baselineFile)
	if err != nil {
		return nil, err
	}
	known := map[entry]string{}
	lines := bufio.NewScanner(bytes.NewReader(b))
	for lines.Scan() {
		line := lines.Text()
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		f := strings.Split(line, "\t")
		if len(f) != 4 || f[3] == "" {
			return nil, fmt.Errorf("%s: not a target, a revision, a scenario and a reason: %q", baselineFile, line)
		}
		known[entry{f[0], f[1], f[2]}] = f[3]
	}
	return known, nil
}

// writeBaseline writes the baseline anew for what was run, with the reasons that it had.
func writeBaseline(ran []*report) error {
	known, err := readBaseline()
	if err != nil {
		return err
	}
	for _, r := range ran {
		before := maps.Clone(known)
		maps.DeleteFunc(known, func(e entry, _ string) bool { return e.target == r.target && e.revision == r.revision })
		for _, s := range r.results {
			e := entry{r.target, r.revision, s.scenario}
			if s.ok() {
				continue
			}
			known[e] = "not looked into yet"
			if reason, ok := before[e]; ok {
				known[e] = reason
			}
		}
	}
	var b strings.Builder
	b.WriteString(baselineHead)
	for _, e := range slices.SortedFunc(maps.Keys(known), func(a, b entry) int {
		return strings.Compare(a.target+a.revision+a.scenario, b.target+b.revision+b.scenario)
	}) {
		fmt.Fprintf(&b, "%s\t%s\t%s\t%s\n", e.target, e.revision, e.scenario, known[e])
	}
	return os.WriteFile(baselineFile, []byte(b.String()), 0o644)
}

const baselineHead = `# What is known to fail in the official conformance suite, and why: target, revision of the suite, scenario, reason.
# A scenario that begins to pass has to be taken off this list. "go test ./test/conformance -record" writes it anew
# and keeps the reasons.
`

// hold fails the test where the report is not what the baseline says: a scenario
// that fails unforeseen, and one that passes though it is listed, which must then be
// taken off the list so that it cannot be lost again.
func hold(t *testing.T, r *report) {
	t.Helper()
	if *record {
		return
	}
	known, err := readBaseline()
	if err != nil {
		t.Fatal(err)
	}
	for _, complaint := range compare(r, known) {
		t.Error(complaint)
	}
}

// listed are the entries of the baseline for what was run.
func listed(t *testing.T, r *report) map[entry]bool {
	t.Helper()
	known, err := readBaseline()
	if err != nil {
		t.Fatal(err)
	}
	return of(r, known)
}

func of(r *report, known map[entry]string) map[entry]bool {
	entries := map[entry]bool{}
	for e := range known {
		if e.target == r.target && e.revision == r.revision {
			entries[e] = true
		}
	}
	return entries
}

func compare(r *report, known map[entry]string) (complaints []string) {
	left := of(r, known)
	for _, s := range r.results {
		e := entry{r.target, r.revision, s.scenario}
		listed := left[e]
		delete(left, e)
		switch {
		case !s.ok() && !listed:
			complaints = append(complaints, fmt.Sprintf("%s failed:\n  %s\nIf it must, say why in %s:\n%s\t%s\t%s\t(the reason)",
				s.scenario, strings.Join(s.why, "\n  "), baselineFile, r.target, r.revision, s.scenario))
		case s.ok() && listed:
			complaints = append(complaints, fmt.Sprintf("%s passed. Take it off %s:\n%s\t%s\t%s",
				s.scenario, baselineFile, r.target, r.revision, s.scenario))
		}
	}
	for e := range left {
		complaints = append(complaints, fmt.Sprintf("%s lists %s, which %s does not require", baselineFile, e.scenario, r.revision))
	}
	return complaints
}

// TestBaseline shows that the baseline lets nothing get worse, and nothing better go unnoticed.
func TestBaseline(t *testing.T) {
	known := map[entry]string{
		{"x", "1", "fails"}:      "a reason",
		{"x", "1", "passes"}:     "a reason",
		{"x", "1", "is gone"}:    "a reason",
		{"y", "1", "is another"}: "a reason",
	}
	r := &report{target: "x", revision: "1", results: []result{
		{scenario: "fails", passed: 3, failed: 1},
		{scenario: "passes", passed: 1},
		{scenario: "fails unforeseen", passed: 1, failed: 1},
		{scenario: "looks at nothing"},
		{scenario: "warns", passed: 1, warned: 1},
	}}
	got := compare(r, known)
	for i, want := range []string{"passes passed", "fails unforeseen failed", "looks at nothing failed", "warns failed", "lists is gone"} {
		if i >= len(got) || !strings.Contains(got[i], want) {
			t.Errorf("complaint %d: got %q, want one with %q", i, got, want)
		}
	}
	if len(got) != 5 {
		t.Errorf("%d complaints: %q", len(got), got)
	}
}
