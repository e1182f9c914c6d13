package pattern

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/platform/jsonpointer"
	"github.com/mcp-events/mcpevents/test/expect"
)

func decode(t testing.TB, text string) any {
	t.Helper()
	d := json.NewDecoder(strings.NewReader(text))
	d.UseNumber()
	var v any
	expect.OK(t, d.Decode(&v), text)
	return v
}

// TestMatches has one or two examples of each operator, from the documentation of EventBridge.
// TestEventRuler_Examples compares them with AWS's own implementation.
func TestMatches(t *testing.T) {
	for _, tt := range examples {
		t.Run("SRC-03 "+tt.name, func(t *testing.T) {
			p := expect.Value(Parse([]byte(tt.pattern)))(t)
			for _, doc := range tt.matches {
				expect.True(t, tt.pattern+" matches "+doc, p.Matches(decode(t, doc)))
			}
			for _, doc := range tt.not {
				expect.True(t, tt.pattern+" does not match "+doc, !p.Matches(decode(t, doc)))
			}
		})
	}
	t.Run("SRC-03 a document that is not an object never matches", func(t *testing.T) {
		p := expect.Value(Parse([]byte(`{"a":[{"exists":false}]}`)))(t)
		for _, doc := range []string{`null`, `1`, `"a"`, `[{"b":1}]`} {
			expect.True(t, "it does not match "+doc, !p.Matches(decode(t, doc)))
		}
	})
}

type example struct {
	name, pattern string
	matches, not  []string
	// differs says that Event Ruler gives another result; [TestEventRuler_Differences] shows where.
	differs bool
}

var examples = []example{
	{"exact text", `{"a":["x","y"]}`, []string{`{"a":"x"}`, `{"a":"y","b":1}`}, []string{`{"a":"X"}`, `{"a":"xy"}`, `{"b":"x"}`, `{}`, `{"a":{"x":"x"}}`}, false},
	{"exact text that is empty", `{"a":[""]}`, []string{`{"a":""}`}, []string{`{"a":null}`, `{"a":" "}`, `{}`}, false},
	{"exact boolean", `{"a":[true]}`, []string{`{"a":true}`}, []string{`{"a":false}`, `{"a":"true"}`, `{"a":1}`}, false},
	{"exact null", `{"a":[null]}`, []string{`{"a":null}`}, []string{`{"a":"null"}`, `{}`, `{"a":""}`, `{"a":[]}`}, false},
	{"numbers by value", `{"a":[100]}`, []string{`{"a":100}`, `{"a":100.0}`, `{"a":1e2}`, `{"a":1.00E+2}`, `{"a":1000e-1}`}, []string{`{"a":"100"}`, `{"a":100.5}`, `{"a":-100}`, `{"a":10}`}, false},
	{"zero", `{"a":[0]}`, []string{`{"a":0}`, `{"a":-0.0}`, `{"a":0e7}`}, []string{`{"a":1}`, `{"a":null}`, `{"a":false}`}, false},
	{"members of members", `{"a":{"b":["x"]},"c":[1]}`, []string{`{"a":{"b":"x"},"c":1}`}, []string{`{"a":{"b":"x"}}`, `{"a":"x","c":1}`, `{"b":"x","c":1}`}, false},
	{"prefix", `{"a":[{"prefix":"us-"}]}`, []string{`{"a":"us-east-1"}`, `{"a":"us-"}`}, []string{`{"a":"US-east-1"}`, `{"a":"u"}`, `{"a":"eu-us-1"}`, `{"a":5}`}, false},
	{"prefix that is empty", `{"a":[{"prefix":""}]}`, []string{`{"a":""}`, `{"a":"x"}`}, []string{`{"a":5}`, `{}`}, false},
	{"prefix in any case", `{"a":[{"prefix":{"equals-ignore-case":"EVENTb"}}]}`, []string{`{"a":"EventBridge"}`, `{"a":"eventb"}`}, []string{`{"a":"event"}`, `{"a":"xeventb"}`}, false},
	{"suffix", `{"a":[{"suffix":".png"}]}`, []string{`{"a":"x.png"}`, `{"a":".png"}`}, []string{`{"a":"x.PNG"}`, `{"a":"png"}`, `{"a":"x.png "}`}, false},
	{"suffix in any case", `{"a":[{"suffix":{"equals-ignore-case":".png"}}]}`, []string{`{"a":"x.PnG"}`}, []string{`{"a":"x.png.gz"}`}, false},
	{"text in any case", `{"a":[{"equals-ignore-case":"alice"}]}`, []string{`{"a":"ALICE"}`, `{"a":"alice"}`}, []string{`{"a":"alic"}`, `{"a":"alicee"}`}, false},
	{"letters beyond ASCII in any case", `{"a":[{"equals-ignore-case":"ÄÖé"}]}`, []string{`{"a":"äöÉ"}`}, []string{`{"a":"aoe"}`}, false},
	{"wildcard", `{"a":[{"wildcard":"dir/*.jp*g"}]}`, []string{`{"a":"dir/x.jpg"}`, `{"a":"dir/.jp.jpeg"}`, `{"a":"dir/a/b.jpg.jpg"}`}, []string{`{"a":"dir/.jg"}`, `{"a":"dirs/x.jpg"}`, `{"a":"a/dir/x.jpg"}`, `{"a":"dir/x.jpg2"}`, `{"a":7}`}, false},
	{"wildcard with its ends in one place", `{"a":[{"wildcard":"ab*ba"}]}`, []string{`{"a":"abba"}`, `{"a":"abxba"}`}, []string{`{"a":"aba"}`}, false},
	{"wildcard with the same part twice", `{"a":[{"wildcard":"*ab*ab*"}]}`, []string{`{"a":"abab"}`, `{"a":"xabxabx"}`}, []string{`{"a":"xab"}`, `{"a":"aba"}`}, false},
	{"wildcard with a star and a backslash", `{"a":[{"wildcard":"a\\*b\\\\*"}]}`, []string{`{"a":"a*b\\c"}`, `{"a":"a*b\\"}`}, []string{`{"a":"axb\\c"}`, `{"a":"a*b*"}`}, false},
	{"wildcard without a star", `{"a":[{"wildcard":"abc"}]}`, []string{`{"a":"abc"}`}, []string{`{"a":"abcd"}`, `{"a":"xabc"}`}, false},
	{"only a wildcard", `{"a":[{"wildcard":"*"}]}`, []string{`{"a":""}`, `{"a":"*"}`}, []string{`{"a":null}`, `{}`}, false},
	{"anything but text", `{"a":[{"anything-but":"x"}]}`, []string{`{"a":"y"}`, `{"a":1}`, `{"a":null}`, `{"a":true}`}, []string{`{"a":"x"}`, `{}`, `{"a":{"b":1}}`}, false},
	{"anything but texts", `{"a":[{"anything-but":["x","y"]}]}`, []string{`{"a":"z"}`}, []string{`{"a":"x"}`, `{"a":"y"}`}, false},
	{"anything but a number", `{"a":[{"anything-but":1}]}`, []string{`{"a":2}`, `{"a":"1"}`}, []string{`{"a":1.0}`}, false},
	{"anything but numbers", `{"a":[{"anything-but":[1,2]}]}`, []string{`{"a":3}`}, []string{`{"a":2e0}`}, false},
	{"anything but a prefix", `{"a":[{"anything-but":{"prefix":"us-"}}]}`, []string{`{"a":"eu-1"}`, `{"a":5}`}, []string{`{"a":"us-1"}`}, false},
	{"anything but prefixes", `{"a":[{"anything-but":{"prefix":["us-","eu-"]}}]}`, []string{`{"a":"ap-1"}`}, []string{`{"a":"us-1"}`, `{"a":"eu-1"}`}, false},
	{"anything but a suffix", `{"a":[{"anything-but":{"suffix":".png"}}]}`, []string{`{"a":"x.gif"}`}, []string{`{"a":"x.png"}`}, false},
	{"anything but in any case", `{"a":[{"anything-but":{"equals-ignore-case":["x","y"]}}]}`, []string{`{"a":"z"}`}, []string{`{"a":"X"}`, `{"a":"y"}`}, false},
	{"anything but a wildcard", `{"a":[{"anything-but":{"wildcard":"*/lib/*"}}]}`, []string{`{"a":"/usr/bin/x"}`}, []string{`{"a":"/usr/lib/x"}`}, false},
	{"anything but, in an array", `{"a":[{"anything-but":"x"}]}`, []string{`{"a":["x","y"]}`}, []string{`{"a":["x","x"]}`, `{"a":[]}`}, false},
	{"numeric range", `{"a":[{"numeric":[">",0,"<=",5]}]}`, []string{`{"a":5}`, `{"a":0.1}`, `{"a":5.0}`}, []string{`{"a":0}`, `{"a":5.1}`, `{"a":"3"}`, `{"a":-1}`}, false},
	{"numeric bounds", `{"a":[{"numeric":["<",-10]},{"numeric":[">=",3.018e2]}]}`, []string{`{"a":-11}`, `{"a":301.8}`, `{"a":1000}`}, []string{`{"a":-10}`, `{"a":301.7999}`, `{"a":0}`}, false},
	{"numeric equality", `{"a":[{"numeric":["=",-0.5]}]}`, []string{`{"a":-5e-1}`}, []string{`{"a":0.5}`}, false},
	{"addresses", `{"a":[{"cidr":"10.0.0.0/24"}]}`, []string{`{"a":"10.0.0.255"}`}, []string{`{"a":"10.0.1.0"}`, `{"a":"x"}`, `{"a":"::1"}`, `{"a":10}`}, false},
	{"addresses of version 6", `{"a":[{"cidr":"2001:db8::/32"}]}`, []string{`{"a":"2001:db8::1"}`}, []string{`{"a":"2001:db9::1"}`, `{"a":"10.0.0.1"}`}, false},
	{"exists", `{"a":{"b":[{"exists":true}]}}`, []string{`{"a":{"b":1}}`, `{"a":{"b":null}}`, `{"a":[{"b":false}]}`}, []string{`{"a":{}}`, `{"a":{"b":{"c":1}}}`, `{"a":{"b":[]}}`, `{"a":1}`}, false},
	{"does not exist", `{"a":{"b":[{"exists":false}]}}`, []string{`{"a":{}}`, `{"a":{"b":{"c":1}}}`, `{"a":{"b":[]}}`, `{"a":[{},{"c":1}]}`, `{"a":1}`, `{}`}, []string{`{"a":{"b":1}}`, `{"a":{"b":null}}`, `{"a":[{},{"b":1}]}`}, false},
	{"does not exist, or a value", `{"a":[{"exists":false},"x"],"b":[1]}`, []string{`{"b":1}`, `{"a":"x","b":1}`}, []string{`{"a":"y","b":1}`, `{"a":"x"}`}, false},
	{"an array in the document", `{"a":["x"]}`, []string{`{"a":["w","x"]}`, `{"a":[["x"]]}`}, []string{`{"a":["w"]}`, `{"a":[{"x":"x"}]}`}, false},
	{"an array of objects", `{"a":{"b":[1],"c":[2]}}`, []string{`{"a":[{"b":1,"c":2}]}`, `{"a":[{"b":5},{"b":1,"c":2}]}`}, []string{`{"a":[{"b":1},{"c":2}]}`}, false},
	{"arrays within arrays", `{"a":{"b":{"c":[1],"d":[2]}}}`, []string{`{"a":[{"b":[{"c":1},{"c":1,"d":2}]}]}`}, []string{`{"a":[{"b":[{"c":1},{"d":2}]}]}`, `{"a":[{"b":{"c":1}},{"b":{"d":2}}]}`}, false},
	{"two arrays of objects", `{"a":{"x":[1]},"b":{"x":[2]}}`, []string{`{"a":[{"x":1},{"x":0}],"b":[{"x":0},{"x":2}]}`}, []string{`{"a":[{"x":2}],"b":[{"x":1}]}`}, false},
	{"alternatives", `{"s":["x"],"$or":[{"a":[1]},{"b":[2]}]}`, []string{`{"s":"x","a":1}`, `{"s":"x","b":2}`}, []string{`{"s":"x","a":2,"b":1}`, `{"a":1}`}, false},
	{"alternatives within alternatives", `{"$or":[{"a":[1]},{"b":[2],"$or":[{"c":[3]},{"d":[4]}]}]}`, []string{`{"a":1}`, `{"b":2,"d":4}`}, []string{`{"b":2}`, `{"c":3}`}, false},
	{"alternatives in an object", `{"a":{"$or":[{"b":[1]},{"c":[2]}]}}`, []string{`{"a":{"b":1}}`, `{"a":{"c":2}}`}, []string{`{"b":1}`, `{"a":{"b":2}}`}, false},
	{"two choices", `{"$or":[{"a":[1]},{"b":[1]}],"x":{"$or":[{"c":[1]},{"d":[1]}]}}`, []string{`{"a":1,"x":{"d":1}}`}, []string{`{"a":1,"b":1}`}, false},
	{"an array that an alternative is in", `{"a":{"p":[1]},"$or":[{"a":{"q":[2]}},{"b":[3]}]}`, []string{`{"a":[{"p":1,"q":2}]}`, `{"a":{"p":1},"b":3}`}, []string{`{"a":[{"p":1},{"q":2}]}`}, false},
	{"$or without a list is a name", `{"$or":{"a":[1]}}`, []string{`{"$or":{"a":1}}`}, []string{`{"a":1}`}, true},
	{"names with other characters", `{"x/y~z.w":{"":["v"]}}`, []string{`{"x/y~z.w":{"":"v"}}`}, []string{`{"x/y~z":{"w":{"":"v"}}}`}, true},
	{"numbers beyond the precision of a float", `{"a":[9007199254740993]}`, []string{`{"a":9007199254740993}`}, []string{`{"a":9007199254740992}`}, true},
	{"numbers with immense exponents", `{"a":[{"numeric":[">",1]}]}`, []string{`{"a":1e99999999999999999999}`}, []string{`{"a":1e-99999999999999999999}`, `{"a":-1e99999999999999999999}`}, true},
}

func TestParse_Faults(t *testing.T) {
	for name, tt := range faulty {
		t.Run("SRC-03 "+name, func(t *testing.T) { wantFaults(t, tt.pattern, tt.want) })
	}
}

type faultyPattern struct {
	pattern string
	want    []string
	// oursAlone says that Event Ruler accepts the pattern.
	oursAlone bool
}

var faulty = map[string]faultyPattern{
	"no JSON":                      {`{"a":`, []string{"is not JSON: unexpected end of JSON input"}, false},
	"two texts":                    {`{"a":[1]} {}`, []string{"is not JSON: invalid character '{' after top-level value"}, true},
	"not UTF-8":                    {"{\"a\":[\"\xff\"]}", []string{"is not UTF-8"}, true},
	"not an object":                {`[1]`, []string{"must be an object, not a list"}, false},
	"null":                         {`null`, []string{"must be an object, not null"}, false},
	"empty":                        {`{}`, []string{"is an empty object; leave it out to allow anything"}, false},
	"empty below":                  {`{"a":{}}`, []string{"/a: is an empty object; leave it out to allow anything"}, false},
	"a value without a list":       {`{"a":"x"}`, []string{"/a: must be a list of values or an object, not a string"}, false},
	"an empty list":                {`{"a":[]}`, []string{"/a: is an empty list, which matches nothing"}, false},
	"a list in a list":             {`{"a":[[1]]}`, []string{"/a/0: must be a string, a number, a boolean, null or an operator, not a list"}, false},
	"not an operator":              {`{"a":[{}]}`, []string{"/a/0: must have one member, an operator, not 0"}, false},
	"two operators":                {`{"a":[{"prefix":"a","suffix":"b"}]}`, []string{"/a/0: must have one member, an operator, not 2"}, false},
	"an unknown operator":          {`{"a/~":[1,{"regex":"a"}]}`, []string{"/a~1~0/1/regex: is not an operator (allowed: anything-but, cidr, equals-ignore-case, exists, numeric, prefix, suffix, wildcard)"}, false},
	"a prefix of a number":         {`{"a":[{"prefix":1}]}`, []string{"/a/0/prefix: must be a string, not a number"}, false},
	"a prefix of an operator":      {`{"a":[{"prefix":{"suffix":"x"}}]}`, []string{"/a/0/prefix: must be a string, not an object"}, false},
	"a suffix of null":             {`{"a":[{"suffix":{"equals-ignore-case":null}}]}`, []string{"/a/0/suffix/equals-ignore-case: must be a string, not null"}, false},
	"exists":                       {`{"a":[{"exists":1}]}`, []string{"/a/0/exists: must be true or false, not a number"}, false},
	"adjacent wildcards":           {`{"a":[{"wildcard":"a**b"}]}`, []string{"/a/0/wildcard: has two adjacent wildcards; one is enough"}, false},
	"a backslash":                  {`{"a":[{"wildcard":"a\\b"}]}`, []string{`/a/0/wildcard: has a backslash before a character other than * or \`}, false},
	"a backslash at the end":       {`{"a":[{"wildcard":"a\\"}]}`, []string{`/a/0/wildcard: has a backslash before a character other than * or \`}, false},
	"cidr":                         {`{"a":[{"cidr":"10.0.0.1"}]}`, []string{"/a/0/cidr: must be a range of addresses, such as 10.0.0.0/8 or 2001:db8::/32"}, false},
	"numeric text":                 {`{"a":[{"numeric":"5"}]}`, []string{`/a/0/numeric: must be a list such as ["=", 5], [">", 0] or [">=", 0, "<", 10]`}, false},
	"numeric relation":             {`{"a":[{"numeric":["!=",5]}]}`, []string{`/a/0/numeric: must be a list such as ["=", 5], [">", 0] or [">=", 0, "<", 10]`}, false},
	"numeric of half":              {`{"a":[{"numeric":[">",5,"<"]}]}`, []string{`/a/0/numeric: must be a list such as ["=", 5], [">", 0] or [">=", 0, "<", 10]`}, false},
	"numeric the other way":        {`{"a":[{"numeric":["<",5,">",1]}]}`, []string{`/a/0/numeric: must be a list such as ["=", 5], [">", 0] or [">=", 0, "<", 10]`}, false},
	"numeric of nothing":           {`{"a":[{"numeric":[">",5,"<",5.0]}]}`, []string{"/a/0/numeric: has a lower bound that is not below the upper one"}, false},
	"anything-but null":            {`{"a":[{"anything-but":null}]}`, []string{"/a/0/anything-but: must be a string or a number, not null"}, false},
	"anything-but nothing":         {`{"a":[{"anything-but":[]}]}`, []string{"/a/0/anything-but: is an empty list"}, false},
	"anything-but both":            {`{"a":[{"anything-but":["a",1]}]}`, []string{"/a/0/anything-but/1: is a number, but the first value is a string; all must be of the same kind"}, false},
	"anything-but an empty prefix": {`{"a":[{"anything-but":{"prefix":["a",""]}}]}`, []string{"/a/0/anything-but/prefix/1: is empty, so that nothing would match"}, false},
	"anything-but a number":        {`{"a":[{"anything-but":{"suffix":5}}]}`, []string{"/a/0/anything-but/suffix: must be a string, not a number"}, false},
	"anything-but exists":          {`{"a":[{"anything-but":{"exists":true}}]}`, []string{"/a/0/anything-but: must be values or one of the operators prefix, suffix, equals-ignore-case, wildcard"}, false},
	"one alternative":              {`{"$or":[{"a":[1]}]}`, []string{"/$or: has 1 alternative, at least 2 are needed"}, false},
	"an alternative value":         {`{"$or":[{"a":[1]},"b"]}`, []string{"/$or/1: must be an object, not a string"}, false},
	"a name twice":                 {`{"a":[1],"b":{"c":[1],"c":[2]}}`, []string{"/b/c: appears twice"}, false},
	"all faults": {`{"a":1,"b":[{"prefix":1},{"x":1}],"c":{}}`, []string{
		"/a: must be a list of values or an object, not a number",
		"/b/0/prefix: must be a string, not a number",
		"/b/1/x: is not an operator (allowed: anything-but, cidr, equals-ignore-case, exists, numeric, prefix, suffix, wildcard)",
		"/c: is an empty object; leave it out to allow anything",
	}, false},
	"a leaf twice":         {`{"a":[1],"$or":[{"a":[2]},{"b":[1]}]}`, []string{"/a: is also set by an object that applies at the same time; set it only once"}, false},
	"a leaf and an object": {`{"a":[1],"$or":[{"a":{"c":[2]}},{"b":[1]}]}`, []string{"/a: is also set by an object that applies at the same time; set it only once"}, true},
	"an object and a leaf": {`{"a":{"c":[1]},"$or":[{"a":[2]},{"b":[1]}]}`, []string{"/a/c: is also set by an object that applies at the same time; set it only once"}, true},
}

func wantFaults(t *testing.T, pattern string, want []string) {
	t.Helper()
	_, err := Parse([]byte(pattern))
	if !fault.Is(err, fault.Invalid) {
		t.Fatalf("got %v", err)
	}
	faults, _ := fault.DataOf(err).([]jsonpointer.Fault)
	var got []string
	for _, f := range faults {
		got = append(got, f.String())
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	expect.Contains(t, "the error", err.Error(), want[0])
}

func TestParse_Bounds(t *testing.T) {
	or := func(alternatives, times int) string {
		var b strings.Builder
		for i := range times {
			if i > 0 {
				b.WriteString(",")
			}
			fmt.Fprintf(&b, `"m%d":{"$or":[`, i)
			for j := range alternatives {
				if j > 0 {
					b.WriteString(",")
				}
				fmt.Fprintf(&b, `{"n%d":[1]}`, j)
			}
			b.WriteString("]}")
		}
		return "{" + b.String() + "}"
	}
	t.Run("SRC-03 a thousand alternatives are allowed", func(t *testing.T) {
		p := expect.Value(Parse([]byte(or(10, 3))))(t)
		expect.True(t, "the pattern matches", p.Matches(decode(t, `{"m0":{"n9":1},"m1":{"n5":1},"m2":{"n0":1}}`)))
	})
	t.Run("SRC-03 more are refused before they are built", func(t *testing.T) {
		wantFaults(t, or(2, 10), []string{"/m9: makes the pattern stand for 1024 alternatives, 1000 are allowed"})
	})
	t.Run("SRC-03 a pattern that is too long is refused", func(t *testing.T) {
		wantFaults(t, `{"a":["`+strings.Repeat("x", maxSize)+`"]}`, []string{"has 8202 bytes, 8192 are allowed"})
	})
	t.Run("SRC-03 a pattern that is too deep is refused", func(t *testing.T) {
		deep := func(n int) string { return strings.Repeat(`{"a":`, n) + `["x"]` + strings.Repeat("}", n) }
		expect.OK(t, expect.ErrOf(Parse([]byte(deep(maxDepth-1)))))
		wantFaults(t, deep(maxDepth), []string{"is nested deeper than 64 levels"})
	})
	t.Run("SRC-03 too many values in all alternatives are refused", func(t *testing.T) {
		long := `["` + strings.TrimSuffix(strings.Repeat(`x","`, 50), `","`) + `"]`
		pattern := strings.TrimSuffix(or(10, 3), "}") + `,"v":` + long + "}"
		wantFaults(t, pattern, []string{"/v: makes the alternatives of the pattern have 57000 values together, 20000 are allowed"})
	})
	t.Run("SRC-03 a pattern with a hundred faults lists twenty", func(t *testing.T) {
		_, err := Parse([]byte(`{"a":[` + strings.TrimSuffix(strings.Repeat("[],", 100), ",") + `]}`))
		if faults, _ := fault.DataOf(err).([]jsonpointer.Fault); len(faults) != maxFaults || !strings.Contains(err.Error(), "(and 99 more)") {
			t.Errorf("%d faults: %v", len(faults), err)
		}
	})
}

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
		expect.AtMost(t, "the number of values", values, maxValues)
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
