//go:build unix && !noemulators

package pattern

import (
	"bytes"
	"encoding/json"
	"net/http"
	"os"
	"slices"
	"testing"

	"github.com/mcp-events/mcpevents/test/awslocal"
	"github.com/mcp-events/mcpevents/test/expect"
)

func TestMain(m *testing.M) { os.Exit(awslocal.Main(m)) }

// question is a pattern and documents, for which Event Ruler decides which of them match.
type question struct {
	Pattern   string   `json:"pattern"`
	Documents []string `json:"documents"`
}

type verdict struct {
	Matches         []bool
	Refused, Failed string
}

func askRuler(t testing.TB, questions []question) []verdict {
	t.Helper()
	body := expect.Value(json.Marshal(questions))(t)
	resp := expect.Value(http.Post(awslocal.Start(t, awslocal.EventRuler).EventRuler, "application/json", bytes.NewReader(body)))(t)
	defer resp.Body.Close()
	var out []verdict
	expect.OK(t, json.NewDecoder(resp.Body).Decode(&out))
	expect.MustEqual(t, "the answers", len(out), len(questions))
	return out
}

// TestEventRuler_Examples compares every example of this package with AWS's own implementation.
func TestEventRuler_Examples(t *testing.T) {
	var questions []question
	var asked []example
	for _, e := range examples {
		if !e.differs {
			asked = append(asked, e)
			questions = append(questions, question{e.pattern, slices.Concat(e.matches, e.not)})
		}
	}
	for i, got := range askRuler(t, questions) {
		e := asked[i]
		t.Run("SRC-03 "+e.name, func(t *testing.T) {
			expect.MustEqual(t, e.pattern+": the refusal", got.Refused, "")
			expect.MustEqual(t, e.pattern+": the failure", got.Failed, "")
			for j, matches := range got.Matches {
				expect.Equal(t, e.pattern+": the answer of Event Ruler", matches, (j < len(e.matches)))
			}
		})
	}
}

// TestEventRuler_Refuses checks that Event Ruler refuses the patterns that we refuse.
func TestEventRuler_Refuses(t *testing.T) {
	var names []string
	var questions []question
	for name, f := range faulty {
		names = append(names, name)
		questions = append(questions, question{f.pattern, []string{}})
	}
	for i, got := range askRuler(t, questions) {
		if refused := got.Refused != ""; refused == faulty[names[i]].oursAlone {
			t.Errorf("SRC-03 %s: %s: refused by Event Ruler: %t (%s)", names[i], questions[i].Pattern, refused, got.Refused)
		}
	}
}

// TestEventRuler_Differences shows where we deliberately give another result (docs/internals/decisions.md). If one
// of these fails because of Event Ruler's result, the difference no longer exists.
func TestEventRuler_Differences(t *testing.T) {
	for name, tt := range map[string]struct {
		pattern, doc string
		ours, theirs bool
	}{
		"a name with a dot is not a path":   {`{"a":{"b":[1]}}`, `{"a.b":1}`, false, true},
		"addresses as text are text":        {`{"a":["10.0.0.1"]}`, `{"a":"10.0.0.01"}`, false, true},
		"numbers beyond a double are exact": {`{"a":[{"numeric":[">",1]}]}`, `{"a":12345678901234567891234}`, true, false},
		"case folds by Unicode":             {`{"a":[{"equals-ignore-case":"k"}]}`, "{\"a\":\"\u212a\"}", true, false},
		"a number is not an address":        {`{"a":[{"cidr":"0.0.0.0/0"}]}`, `{"a":1e2}`, false, true},
		"what ends in x does":               {`{"a":[{"wildcard":"*x"},{"equals-ignore-case":"X"}]}`, `{"a":"null"}`, false, true},
		"ß is one letter":                   {`{"a":[{"equals-ignore-case":"ß"}]}`, `{"a":"SS"}`, false, true},
		"the order of names has no effect":  {`{"a":{"b":[{"exists":false}],"c":[1]}}`, `{"a":[{"b":0},{"c":1}]}`, true, false},
		"the order of names, the other way": {`{"a":{"c":[1],"d":[{"exists":false}]}}`, `{"a":[{"d":0},{"c":1}]}`, true, true},
	} {
		t.Run("SRC-03 "+name, func(t *testing.T) {
			expect.Equal(t, "our match", expect.Value(Parse([]byte(tt.pattern)))(t).Matches(decode(t, tt.doc)), tt.ours)
			got := askRuler(t, []question{{tt.pattern, []string{tt.doc}}})[0]
			if got.Refused != "" || len(got.Matches) != 1 || got.Matches[0] != tt.theirs {
				t.Errorf("Event Ruler says %+v", got)
			}
		})
	}
}
