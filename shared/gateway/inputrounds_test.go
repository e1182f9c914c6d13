package gateway_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/shared/fault"
	"github.com/mcp-events/mcpevents/shared/gateway"
	"github.com/mcp-events/mcpevents/shared/gateway/api"
	"github.com/mcp-events/mcpevents/shared/jsonrpc"
	"github.com/mcp-events/mcpevents/shared/store"
	"github.com/mcp-events/mcpevents/shared/store/sqlite"
)

// wantsInput is a backend of 2026-07-28 that wants the requests, and tells the answers.
func wantsInput(requests string) func(*exchange) {
	return func(x *exchange) {
		answers := jsonrpc.Member(x.Params, "inputResponses")
		if answers == nil {
			x.result(`{"resultType":"input_required","inputRequests":` + requests + `,"requestState":"state-1"}`)
			return
		}
		state, _ := jsonrpc.String(jsonrpc.Member(x.Params, "requestState"))
		x.result(`{"resultType":"complete","content":[{"type":"text","text":` + string(jsonrpc.AppendString(nil, state+string(answers))) + `}]}`)
	}
}

// answering answers the questions of a call at another instance, as often as they come.
func answering(t *testing.T, at *gateway.Gateway, answer func(method string) string) func(*api.Call) {
	return func(c *api.Call) {
		send := c.Send
		c.Send = func(message json.RawMessage, response bool) error {
			method, _ := jsonrpc.String(jsonrpc.Member(message, "method"))
			if id, _ := jsonrpc.String(jsonrpc.Member(message, "id")); !response && id != "" {
				body := json.RawMessage(fmt.Sprintf(`{"jsonrpc":"2.0","id":%q,%s}`, id, answer(method)))
				stranger := someone(v2025)
				stranger.Session = "another session"
				if err := at.Answer(t.Context(), stranger, id, body); !fault.Is(err, fault.NotFound) {
					t.Errorf("an answer from another session: %v", err)
				}
				if err := at.Answer(t.Context(), c.Client, id, body); err != nil {
					t.Errorf("answer %s: %v", id, err)
				}
			}
			return send(message, response)
		}
	}
}

// GWN-10, GWN-11, GWN-12, GWN-17: a 2026 backend's input_required becomes requests on the stream of
// a client with a session, under ids that cannot be guessed; the answers come in at
// another instance and are in the retry with the backend's own state and a new id. An answer
// from another session is refused. Nothing of the questions is left in the store.
func TestInputRequiredOfA2026BackendIsRequestsOfA2025Client(t *testing.T) {
	s := newScript(t, true, wantsInput(`{"who":{"method":"elicitation/create","params":`+form+`},"llm":{"method":"sampling/createMessage","params":{"messages":[],"maxTokens":1}}}`))
	db, err := sqlite.Open(sqlite.Memory, sqlite.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = db.Close() }()
	g := overStore(t, 2, db, s)
	large := strings.Repeat("x", 900_000) // more than an item of the store holds
	o := called(t, g[0], someone(v2025), "", answering(t, g[1], func(method string) string {
		if method == "elicitation/create" {
			return `"result":{"action":"accept","content":{"n":12345678901234567890}}`
		}
		return `"result":{"model":"` + large + `"}`
	}))
	want := `:state-1{"who":{"action":"accept","content":{"n":12345678901234567890}},"llm":{"model":"` + large + `"}}`
	if got := said(t, o); got != want {
		t.Errorf("got %.200s", got)
	}
	if len(o.before) != 2 || !same(jsonrpc.Member(o.before[0], "params"), json.RawMessage(form)) {
		t.Errorf("the client was asked %s", o.before)
	}
	for _, m := range o.before {
		id, _ := jsonrpc.String(jsonrpc.Member(m, "id"))
		if len(id) < 26 {
			t.Errorf("the id %q can be guessed", id)
		}
		page, err := db.Query(t.Context(), store.Query{Table: store.Sessions, Partition: "q#" + id})
		if err != nil || len(page.Items) != 0 {
			t.Errorf("%d items of question %s are left (%v)", len(page.Items), id, err)
		}
	}
	if a, b := jsonrpc.Member(s.calls[0], "id"), jsonrpc.Member(s.calls[1], "id"); string(a) == string(b) {
		t.Error("the retry has the id of the first request")
	}
}

// GWN-11, GWN-17: declines are answers, and so are errors: an elicitation was cancelled then, and for a
// request whose answer this revision cannot leave out the call ends with the client's error.
func TestDeclinesAndErrorsOfA2025ClientAreAnswers(t *testing.T) {
	for _, tt := range []struct{ method, params, answer, text, failure string }{
		{"elicitation/create", form, `"result":{"action":"decline"}`, `:state-1{"q":{"action":"decline"}}`, ""},
		{"elicitation/create", form, `"error":{"code":-1,"message":"no"}`, `:state-1{"q":{"action":"cancel"}}`, ""},
		{"roots/list", `{}`, `"result":{"roots":[]}`, `:state-1{"q":{"roots":[]}}`, ""},
		{"sampling/createMessage", `{"messages":[],"maxTokens":1}`, `"error":{"code":-1,"message":"rejected","data":{"x":1.0}}`, "", `{"code":-1,"message":"rejected","data":{"x":1.0}}`},
	} {
		t.Run(tt.method+tt.answer, func(t *testing.T) {
			s := newScript(t, true, wantsInput(`{"q":{"method":"`+tt.method+`","params":`+tt.params+`}}`))
			g := instances(t, 2, s)
			o := called(t, g[0], someone(v2025), "", answering(t, g[1], func(string) string { return tt.answer }))
			if tt.failure != "" {
				if got := jsonrpc.Member(o.response, "error"); string(got) != tt.failure || string(jsonrpc.Member(o.response, "id")) != "7" {
					t.Errorf("got %s (%v), want the error %s", o.response, o.err, tt.failure)
				}
				return
			}
			if got := said(t, o); got != tt.text {
				t.Errorf("got %s, want %s", got, tt.text)
			}
		})
	}
}

// GWN-17: a client with a session is not asked what it declared no capability for, though
// the backend does; nor is one of 2026-07-28, whose error says what it lacks.
func TestInputOfAnUndeclaredCapabilityIsNotAskedFor(t *testing.T) {
	s := newScript(t, true, wantsInput(`{"q":{"method":"sampling/createMessage","params":{"messages":[],"maxTokens":1}}}`))
	g := instances(t, 1, s)[0]
	for version, want := range map[string]int{v2025: -32600, v2026: -32021} {
		c := someone(version)
		c.Capabilities = json.RawMessage(`{"elicitation":{}}`)
		o := called(t, g, c, "")
		code, data := o.code(t)
		if code != want || data != `{"requiredCapabilities":{"sampling":{}}}` || len(o.before) != 0 {
			t.Errorf("%s: got %d %s, and before that %s", version, code, data, o.before)
		}
	}
}

// GWN-17: a backend that only wants to be asked again is, with its state; one that never
// has enough ends with an error.
func TestBackendThatWantsToBeAskedAgain(t *testing.T) {
	n := 0
	s := newScript(t, true, func(x *exchange) {
		if n++; n < 3 {
			x.result(fmt.Sprintf(`{"resultType":"input_required","requestState":"s%d"}`, n))
			return
		}
		x.result(text("%s", jsonrpc.Member(x.Params, "requestState")))
	})
	if got := said(t, called(t, instances(t, 1, s)[0], someone(v2025), "")); got != `:"s2"` {
		t.Errorf("got %s", got)
	}
}

// GWN-16, GWN-17: the request of a client with a session gets what 2026-07-28 requires: what the
// session declared, its log level, the mirrored headers of the tool's annotated arguments.
// What the client wrote in their place does not count; all else stays. The result loses what the
// client's revision does not have.
func TestRequestOf2025AtA2026Backend(t *testing.T) {
	var header http.Header
	s := newScript(t, true, func(x *exchange) {
		header = x.Header
		x.tell("notifications/progress", `{"progressToken":12345678901234567890,"progress":1}`)
		x.result(`{"resultType":"complete","content":[],"structuredContent":[1],"_meta":{"n":1.0}}`)
	})
	s.tool = `{"name":"tool","inputSchema":{"type":"object","properties":{
		"region":{"type":"string","x-mcp-header":"Region"},
		"in":{"type":"object","properties":{"n":{"type":"integer","x-mcp-header":"Deep-N"}}},
		"flag":{"type":"boolean","x-mcp-header":"flag"},"none":{"type":"string","x-mcp-header":"None"}}}}`
	c := someone(v2025)
	c.Level = "info"
	o := called(t, instances(t, 1, s)[0], c, `,"arguments":{"region":"Köln","in":{"n":4.2e1},"flag":false,"none":null},`+
		`"_meta":{"progressToken":12345678901234567890,"io.modelcontextprotocol/protocolVersion":"1999-01-01","x":1.0}`)
	if want := `{"content":[],"_meta":{"n":1.0}}`; string(o.result(t)) != want {
		t.Errorf("got %s, want %s", o.result(t), want)
	}
	if len(o.before) != 1 || !strings.Contains(string(o.before[0]), "12345678901234567890") {
		t.Errorf("before the result: %s", o.before)
	}
	meta := jsonrpc.Member(jsonrpc.Member(s.calls[0], "params"), "_meta")
	want := `{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":` + all +
		`,"io.modelcontextprotocol/clientInfo":{"name":"client","version":"2"},"io.modelcontextprotocol/logLevel":"info","progressToken":12345678901234567890,"x":1.0}`
	if string(meta) != want {
		t.Errorf("_meta is %s\nwant %s", meta, want)
	}
	for name, value := range map[string]string{
		"Mcp-Method": "tools/call", "Mcp-Name": "tool", "Mcp-Protocol-Version": "2026-07-28", "Mcp-Session-Id": "",
		"Mcp-Param-Region": "=?base64?S8O2bG4=?=", "Mcp-Param-Deep-N": "42", "Mcp-Param-Flag": "false", "Mcp-Param-None": "",
	} {
		if got := header.Get(name); got != value {
			t.Errorf("%s: %q, want %q", name, got, value)
		}
	}
}

// GWN-17: the codes that 2026-07-28 brought do not reach a client with a session, and
// -32021 keeps what it requires.
func TestErrorsOfThe2026EraDoNotReachA2025Client(t *testing.T) {
	for _, tt := range []struct {
		method string
		code   int
		data   string
		want   int
	}{
		{"resources/read", -32602, `{"uri":"test://resource"}`, -32002},
		{"resources/read", -32602, `{}`, -32602},
		{"tools/call", -32602, `{"uri":"x"}`, -32602},
		{"tools/call", -32021, `{"requiredCapabilities":{"roots":{}}}`, -32600},
		{"tools/call", -32020, `{}`, -32603},
		{"tools/call", -32022, `{}`, -32603},
		{"tools/call", -32050, `{}`, -32050},
	} {
		s := newScript(t, true, func(x *exchange) { x.fail(tt.code, tt.data) })
		o := called(t, instances(t, 1, s)[0], someone(v2025), "", func(c *api.Call) {
			if c.Method = tt.method; tt.method == "resources/read" {
				c.Kind, c.Name, c.Member, c.Params = api.Resources, "test://resource", "uri", json.RawMessage(`{"uri":"test://resource"}`)
			}
		})
		if code, data := o.code(t); code != tt.want || data != tt.data {
			t.Errorf("%s %d %s: got %d %s, want %d", tt.method, tt.code, tt.data, code, data, tt.want)
		}
	}
}

// GWN-13: notifications/cancelled of a client with a session ends its call at a 2026 backend
// by closing the stream, within a second, at whichever instance it comes in; also while
// the call waits for the client's answer. Another session's does not.
func TestCancellationIsAClosedStreamToA2026Backend(t *testing.T) {
	for _, waiting := range []string{"for the backend", "for the client"} {
		t.Run(waiting, func(t *testing.T) {
			began, closed := make(chan bool, 1), make(chan bool, 1)
			s := newScript(t, true, func(x *exchange) {
				if waiting == "for the client" {
					x.result(`{"resultType":"input_required","inputRequests":{"q":{"method":"roots/list"}}}`)
					return
				}
				x.tell("notifications/message", `{"level":"info","data":"begun"}`)
				<-x.ctx.Done()
				closed <- true
			})
			g := instances(t, 2, s)
			done := make(chan error, 1)
			go func() {
				done <- g[0].Call(context.WithoutCancel(t.Context()), api.Call{
					Client: someone(v2025), Kind: api.Tools, Name: "tool", Member: "name", Method: "tools/call",
					ID: json.RawMessage(`"a"`), Params: json.RawMessage(`{"name":"tool"}`),
					Send: func(json.RawMessage, bool) error { began <- true; return nil },
				})
			}()
			<-began
			stranger := someone(v2025)
			stranger.Session = "another session"
			body := json.RawMessage(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"a"}}`)
			if err := g[1].Cancel(t.Context(), stranger, body); err != nil {
				t.Fatal(err)
			}
			select {
			case err := <-done:
				t.Fatalf("another session ended the call: %v", err)
			case <-time.After(1200 * time.Millisecond): // more than a mark takes to be seen
			}
			start := time.Now()
			if err := g[1].Cancel(t.Context(), someone(v2025), body); err != nil {
				t.Fatal(err)
			}
			// A mark is seen within a second; the rest is for a machine that is at its limit.
			if err := <-done; !fault.Is(err, fault.Conflict) || time.Since(start) > 10*time.Second {
				t.Errorf("ended after %v with %v", time.Since(start), err)
			}
			if waiting == "for the backend" {
				select {
				case <-closed:
				case <-time.After(20 * time.Second):
					t.Error("the stream at the backend is still open")
				}
			}
		})
	}
}

// GWN-17: the headers by which a client of 2026-07-28 repeats arguments are compared with them,
// whatever revision the backend speaks.
func TestParameterHeadersAreValidated(t *testing.T) {
	for _, stateless := range []bool{true, false} {
		var got http.Header
		s := newScript(t, stateless, func(x *exchange) {
			got = x.Header
			x.result(`{"content":[]}`)
		})
		s.tool = `{"name":"tool","inputSchema":{"type":"object","properties":{"region":{"type":"string","x-mcp-header":"Region"},"n":{"type":"integer","x-mcp-header":"N"}}}}`
		g := instances(t, 1, s)[0]
		for _, tt := range []struct {
			arguments string
			header    http.Header
			ok        bool
		}{
			{`{"region":"Köln","n":42}`, http.Header{"Mcp-Param-Region": {"=?base64?S8O2bG4=?="}, "Mcp-Param-N": {"42.0"}}, true},
			{`{"region":null}`, http.Header{}, true},
			{`{"region":"a"}`, http.Header{"Mcp-Param-Region": {"a"}, "Mcp-Param-Other": {"ignored"}}, true},
			{`{"region":"a"}`, http.Header{"Mcp-Param-Region": {"b"}}, false},
			{`{"region":"a"}`, http.Header{}, false},
			{`{"region":"a"}`, http.Header{"Mcp-Param-Region": {"a", "a"}}, false},
			{`{"region":"a"}`, http.Header{"Mcp-Param-Region": {"=?base64?!?="}}, false},
			{`{}`, http.Header{"Mcp-Param-Region": {"a"}}, false},
			{`{"n":42}`, http.Header{"Mcp-Param-N": {"43"}}, false},
		} {
			o := called(t, g, someone(v2026), `,"arguments":`+tt.arguments, func(c *api.Call) { c.Header = tt.header })
			code, _ := o.code(t)
			if tt.ok && o.response == nil || !tt.ok && code != -32020 {
				t.Errorf("stateless %v: %s with %v: %v %s", stateless, tt.arguments, tt.header, o.err, o.response)
			}
			if tt.ok && stateless && got.Get("Mcp-Param-Region") != tt.header.Get("Mcp-Param-Region") {
				t.Errorf("passed on: %v", got)
			}
		}
	}
}

// GWN-17: a tool whose output is no object is listed without its schema to clients of
// revisions that have only objects; all others see the entry as it came.
func TestOutputSchemaOfAListedTool(t *testing.T) {
	for schema, kept := range map[string]bool{`{"type":"array"}`: false, `{"oneOf":[]}`: false, `{"type":"object","x":1.0}`: true} {
		s := newScript(t, true, nil)
		s.tool = `{"name":"tool","inputSchema":{"type":"object"},"outputSchema":` + schema + `,"x":1.0}`
		e := instances(t, 1, s)[0].List(t.Context(), someone(v2025), api.Tools).Entries[0]
		if got := string(e.For(v2026)); got != s.tool {
			t.Errorf("2026-07-28: %s", got)
		}
		want := s.tool
		if !kept {
			want = `{"name":"tool","inputSchema":{"type":"object"},"x":1.0}`
		}
		if got := string(e.For(v2025)); got != want {
			t.Errorf("2025-11-25: %s, want %s", got, want)
		}
	}
}
