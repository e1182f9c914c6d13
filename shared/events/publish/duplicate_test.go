package publish

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/mcp-events/mcpevents/shared/events/event"
	"github.com/mcp-events/mcpevents/shared/protocol/jsonrpc"
)

func TestTwice(t *testing.T) {
	var wide strings.Builder
	for i := range 1000 {
		fmt.Fprintf(&wide, `"m%d":{"x":%d},`, i, i)
	}
	for in, want := range map[string]string{
		`{}`:                              "",
		`"a"`:                             "",
		`{"a":"a","b":["a","a","b"]}`:     "",
		`{"a":1,"A":2}`:                   "",
		`{"a":1,"\u0061":2}`:              "/a",
		`{"\"":1,"\u0022":2}`:             `/"`,
		`{"a":{"b":1},"c":{"b":1,"b":2}}`: "/c/b",
		`[[],[1,{"a":1}],{"b":[0,{"x":1,"x":2}]}]`:       "/2/b/1/x",
		`{"a/b~":{"":1,"":2}}`:                           "/a~1b~0/",
		`{"a":[{"b":1},{"b":2}],"b":1,"a":2}`:            "/a",
		`{"k":"}\"{","k":1}`:                             "/k",
		"{" + wide.String() + `"n":1}`:                   "",
		"{" + wide.String() + `"m999":1}`:                "/m999",
		"{" + wide.String() + `"m3":1}`:                  "/m3",
		"[{" + wide.String() + `"m":1},{"m1":1,"m1":2}]`: "/1/m1",
	} {
		if got, found := findDuplicate([]byte(in)); got != want || found != (want != "") {
			t.Errorf("%.60s: got %q, %v, want %q", in, got, found, want)
		}
	}
	long := `"` + strings.Repeat("é", 5000) + `"`
	if got, found := findDuplicate([]byte("{" + long + ":1," + long + ":2}")); !found || len(got) > maxPointer+8 {
		t.Errorf("the pointer has %d bytes", len(got))
	}
}

// repeats reports whether a value has a duplicate member. It is a simple implementation that decodes every object into a set.
func repeats(d *json.Decoder) bool {
	tok, err := d.Token()
	if err != nil {
		return false
	}
	found := false
	switch tok {
	case json.Delim('{'):
		seen := map[string]bool{}
		for d.More() {
			name, _ := d.Token()
			found = found || seen[name.(string)]
			seen[name.(string)] = true
			found = repeats(d) || found
		}
		_, _ = d.Token()
	case json.Delim('['):
		for d.More() {
			found = repeats(d) || found
		}
		_, _ = d.Token()
	}
	return found
}

func FuzzTwice(f *testing.F) {
	for _, s := range []string{`{"a":1,"\u0061":2}`, `[{"a":[{}],"b":{"a":1}},"x"]`, `{"a\\":"\"","a":{"b":1,"b":2}}`, `{"\ud800":1,"\udc00":1}`, ` { "a" : 1 , "a" : 2 } `} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		if jsonrpc.Depth(body) > event.MaxDepth {
			return
		}
		data, err := escape(body)
		if err != nil {
			return
		}
		pointer, found := findDuplicate(data)
		if want := repeats(json.NewDecoder(bytes.NewReader(data))); found != want || (pointer != "") != found {
			t.Fatalf("%s: got %q, %v, want %v", data, pointer, found, want)
		}
	})
}

func BenchmarkTwice(b *testing.B) {
	data := []byte(`{"action":"opened","number":7,"text":"` + strings.Repeat("a", 600) + `"}`)
	b.ReportAllocs()
	for b.Loop() {
		findDuplicate(data)
	}
}
