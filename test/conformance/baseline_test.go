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

	"github.com/mcp-events/mcpevents/test/expect"
)

// baselineFile lists the known failures: lines of target, revision, scenario with check, and reason, separated by tabs.
// Lines that begin with # are comments.
const baselineFile = "baseline.tsv"

var record = flag.Bool("record", false, "write the baseline anew instead of comparing with it")

// entry names a check as the suite does: scenario:check.
type entry struct{ target, revision, check string }

func (e entry) String() string { return e.target + "\t" + e.revision + "\t" + e.check }

func (r *report) entry(s result, f flaw) entry {
	return entry{r.target, r.revision, s.scenario + ":" + f.check}
}

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
			return nil, fmt.Errorf("%s: not a target, a revision, a check and a reason: %q", baselineFile, line)
		}
		known[entry{f[0], f[1], f[2]}] = f[3]
	}
	return known, nil
}

// writeBaseline replaces the baseline's entries for the scenarios that ran, and keeps their reasons.
func writeBaseline(ran []*report) error {
	known, err := readBaseline()
	if err != nil {
		return err
	}
	for _, r := range ran {
		before := maps.Clone(known)
		maps.DeleteFunc(known, func(e entry, _ string) bool { return e.target == r.target && e.revision == r.revision })
		for _, s := range r.results {
			for _, f := range s.flaws {
				e := r.entry(s, f)
				known[e] = "not looked into yet"
				if reason, ok := before[e]; ok {
					known[e] = reason
				}
			}
		}
	}
	var b strings.Builder
	b.WriteString(baselineHead)
	for _, e := range slices.SortedFunc(maps.Keys(known), func(a, b entry) int {
		return strings.Compare(a.String(), b.String())
	}) {
		fmt.Fprintf(&b, "%s\t%s\n", e, known[e])
	}
	return os.WriteFile(baselineFile, []byte(b.String()), 0o644)
}

const baselineHead = `# What is known to fail in the official conformance suite, and why: target, revision of the suite, scenario:check, reason.
# A check that begins to pass has to be taken off this list. "go test ./test/conformance -record" writes it anew
# and keeps the reasons.
`

// hold fails the test where the report is not what the baseline says: a check that
// fails unforeseen, and one that does not though it is listed, which must then be
// taken off the list so that it cannot be lost again.
func hold(t *testing.T, r *report) {
	t.Helper()
	if *record {
		return
	}
	known, err := readBaseline()
	expect.OK(t, err)
	for _, complaint := range compare(r, known) {
		t.Error(complaint)
	}
}

// listed returns the baseline's entries for the scenarios of a report.
func listed(t *testing.T, r *report) map[entry]bool {
	t.Helper()
	known, err := readBaseline()
	expect.OK(t, err)
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
		for _, f := range s.flaws {
			e := r.entry(s, f)
			if _, ok := known[e]; !ok {
				complaints = append(complaints, fmt.Sprintf("%s\n  %s\nIf it must be so, say why in %s:\n%s\t(the reason)", e.check, f.why, baselineFile, e))
			}
			delete(left, e)
		}
	}
	for e := range left {
		complaints = append(complaints, fmt.Sprintf("%s does not fail any more. Take it off %s:\n%s", e.check, baselineFile, e))
	}
	return complaints
}

// TestBaseline shows that the baseline lets nothing get worse, and nothing better go unnoticed.
func TestBaseline(t *testing.T) {
	known := map[entry]string{
		{"x", "1", "scenario:fails"}:      "a reason",
		{"x", "1", "scenario:passes"}:     "a reason",
		{"x", "1", "another:fails"}:       "a reason",
		{"y", "1", "scenario:is another"}: "a reason",
	}
	r := &report{target: "x", revision: "1", results: []result{
		{scenario: "scenario", passed: 3, failed: 2, warned: 1, flaws: []flaw{{"fails", ""}, {"fails unforeseen", ""}, {"warns", ""}}},
		{scenario: "sound", passed: 1},
	}}
	got := compare(r, known)
	slices.Sort(got)
	wants := []string{"another:fails does not", "scenario:fails unforeseen\n", "scenario:passes does not", "scenario:warns\n"}
	if len(got) != len(wants) {
		t.Fatalf("got %q, want %d complaints", got, len(wants))
	}
	for i, want := range wants {
		if !strings.HasPrefix(got[i], want) {
			t.Errorf("got %q, want one of %q", got[i], want)
		}
	}
}
