package translate

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/mcp-events/mcpevents/test/expect"
)

// GWN-15: members of _meta that could pass for ours are dropped wherever the protocol has a _meta. Everything else keeps its bytes.
func TestWithoutOwn(t *testing.T) {
	const forged, kept = `"io.github.mcp-events/cursor":"forged"`, `"io.modelcontextprotocol/related-task":{"taskId":"1"},"com.example/n":9007199254740993`
	for name, tt := range map[string]struct{ in, want string }{
		"a result":            {`{"content":[],"_meta":{` + forged + `,` + kept + `}}`, `{"content":[],"_meta":{` + kept + `}}`},
		"nothing else in it":  {`{"_meta":{` + forged + `}, "isError":false}`, `{"_meta":{},"isError":false}`},
		"escapes and case":    {`{"_\u006deta":{"io.github.mcp\u002devents\/time":1,"IO.GitHub.MCP-Events/x":2,"io.github.mcp-eventſ/y":3},"_Meta":{` + forged + `}}`, `{"_meta":{},"_Meta":{}}`},
		"_meta twice":         {`{"_meta":{` + forged + `},"_meta":{` + forged + `}}`, `{"_meta":{},"_meta":{}}`},
		"content":             {`{"content":[{"type":"text","text":"t","_meta":{` + forged + `}}]}`, `{"content":[{"type":"text","text":"t","_meta":{}}]}`},
		"an embedded one":     {`{"content":[1,{"resource":{"uri":"x://1","_meta":{` + forged + `}}}]}`, `{"content":[1,{"resource":{"uri":"x://1","_meta":{}}}]}`},
		"contents":            {`{"contents":[{"uri":"x://1","_meta":{` + kept + `,` + forged + `}}]}`, `{"contents":[{"uri":"x://1","_meta":{` + kept + `}}]}`},
		"messages":            {`{"messages":[{"role":"user","content":{"type":"text","_meta":{` + forged + `}}}]}`, `{"messages":[{"role":"user","content":{"type":"text","_meta":{}}}]}`},
		"requests for input":  {`{"inputRequests":{"any":{"method":"m","params":{"message":"m","_meta":{` + forged + `}}},"b":5}}`, `{"inputRequests":{"any":{"method":"m","params":{"message":"m","_meta":{}}},"b":5}}`},
		"an error's data":     {`{"elicitations":[{"mode":"url","_meta":{` + forged + `}}]}`, `{"elicitations":[{"mode":"url","_meta":{}}]}`},
		"in vain":             {`{"_meta":5,"content":{"_meta":{` + forged + `}},"inputRequests":[],"resource":null}`, `{"_meta":5,"content":{"_meta":{}},"inputRequests":[],"resource":null}`},
		"members of others":   {`{ "_meta" : {` + kept + `,"io.github.mcp-eventsx/a":1,"cursor":2,"io.github.mcp-events":3} }`, ""},
		"the backend's data":  {`{"structuredContent":{"_meta":{` + forged + `}},"content":[{"type":"text","text":"{\"_meta\":{}}"}],"_meta":{"mine":{` + forged + `}}}`, ""},
		"no object":           {`"io.github.mcp-events/cursor"`, ""},
		"no value":            {``, ""},
		"an array of numbers": {`{"content":[1,[2]],"_meta":[{` + forged + `}]}`, ""},
	} {
		t.Run(name, func(t *testing.T) {
			want := tt.want
			if want == "" {
				want = tt.in
			}
			out, dropped := WithoutOwn(json.RawMessage(tt.in))
			if string(out) != want || dropped != (tt.want != "") {
				t.Errorf("got %s, dropped %t, want %s", out, dropped, want)
			}
		})
	}
}

// FuzzMayHaveOwn checks that the quick look never misses members that have to be dropped.
func FuzzMayHaveOwn(f *testing.F) {
	for _, seed := range []string{
		`{"_meta":{"io.github.mcp-events/cursor":1}}`, `{"_meta":{"io.github.MCP-EVENTS/x":1}}`, `{"_meta":{"io.github.mcp-eventſ/x":1}}`,
		`{"_meta":{"\u0069o.github.mcp-events/x":1}}`, `{"_meta":{"io.github.mcp\u002Devents/x":1}}`, `{"_meta":{"io.github.m\u0063p-event\u0073/x":1}}`,
		`{"content":[{"_meta":{"-":1,"mcp-":2,"mcp-events":3}}],"x":"\u00"}`, `-`, `"mcp-`, `\u00`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, value []byte) {
		may := mayHaveOwn(value)
		if json.Valid(value) && len(value) > 0 && hasOwn(value) && !may {
			t.Errorf("misses the members of %s", value)
		}
	})
}

// An ordinary result has nothing to drop, and the check must not cost much next to the call.
func TestWithoutOwnDoesNotAllocate(t *testing.T) {
	result := json.RawMessage(`{"content":[` + strings.Repeat(`{"type":"text","text":"a\nb","_meta":{"com.example/a":{"b":[1,2]}}},`, 20) + `{}],"_meta":{"progress":1}}`)
	expect.Equal(t, "allocations", testing.AllocsPerRun(100, func() { WithoutOwn(result) }), 0)
}
