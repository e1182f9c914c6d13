package translate

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/mcp-events/mcpevents/shared/protocol/jsonrpc"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
	"github.com/mcp-events/mcpevents/test/expect"
)

// kind returns a name for the pair of revisions, e.g. for the name of a test.
func (r Revisions) kind() string {
	name := func(v spec.Version) string {
		if v == spec.V20260728 {
			return "2026"
		}
		return "2025"
	}
	return name(r.Client) + " to " + name(r.Backend)
}

// everyWay calls check for each pair of revisions.
func everyWay(t *testing.T, check func(t *testing.T, w Revisions)) {
	t.Helper()
	for _, client := range spec.Versions {
		for _, backend := range spec.Versions {
			w := Revisions{client, backend}
			t.Run(fmt.Sprintf("client %s, backend %s", client, backend), func(t *testing.T) { check(t, w) })
		}
	}
}

// GWN-17: for every pair of revisions, the client gets error codes that its revision defines.
func TestErrorCodes(t *testing.T) {
	const uri = `{"uri":"file:///x"}`
	for _, tt := range []struct {
		name, method, data string
		code               int
		want               map[string]int // by kind of way; the others keep the code
	}{
		{"a resource that is not there", spec.MethodRead, uri, spec.CodeResourceNotFound, map[string]int{
			"2026 to 2025": jsonrpc.InvalidParams, "2026 to 2026": jsonrpc.InvalidParams,
		}},
		{"a resource that is not there, in 2026", spec.MethodRead, uri, jsonrpc.InvalidParams, map[string]int{
			"2025 to 2026": spec.CodeResourceNotFound,
		}},
		{"bad params of a resource", spec.MethodRead, `{}`, jsonrpc.InvalidParams, nil},
		{"bad params of a tool", spec.MethodToolsCall, uri, jsonrpc.InvalidParams, nil},
		{"URLs to visit", spec.MethodToolsCall, `{}`, spec.CodeNeedsURL, map[string]int{"2026 to 2026": jsonrpc.InternalError}},
		{"a capability is missing", spec.MethodToolsCall, `{}`, spec.CodeMissingCapability, map[string]int{
			"2025 to 2026": jsonrpc.InvalidRequest,
		}},
		{"headers", spec.MethodToolsCall, `{}`, spec.CodeHeaderMismatch, map[string]int{"2025 to 2026": jsonrpc.InternalError}},
		{"version", spec.MethodToolsCall, `{"supported":["2026-07-28"]}`, spec.CodeUnsupportedVersion, map[string]int{
			"2025 to 2025": jsonrpc.InternalError, "2025 to 2026": jsonrpc.InternalError,
			"2026 to 2025": jsonrpc.InternalError, "2026 to 2026": jsonrpc.InternalError,
		}},
		{"the backend's own, with the code of another revision", spec.MethodToolsCall, `{}`, spec.CodeUnsupportedVersion, map[string]int{
			"2025 to 2026": jsonrpc.InternalError, "2026 to 2025": jsonrpc.InternalError, "2026 to 2026": jsonrpc.InternalError,
		}},
		{"the backend's own", spec.MethodToolsCall, `{}`, -32050, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			everyWay(t, func(t *testing.T, w Revisions) {
				want, mapped := tt.want[w.kind()]
				if !mapped {
					want = tt.code
				}
				response := func(code int) string {
					return fmt.Sprintf(`{"jsonrpc":"2.0","id":7,"error":{"code":%d,"message":"m","data":%s,"x":1e3}}`, code, tt.data)
				}
				got, had := w.Error(tt.method, json.RawMessage(response(tt.code)))
				expect.Equal(t, "the response", string(got), response(want))
				expect.Equal(t, "the code", had, tt.code)
			})
		})
	}
}

// GWN-17: for every pair of revisions, the client gets results with exactly the members that its revision demands.
func TestResultsHaveWhatTheClientsRevisionHas(t *testing.T) {
	for _, tt := range []struct {
		name, method, in string
		want             map[string]string // by kind of way; the others keep the bytes
	}{
		{"of 2025", spec.MethodToolsCall, `{"content":[],"n":12345678901234567890}`, map[string]string{
			"2026 to 2025": `{"resultType":"complete","content":[],"n":12345678901234567890}`,
			"2026 to 2026": `{"resultType":"complete","content":[],"n":12345678901234567890}`,
			"2025 to 2026": `{"content":[],"n":12345678901234567890}`,
		}},
		{"of 2026", spec.MethodToolsCall, `{"resultType":"complete","content":[]}`, map[string]string{
			"2025 to 2026": `{"content":[]}`,
		}},
		{"a foreign resultType of a backend that has none", spec.MethodToolsCall, `{"resultType":"mine","content":[]}`, map[string]string{
			"2026 to 2025": `{"resultType":"complete","content":[]}`,
			"2025 to 2026": `{"content":[]}`,
		}},
		{"structured content that is an object", spec.MethodToolsCall, `{"resultType":"complete","structuredContent":{"a":1}}`, map[string]string{
			"2025 to 2026": `{"structuredContent":{"a":1}}`,
		}},
		{"structured content that is none", spec.MethodToolsCall, `{"resultType":"complete","structuredContent":[1]}`, map[string]string{
			"2025 to 2026": `{}`,
		}},
		{"a resource without hints of caching", spec.MethodRead, `{"contents":[]}`, map[string]string{
			"2026 to 2025": `{"resultType":"complete","ttlMs":0,"cacheScope":"private","contents":[]}`,
			"2026 to 2026": `{"resultType":"complete","contents":[]}`,
			"2025 to 2026": `{"contents":[]}`,
		}},
		{"a resource with hints of caching", spec.MethodRead, `{"contents":[],"ttlMs":5,"cacheScope":"public"}`, map[string]string{
			"2026 to 2025": `{"resultType":"complete","contents":[],"ttlMs":5,"cacheScope":"public"}`,
			"2026 to 2026": `{"resultType":"complete","contents":[],"ttlMs":5,"cacheScope":"public"}`,
			"2025 to 2026": `{"contents":[],"ttlMs":5,"cacheScope":"public"}`,
		}},
		{"no object", spec.MethodToolsCall, `[1]`, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			everyWay(t, func(t *testing.T, w Revisions) {
				want, changed := tt.want[w.kind()]
				if !changed {
					// With the 2026 backend that completes nothing, or two of 2025.
					want = tt.in
				}
				expect.Equal(t, "the result", string(w.Result(tt.method, json.RawMessage(tt.in))), want)
			})
		})
	}
}

// SUB-09: a result gets the server's identity only if the backend did not identify itself.
func TestAddServer(t *testing.T) {
	const server, member = `{"name":"s"}`, `"` + spec.MetaServer + `":{"name":"s"}`
	for in, want := range map[string]string{
		`{}`:                         `{"_meta":{` + member + `}}`,
		`{ "content" : [] }`:         `{ "content" : [],"_meta":{` + member + `}}`,
		`{ }`:                        `{"_meta":{` + member + `}}`,
		`{ "_meta" : { "a" : 1 } }`:  `{ "_meta" : {` + member + `,"a":1} }`,
		`{"_meta":{},"x":{"a":1e3}}`: `{"_meta":{` + member + `},"x":{"a":1e3}}`,
		`{"_meta":null,"x":1}`:       `{"_meta":{` + member + `},"x":1}`,
		`{"_meta":[1]}`:              `{"_meta":{` + member + `}}`,
		`{"_meta":{"` + spec.MetaServer + `":null,"a":1}}`:                `{"_meta":{` + member + `,"a":1}}`,
		`{"_meta":{"io.modelcontextprotocol/server\u0049nfo":{}}, "x":1}`: `{"_meta":{"io.modelcontextprotocol/server\u0049nfo":{}}, "x":1}`,
		`{"x":{` + member + `}}`:                                          `{"x":{` + member + `},"_meta":{` + member + `}}`,
		`[1]`:                                                             `[1]`,
		``:                                                                ``,
	} {
		message := json.RawMessage(in + "}")
		expect.Equal(t, in, string(AddServer(message[:len(in)], json.RawMessage(server))), want)
		expect.Equal(t, in+": the message around it", string(message), in+"}")
	}
}

// GWN-17: params for a session-based backend lose the members of 2026-07-28, and params for a stateless backend get them.
func TestParamsHaveWhatTheBackendsRevisionHas(t *testing.T) {
	const (
		plain   = `{"name":"t","_meta":{"progressToken":1,"mine":true},"arguments":{"n":1e2}}`
		ofRound = `{"name":"t","_meta":{"progressToken":1,"` + spec.MetaVersion + `":"2026-07-28","` + spec.MetaCapabilities + `":{},"` +
			spec.MetaClient + `":{},"` + spec.MetaLogLevel + `":"info","mine":true},"inputResponses":{},"requestState":"s","arguments":{"n":1e2}}`
	)
	got, replaced := ToSessionBased(json.RawMessage(ofRound), json.RawMessage(`"gw_1"`))
	if want := `{"name":"t","_meta":{"progressToken":"gw_1","mine":true},"arguments":{"n":1e2}}`; string(got) != want || !replaced {
		t.Errorf("for a session-based backend: %s, %v; want %s", got, replaced, want)
	}
	if got, replaced = ToSessionBased(json.RawMessage(`{"name":"t"}`), json.RawMessage(`"gw_1"`)); string(got) != `{"name":"t"}` || replaced {
		t.Errorf("without _meta: %s, %v", got, replaced)
	}
	got = ToStateless(json.RawMessage(plain), spec.V20260728, Client{Info: json.RawMessage(`{"name":"c"}`), Capabilities: json.RawMessage(`{"roots":{}}`), Level: "info"})
	want := `{"_meta":{"` + spec.MetaVersion + `":"2026-07-28","` + spec.MetaCapabilities + `":{"roots":{}},"` + spec.MetaClient + `":{"name":"c"},"` +
		spec.MetaLogLevel + `":"info","progressToken":1,"mine":true},"name":"t","arguments":{"n":1e2}}`
	expect.Equal(t, "the params for a stateless backend", string(got), want)
	// What a client forged of these members does not get through.
	forged := ToStateless(json.RawMessage(`{"_meta":{"`+spec.MetaVersion+`":"1999"}}`), spec.V20260728, Client{Info: json.RawMessage(`{}`), Capabilities: json.RawMessage(`{}`)})
	if v, _ := jsonrpc.String(jsonrpc.Member(jsonrpc.Member(forged, "_meta"), spec.MetaVersion)); v != string(spec.V20260728) {
		t.Errorf("got %s", forged)
	}
}

// GWN-17: up to 2025-11-25 the output of a tool must be an object.
func TestOutputsAreObjectsUpTo2025(t *testing.T) {
	for _, tt := range []struct{ in, sessionBased string }{
		{`{"name":"t"}`, `{"name":"t"}`},
		{`{"name":"t","outputSchema":{"type":"object"}}`, `{"name":"t","outputSchema":{"type":"object"}}`},
		{`{"name":"t","outputSchema":{"type":"array"}}`, `{"name":"t"}`},
		{`{"name":"t","outputSchema":{}}`, `{"name":"t"}`},
	} {
		for _, v := range spec.Versions {
			want := tt.sessionBased
			if v == spec.V20260728 {
				want = tt.in
			}
			expect.Equal(t, fmt.Sprintf("%s for %s", tt.in, v), string(Tool(json.RawMessage(tt.in), v)), want)
		}
	}
}

// GWN-17: a client can be asked only for declared capabilities. Both kinds of revisions are covered.
func TestWhatAClientLacksForAQuestion(t *testing.T) {
	for _, tt := range []struct {
		capabilities, method, params string
		want                         Need
	}{
		{`{}`, spec.MethodRoots, `{}`, "roots"},
		{`{"roots":{}}`, spec.MethodRoots, `{}`, ""},
		{`{"sampling":{}}`, spec.MethodSample, `{}`, ""},
		{`{"sampling":{}}`, spec.MethodSample, `{"tools":[]}`, "sampling.tools"},
		{`{"elicitation":{}}`, spec.MethodElicit, `{}`, ""},
		{`{"elicitation":{}}`, spec.MethodElicit, `{"mode":"url"}`, "elicitation.url"},
		{`{"elicitation":{"url":{}}}`, spec.MethodElicit, `{"mode":"url"}`, ""},
		{`{"elicitation":{"url":{}}}`, spec.MethodElicit, `{"mode":"form"}`, "elicitation.form"},
		{`{}`, "no/such", `{}`, "no/such"},
	} {
		expect.Equal(t, fmt.Sprintf("%s with %s, %s", tt.method, tt.capabilities, tt.params), FindMissing(json.RawMessage(tt.capabilities), tt.method, json.RawMessage(tt.params)), tt.want)
	}
}

// GWN-17: an annotation counts where 2026-07-28 allows it. Anywhere else it makes the tool unusable.
func TestParameterAnnotations(t *testing.T) {
	const name = `"x-mcp-header":"Name"`
	for _, tt := range []struct{ schema, want string }{
		{`{"properties":{"a":{"type":"string",` + name + `}}}`, "[{Mcp-Param-Name [a] string}]"},
		{`{"properties":{"o":{"properties":{"a":{` + name + `,"type":"integer"}}}}}`, "[{Mcp-Param-Name [o a] integer}]"},
		{`{"properties":{"items":{"type":"boolean",` + name + `}}}`, "[{Mcp-Param-Name [items] boolean}]"},
		{`{"properties":{"a":{"type":"string","default":"x-mcp-header"}}}`, "[]"},
		{`{"properties":{"a":{"type":"number",` + name + `}}}`, "error"},
		{`{"properties":{"a":{` + name + `}}}`, "error"},
		{`{"properties":{"a":{"type":"string","x-mcp-header":""}}}`, "error"},
		{`{"properties":{"a":{"type":"string","x-mcp-header":"a b"}}}`, "error"},
		{`{"properties":{"a":{"type":"string","x-mcp-header":"a\r\nb"}}}`, "error"},
		{`{"properties":{"a":{"type":"string",` + name + `},"b":{"type":"string","x-mcp-header":"nAME"}}}`, "error"},
		{`{"properties":{"a":{"type":"array","items":{"type":"string",` + name + `}}}}`, "error"},
		{`{"anyOf":[{"properties":{"a":{"type":"string",` + name + `}}}]}`, "error"},
		{`{` + name + `,"type":"object"}`, "error"},
	} {
		list, err := Parameters([]byte(`{"name":"t","inputSchema":` + tt.schema + `}`))
		got := fmt.Sprint(list)
		if err != nil {
			got = "error"
		}
		expect.Equal(t, tt.schema, got, tt.want)
	}
}

// GWN-17: headers have integers in the range that 2026-07-28 allows.
func TestIntegersOfHeaders(t *testing.T) {
	for text, want := range map[string]string{
		"42": "42", "-7": "-7", "42.0": "42", "4.2e1": "42", "0": "0", "9007199254740991": "9007199254740991",
		"9007199254740992": "", "1e999999999": "", "1.5": "", "": "", "x": "", "0x10": "",
	} {
		n, ok := integer(text)
		if got := fmt.Sprint(n); ok && got != want || !ok && want != "" {
			t.Errorf("%q: %s %v, want %q", text, got, ok, want)
		}
	}
}

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
			expect.Equal(t, "the response", string(out), want)
			expect.Equal(t, "the drop", dropped, (tt.want != ""))
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
