//go:build unix

// Package conformance runs the official conformance suite of MCP against the
// test backends, and through the gateway with such a backend behind it.
package conformance

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
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
	b, err := os.ReadFile(file)
	expect.OK(t, err)
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
		if err := json.Unmarshal(b, &checks); err != nil {
			t.Fatalf("%s: %v", entry.Name(), err)
		}
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
