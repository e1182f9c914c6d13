package gateway_test

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/shared/fault"
	"github.com/mcp-events/mcpevents/shared/gateway/api"
	"github.com/mcp-events/mcpevents/shared/jsonrpc"
)

func same(a, b json.RawMessage) bool {
	var x, y any
	if json.Unmarshal(a, &x) != nil || json.Unmarshal(b, &y) != nil {
		return false
	}
	return fmt.Sprint(x) == fmt.Sprint(y)
}

func said(t *testing.T, o outcome) string {
	t.Helper()
	var r struct {
		Kind    string `json:"resultType"`
		Content []struct {
			Text string `json:"text"`
		} `json:"content"`
	}
	if err := json.Unmarshal(o.result(t), &r); err != nil || len(r.Content) != 1 {
		t.Fatalf("got %s", o.response)
	}
	return r.Kind + ":" + r.Content[0].Text
}

// asksTwice asks for a name, then the model, and tells both.
func asksTwice(x *exchange) {
	name := x.ask("elicitation/create", form)
	model := x.ask("sampling/createMessage", `{"messages":[],"maxTokens":10}`)
	x.result(text("%s and %s", jsonrpc.Member(jsonrpc.Member(name, "result"), "content"), jsonrpc.Member(jsonrpc.Member(model, "result"), "model")))
}

// GWN-13, GWN-17: a backend with sessions asks within a call, and a client of 2026-07-28 gets
// each question in an input_required result; the call that asked is cancelled at the
// backend. On the retries, at other instances, the answers reach the backend in their order.
func TestQuestionsOfA2025BackendAreRoundsOfA2026Client(t *testing.T) {
	s := newScript(t, false, asksTwice)
	g := instances(t, 3, s)
	first := called(t, g[0], someone(v2026), "").required(t)
	if got := first.Requests["input-1"]; len(first.Requests) != 1 || !same(got, json.RawMessage(`{"method":"elicitation/create","params":`+form+`}`)) {
		t.Errorf("the first round asks %s", got)
	}
	select {
	case cancelled := <-s.heard:
		if want := jsonrpc.Member(s.calls[0], "id"); string(jsonrpc.Member(cancelled, "requestId")) != string(want) {
			t.Errorf("cancelled %s, want the request %s", cancelled, want)
		}
	case <-time.After(20 * time.Second):
		t.Error("the backend was not told that the call is cancelled")
	}
	second := called(t, g[1], someone(v2026), first.retry(`{"action":"accept","content":{"name":"Ada"}}`)).required(t)
	if got := second.Requests["input-2"]; len(second.Requests) != 1 || !same(jsonrpc.Member(got, "method"), json.RawMessage(`"sampling/createMessage"`)) {
		t.Errorf("the second round asks %s", second.Requests)
	}
	last := called(t, g[2], someone(v2026), second.retry(`{"role":"assistant","content":{"type":"text","text":"x"},"model":"m1"}`))
	if got, want := said(t, last), `complete:{"name":"Ada"} and "m1"`; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// GWN-17: questions that a backend puts at the same time are asked in one round.
func TestQuestionsPutAtOnceAreOneRound(t *testing.T) {
	s := newScript(t, false, func(x *exchange) {
		a, b := x.send("elicitation/create", form), x.send("roots/list", `{}`)
		select {
		case one := <-a:
			x.result(text("%s %s", jsonrpc.Member(jsonrpc.Member(one, "result"), "action"), jsonrpc.Member(jsonrpc.Member(<-b, "result"), "roots")))
		case <-x.ctx.Done():
		}
	})
	g := instances(t, 1, s)[0]
	r := called(t, g, someone(v2026), "").required(t)
	if len(r.Requests) != 2 {
		t.Fatalf("asked %s", r.Requests)
	}
	answers := map[string]string{"elicitation/create": `{"action":"decline"}`, "roots/list": `{"roots":[]}`}
	params := map[string]json.RawMessage{}
	for key, request := range r.Requests {
		method, _ := jsonrpc.String(jsonrpc.Member(request, "method"))
		params[key] = json.RawMessage(answers[method])
	}
	b, _ := json.Marshal(params)
	o := called(t, g, someone(v2026), fmt.Sprintf(`,"inputResponses":%s,"requestState":%q`, b, r.State))
	if got, want := said(t, o), `complete:"decline" []`; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// GWN-17: an answer that is missing is asked for again; responses to nothing are ignored.
func TestMissingInputIsAskedForAgain(t *testing.T) {
	g := instances(t, 1, newScript(t, false, asksTwice))[0]
	first := called(t, g, someone(v2026), "").required(t)
	again := called(t, g, someone(v2026), fmt.Sprintf(`,"inputResponses":{"other":{"action":"accept"}},"requestState":%q`, first.State)).required(t)
	if !same(again.Requests["input-1"], first.Requests["input-1"]) || len(again.Requests) != 1 {
		t.Errorf("asked %s, want what was asked before, %s", again.Requests, first.Requests)
	}
	// Without the state the answers belong to nothing.
	fresh := called(t, g, someone(v2026), `,"inputResponses":{"input-1":{"action":"accept"}}`).required(t)
	if !same(fresh.Requests["input-1"], first.Requests["input-1"]) {
		t.Errorf("asked %s", fresh.Requests)
	}
}

// GWN-17: a requestState that was changed, or belongs to another principal, other
// arguments or another call, is refused, and the backend is not called.
func TestRequestStateOfAnotherRequestIsRefused(t *testing.T) {
	s := newScript(t, false, asksTwice)
	g := instances(t, 1, s)[0]
	r := called(t, g, someone(v2026), `,"arguments":{"a":1,"b":2}`).required(t)
	before := s.called()
	bob := someone(v2026)
	bob.Principal.ID = "bob"
	retry := r.retry(`{"action":"accept","content":{}}`)
	changed := strings.Replace(retry, r.State[20:24], "AAAA", 1)
	for name, o := range map[string]outcome{
		"changed":         called(t, g, someone(v2026), `,"arguments":{"a":1,"b":2}`+changed),
		"another's":       called(t, g, bob, `,"arguments":{"a":1,"b":2}`+retry),
		"other arguments": called(t, g, someone(v2026), `,"arguments":{"a":1,"b":3}`+retry),
		"no string":       called(t, g, someone(v2026), `,"requestState":5`),
		"no responses":    called(t, g, someone(v2026), `,"inputResponses":[]`),
		"another method": called(t, g, someone(v2026), `,"arguments":{"a":1,"b":2}`+retry, func(c *api.Call) {
			c.Kind, c.Method, c.Name = api.Prompts, "prompts/get", "prompt"
		}),
	} {
		if !fault.Is(o.err, fault.Invalid) {
			t.Errorf("%s: got %v and %s, want an invalid request", name, o.err, o.response)
		}
	}
	if n := s.called(); n != before {
		t.Errorf("the backend was called %d times", n-before)
	}
	// The order of members is none of the request.
	if o := called(t, g, someone(v2026), `,"arguments":{"b":2,"a":1}`+retry); o.err != nil {
		t.Errorf("the same arguments in another order: %v", o.err)
	}
}

// GWN-17: a backend's question is put only to a client that declared the capability,
// mode included. A backend that fails for it gives the client -32021 with what it lacks; one
// that does without is not disturbed.
func TestOnlyDeclaredCapabilitiesAreAsked(t *testing.T) {
	for _, tt := range []struct{ declared, method, params, lacks string }{
		{`{}`, "elicitation/create", form, `{"elicitation":{}}`},
		{`{"elicitation":{}}`, "elicitation/create", `{"mode":"url","elicitationId":"12345678","url":"https://a.test","message":"m"}`, `{"elicitation":{"url":{}}}`},
		{`{"elicitation":{"url":{}}}`, "elicitation/create", form, `{"elicitation":{"form":{}}}`},
		{`{"sampling":{}}`, "sampling/createMessage", `{"messages":[],"maxTokens":1,"tools":[]}`, `{"sampling":{"tools":{}}}`},
		{`{"sampling":{}}`, "roots/list", `{}`, `{"roots":{}}`},
	} {
		for _, way := range []string{"error", "isError", "does without"} {
			t.Run(tt.method+tt.declared+" "+way, func(t *testing.T) {
				s := newScript(t, false, func(x *exchange) {
					refused := jsonrpc.Member(x.ask(tt.method, tt.params), "error") != nil
					switch {
					case way == "error" && refused:
						x.fail(-32603, `{}`)
					case way == "isError" && refused:
						x.result(`{"content":[],"isError":true}`)
					default:
						x.result(text("refused: %v", refused))
					}
				})
				c := someone(v2026)
				c.Capabilities = json.RawMessage(tt.declared)
				o := called(t, instances(t, 1, s)[0], c, "")
				if way == "does without" {
					if got, want := said(t, o), "complete:refused: true"; got != want {
						t.Errorf("got %s, want %s", got, want)
					}
					return
				}
				code, data := o.code(t)
				if want := `{"requiredCapabilities":` + tt.lacks + `}`; code != -32021 || data != want {
					t.Errorf("got %d %s, want -32021 %s", code, data, want)
				}
			})
		}
	}
}

// GWN-17: error -32042 of a 2025 backend becomes the demand that the user visits the
// URL, and the retry calls the backend again; -32002 becomes -32602. A user who does not want
// to ends the call.
func TestErrorsOfThe2025EraDoNotReachA2026Client(t *testing.T) {
	visited := false
	s := newScript(t, false, func(x *exchange) {
		switch {
		case jsonrpc.Member(x.Params, "uri") != nil:
			x.fail(-32002, `{"uri":"test://resource"}`)
		case visited:
			x.result(text("done"))
		default:
			x.fail(-32042, `{"elicitations":[{"mode":"url","elicitationId":"id-12345","url":"https://a.test/id-12345","message":"Sign in"}]}`)
		}
	})
	g := instances(t, 1, s)[0]
	r := called(t, g, someone(v2026), "").required(t)
	want := `{"method":"elicitation/create","params":{"mode":"url","url":"https://a.test/id-12345","message":"Sign in"}}`
	if !same(r.Requests["input-1"], json.RawMessage(want)) {
		t.Errorf("asked %s, want %s", r.Requests["input-1"], want)
	}
	if o := called(t, g, someone(v2026), r.retry(`{"action":"decline"}`)); !fault.Is(o.err, fault.Invalid) {
		t.Errorf("declined: %v %s", o.err, o.response)
	}
	visited = true
	if got := said(t, called(t, g, someone(v2026), r.retry(`{"action":"accept"}`))); got != "complete:done" {
		t.Errorf("accepted: %s", got)
	}
	o := called(t, g, someone(v2026), "", func(c *api.Call) {
		c.Kind, c.Method, c.Name, c.Member = api.Resources, "resources/read", "test://resource", "uri"
		c.Params = json.RawMessage(`{"uri":"test://resource"}`)
	})
	if code, data := o.code(t); code != -32602 || data != `{"uri":"test://resource"}` {
		t.Errorf("a resource that is not there: %d %s", code, data)
	}
}

// GWN-17: the same URL question under another id, as a replayed call puts it, is the same
// question; one with another URL is not.
func TestURLQuestionIsKnownAgain(t *testing.T) {
	n, path := 0, "login"
	s := newScript(t, false, func(x *exchange) {
		n++
		a := x.ask("elicitation/create", fmt.Sprintf(`{"mode":"url","elicitationId":"elicit-%d","url":"https://a.test/%s?id=elicit-%d","message":"m"}`, n, path, n))
		x.result(text("%s", jsonrpc.Member(jsonrpc.Member(a, "result"), "action")))
	})
	g := instances(t, 1, s)[0]
	r := called(t, g, someone(v2026), "").required(t)
	if strings.Contains(string(r.Requests["input-1"]), "elicitationId") {
		t.Errorf("this revision has no elicitationId: %s", r.Requests["input-1"])
	}
	if got := said(t, called(t, g, someone(v2026), r.retry(`{"action":"accept"}`))); got != `complete:"accept"` {
		t.Errorf("got %s", got)
	}
	path = "pay"
	called(t, g, someone(v2026), r.retry(`{"action":"accept"}`)).required(t)
}

// GWN-08, GWN-16, GWN-17: what only 2026-07-28 has is taken off the request, the level of log
// messages is set at the 2025 backend and what lies below is dropped; calls that share
// a session have progress tokens of their own, and see their own. Without a level no log message comes.
func TestRequestOf2026AtA2025Backend(t *testing.T) {
	s := newScript(t, false, func(x *exchange) {
		token := jsonrpc.Member(jsonrpc.Member(x.Params, "_meta"), "progressToken")
		x.tell("notifications/message", `{"level":"info","data":"low"}`)
		x.tell("notifications/message", `{"level":"error","data":"high"}`)
		x.tell("notifications/elicitation/complete", `{"elicitationId":"x"}`)
		x.tell("notifications/progress", `{"progressToken":"stranger","progress":1}`)
		if token != nil {
			x.tell("notifications/progress", `{"progressToken":`+string(token)+`,"progress":2}`)
		}
		x.result(`{"content":[],"_meta":{"big":12345678901234567890}}`)
	})
	g := instances(t, 1, s)[0]
	meta := `,"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{},` +
		`"io.modelcontextprotocol/clientInfo":{},"io.modelcontextprotocol/logLevel":"warning","progressToken":12345678901234567890,"trace":1.0}`
	c := someone(v2026)
	c.Level = "warning"
	o := called(t, g, c, meta)
	if want := `{"resultType":"complete","content":[],"_meta":{"big":12345678901234567890}}`; string(o.result(t)) != want {
		t.Errorf("got %s, want %s", o.result(t), want)
	}
	want := []string{
		`{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"error","data":"high"}}`,
		`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":12345678901234567890,"progress":2}}`,
	}
	if got := fmt.Sprintf("%s", o.before); got != fmt.Sprint(want) {
		t.Errorf("got %s, want %s", got, want)
	}
	if got := s.noted("logging/setLevel"); len(got) != 1 || string(jsonrpc.Member(got[0], "params")) != `{"level":"warning"}` {
		t.Errorf("the level was set by %s", got)
	}
	sent := jsonrpc.Member(jsonrpc.Member(s.calls[0], "params"), "_meta")
	if strings.Contains(string(sent), "io.modelcontextprotocol/") || string(jsonrpc.Member(sent, "trace")) != "1.0" {
		t.Errorf("the backend got _meta %s", sent)
	}
	if string(jsonrpc.Member(sent, "progressToken")) == "12345678901234567890" {
		t.Error("the backend got a token that another client of the session may use too")
	}
	c.Level = ""
	if o := called(t, g, c, ""); len(o.before) != 0 {
		t.Errorf("without a level: %s", o.before)
	}
	called(t, g, c, "")
	if n := s.count("initialize"); n != 3 { // the gateway's own, one with the level, one without
		t.Errorf("%d sessions were begun", n)
	}
}

// GWN-17: a resource that a 2025 backend reads gets the caching members that 2026-07-28 requires.
func TestResourceOfA2025BackendIsCacheable(t *testing.T) {
	s := newScript(t, false, func(x *exchange) { x.result(`{"contents":[]}`) })
	o := called(t, instances(t, 1, s)[0], someone(v2026), "", func(c *api.Call) {
		c.Kind, c.Method, c.Name, c.Member = api.Resources, "resources/read", "test://resource", "uri"
		c.Params = json.RawMessage(`{"uri":"test://resource"}`)
	})
	if want := `{"resultType":"complete","ttlMs":0,"cacheScope":"private","contents":[]}`; string(o.result(t)) != want {
		t.Errorf("got %s, want %s", o.result(t), want)
	}
}

// GWN-13: a client of 2026-07-28 that closes its connection cancels the call at a backend
// with sessions, by notifications/cancelled with the id that the backend knows.
func TestClosedConnectionIsANotificationToA2025Backend(t *testing.T) {
	began := make(chan json.RawMessage, 1)
	s := newScript(t, false, func(x *exchange) {
		x.tell("notifications/progress", `{}`)
		began <- x.ID
		<-x.ctx.Done()
	})
	g := instances(t, 1, s)[0]
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- g.Call(ctx, api.Call{
			Client: someone(v2026), Kind: api.Tools, Name: "tool", Member: "name", Method: "tools/call",
			ID: json.RawMessage(`1`), Params: json.RawMessage(`{"name":"tool"}`), Send: func(json.RawMessage, bool) error { return nil },
		})
	}()
	id := <-began
	cancel()
	select {
	case got := <-s.heard:
		if string(jsonrpc.Member(got, "requestId")) != string(id) {
			t.Errorf("cancelled %s, want %s", got, id)
		}
	case <-time.After(20 * time.Second):
		t.Error("the backend was not told")
	}
	if err := <-done; err == nil {
		t.Error("the call went well")
	}
}

// GWN-08, GWN-17: calls of one principal that have the same id and run at the same time share a
// session with the backend and nothing else: each gets its own progress and its own result.
func TestCallsThatShareASessionDoNotMeet(t *testing.T) {
	const calls = 20
	var all sync.WaitGroup
	all.Add(calls)
	s := newScript(t, false, func(x *exchange) {
		all.Done()
		all.Wait() // all are under way
		own := jsonrpc.Member(jsonrpc.Member(x.Params, "arguments"), "n")
		token := jsonrpc.Member(jsonrpc.Member(x.Params, "_meta"), "progressToken")
		x.tell("notifications/progress", `{"progressToken":`+string(token)+`,"progress":`+string(own)+`}`)
		x.result(text("%s in %s as %s", own, x.Header.Get("Mcp-Session-Id"), x.ID))
	})
	g := instances(t, 2, s)
	var wg sync.WaitGroup
	ids, sessions := make([]string, calls), make([]string, calls)
	for i := range calls {
		wg.Go(func() {
			o := called(t, g[i%2], someone(v2026), fmt.Sprintf(`,"arguments":{"n":%d},"_meta":{"progressToken":"p"}`, i))
			if want := fmt.Sprintf(`{"progressToken":"p","progress":%d}`, i); len(o.before) != 1 || string(jsonrpc.Member(o.before[0], "params")) != want {
				t.Errorf("call %d saw %s", i, o.before)
			}
			if o.err != nil {
				t.Errorf("call %d: %v", i, o.err)
				return
			}
			var n int
			if _, err := fmt.Sscanf(said(t, o), "complete:%d in %s as %s", &n, &sessions[i], &ids[i]); err != nil || n != i {
				t.Errorf("call %d got %s", i, o.response)
			}
		})
	}
	wg.Wait()
	slices.Sort(ids)
	slices.Sort(sessions)
	if n := len(slices.Compact(ids)); n != calls {
		t.Errorf("%d ids for %d calls", n, calls)
	}
	if got := slices.Compact(sessions); len(got) != 1 {
		t.Errorf("the calls were in the sessions %v", got)
	}
}

// GWN-17: a backend that puts the same question twice gets the two answers in their order.
func TestTheSameQuestionTwiceHasTwoAnswers(t *testing.T) {
	s := newScript(t, false, func(x *exchange) {
		a, b := x.ask("elicitation/create", form), x.ask("elicitation/create", form)
		x.result(text("%s then %s", jsonrpc.Member(jsonrpc.Member(a, "result"), "action"), jsonrpc.Member(jsonrpc.Member(b, "result"), "action")))
	})
	g := instances(t, 1, s)[0]
	first := called(t, g, someone(v2026), "").required(t)
	second := called(t, g, someone(v2026), first.retry(`{"action":"accept"}`)).required(t)
	if got := said(t, called(t, g, someone(v2026), second.retry(`{"action":"decline"}`))); got != `complete:"accept" then "decline"` {
		t.Errorf("got %s", got)
	}
}
