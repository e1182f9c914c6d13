package check

import (
	"cmp"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/mcp-events/mcpevents/shared/protocol/spec"
)

const (
	Passed      = "passed"
	Failed      = "failed"
	NotTestable = "not testable"
)

// Result is the result of checking one rule. Detail says why the rule failed or was not testable.
type Result struct {
	Rule
	Result string `json:"result"`
	Detail string `json:"detail,omitempty"`
}

// Report has the results of one call of [Run].
type Report struct {
	Server string `json:"server"`
	Text   string `json:"text"`
	// Profile is the version of MCP Events that the server follows: "released" or "final" (see [spec.Profile]). It is "mixed" if some
	// answers show one version and some the other, and empty if no answer showed a version. ShownBy has, for each version, the features
	// that showed it, for example "error numbers".
	Profile     string              `json:"profile"`
	ShownBy     map[string][]string `json:"shownBy,omitempty"`
	Passed      int                 `json:"passed"`
	Failed      int                 `json:"failed"`
	FailedMust  int                 `json:"failedMust"`
	NotTestable int                 `json:"notTestable"`
	Results     []Result            `json:"results"`
}

const mixed = "mixed"

// results holds the results of the rules that were checked so far. A rule that has failed once stays failed.
type results struct {
	byRule  map[*Rule]*Result
	shownBy map[string][]string // the features that showed each profile, see noteProfile
}

func newResults() *results {
	return &results{byRule: map[*Rule]*Result{}, shownBy: map[string][]string{}}
}

// noteProfile records that a feature of an answer shows a profile, which is a version of MCP Events. The parameter by names the feature,
// for example "error numbers".
func (r *results) noteProfile(profile spec.Profile, by string) {
	if p := string(profile); !slices.Contains(r.shownBy[p], by) {
		r.shownBy[p] = append(r.shownBy[p], by)
	}
}

// judgeProfile checks that all answers of the server show the same profile (version of MCP Events), and returns it. It returns "mixed" if
// the answers show both profiles, and an empty text if no answer showed a profile.
func (r *results) judgeProfile() string {
	switch len(r.shownBy) {
	case 0:
		return ""
	case 1:
		r.pass(ruleProfile)
		return slices.Collect(maps.Keys(r.shownBy))[0]
	}
	var parts []string
	for _, profile := range spec.Profiles() {
		parts = append(parts, profile+" by "+strings.Join(r.shownBy[profile], ", "))
	}
	r.fail(ruleProfile, "the server shows %s", strings.Join(parts, "; "))
	return mixed
}

func (r *results) set(rule *Rule, result, detail string) {
	had := r.byRule[rule]
	if had == nil || had.Result == NotTestable && result != NotTestable || had.Result == Passed && result == Failed {
		r.byRule[rule] = &Result{*rule, result, detail}
	}
}

func (r *results) pass(rule *Rule) { r.set(rule, Passed, "") }
func (r *results) fail(rule *Rule, format string, args ...any) {
	r.set(rule, Failed, fmt.Sprintf(format, args...))
}

func (r *results) skip(why string, rules ...*Rule) {
	for _, rule := range rules {
		r.set(rule, NotTestable, why)
	}
}

func (r *results) judge(rule *Rule, ok bool, f string, args ...any) {
	if ok {
		r.pass(rule)
		return
	}
	r.fail(rule, f, args...)
}

func (r *results) hasResult(rule *Rule) bool { return r.byRule[rule] != nil }

// report returns the results of all rules. It marks rules without a result as not testable, with the given reason.
func (r *results) report(server, reason string) *Report {
	profile := r.judgeProfile()
	r.skip(reason, rules...)
	out := &Report{Server: server, Text: specVersion, Profile: profile, ShownBy: r.shownBy}
	for _, rule := range rules {
		result := *r.byRule[rule]
		out.Results = append(out.Results, result)
		switch result.Result {
		case Passed:
			out.Passed++
		case NotTestable:
			out.NotTestable++
		default:
			out.Failed++
			if rule.Level == must {
				out.FailedMust++
			}
		}
	}
	return out
}

// Write prints the report as a table or as JSON. If the parameter junit is not empty, it is the name of a file to which Write also writes
// the report as JUnit XML.
func (r *Report) Write(w io.Writer, asJSON bool, junit string) error {
	if junit != "" {
		f, err := os.Create(junit)
		if err == nil {
			err = errors.Join(r.JUnit(f), f.Close())
		}
		if err != nil {
			return err
		}
	}
	if asJSON {
		return r.JSON(w)
	}
	return r.Table(w)
}

// Table prints the report as a table for people.
func (r *Report) Table(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "RESULT\tLEVEL\tRULE\tSECTION\tTEXT")
	for _, one := range r.Results {
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\n", one.Result, one.Level, one.ID, one.Section, one.Text)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	for _, result := range []string{Failed, NotTestable} {
		if err := r.details(w, result); err != nil {
			return err
		}
	}
	fmt.Fprintf(w, "\nprofile: %s\n", cmp.Or(r.Profile, "not seen"))
	_, err := fmt.Fprintf(w, "\n%d passed, %d failed (%d of them a MUST), %d not testable; %s\n", r.Passed, r.Failed, r.FailedMust, r.NotTestable, r.Text)
	return err
}

// details prints the reasons for all rules that have the given result.
func (r *Report) details(w io.Writer, result string) error {
	var reasons []string
	of := map[string][]string{}
	for _, one := range r.Results {
		if one.Result != result {
			continue
		}
		if of[one.Detail] == nil {
			reasons = append(reasons, one.Detail)
		}
		of[one.Detail] = append(of[one.Detail], one.ID)
	}
	for i, reason := range reasons {
		heading := ""
		if i == 0 {
			heading = "\n" + result + ":\n"
		}
		if _, err := fmt.Fprintf(w, "%s  %s: %s\n", heading, strings.Join(of[reason], ", "), reason); err != nil {
			return err
		}
	}
	return nil
}

// JSON prints the report as JSON.
func (r *Report) JSON(w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	return e.Encode(r)
}

type (
	suite struct {
		XMLName  xml.Name `xml:"testsuite"`
		Name     string   `xml:"name,attr"`
		Tests    int      `xml:"tests,attr"`
		Failures int      `xml:"failures,attr"`
		Skipped  int      `xml:"skipped,attr"`
		Cases    []tcase  `xml:"testcase"`
	}
	tcase struct {
		Class   string   `xml:"classname,attr"`
		Name    string   `xml:"name,attr"`
		Failure *outcome `xml:"failure"`
		Skipped *outcome `xml:"skipped"`
	}
	outcome struct {
		Type string `xml:"type,attr,omitempty"`
		Text string `xml:"message,attr"`
	}
)

// JUnit prints the report as JUnit XML. It reports a failed SHOULD as skipped, so that it does not fail a build.
func (r *Report) JUnit(w io.Writer) error {
	s := suite{Name: "MCP Events: " + r.Server, Tests: len(r.Results), Failures: r.FailedMust, Skipped: len(r.Results) - r.Passed - r.FailedMust}
	for _, one := range r.Results {
		c := tcase{Class: one.Section, Name: one.ID + ": " + one.Text}
		switch {
		case one.Result == Failed && one.Level == must:
			c.Failure = &outcome{one.Level, one.Detail}
		case one.Result != Passed:
			c.Skipped = &outcome{Text: one.Result + ": " + one.Detail}
		}
		s.Cases = append(s.Cases, c)
	}
	if _, err := io.WriteString(w, xml.Header); err != nil {
		return err
	}
	e := xml.NewEncoder(w)
	e.Indent("", "  ")
	return e.Encode(s)
}
