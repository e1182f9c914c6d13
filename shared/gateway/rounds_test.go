package gateway

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/gateway/api"
	"github.com/mcp-events/mcpevents/shared/gateway/upstream"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/protocol/jsonrpc"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
	"github.com/mcp-events/mcpevents/test/expect"
)

// of returns a member of the result.
func (m got) of(member string) json.RawMessage { return jsonrpc.Member(m.Result, member) }

// asksTwice asks the user for a name, then the model, and returns both answers.
func asksTwice(x *turn) {
	name := x.ask("elicitation/create", form)
	model := x.ask("sampling/createMessage", `{"messages":[],"maxTokens":10}`)
	x.result(text("%s and %s", name.of("content"), model.of("model")))
}

// GWN-13, GWN-17: given a backend with sessions that asks within a call, then a client of 2026-07-28 gets each question in an
// input_required result, and the call is cancelled at the backend. On the retries, at other instances, the answers reach the
// backend in order.
func TestQuestionsOfA2025BackendAreRoundsOfA2026Client(t *testing.T) {
	s := serving(t, false, asksTwice)
	g := instances(t, 3, s)
	first := called(t, g[0], someone(v2026), "").required(t)
	if got := first.Requests["input-1"]; len(first.Requests) != 1 || !same(got, json.RawMessage(`{"method":"elicitation/create","params":`+form+`}`)) {
		t.Errorf("the first round asks %s", got)
	}
	cancelled := jsonrpc.Member(s.next(t, "notifications/cancelled").Params, "requestId")
	expect.Equal(t, "the cancelled request", string(cancelled), string(s.received("tools/call")[0].ID))
	second := called(t, g[1], someone(v2026), first.retry(`{"action":"accept","content":{"name":"Ada"}}`)).required(t)
	if got := second.Requests["input-2"]; len(second.Requests) != 1 || !same(jsonrpc.Member(got, "method"), json.RawMessage(`"sampling/createMessage"`)) {
		t.Errorf("the second round asks %s", second.Requests)
	}
	last := called(t, g[2], someone(v2026), second.retry(`{"role":"assistant","content":{"type":"text","text":"x"},"model":"m1"}`))
	expect.Equal(t, "the result", last.says(t), `complete:{"name":"Ada"} and "m1"`)
}

// GWN-17: questions that a backend asks at the same time are in one round.
func TestConcurrentQuestionsAreOneRound(t *testing.T) {
	s := serving(t, false, func(x *turn) {
		a, b := x.send("1", "elicitation/create", form), x.send("2", "roots/list", `{}`)
		select {
		case one := <-a:
			other := <-b
			x.result(text("%s %s", one.of("action"), other.of("roots")))
		case <-x.r.Context().Done():
		}
	})
	g := instances(t, 1, s)[0]
	r := called(t, g, someone(v2026), "").required(t)
	expect.MustLen(t, "the requests", r.Requests, 2)
	retry := r.retryBy(func(method string) string {
		return map[string]string{"elicitation/create": `{"action":"decline"}`, "roots/list": `{"roots":[]}`}[method]
	})
	expect.Equal(t, "the result", called(t, g, someone(v2026), retry).says(t), `complete:"decline" []`)
}

// GWN-17: a client gets the question immediately, even if the backend takes long to accept the cancellation of the call.
func TestQuestionDoesNotWaitForTheCancellation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := serving(t, false, asksTwice)
		s.intercept(func(_ http.ResponseWriter, _ *http.Request, m got) bool {
			if m.Method == "notifications/cancelled" {
				time.Sleep(4 * time.Second)
			}
			return false
		})
		g := instances(t, 1, s)[0]
		began := time.Now()
		var flushed time.Duration
		o := called(t, g, someone(v2026), "", func(c *api.Call) { c.Answered = func() { flushed = time.Since(began) } })
		expect.Equal(t, "questions", len(o.required(t).Requests), 1)
		expect.Equal(t, "the response is flushed before the cancellation", flushed > 0 && flushed < time.Second, true)
		cancelled := jsonrpc.Member(s.next(t, "notifications/cancelled").Params, "requestId")
		expect.Equal(t, "the cancelled request", string(cancelled), string(s.received("tools/call")[0].ID))
	})
}

// GWN-17: if a backend withdraws its question before the gateway has cancelled the call, the call continues. Then it may ask another one.
func TestCallContinuesAfterAWithdrawnQuestion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := serving(t, false, func(x *turn) {
			x.send("1", "roots/list", `{}`)
			x.notify("notifications/cancelled", `{"requestId":1}`)
			time.Sleep(2 * gather)
			name := x.ask("elicitation/create", form)
			x.result(text("%s", name.of("content")))
		})
		g := instances(t, 1, s)[0]
		asked := called(t, g, someone(v2026), "").required(t)
		expect.Equal(t, "questions", len(asked.Requests), 1)
		last := called(t, g, someone(v2026), asked.retry(`{"action":"accept","content":{"name":"Ada"}}`))
		expect.Equal(t, "the result", last.says(t), `complete:{"name":"Ada"}`)
	})
}

// GWN-17: if a backend withdraws its last question after the gateway has cancelled the call, the client still gets the question, because only
// its answer can continue the call.
func TestQuestionWithdrawnTooLateIsStillAsked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		question := upstream.Message{ID: json.RawMessage(`1`)}
		b := &roundsBridge{pending: []upstream.Message{question}, gather: time.AfterFunc(gather, func() {})}
		time.Sleep(2 * gather)
		expect.OK(t, expect.ErrOf(b.withdraw(t.Context(), question.ID, upstream.Message{})))
		expect.Equal(t, "pending questions", len(b.pending), 1)
	})
}

// GWN-17: the gateway asks again for a missing answer, and ignores responses to unknown questions.
func TestMissingInputIsAskedForAgain(t *testing.T) {
	g := instances(t, 1, serving(t, false, asksTwice))[0]
	first := called(t, g, someone(v2026), "").required(t)
	for name, params := range map[string]string{
		"with the state":    fmt.Sprintf(`,"inputResponses":{"other":{"action":"accept"}},"requestState":%q`, first.State),
		"without the state": `,"inputResponses":{"input-1":{"action":"accept"}}`,
	} {
		again := called(t, g, someone(v2026), params).required(t)
		if !same(again.Requests["input-1"], first.Requests["input-1"]) || len(again.Requests) != 1 {
			t.Errorf("%s: asked %s, want what was asked before, %s", name, again.Requests, first.Requests)
		}
	}
}

// GWN-17: as doubles, these ids would be equal.
func TestWithdrawnQuestionWithALargeID(t *testing.T) {
	const one, other = "9007199254740993", "9007199254740992"
	b := &roundsBridge{pending: []upstream.Message{{ID: json.RawMessage(other)}, {ID: json.RawMessage(one)}}}
	expect.OK(t, expect.ErrOf(b.withdraw(t.Context(), json.RawMessage(one), upstream.Message{})))
	expect.Equal(t, "the question that is left", string(b.pending[0].ID), other)
}

// GWN-17: a requestState is sealed, whether the gateway or the backend made it. Only the same principal can return it, unchanged
// and with the same request. Otherwise, or if inputResponses is no object, the backend is not called.
func TestRequestStateIsForItsRequestAlone(t *testing.T) {
	const arguments = `,"arguments":{"a":1,"b":2}`
	for name, s := range map[string]*scripted{
		"of the gateway": serving(t, false, asksTwice),
		"of the backend": serving(t, true, wantsInput(`{"q":{"method":"elicitation/create","params":`+form+`}}`)),
	} {
		t.Run(name, func(t *testing.T) {
			s.list(listing("tools/list", `{"tools":[{"name":"tool"},{"name":"tool2"}]}`, "prompts/list", `{"prompts":[{"name":"tool"}]}`))
			inOther := at("b", s, func(b *api.Backend) { b.Workspace = "other" })
			g := gatewayOver(t, memory(t), at("b", s), at("c", s, prefix("c_")), inOther)
			// Each is served, and differs from the call in one thing.
			others := map[string]func(*api.Call){
				"another principal": func(c *api.Call) { c.Principal.ID = "bob" },
				"another workspace": func(c *api.Call) { c.Principal.Workspace = "other" },
				"another backend":   func(c *api.Call) { c.Name = "c_tool" },
				"another tool":      func(c *api.Call) { c.Name = "tool2" },
				"another method":    func(c *api.Call) { c.Kind, c.Method = api.Prompts, "prompts/get" },
				"other arguments": func(c *api.Call) {
					c.Params = json.RawMessage(strings.Replace(string(c.Params), `"b":2`, `"b":3`, 1))
				},
			}
			for _, change := range others {
				called(t, g, someone(v2026), arguments, change).required(t)
			}
			r := called(t, g, someone(v2026), arguments).required(t)
			expect.Lacks(t, "the client's state", r.State, "state-1")
			calls := func() int { return len(s.received("tools/call")) + len(s.received("prompts/get")) }
			before := calls()
			state := func(s string) string { return fmt.Sprintf(`,"requestState":%q`, s) }
			retry := r.retry(`{"action":"accept","content":{}}`)
			outcomes := map[string]outcome{
				"changed":               called(t, g, someone(v2026), arguments+strings.Replace(retry, r.State[20:24], "AAAA", 1)),
				"cut":                   called(t, g, someone(v2026), arguments+state(r.State[:len(r.State)-1])),
				"the backend's own":     called(t, g, someone(v2026), arguments+state("state-1")),
				"empty":                 called(t, g, someone(v2026), arguments+state("")),
				"no string":             called(t, g, someone(v2026), `,"requestState":5`),
				"two, the second null":  called(t, g, someone(v2026), arguments+state("forged")+`,"requestState":null`),
				"two, the second sound": called(t, g, someone(v2026), arguments+state("forged")+retry),
			}
			if !s.stateless {
				outcomes["responses in a list"] = called(t, g, someone(v2026), `,"inputResponses":[]`)
			}
			for name, change := range others {
				outcomes[name] = called(t, g, someone(v2026), arguments+retry, change)
			}
			for name, o := range outcomes {
				if !fault.Is(o.err, fault.Invalid) {
					t.Errorf("%s: got %v and %s, want an invalid request", name, o.err, o.response)
				}
			}
			expect.Equal(t, "calls of the backend", calls()-before, 0)
			// The order of members is not part of the request.
			if o := called(t, g, someone(v2026), `,"arguments":{"b":2,"a":1}`+retry); o.err != nil {
				t.Errorf("the same arguments in another order: %v", o.err)
			}
			all := s.received("tools/call")
			if state := jsonrpc.Member(all[len(all)-1].Params, "requestState"); s.stateless && string(state) != `"state-1"` {
				t.Errorf("the backend got its state as %s", state)
			}
		})
	}
}

// GWN-17: a client is asked only if it declared the capability and the mode. If the backend fails because of that, the client gets
// -32021 with the missing capabilities. If the backend succeeds without the answer, the client gets its result.
func TestOnlyDeclaredCapabilitiesAreAsked(t *testing.T) {
	for name, tt := range map[string]struct {
		declared string
		refused  func(*turn)
		lacks    string
	}{
		"the call fails":           {`{}`, func(x *turn) { x.fail(-32603, `{}`) }, `{"elicitation":{}}`},
		"the tool fails":           {`{"elicitation":{"url":{}}}`, func(x *turn) { x.result(`{"content":[],"isError":true}`) }, `{"elicitation":{"form":{}}}`},
		"the backend does without": {`{}`, func(x *turn) { x.result(text("refused")) }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			s := serving(t, false, func(x *turn) {
				if x.ask("elicitation/create", form).Error == nil {
					t.Error("the backend got an answer")
				}
				tt.refused(x)
			})
			c := someone(v2026)
			c.Capabilities = json.RawMessage(tt.declared)
			o := called(t, instances(t, 1, s)[0], c, "")
			if tt.lacks == "" {
				expect.Equal(t, "the result", o.says(t), "complete:refused")
				return
			}
			code, data := o.code()
			expect.Equal(t, "the code", code, -32021)
			expect.Equal(t, "the data", data, `{"requiredCapabilities":`+tt.lacks+`}`)
		})
	}
}

// GWN-17: the gateway turns error -32042 of a session-based backend into a question to the user to visit the URL. The retry calls
// the backend again, and a refusal by the user ends the call. It turns -32002 into -32602.
func TestErrorsOf2025DoNotReachA2026Client(t *testing.T) {
	visited := false
	s := serving(t, false, func(x *turn) {
		switch {
		case x.Method == "resources/read":
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
	expect.True(t, "the question is "+want+", got "+string(r.Requests["input-1"]), same(r.Requests["input-1"], json.RawMessage(want)))
	if o := called(t, g, someone(v2026), r.retry(`{"action":"decline"}`)); !fault.Is(o.err, fault.Invalid) {
		t.Errorf("declined: %v %s", o.err, o.response)
	}
	visited = true
	expect.Equal(t, "accepted", called(t, g, someone(v2026), r.retry(`{"action":"accept"}`)).says(t), "complete:done")
	if code, data := called(t, g, someone(v2026), "", ofResource).code(); code != -32602 || data != `{"uri":"test://resource"}` {
		t.Errorf("a resource that is not there: %d %s", code, data)
	}
}

// GWN-17: a repeated call asks the same URL question under another id. The gateway recognizes it, and treats a question with
// another URL as a new one.
func TestURLQuestionIsRecognized(t *testing.T) {
	n, path := 0, "login"
	s := serving(t, false, func(x *turn) {
		n++
		a := x.ask("elicitation/create", fmt.Sprintf(`{"mode":"url","elicitationId":"elicit-%d","url":"https://a.test/%s?id=elicit-%d","message":"m"}`, n, path, n))
		x.result(text("%s", a.of("action")))
	})
	g := instances(t, 1, s)[0]
	r := called(t, g, someone(v2026), "").required(t)
	expect.Lacks(t, "the request, which has no elicitationId in this revision", string(r.Requests["input-1"]), "elicitationId")
	expect.Equal(t, "the result", called(t, g, someone(v2026), r.retry(`{"action":"accept"}`)).says(t), `complete:"accept"`)
	path = "pay"
	called(t, g, someone(v2026), r.retry(`{"action":"accept"}`)).required(t)
}

// GWN-17: a backend that asks the same question twice gets the two answers in order.
func TestTheSameQuestionTwiceHasTwoAnswers(t *testing.T) {
	s := serving(t, false, func(x *turn) {
		a, b := x.ask("elicitation/create", form), x.ask("elicitation/create", form)
		x.result(text("%s then %s", a.of("action"), b.of("action")))
	})
	g := instances(t, 1, s)[0]
	first := called(t, g, someone(v2026), "").required(t)
	second := called(t, g, someone(v2026), first.retry(`{"action":"accept"}`)).required(t)
	expect.Equal(t, "the result", called(t, g, someone(v2026), second.retry(`{"action":"decline"}`)).says(t), `complete:"accept" then "decline"`)
}

// GWN-08, GWN-16, GWN-17: the gateway removes members that only 2026-07-28 has from the request. It sets the log level at the
// backend and drops messages below it, or all messages if the request has no level. Calls in the same session have different
// progress tokens, and each gets its own progress.
func TestRequestOf2026AtA2025Backend(t *testing.T) {
	s := serving(t, false, func(x *turn) {
		token := jsonrpc.Member(jsonrpc.Member(x.Params, "_meta"), "progressToken")
		x.notify("notifications/message", `{"level":"info","data":"low"}`)
		x.notify("notifications/message", `{"level":"error","data":"high"}`)
		x.notify("notifications/elicitation/complete", `{"elicitationId":"x"}`)
		x.notify("notifications/progress", `{"progressToken":"stranger","progress":1}`)
		if token != nil {
			x.notify("notifications/progress", `{"progressToken":`+string(token)+`,"progress":2}`)
		}
		x.result(`{"content":[],"_meta":{"big":12345678901234567890}}`)
	})
	g := instances(t, 1, s)[0]
	meta := `,"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{},` +
		`"io.modelcontextprotocol/clientInfo":{},"io.modelcontextprotocol/logLevel":"warning","progressToken":12345678901234567890,"trace":1.0}`
	c := someone(v2026)
	c.Level = "warning"
	o := called(t, g, c, meta)
	expect.Equal(t, "the result", string(o.result(t)), `{"resultType":"complete","content":[],"_meta":{"`+spec.MetaServer+`":{"name":"gw","version":"1"},"big":12345678901234567890}}`)
	want := []string{
		`{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"error","data":"high"}}`,
		`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":12345678901234567890,"progress":2}}`,
	}
	expect.Equal(t, "the result", fmt.Sprintf("%s", o.before), fmt.Sprint(want))
	if got := s.received("logging/setLevel"); len(got) != 1 || string(got[0].Params) != `{"level":"warning"}` {
		t.Errorf("the level was set by %v", got)
	}
	sent := jsonrpc.Member(s.received("tools/call")[0].Params, "_meta")
	expect.Lacks(t, "the _meta", string(sent), "io.modelcontextprotocol/")
	expect.Equal(t, "the trace in _meta", string(jsonrpc.Member(sent, "trace")), "1.0")
	if string(jsonrpc.Member(sent, "progressToken")) == "12345678901234567890" {
		t.Error("the backend got a token that another client of the session may use too")
	}
	c.Level = ""
	for range 2 {
		expect.Equal(t, "messages without a level", len(called(t, g, c, "").before), 0)
	}
	expect.Equal(t, "sessions that were begun", len(s.received("initialize")), 3)
}

// GWN-08, GWN-17: concurrent calls of one principal with the same id share a session with the backend. Each gets its own progress
// and its own result.
func TestCallsInOneSessionAreIndependent(t *testing.T) {
	const calls = 20
	var underWay sync.WaitGroup
	underWay.Add(calls)
	s := serving(t, false, func(x *turn) {
		underWay.Done()
		underWay.Wait()
		own := jsonrpc.Member(jsonrpc.Member(x.Params, "arguments"), "n")
		token := jsonrpc.Member(jsonrpc.Member(x.Params, "_meta"), "progressToken")
		x.notify("notifications/progress", `{"progressToken":`+string(token)+`,"progress":`+string(own)+`}`)
		x.result(text("%s in %s as %s", own, x.Session, x.ID))
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
			if _, err := fmt.Sscanf(o.says(t), "complete:%d in %s as %s", &n, &sessions[i], &ids[i]); err != nil || n != i {
				t.Errorf("call %d got %s", i, o.response)
			}
		})
	}
	wg.Wait()
	slices.Sort(ids)
	slices.Sort(sessions)
	expect.Equal(t, "ids of the calls", len(slices.Compact(ids)), calls)
	expect.Equal(t, "sessions of the calls", len(slices.Compact(sessions)), 1)
	expect.Equal(t, "open sessions, with one of each instance's own", s.alive(), 3)
}

// GWN-13: when a client of 2026-07-28 closes its connection, the gateway closes its own to the backend. To a session-based backend
// it also sends notifications/cancelled, with the id that the backend knows.
func TestClosedConnectionEndsTheCallAtTheBackend(t *testing.T) {
	revisions(t, func(t *testing.T, stateless bool) {
		ctx, leave := context.WithCancel(t.Context())
		closed := make(chan struct{})
		s := serving(t, stateless, func(x *turn) {
			x.notify("notifications/progress", `{}`)
			leave()
			<-x.r.Context().Done()
			close(closed)
		})
		err := instances(t, 1, s)[0].Call(ctx, api.Call{
			Client: someone(v2026), Kind: api.Tools, Name: "tool", Member: "name", Method: "tools/call",
			ID: json.RawMessage(`1`), Params: json.RawMessage(`{"name":"tool"}`), Send: func(json.RawMessage, bool) error { return nil },
		})
		expect.Error(t, "the call", err)
		<-closed
		if !stateless {
			got := jsonrpc.Member(s.next(t, "notifications/cancelled").Params, "requestId")
			expect.Equal(t, "the cancelled request", string(got), string(s.received("tools/call")[0].ID))
		}
	})
}

const (
	v2025 = "2025-11-25"
	v2026 = "2026-07-28"

	// able are all capabilities that a question may need.
	able = `{"elicitation":{"form":{},"url":{}},"sampling":{"tools":{}},"roots":{}}`
	// form asks for a name.
	form = `{"message":"Name?","requestedSchema":{"type":"object","properties":{"name":{"type":"string"}}}}`
)

// serving returns a backend with the tool "tool", the prompt "prompt" and the resource test://resource. The tool may have a given
// definition.
func serving(t *testing.T, stateless bool, call func(*turn), tool ...string) *scripted {
	t.Helper()
	tool = append(tool, `{"name":"tool","inputSchema":{"type":"object"}}`)
	return newScripted(t, func(s *scripted) {
		s.stateless, s.call = stateless, call
		s.lists = listing("tools/list", `{"tools":[`+tool[0]+`]}`, "prompts/list", `{"prompts":[{"name":"prompt"}]}`,
			"resources/list", `{"resources":[{"uri":"test://resource","name":"resource"}]}`)
	})
}

// instances returns gateways that share only the store.
func instances(t *testing.T, n int, s *scripted) (all []*Gateway) {
	t.Helper()
	db := memory(t)
	for range n {
		all = append(all, gatewayOver(t, db, at("b", s)))
	}
	return all
}

func someone(version string) api.Client {
	c := api.Client{
		Principal: auth.Principal{Workspace: "default", ID: "alice"}, Version: spec.Version(version),
		Capabilities: json.RawMessage(able), Info: json.RawMessage(`{"name":"client","version":"2"}`),
	}
	if version == v2025 {
		c.Session = "client-session"
	}
	return c
}

// outcome is the result of a call, its notifications and its error as the client sees them.
type outcome struct {
	before   []json.RawMessage
	response json.RawMessage
	err      error
}

// called calls the tool. The text params has the members after the name.
func called(t *testing.T, g *Gateway, c api.Client, params string, change ...func(*api.Call)) outcome {
	t.Helper()
	call := api.Call{
		Client: c, Kind: api.Tools, Name: "tool", Member: "name", Method: "tools/call",
		Params: json.RawMessage(`{"name":"tool"` + params + `}`), Header: http.Header{},
	}
	return do(t, g, call, change...)
}

// do makes a call with the id 7.
func do(t *testing.T, g *Gateway, call api.Call, change ...func(*api.Call)) (o outcome) {
	t.Helper()
	call.ID = json.RawMessage(`7`)
	call.Send = func(message json.RawMessage, response bool) error {
		if response {
			o.response = message
		} else {
			o.before = append(o.before, message)
		}
		return nil
	}
	for _, f := range change {
		f(&call)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	o.err = g.Call(ctx, call)
	return o
}

// ofResource turns a call into a read of the resource.
func ofResource(c *api.Call) {
	c.Kind, c.Method, c.Name, c.Member = api.Resources, "resources/read", "test://resource", "uri"
	c.Params = json.RawMessage(`{"uri":"test://resource"}`)
}

// result returns the result of a successful call.
func (o outcome) result(t *testing.T) json.RawMessage {
	t.Helper()
	result := jsonrpc.Member(o.response, "result")
	if o.err != nil || result == nil {
		t.Fatalf("got the error %v and the response %s", o.err, o.response)
	}
	return result
}

// says returns the type and the text of the result.
func (o outcome) says(t *testing.T) string {
	t.Helper()
	var r struct {
		Kind    string                  `json:"resultType"`
		Content []struct{ Text string } `json:"content"`
	}
	if err := json.Unmarshal(o.result(t), &r); err != nil || len(r.Content) != 1 {
		t.Fatalf("got %s", o.response)
	}
	return r.Kind + ":" + r.Content[0].Text
}

// code returns the code and the data of the error with which a call ended.
func (o outcome) code() (int, string) {
	var e struct {
		Error struct {
			Code int
			Data json.RawMessage
		}
	}
	if o.response != nil {
		_ = json.Unmarshal(o.response, &e)
		return e.Error.Code, string(e.Error.Data)
	}
	if rpc, ok := o.err.(*jsonrpc.Error); ok {
		data, _ := json.Marshal(rpc.Data)
		return rpc.Code, string(data)
	}
	return 0, ""
}

// required is a parsed input_required result.
type required struct {
	Kind     string                     `json:"resultType"`
	Requests map[string]json.RawMessage `json:"inputRequests"`
	State    string                     `json:"requestState"`
}

func (o outcome) required(t *testing.T) (r required) {
	t.Helper()
	if err := json.Unmarshal(o.result(t), &r); err != nil || r.Kind != "input_required" || r.State == "" {
		t.Fatalf("got %s (%v), want input_required", o.response, err)
	}
	return r
}

// retry returns the params of the next round, with the same response to every request.
func (r required) retry(response string) string {
	return r.retryBy(func(string) string { return response })
}

// retryBy returns the params of the next round, with a response for each method.
func (r required) retryBy(response func(method string) string) string {
	answers := map[string]json.RawMessage{}
	for key, request := range r.Requests {
		method, _ := jsonrpc.String(jsonrpc.Member(request, "method"))
		answers[key] = json.RawMessage(response(method))
	}
	b, _ := json.Marshal(answers)
	return fmt.Sprintf(`,"inputResponses":%s,"requestState":%q`, b, r.State)
}

// text returns the result of a tool with the given text.
func text(format string, a ...any) string {
	b, _ := json.Marshal(fmt.Sprintf(format, a...))
	return `{"content":[{"type":"text","text":` + string(b) + `}]}`
}

// same compares JSON regardless of the order of members.
func same(a, b json.RawMessage) bool {
	var x, y any
	return json.Unmarshal(a, &x) == nil && json.Unmarshal(b, &y) == nil && fmt.Sprint(x) == fmt.Sprint(y)
}
