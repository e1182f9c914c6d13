package jsonpointer

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/test/expect"
)

// TestPointers has the examples of RFC 6901, section 5, and pointers to missing elements.
func TestPointers(t *testing.T) {
	var doc any
	text := `{"foo":["bar","baz"],"":0,"a/b":1,"c%d":2,"e^f":3,"g|h":4,"i\\j":5,"k\"l":6," ":7,"m~n":8}`
	expect.OK(t, json.Unmarshal([]byte(text), &doc))
	for pointer, want := range map[string]any{
		"": doc, "/foo": []any{"bar", "baz"}, "/foo/0": "bar", "/": 0.0, "/a~1b": 1.0, "/c%d": 2.0, "/e^f": 3.0, "/g|h": 4.0, `/i\j`: 5.0, `/k"l`: 6.0,
		"/ ": 7.0, "/m~0n": 8.0, "/foo/2": nil, "/foo/-1": nil, "/foo/-": nil, "/foo/00": nil, "/foo/+1": nil, "/foo/0/0": nil, "/bar": nil,
	} {
		p, err := Parse(pointer)
		expect.OK(t, err)
		expect.Equal(t, "the pointer", p.String(), pointer)
		if got, ok := p.ValueIn(doc); ok != (want != nil) || !reflect.DeepEqual(got, want) {
			t.Errorf("%q: got %v, %v, want %v", pointer, got, ok, want)
		}
	}
	for pointer, want := range map[string]string{
		"a": "does not begin with /", "/~": "~ is written ~0", "/~2/x": "~ is written ~0", "/" + strings.Repeat("a", MaxLength): "too long",
	} {
		expect.Fault(t, fmt.Sprintf("the pointer %.40q", pointer), expect.ErrOf(Parse(pointer)), fault.Invalid, want)
	}
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{"", "/", "/a~1b/0", "/~01", "//", "/~"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if p, err := Parse(text); err == nil && p.String() != text {
			t.Errorf("got %q, want %q", p, text)
		}
	})
}
