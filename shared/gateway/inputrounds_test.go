package gateway

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mcp-events/mcpevents/shared/gateway/api"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/protocol/jsonrpc"
	"github.com/mcp-events/mcpevents/shared/storage/store"
	"github.com/mcp-events/mcpevents/test/expect"
)

// wantsInput returns the calls of a backend of 2026-07-28 that asks for the inputs and repeats the answers in its result.
func wantsInput(requests string) func(*turn) {
	return func(x *turn) {
		answers := jsonrpc.Member(x.Params, "inputResponses")
		if answers == nil {
			x.result(`{"resultType":"input_required","inputRequests":` + requests + `,"requestState":"state-1"}`)
			return
		}
		state, _ := jsonrpc.String(jsonrpc.Member(x.Params, "requestState"))
		x.result(`{"resultType":"complete","content":[{"type":"text","text":` + string(jsonrpc.AppendString(nil, state+string(answers))) + `}]}`)
	}
}

// answering answers all questions of a call at another instance.
func answering(t *testing.T, at *Gateway, answer func(method string) string) func(*api.Call) {
	return func(c *api.Call) {
		send := c.Send
		c.Send = func(message json.RawMessage, response bool) error {
			method, _ := jsonrpc.String(jsonrpc.Member(message, "method"))
			if id, _ := jsonrpc.String(jsonrpc.Member(message, "id")); !response && id != "" {
				body := json.RawMessage(fmt.Sprintf(`{"jsonrpc":"2.0","id":%q,%s}`, id, answer(method)))
				expect.OK(t, at.Answer(t.Context(), c.Client, id, body))
			}
			return send(message, response)
		}
	}
}

// GWN-10, GWN-11, GWN-12, GWN-17: an input_required result of a backend becomes requests with unguessable ids on the stream of a
// client with a session. The client answers at another instance. The retry has the answers, the backend's state and a new id.
// Afterwards the store has no questions.
func TestInputRequiredOfA2026BackendIsRequestsOfA2025Client(t *testing.T) {
	s := serving(t, true, wantsInput(`{"who":{"method":"elicitation/create","params":`+form+`},"llm":{"method":"sampling/createMessage","params":{"messages":[],"maxTokens":1}}}`))
	g := instances(t, 2, s)
	large := strings.Repeat("x", 900_000) // more than an item of the store holds
	o := called(t, g[0], someone(v2025), "", answering(t, g[1], func(method string) string {
		if method == "elicitation/create" {
			return `"result":{"action":"accept","content":{"n":12345678901234567890}}`
		}
		return `"result":{"model":"` + large + `"}`
	}))
	want := `:state-1{"who":{"action":"accept","content":{"n":12345678901234567890}},"llm":{"model":"` + large + `"}}`
	expect.Equal(t, "the answer", o.says(t), want)
	if len(o.before) != 2 || !same(jsonrpc.Member(o.before[0], "params"), json.RawMessage(form)) {
		t.Errorf("the client was asked %s", o.before)
	}
	for _, m := range o.before {
		id, _ := jsonrpc.String(jsonrpc.Member(m, "id"))
		expect.AtLeast(t, "the length of the id", len(id), 26)
		page, err := g[0].options.DB.Query(t.Context(), store.Query{Table: store.Sessions, Partition: "q#" + id})
		if err != nil || len(page.Items) != 0 {
			t.Errorf("%d items of question %s are left (%v)", len(page.Items), id, err)
		}
	}
	if calls := s.received("tools/call"); string(calls[0].ID) == string(calls[1].ID) {
		t.Error("the retry has the id of the first request")
	}
}

// GWN-11, GWN-17: a decline is an answer. An error in answer to an elicitation becomes a cancellation by the user. Any other error
// ends the call, because 2026-07-28 has no errors in inputResponses.
func TestDeclinesAndErrorsOfA2025ClientAreAnswers(t *testing.T) {
	for _, tt := range []struct{ method, params, answer, text, failure string }{
		{"elicitation/create", form, `"result":{"action":"decline"}`, `:state-1{"q":{"action":"decline"}}`, ""},
		{"elicitation/create", form, `"error":{"code":-1,"message":"no"}`, `:state-1{"q":{"action":"cancel"}}`, ""},
		{"roots/list", `{}`, `"result":{"roots":[]}`, `:state-1{"q":{"roots":[]}}`, ""},
		{"sampling/createMessage", `{"messages":[],"maxTokens":1}`, `"error":{"code":-1,"message":"rejected","data":{"x":1.0}}`, "", `{"code":-1,"message":"rejected","data":{"x":1.0}}`},
	} {
		bubble(t, tt.method+tt.answer, func(t *testing.T) { // for there are pauses
			s := serving(t, true, wantsInput(`{"q":{"method":"`+tt.method+`","params":`+tt.params+`}}`))
			g := instances(t, 2, s)
			o := called(t, g[0], someone(v2025), "", answering(t, g[1], func(string) string { return tt.answer }))
			if tt.failure != "" {
				if got := jsonrpc.Member(o.response, "error"); string(got) != tt.failure || string(jsonrpc.Member(o.response, "id")) != "7" {
					t.Errorf("got %s (%v), want the error %s", o.response, o.err, tt.failure)
				}
				return
			}
			expect.Equal(t, "the result", o.says(t), tt.text)
		})
	}
}

// GWN-17: a client is not asked for input for which it declared no capability. A client of 2026-07-28 gets an error that names the
// missing capability.
func TestInputOfAnUndeclaredCapabilityIsNotAskedFor(t *testing.T) {
	s := serving(t, true, wantsInput(`{"q":{"method":"sampling/createMessage","params":{"messages":[],"maxTokens":1}}}`))
	g := instances(t, 1, s)[0]
	for version, want := range map[string]int{v2025: -32600, v2026: -32021} {
		c := someone(version)
		c.Capabilities = json.RawMessage(`{"elicitation":{}}`)
		o := called(t, g, c, "")
		code, data := o.code()
		if code != want || data != `{"requiredCapabilities":{"sampling":{}}}` || len(o.before) != 0 {
			t.Errorf("%s: got %d %s, and before that %s", version, code, data, o.before)
		}
	}
}

// GWN-16, GWN-17: the gateway adds to the request what 2026-07-28 requires: the session's capabilities, its log level and the
// headers for annotated arguments. It replaces members that the client wrote in their place. It removes from the result the
// members that the client's revision does not have.
func TestRequestOf2025AtA2026Backend(t *testing.T) {
	var header http.Header
	s := serving(t, true, func(x *turn) {
		header = x.Header
		x.notify("notifications/progress", `{"progressToken":12345678901234567890,"progress":1}`)
		x.result(`{"resultType":"complete","content":[],"structuredContent":[1],"_meta":{"n":1.0}}`)
	}, `{"name":"tool","inputSchema":{"type":"object","properties":{
		"region":{"type":"string","x-mcp-header":"Region"},
		"in":{"type":"object","properties":{"n":{"type":"integer","x-mcp-header":"Deep-N"}}},
		"flag":{"type":"boolean","x-mcp-header":"flag"},"none":{"type":"string","x-mcp-header":"None"}}}}`)
	c := someone(v2025)
	c.Level = "info"
	o := called(t, instances(t, 1, s)[0], c, `,"arguments":{"region":"Köln","in":{"n":4.2e1},"flag":false,"none":null},`+
		`"_meta":{"progressToken":12345678901234567890,"io.modelcontextprotocol/protocolVersion":"1999-01-01","x":1.0}`)
	expect.Equal(t, "the result", string(o.result(t)), `{"content":[],"_meta":{"n":1.0}}`)
	if len(o.before) != 1 || !strings.Contains(string(o.before[0]), "12345678901234567890") {
		t.Errorf("before the result: %s", o.before)
	}
	meta := jsonrpc.Member(s.received("tools/call")[0].Params, "_meta")
	want := `{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":` + able +
		`,"io.modelcontextprotocol/clientInfo":{"name":"client","version":"2"},"io.modelcontextprotocol/logLevel":"info","progressToken":12345678901234567890,"x":1.0}`
	expect.Equal(t, "_meta", string(meta), want)
	for name, value := range map[string]string{
		"Mcp-Method": "tools/call", "Mcp-Name": "tool", "Mcp-Protocol-Version": "2026-07-28", "Mcp-Session-Id": "",
		"Mcp-Param-Region": "=?base64?S8O2bG4=?=", "Mcp-Param-Deep-N": "42", "Mcp-Param-Flag": "false", "Mcp-Param-None": "",
	} {
		expect.Equal(t, name, header.Get(name), value)
	}
}

// GWN-17: a client with a session does not get error codes that are new in 2026-07-28. The error -32021 keeps its data. Package
// translate has the table of codes.
func TestErrorsOf2026DoNotReachA2025Client(t *testing.T) {
	code, data := -32021, `{"requiredCapabilities":{"roots":{}}}`
	s := serving(t, true, func(x *turn) { x.fail(code, data) })
	g := instances(t, 1, s)[0]
	if got, had := called(t, g, someone(v2025), "").code(); got != -32600 || had != data {
		t.Errorf("a missing capability: got %d %s", got, had)
	}
	code, data = -32602, `{"uri":"test://resource"}`
	if got, had := called(t, g, someone(v2025), "", ofResource).code(); got != -32002 || had != data {
		t.Errorf("a resource that is not there: got %d %s", got, had)
	}
	// A backend that refuses what the gateway made of a request may be another one now.
	code, data = -32022, `{}`
	before := len(s.received("tools/list"))
	if got, _ := called(t, g, someone(v2025), "").code(); got != -32603 {
		t.Errorf("another revision: got %d", got)
	}
	g.List(t.Context(), someone(v2025), api.Tools)
	expect.Equal(t, "the requests for the list", len(s.received("tools/list")), before+1)
}

// GWN-13: given a call to a backend of 2026-07-28, when the client cancels it at any instance, then the gateway closes the
// connection within a second, even while the call waits for the client's answer. A cancellation of another session has no effect.
func TestCancellationIsAClosedStreamToA2026Backend(t *testing.T) {
	for _, waiting := range []string{"for the backend", "for the client"} {
		bubble(t, waiting, func(t *testing.T) {
			closed := false
			s := serving(t, true, func(x *turn) {
				if waiting == "for the client" {
					x.result(`{"resultType":"input_required","inputRequests":{"q":{"method":"roots/list"}}}`)
					return
				}
				x.notify("notifications/message", `{"level":"info","data":"begun"}`)
				<-x.r.Context().Done()
				closed = true
			})
			g := instances(t, 2, s)
			x := start(t, g[0], someone(v2025), "tool", `"a"`, `{"name":"tool"}`)
			x.next(t)
			body := json.RawMessage(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"a"}}`)
			stranger := someone(v2025)
			stranger.Session = "another session"
			expect.OK(t, g[1].Cancel(t.Context(), stranger, body))
			time.Sleep(time.Minute)
			if len(x.done) > 0 {
				t.Fatal("another session ended the call")
			}
			began := time.Now()
			expect.OK(t, g[1].Cancel(t.Context(), someone(v2025), body))
			expect.Fault(t, "the error", x.end(t), fault.Conflict)
			expect.AtMost(t, "the time", time.Since(began), time.Second)
			synctest.Wait()
			if waiting == "for the backend" && !closed {
				t.Error("the stream at the backend is still open")
			}
		})
	}
}

// GWN-17: the gateway compares the headers that repeat arguments with the arguments, whatever the backend's revision is.
func TestParameterHeadersAreValidated(t *testing.T) {
	for _, stateless := range []bool{true, false} {
		var got http.Header
		s := serving(t, stateless, func(x *turn) {
			got = x.Header
			x.result(`{"content":[]}`)
		}, `{"name":"tool","inputSchema":{"type":"object","properties":{"region":{"type":"string","x-mcp-header":"Region"},"n":{"type":"integer","x-mcp-header":"N"}}}}`)
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
			code, _ := o.code()
			if tt.ok && o.response == nil || !tt.ok && code != -32020 {
				t.Errorf("stateless %v: %s with %v: %v %s", stateless, tt.arguments, tt.header, o.err, o.response)
			}
			if tt.ok && stateless && got.Get("Mcp-Param-Region") != tt.header.Get("Mcp-Param-Region") {
				t.Errorf("passed on: %v", got)
			}
		}
	}
}

// GWN-17: a client with a session cannot send a backend a state or answers of its own, which only the gateway and sealed states carry.
func TestClientWithSessionCannotForgeState(t *testing.T) {
	s := serving(t, true, func(x *turn) { x.result(text("%s", x.Params)) })
	x := start(t, instances(t, 1, s)[0], someone(v2025), "tool", "7", `{"name":"tool","requestState":"forged","inputResponses":{"forged":{}},"arguments":{"a":1}}`)
	expect.OK(t, x.end(t))
	if got := x.next(t).text; strings.Contains(got, "forged") || !strings.Contains(got, "arguments") {
		t.Errorf("the backend got %s, want the arguments only", got)
	}
}

// GWN-17: a backend that asks for a retry without a question is called again with its state, for minutes and with pauses, until the
// time of the call is over.
func TestBackendThatWantsToBeAskedAgain(t *testing.T) {
	for name, row := range map[string]struct {
		after time.Duration // when the backend has its result
		calls int           // from which on it gives its result
		fails bool
	}{"after three calls": {0, 3, false}, "after five minutes": {5 * time.Minute, 3, false}, "never": {24 * time.Hour, 3, true}} {
		bubble(t, name, func(t *testing.T) {
			began, n := time.Now(), 0
			s := serving(t, true, func(x *turn) {
				if n++; n < row.calls || time.Since(began) < row.after {
					x.result(fmt.Sprintf(`{"resultType":"input_required","requestState":"s%d"}`, n))
					return
				}
				x.result(text("%s", jsonrpc.Member(x.Params, "requestState")))
			})
			x := start(t, instances(t, 1, s)[0], someone(v2025), "tool", "7", `{"name":"tool"}`)
			err := <-x.done
			if row.fails {
				expect.Fault(t, "the call", err, fault.Unavailable)
			} else if got := x.next(t).text; err != nil || !strings.Contains(got, fmt.Sprintf(`"text":"\"s%d\""`, n-1)) {
				t.Errorf("got %s, %v, want the last state", got, err)
			}
			if n > 100 && !row.fails {
				t.Errorf("the backend was called %d times, want 100 at most", n)
			}
		})
	}
}
