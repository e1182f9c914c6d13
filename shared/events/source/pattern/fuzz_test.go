package pattern

import (
	"encoding/json"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/platform/jsonpointer"
)

// FuzzParse checks that any text is either a pattern within the limits, or refused with pointers to places in it.
func FuzzParse(f *testing.F) {
	for _, e := range examples {
		f.Add([]byte(e.pattern))
	}
	for _, e := range faulty {
		f.Add([]byte(e.pattern))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		p, err := Parse(text)
		if err != nil {
			wantPointers(t, text, err)
			return
		}
		if n := len(p.alternatives); n == 0 || n > maxAlternatives {
			t.Errorf("%d alternatives", n)
		}
		values := 0
		for _, root := range p.alternatives {
			values += count(root)
		}
		if values > maxValues {
			t.Errorf("%d values", values)
		}
		p.Matches(map[string]any{})
	})
}

func count(n *node) int {
	if n.leaf != nil {
		return 1 + len(n.leaf.values)
	}
	sum := 0
	for _, f := range n.fields {
		sum += count(f.node)
	}
	return sum
}

func wantPointers(t *testing.T, text []byte, err error) {
	t.Helper()
	faults, _ := fault.DataOf(err).([]jsonpointer.Fault)
	if !fault.Is(err, fault.Invalid) || len(faults) == 0 || len(faults) > maxFaults {
		t.Fatalf("%v with %d faults", err, len(faults))
	}
	for _, f := range faults {
		if f.Message == "" || f.Pointer != "" && !reaches(t, text, f.Pointer) {
			t.Errorf("%q: %s", f.Pointer, f.Message)
		}
	}
}

// reaches reports whether a pointer finds a value in text.
func reaches(t *testing.T, text []byte, pointer string) bool {
	v := decode(t, string(text))
	unescape := strings.NewReplacer("~1", "/", "~0", "~")
	for _, token := range strings.Split(pointer, "/")[1:] {
		token = unescape.Replace(token)
		switch at := v.(type) {
		case map[string]any:
			if _, ok := at[token]; !ok {
				return false
			}
			v = at[token]
		case []any:
			i, err := strconv.Atoi(token)
			if err != nil || i < 0 || i >= len(at) {
				return false
			}
			v = at[i]
		default:
			return false
		}
	}
	return true
}

// FuzzMatches checks that three changes of a document do not change whether it matches: wrapping each value in an
// array, repeating each element of an array, and adding a member that the pattern does not name.
func FuzzMatches(f *testing.F) {
	for _, e := range examples {
		for _, doc := range slices.Concat(e.matches, e.not) {
			f.Add([]byte(e.pattern), []byte(doc))
		}
	}
	f.Fuzz(func(t *testing.T, pattern, text []byte) {
		p, err := Parse(pattern)
		if err != nil || !json.Valid(text) || len(text) > 10_000 {
			return
		}
		doc := decode(t, string(text))
		want := p.Matches(doc)
		object, ok := doc.(map[string]any)
		if !ok {
			if want {
				t.Error("a document that is not an object matches")
			}
			return
		}
		for name, v := range object {
			object[name] = stretched(v, 0)
		}
		const other = "a name that no pattern has \x00"
		object[other] = "x"
		if got := p.Matches(doc); got != want && !strings.Contains(string(pattern), "u0000") {
			t.Errorf("%t became %t", want, got)
		}
	})
}

// stretched returns v with each value in an array of its own, and each element of an array twice. It changes only the
// outer levels, because the size doubles with each level.
func stretched(v any, depth int) any {
	switch v := v.(type) {
	case map[string]any:
		for name, m := range v {
			v[name] = stretched(m, depth)
		}
		return v
	case []any:
		out := make([]any, 0, 2*len(v))
		for _, e := range v {
			s := stretched(e, depth+1)
			if out = append(out, s); depth < 5 {
				out = append(out, s)
			}
		}
		return out
	}
	return []any{v}
}
