//go:build unix

// Package conformance runs the official conformance suite of MCP against the
// test backends, and through the gateway with such a backend behind it.
package conformance

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"text/tabwriter"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/mcp-events/mcpevents/test/expect"
	"github.com/mcp-events/mcpevents/test/harness"
)

// patience is how long the suite may take for a revision. It takes six seconds
// when all is well; a scenario that hangs is given up by the suite after ten.
const patience = 3 * time.Minute

// result is how a scenario ended.
type result struct {
	scenario       string
	passed, failed int // checks
	warned         int
	flaws          []flaw
}

// flaw is a check that failed or warned.
type flaw struct{ check, why string }

// ok reports whether the scenario passed. A scenario without checks shows nothing, so it does not pass. The suite tolerates
// warnings, which are about SHOULD requirements; we do not.
func (r result) ok() bool { return r.failed == 0 && r.warned == 0 && r.passed > 0 }

// report holds the results of the scenarios that a revision requires.
type report struct {
	target, revision string
	results          []result
	took             time.Duration
}

// scenarios returns the numbers of passed scenarios and of all scenarios.
func (r *report) scenarios() (passed, all int) {
	for _, s := range r.results {
		if s.ok() {
			passed++
		}
	}
	return passed, len(r.results)
}

// checks returns the numbers of passed checks and of all checks.
func (r *report) checks() (passed, all int) {
	for _, s := range r.results {
		passed += s.passed
		all += s.passed + s.failed
	}
	return passed, all
}

// score returns the result as one line.
func (r *report) score() string {
	scenarios, allScenarios := r.scenarios()
	checks, allChecks := r.checks()
	return fmt.Sprintf("%s, %s: %d of %d scenarios, %d of %d checks, %.1f s",
		r.target, r.revision, scenarios, allScenarios, checks, allChecks, r.took.Seconds())
}

// print writes the table of scenarios, followed by the failures.
func (r *report) print(w io.Writer) {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(table, "\n%s, %s\tpassed\tfailed\twarnings\t\n", r.target, r.revision)
	for _, s := range r.results {
		verdict := ""
		if !s.ok() {
			verdict = "FAILED"
		}
		fmt.Fprintf(table, "%s\t%d\t%d\t%d\t%s\n", s.scenario, s.passed, s.failed, s.warned, verdict)
	}
	table.Flush()
	for _, s := range r.results {
		for _, f := range s.flaws {
			fmt.Fprintf(w, "  %s:%s: %s\n", s.scenario, f.check, f.why)
		}
	}
}

const suite = "node_modules/@modelcontextprotocol/conformance"

// run runs what a revision requires against an MCP endpoint.
func run(t *testing.T, target, url, revision string) *report {
	t.Helper()
	js := harness.NodeIn(t, filepath.Join("test", "conformance", "js"))
	r := &report{target: target, revision: revision}
	required := required(t, js.Path(filepath.Join(suite, "requirements", revision+".yaml")))

	dir := t.TempDir()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	began := time.Now()
	out, err := js.Command(ctx, suite+"/dist/index.js", "server", "--url", url, "--requirements", revision, "--timeout", "10000", "-o", dir).CombinedOutput()
	r.took = time.Since(began)
	found := results(t, dir)
	if len(found) == 0 {
		t.Fatalf("the suite did not run: %v\n%s", err, tail(out))
	}
	// Failed checks end the suite with an error, so err says nothing new here.
	for _, name := range required {
		s, ok := found[name]
		if !ok {
			s = result{scenario: name, failed: 1, flaws: []flaw{{"end", "the scenario did not end"}}}
		}
		r.results = append(r.results, s)
	}
	t.Log(r.score())
	return r
}

// required reads the scenarios that a revision requires of a server.
func required(t *testing.T, file string) []string {
	t.Helper()
	b := expect.Value(os.ReadFile(file))(t)
	var set struct{ Server []string }
	if err := yaml.Unmarshal(b, &set); err != nil || len(set.Server) == 0 {
		t.Fatalf("%s names no scenarios: %v", file, err)
	}
	return set.Server
}

// directory is one of the suite's results: the scenario and when it began.
var directory = regexp.MustCompile(`^server-(.+)-\d{4}-\d\d-\d\dT\d\d-\d\d-\d\d-\d+Z$`)

// results reads the suite's results, by scenario.
func results(t *testing.T, dir string) map[string]result {
	t.Helper()
	entries, err := os.ReadDir(dir)
	expect.OK(t, err)
	found := map[string]result{}
	for _, entry := range entries {
		m := directory.FindStringSubmatch(entry.Name())
		if m == nil {
			t.Fatalf("the suite wrote %s, which is none of its directories as they are known", entry.Name())
		}
		b, err := os.ReadFile(filepath.Join(dir, entry.Name(), "checks.json"))
		if err != nil {
			continue // it did not end
		}
		var checks []struct{ ID, Status, ErrorMessage string }
		expect.OK(t, json.Unmarshal(b, &checks), entry.Name())
		r := result{scenario: m[1]}
		for _, c := range checks {
			switch c.Status {
			case "SUCCESS":
				r.passed++
				continue
			case "FAILURE":
				r.failed++
			case "WARNING":
				r.warned++
			default: // INFO and SKIPPED do not count
				continue
			}
			r.flaws = append(r.flaws, flaw{c.ID, strings.ToLower(c.Status) + ": " + clip(c.ErrorMessage)})
		}
		if r.passed+len(r.flaws) == 0 {
			r.flaws = []flaw{{"nothing", "the scenario made no check that counts"}}
		}
		found[r.scenario] = r
	}
	return found
}

func clip(s string) string {
	s = strings.Join(strings.Fields(s), " ")
	if len(s) > 300 {
		s = s[:300] + "…"
	}
	return s
}

func tail(b []byte) []byte { return b[max(0, len(b)-4<<10):] }

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
	known := expect.Value(readBaseline())(t)
	for _, complaint := range compare(r, known) {
		t.Error(complaint)
	}
}

// listed returns the baseline's entries for the scenarios of a report.
func listed(t *testing.T, r *report) map[entry]bool {
	t.Helper()
	known := expect.Value(readBaseline())(t)
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
	expect.MustLen(t, "the complaints", got, len(wants))
	for i, want := range wants {
		if !strings.HasPrefix(got[i], want) {
			t.Errorf("got %q, want one of %q", got[i], want)
		}
	}
}
