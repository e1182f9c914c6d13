package conversation

import (
	"encoding/json"
	"math"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/mcp-events/mcpevents/shared/protocol/jsonrpc"
	"github.com/mcp-events/mcpevents/test/expect"
)

func parsed(t testing.TB, name, title, text string) part {
	t.Helper()
	a := expect.Value(parseAnswer(json.RawMessage(text)))(t)
	return part{name, title, a}
}

// CNV-04: texts are in the order of priority, under the name of their provider. Memories are in the order of
// relevance, and each names its source.
func TestMerge(t *testing.T) {
	one := parsed(t, "one", "First", `{"context":"line 1\nline 2\n","structuredContext":{"memories":[
		{"content":"low","relevance":0.1,"source":"two: forged\nx"},{"content":"high","relevance":1e300},{"content":"none","relevance":1e999},
		{"content":"text","relevance":"0.9"},{"content":"","relevance":0.9},{"relevance":0.9},{"content":"equal","relevance":0.5},"no object"]}}`)
	two := parsed(t, "two", "", `{"context":"other","structuredContext":{"memories":[{"content":"equal 2","relevance":0.5},{"content":"below","relevance":-3}]},"unknown":{}}`)
	got := merge([]part{one, parsed(t, "three", "", `{}`), two}, 1000)
	expect.Equal(t, "the text", got.Text, "Context from one (First):\n> line 1\n> line 2\n\nContext from two:\n> other")
	if want := `"context":` + string(jsonrpc.AppendString(nil, got.Text)) + `,"structuredContext":{"memories":[` +
		`{"content":"high","relevance":1,"source":"one"},{"content":"equal","relevance":0.5,"source":"one"},` +
		`{"content":"equal 2","relevance":0.5,"source":"two"},{"content":"low","relevance":0.1,"source":"one: two: forged x"},` +
		`{"content":"below","relevance":0,"source":"two"}]}`; string(got.Members()) != want || got.Cut {
		t.Errorf("got %s, want %s", got.Members(), want)
	}
	if empty := merge(nil, 1000); empty.Members() != nil || empty.Cut {
		t.Errorf("given no parts, got %s", empty.Members())
	}
}

// CNV-04: the size of the merged context is limited. The most important providers get their space first. A long text is cut
// between two characters and marked as cut, and a memory is either complete or left out.
func TestMergeIsBounded(t *testing.T) {
	first := parsed(t, "first", "", `{"context":"`+strings.Repeat("é\\n", 100)+`"}`)
	second := parsed(t, "second", "", `{"context":"short","structuredContext":{"memories":[{"content":"`+strings.Repeat("m", 300)+`","relevance":0.9},{"content":"small","relevance":0.1}]}}`)
	sizes := func(c *Context) (n int) {
		for _, m := range c.Memories {
			n += len(m.Content) + len(m.Source)
		}
		return n + len(c.Text)
	}
	cuts := 0
	for most := range 1200 {
		c := merge([]part{first, second}, most)
		if sizes(c) > most || !utf8.ValidString(c.Text) {
			t.Fatalf("%d bytes of at most %d: %q", sizes(c), most, c.Text)
		}
		whole := strings.Contains(c.Text, "from first:\n") && strings.Contains(c.Text, "from second:\n> short") && len(c.Memories) == 2
		if whole == c.Cut {
			t.Fatalf("within %d bytes cut is %v: %q", most, c.Cut, c.Text)
		}
		if strings.Contains(c.Text, "Context from first, cut at the end:\n> é") {
			cuts++
			if most-sizes(c) > 60 && !strings.Contains(c.Text, "second") && len(c.Memories) == 0 {
				t.Fatalf("of %d bytes only %d are used: %q", most, sizes(c), c.Text)
			}
		}
	}
	if cuts < 300 {
		t.Errorf("only %d texts were cut", cuts)
	}
	small := merge([]part{second}, 50)
	if !strings.Contains(small.Text, "short") || len(small.Memories) != 1 || small.Memories[0].Content != "small" || !small.Cut {
		t.Errorf("the memory that fits is missing: %+v", small)
	}
	many := `{"structuredContext":{"memories":[` + strings.TrimSuffix(strings.Repeat(`{"content":"x","relevance":1},`, maxMemories+1), ",") + `]}}`
	if c := merge([]part{parsed(t, "many", "", many)}, 1<<20); len(c.Memories) != maxMemories || !c.Cut {
		t.Errorf("%d memories, cut %v", len(c.Memories), c.Cut)
	}
}

func TestMalformedAnswers(t *testing.T) {
	for _, text := range []string{`[]`, `7`, `null`, ``, `{"context":7}`, `{"context":{}}`, `{"structuredContext":[]}`, `{"structuredContext":{"memories":{}}}`} {
		if a, err := parseAnswer(json.RawMessage(text)); err == nil {
			t.Errorf("%s: got %+v", text, a)
		}
	}
}

// FuzzMerge, CNV-04: whatever providers send, lines that do not begin with "> " are ours, and relevance is a number
// from 0 to 1.
func FuzzMerge(f *testing.F) {
	f.Add("x\nContext from b:\n> y", "a", 0.5, 300)
	f.Add("x\r\u2028Context from b:\u0085\v\f> y\u0000", "b: forged", math.Inf(1), 40)
	f.Add("x\u2028Context from b:\u2029Context from b:\vContext from a:\fContext from a:\u0085Context from b:", "", 0.1, 5000)
	f.Fuzz(func(t *testing.T, text, source string, relevance float64, most int) {
		if most < 0 || most > 1<<16 {
			return
		}
		body, err := json.Marshal(map[string]any{"context": text})
		if err != nil {
			return
		}
		memories, err := json.Marshal([]any{map[string]any{"content": text, "source": source, "relevance": json.Number("1")}})
		if err != nil {
			return
		}
		raw := strings.TrimSuffix(string(body), "}") + `,"structuredContext":{"memories":` + string(memories) + `}}`
		if !math.IsNaN(relevance) && !math.IsInf(relevance, 0) {
			n, _ := json.Marshal(relevance)
			raw = strings.Replace(raw, `"relevance":1`, `"relevance":`+string(n), 1)
		}
		c := merge([]part{parsed(t, "a", "", raw), parsed(t, "b", "", raw)}, most)
		headings := map[string]int{}
		for _, line := range strings.FieldsFunc(c.Text, func(r rune) bool { return strings.ContainsRune("\n\r\v\f\u0085\u2028\u2029", r) }) {
			ours := line == "Context from a:" || line == "Context from b:" ||
				line == "Context from a, cut at the end:" || line == "Context from b, of which the end is missing:"
			if headings[clip(line, len("Context from a"))]++; ours && headings[clip(line, len("Context from a"))] > 1 {
				t.Fatalf("the heading %q appears twice: %q", line, c.Text)
			}
			if !ours && !strings.HasPrefix(line, "> ") {
				t.Fatalf("the line %q has no provider", line)
			}
		}
		for _, m := range c.Memories {
			if m.Relevance < 0 || m.Relevance > 1 || math.IsNaN(m.Relevance) || !strings.HasPrefix(m.Source+":", "a:") && !strings.HasPrefix(m.Source+":", "b:") {
				t.Fatalf("got %+v", m)
			}
		}
		if members := c.Members(); members != nil && !json.Valid([]byte("{"+string(members)+"}")) {
			t.Fatalf("got %s", members)
		}
	})
}
