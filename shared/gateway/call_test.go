package gateway

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mcp-events/mcpevents/shared/gateway/api"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/protocol/jsonrpc"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
	"github.com/mcp-events/mcpevents/shared/storage/store"
	"github.com/mcp-events/mcpevents/test/expect"
)

// GWN-08: the client's first call begins a session with the backend. All instances use it, and it ends with the client's own
// session.
func TestSessionIsBegunByTheFirstCallAndShared(t *testing.T) {
	s := newScripted(t, showSession)
	g := instances(t, 2, s)
	for _, g := range g {
		g.List(t.Context(), of(ann), api.Tools) // which needs a session of the gateway's own
	}
	own := s.made
	first := mustCall(t, g[0], sessionBased("s1"), "t")
	expect.Equal(t, "sessions after the first call", s.made, own+1)
	expect.Equal(t, "the session at another instance", first, mustCall(t, g[1], sessionBased("s1"), "t"))
	expect.Differ(t, "another client's session", mustCall(t, g[1], sessionBased("s2"), "t"), first)
	expect.Contains(t, "the params at the backend", string(s.received("initialize")[own].Params), `"clientInfo":{"name":"c","version":"1"}`, `"elicitation":{}`)
	expect.OK(t, g[1].End(t.Context(), sessionBased("s1")))
	left := expect.Value(g[0].options.DB.Get(t.Context(), sessionKey("s1", g[0].VisibleTo(t.Context(), ann)[0])))(t)
	expect.True(t, "the session is not stored after its end", left[0] == nil)
}

// GWN-08: given two calls whose session the backend has forgotten, when the first has begun a new session, then the second uses
// that session.
func TestNewSessionIsNotForgottenWithTheOldOne(t *testing.T) {
	_, g := alone(t)
	c, b := sessionBased("s1"), g.VisibleTo(t.Context(), ann)[0]
	first, _, err := g.sessions.getOrBegin(t.Context(), c, b, true)
	expect.OK(t, err)
	var next backendSession
	for range 2 { // each of the calls
		expect.OK(t, g.sessions.forget(t.Context(), c, b, first))
		now, _, err := g.sessions.getOrBegin(t.Context(), c, b, true)
		if err != nil || now.ID == first.ID || next.ID != "" && now.ID != next.ID {
			t.Fatalf("got %+v, %v, after %+v and %+v", now, err, first, next)
		}
		next = now
	}
}

// refuseWith returns a handler that answers with a status and a JSON-RPC error, or with text if the code is 0.
func refuseWith(status, code int, reason string) func(http.ResponseWriter) {
	return func(w http.ResponseWriter) {
		body := reason
		w.Header().Set("Content-Type", "text/plain")
		if code != 0 {
			w.Header().Set("Content-Type", "application/json; charset=utf-8")
			body = fmt.Sprintf(`{"jsonrpc":"2.0","error":{"code":%d,"message":%q},"id":null}`, code, reason)
		}
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	}
}

// GWN-07, GWN-08: given a backend that reports an unknown session, by the specification or in another way, then calls, lists and the
// notification stream begin a new session. Other refusals are errors. The tests of package upstream have the ways.
func TestServersReportUnknownSessionsInDifferentWays(t *testing.T) {
	for name, lost := range map[string]func(http.ResponseWriter){
		"404": nil, "400": refuseWith(400, -32000, "Bad Request: No valid session ID provided"),
	} {
		bubble(t, name, func(t *testing.T) {
			s, g := alone(t, func(s *scripted) { s.lost = lost })
			mustCall(t, g, sessionBased("s"), "t")
			s.forget()
			begun := len(s.received("initialize"))
			mustCall(t, g, sessionBased("s"), "t")
			s.list(oneTool("new"))
			g.Followed(t.Context())[0].Outdate()
			sees(t, g, of(ann), "new")
			expect.Equal(t, "new sessions of the client and of the gateway", len(s.received("initialize"))-begun, 2)
			l := newLog()
			relaying(t, "r", g, l)
			expect.Eventually(t, "the stream is open", func() bool { return s.open() == 1 })
			s.forget()
			s.hangUp()
			expect.Eventually(t, "the stream is open again", func() bool { return s.open() == 1 })
			s.notify(toolsChanged)
			l.next(t)
		})
	}
	s, g := alone(t, func(s *scripted) { s.lost = refuseWith(401, -32001, "session expired") })
	mustCall(t, g, sessionBased("s"), "t")
	s.forget()
	expect.Error(t, "a call with another refusal", expect.ErrOf(call(t, g, sessionBased("s"), "t")))
}

// GWN-08: a call is repeated once, even if the backend forgets every session.
func TestBackendThatForgetsEverySession(t *testing.T) {
	s, g := alone(t, func(s *scripted) { s.call = func(t *turn) { t.w.WriteHeader(http.StatusNotFound) } })
	expect.Fault(t, "the call", expect.ErrOf(call(t, g, sessionBased("s1"), "t")), fault.Unavailable)
	expect.Equal(t, "calls", len(s.received("tools/call")), 2)
}

// GWN-09: the gateway relays progress in order, with the client's token and without delay: the backend writes a message only when
// the client has the previous one.
func TestProgressIsRelayedImmediately(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n, params = 50, `{"name":"t","_meta":{"progressToken":9007199254740993}}`
		progress := func(i int) string {
			return fmt.Sprintf(`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":9007199254740993,"progress":%d,"_meta":{"x":1.50}}}`, i)
		}
		read := make(chan bool)
		s, g := alone(t, func(s *scripted) {
			s.call = func(t *turn) {
				for i := range n {
					t.write("%s", progress(i))
					<-read
				}
				t.result(`{}`)
			}
		})
		began := time.Now()
		x := start(t, g, sessionBased("s1"), "t", `"r"`, params)
		for i := range n {
			expect.MustEqual(t, "the message", x.next(t).text, progress(i))
			read <- true
		}
		expect.Equal(t, "the response", x.next(t), sent{`{"jsonrpc":"2.0","id":"r","result":{}}`, true})
		expect.OK(t, x.end(t))
		expect.Equal(t, "the time that it took", time.Since(began), 0)
		expect.Equal(t, "the backend", string(s.received("tools/call")[0].Params), params)
	})
}

// GWN-10: a backend that sent the user to a URL notifies within the call that the user is done there. The client gets the notification with
// its bytes.
func TestEndOfAnElicitationIsRelayed(t *testing.T) {
	const done = `{"jsonrpc":"2.0","method":"notifications/elicitation/complete","params":{"elicitationId":"e1","x":1.50}}`
	revisions(t, func(t *testing.T, stateless bool) {
		_, g := alone(t, func(s *scripted) {
			s.stateless = stateless
			s.call = func(t *turn) {
				t.write(done)
				t.result(`{"content":[],"resultType":"complete"}`)
			}
		})
		x := start(t, g, clientOf(stateless), "t", "1", `{"name":"t"}`)
		expect.Equal(t, "the client's first message", x.next(t).text, done)
		expect.OK(t, x.end(t))
	})
}

// GWN-15: except for the name and the id, the gateway forwards the bytes of requests and responses.
func TestBytesOfMessagesAreForwarded(t *testing.T) {
	const response = `{ "x-new" : 1E400,"result":{"content":[{"type":"text","text":"\u003cé\u2028>","n":0.10}],"_meta":{"a":{"b":9007199254740993}},"new":[ ]} ,"jsonrpc":"2.0", "id" : %s }`
	const params = `{ "arguments":{"big":123456789012345678901234567890,"f":1.0e5,"s":"\u003c"} ,"na\u006de" : %s,"unknown":[null,1]}`
	const id = `12345678901234567890`
	revisions(t, func(t *testing.T, stateless bool) {
		s := newScripted(t, func(s *scripted) {
			s.stateless = stateless
			s.call = func(t *turn) {
				t.w.Header().Set("Content-Type", "application/json")
				fmt.Fprintf(t.w, response, t.ID)
			}
		})
		x := start(t, gatewayOver(t, memory(t), at("b", s, prefix("p_"))), clientOf(stateless), "p_t", id, fmt.Sprintf(params, `"p_t"`))
		expect.OK(t, x.end(t))
		added := strings.NewReplacer(`"resultType":"complete",`, "", `"`+spec.MetaServer+`":{"name":"gw","version":"1"},`, "")
		expect.Equal(t, "the client's message", added.Replace(x.next(t).text), fmt.Sprintf(response, id))
		expect.Equal(t, "what the backend got", string(s.received("tools/call")[0].Params), fmt.Sprintf(params, `"t"`))
	})
}

// SUB-09: every result for a client of 2026-07-28 names a server. It is the backend if the backend does so itself, and otherwise the gateway.
func TestResultsNameAServer(t *testing.T) {
	const gateway, own = `{"name":"gw","version":"1"}`, `{"name":"own","version":"2"}`
	for _, stateless := range []bool{false, true} {
		result := ""
		g := instances(t, 1, serving(t, stateless, func(x *turn) { x.result(result) }))[0]
		server := func(version string) string {
			return string(jsonrpc.Member(jsonrpc.Member(called(t, g, someone(version), "").result(t), "_meta"), spec.MetaServer))
		}
		for meta, want := range map[string]string{`{}`: gateway, `{"a":1}`: gateway, `{"` + spec.MetaServer + `":` + own + `}`: own} {
			result = `{"resultType":"complete","content":[],"_meta":` + meta + `}`
			expect.Equal(t, fmt.Sprintf("backend of 2026: %v, the server for %s", stateless, meta), server(v2026), want)
		}
		result = text("no _meta")
		expect.Equal(t, fmt.Sprintf("backend of 2026: %v, the server", stateless), server(v2026), gateway)
		expect.Equal(t, fmt.Sprintf("backend of 2026: %v, the server for a session", stateless), server(v2025), "")
	}
	asked := called(t, instances(t, 1, serving(t, false, asksTwice))[0], someone(v2026), "").result(t)
	expect.Equal(t, "the server of input_required", string(jsonrpc.Member(jsonrpc.Member(asked, "_meta"), spec.MetaServer)), gateway)
}

// GWN-15: whatever id a client gives its request, the backend gets a number that no parser rounds, and the client gets its own id
// back.
func TestRequestIDsAreExchanged(t *testing.T) {
	revisions(t, func(t *testing.T, stateless bool) {
		s, g := alone(t, func(s *scripted) { s.stateless = stateless })
		for _, id := range []string{`9007199254740993`, `-1.0e400`, `"\u0041\/"`} {
			for _, c := range []api.Client{sessionBased("s1"), statelessClient(ann)} {
				x := start(t, g, c, "t", id, `{"name":"t"}`)
				expect.OK(t, x.end(t))
				expect.Contains(t, "the response to "+id, x.next(t).text, `"id":`+id+`,`)
			}
		}
		for _, m := range s.received("tools/call") {
			if n, err := strconv.ParseInt(string(m.ID), 10, 64); err != nil || n < 0 || n > 1<<53 {
				t.Errorf("the backend got the id %s, want a number from 0 to 2^53", m.ID)
			}
		}
	})
}

// GWN-13, GWN-14: a backend that hangs up or sends garbage within a call soon causes an error of that call, which the gateway
// cancels there, because the client no longer waits for it. Other calls continue.
func TestBackendDiesWithinACall(t *testing.T) {
	for name, die := range map[string]func(*turn){
		"cut off":     func(*turn) { panic(http.ErrAbortHandler) },
		"stream ends": func(*turn) {},
		"too large":   func(t *turn) { t.write("{}\nid: 7\n\ndata: %s", strings.Repeat("x", 9<<20)) }, // and may be resumed after that
	} {
		t.Run(name, func(t *testing.T) {
			goOn := make(chan struct{})
			bad := newScripted(t, func(s *scripted) {
				s.call = func(t *turn) {
					t.write(`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":1,"progress":1}}`)
					die(t)
				}
			})
			good := newScripted(t, func(s *scripted) {
				s.lists = oneTool("good")
				s.call = func(t *turn) { <-goOn; t.result(`{}`) }
			})
			g := gatewayOver(t, memory(t), at("bad", bad), at("good", good))
			other := start(t, g, sessionBased("s2"), "good", "1", `{"name":"good"}`)
			expect.Eventually(t, "the other call is at its backend", func() bool { return len(good.received("tools/call")) == 1 })
			began := time.Now()
			x := start(t, g, sessionBased("s1"), "t", "1", `{"name":"t"}`)
			err := x.end(t)
			expect.Fault(t, "the call", err, fault.Unavailable)
			expect.Contains(t, "the caller's error", fault.Public(err), "backend bad", "may still have taken effect")
			expect.AtMost(t, "the time until the call failed", time.Since(began), 10*time.Second)
			expect.Equal(t, "cancellations at the backend", len(bad.received("notifications/cancelled")), 1)
			close(goOn)
			expect.OK(t, other.end(t), "the other call")
		})
	}
}

// GWN-13: a client's cancellation reaches the backend under the id that the request has there.
func TestCancellationReachesTheBackend(t *testing.T) {
	goOn := make(chan struct{})
	s := newScripted(t, func(s *scripted) {
		s.lists = oneTool("t", "u")
		s.call = func(t *turn) {
			if strings.Contains(string(t.Params), `"t"`) {
				<-goOn
			}
			t.result(`{}`)
		}
	})
	g := instances(t, 2, s)
	one, two := g[0], g[1]
	x := start(t, one, sessionBased("s1"), "t", `"r<1>"`, `{"name":"t"}`)
	expect.Eventually(t, "the call is at the backend", func() bool { return len(s.received("tools/call")) == 1 })
	body := json.RawMessage(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"r<1>","reason":"enough"}}`)
	// Another session's request of the same id is another.
	mustCall(t, two, sessionBased("s2"), "u")
	for _, session := range []string{"s2", "s1"} {
		expect.OK(t, two.Cancel(t.Context(), sessionBased(session), body))
	}
	foreign := s.next(t, "notifications/cancelled")
	expect.Lacks(t, "the id of another session's request at the backend", string(foreign.Params), string(s.received("tools/call")[0].ID))
	note := s.next(t, "notifications/cancelled")
	expect.MustEqual(t, "the session of the message", note.Session, s.received("tools/call")[0].Session)
	want := fmt.Sprintf(`{"requestId":%s,"reason":"enough"}`, s.received("tools/call")[0].ID)
	expect.Equal(t, "the cancellation at the backend", string(note.Params), want)
	close(goOn)
	expect.OK(t, x.end(t))
}

// newAsking returns a backend that asks the client once within each call, under the given id.
func newAsking(t *testing.T, id string) *scripted {
	return newScripted(t, func(s *scripted) {
		s.call = func(t *turn) {
			select {
			case <-t.send(id, "elicitation/create", `{"message":"<ok?>","x":9007199254740993}`):
				t.result(`{"done":true}`)
			case <-t.r.Context().Done():
			}
		}
	})
}

// question reads a question to the client, and returns its id and the whole message.
func (x *calling) question(t *testing.T) (id string, text string) {
	t.Helper()
	text = x.next(t).text
	var m struct {
		ID     string
		Method string
	}
	if err := json.Unmarshal([]byte(text), &m); err != nil || m.Method != "elicitation/create" {
		t.Fatalf("the client got %s", text)
	}
	return m.ID, text
}

// GWN-10, GWN-11, GWN-12: a question reaches the client under an unguessable id. Whatever the answer is, and at whichever instance
// it arrives, the backend gets it under its own id, byte for byte. Afterwards the store is empty.
func TestAnswersFindTheirWayBack(t *testing.T) {
	for _, id := range []string{`7`, `"s"`, `"a\u0062<&>\u2028é"`, `9007199254740993`, `123456789012345678901234567890`, `1.50`, `-1E+2`, `0`, `""`} {
		t.Run(id, func(t *testing.T) {
			s := newAsking(t, id)
			db := memory(t)
			one, two := gatewayOver(t, db, at("b", s)), gatewayOver(t, db, at("b", s))
			seen := map[string]bool{}
			for _, answer := range []string{
				`"result":{"action":"accept","content":{"n":9007199254740993,"s":"\u003c"}}`, `"result":{"action":"decline"}`,
				`"result":{"action":"cancel"}`, `"error":{"code":-1,"message":"no <&>"}`,
			} {
				x := start(t, one, sessionBased("s1"), "t", "1", `{"name":"t"}`)
				mine, text := x.question(t)
				expect.Equal(t, "what the client was asked", text, `{"jsonrpc":"2.0","id":"`+mine+`","method":"elicitation/create","params":{"message":"<ok?>","x":9007199254740993}}`)
				if seen[mine] || len(mine) < len(elicitationPrefix)+20 {
					t.Errorf("the id is %s", mine)
				}
				seen[mine] = true
				body := `{ "jsonrpc":"2.0","id":"` + mine + `",` + answer + `,"extra":1.50}`
				expect.OK(t, two.Answer(t.Context(), sessionBased("s1"), mine, json.RawMessage(body)))
				expect.Equal(t, "what the backend got", s.next(t, "").Raw, `{ "jsonrpc":"2.0","id":`+id+`,`+answer+`,"extra":1.50}`)
				expect.OK(t, x.end(t))
				expect.Fault(t, "a second answer", two.Answer(t.Context(), sessionBased("s1"), mine, json.RawMessage(body)), fault.NotFound)
				checkGone(t, db, mine)
			}
		})
	}
}

// SSE-03: given a client of an older revision without a session, which the named-event dialect allows, when it calls a tool, then the backend
// gets a valid request. Two such clients share a session with the backend, so their requests have different ids there.
func TestClientOfAnOlderRevisionWithoutASession(t *testing.T) {
	revisions(t, func(t *testing.T, stateless bool) {
		s, g := alone(t, func(s *scripted) { s.stateless = stateless })
		for range 2 {
			expect.Equal(t, "the response", mustCall(t, g, sessionBased(""), "t"), `{"jsonrpc":"2.0","id":1,"result":{}}`)
		}
		if calls := s.received("tools/call"); len(calls) != 2 || string(calls[0].ID) == string(calls[1].ID) {
			t.Errorf("the backend got %+v, want two calls with different ids", calls)
		}
	})
}

// The tasks of 2025-11-25 need methods that the gateway does not relay. A backend that learned that a client supports them could turn a
// question into a task, and never get the answer.
func TestTasksOf2025AreNotDeclaredToBackends(t *testing.T) {
	s, g := alone(t)
	c := sessionBased("s")
	c.Capabilities = json.RawMessage(`{"elicitation":{},"tasks":{"requests":{"elicitation":{"create":{}}}},"roots":{}}`)
	mustCall(t, g, c, "t")
	begun := s.received("initialize")
	expect.Equal(t, "the declared capabilities", string(jsonrpc.Member(begun[len(begun)-1].Params, "capabilities")), `{"elicitation":{},"roots":{}}`)
}

// checkGone checks that the store does not have the question any more.
func checkGone(t *testing.T, db store.DB, id string) {
	t.Helper()
	items, err := db.Get(t.Context(), elicitationKey(id))
	if err != nil || items[0] != nil {
		t.Errorf("the question is still kept: %v, %v", items[0], err)
	}
}

// GWN-11: the gateway refuses an answer of another session or principal, or to an unknown question. The client that was asked can
// still answer.
func TestForeignAnswersAreRefused(t *testing.T) {
	s := newAsking(t, `1`)
	g := gatewayOver(t, memory(t), at("b", s))
	x := start(t, g, sessionBased("s1"), "t", "1", `{"name":"t"}`)
	id, _ := x.question(t)
	body := accepting(id)
	bob, elsewhere := sessionBased("s1"), sessionBased("s1")
	bob.Principal.ID, elsewhere.Principal.Workspace = "bob", "other"
	for name, c := range map[string]struct {
		client api.Client
		id     string
	}{
		"another session": {sessionBased("s2"), id}, "another principal": {bob, id}, "another workspace": {elsewhere, id},
		"unknown": {sessionBased("s1"), elicitationPrefix + "AAAAAAAAAAAAAAAAAAAAAAAAAA"}, "of another form": {sessionBased("s1"), "1"},
		"empty": {sessionBased("s1"), ""}, "long": {sessionBased("s1"), elicitationPrefix + strings.Repeat("x", 5000)},
	} {
		expect.Fault(t, name, g.Answer(t.Context(), c.client, c.id, body), fault.NotFound)
	}
	expect.OK(t, g.Answer(t.Context(), sessionBased("s1"), id, body))
	expect.OK(t, x.end(t))
	expect.Equal(t, "answers at the backend", len(s.received("")), 1)
}

// Each progress notification repeats the token, so the gateway rejects one that is longer than an id may be: a client's before it
// calls the backend, and a backend's before it stores the question.
func TestLongProgressTokensAreRejected(t *testing.T) {
	meta := func(length int) string { return `"_meta":{"progressToken":"` + strings.Repeat("t", length-2) + `"}` }
	s := serving(t, false, func(x *turn) {
		answer := x.ask("sampling/createMessage", `{"messages":[],"maxTokens":1,`+meta(jsonrpc.MaxID+1)+`}`)
		x.result(`{"content":[{"type":"text","text":"` + string(jsonrpc.Member(answer.Error, "code")) + `"}]}`)
	})
	g := instances(t, 1, s)[0]
	for _, version := range []string{v2025, v2026} {
		expect.Fault(t, version+": the call", called(t, g, someone(version), ","+meta(jsonrpc.MaxID+1)).err, fault.Invalid)
	}
	expect.Equal(t, "calls of the backend", len(s.received("tools/call")), 0)
	o := called(t, g, someone(v2025), ","+meta(jsonrpc.MaxID))
	expect.Equal(t, "the result", string(o.result(t)), `{"content":[{"type":"text","text":"-32602"}]}`)
	expect.Equal(t, "the number of messages before it", len(o.before), 0)
}

// GWN-09: clients report progress with the requests of backends, for example with sampling. It reaches the backend that asked,
// under that backend's own token, even if several backends use the same token. The gateway drops progress of other sessions and of
// answered requests.
func TestProgressOfSamplingReachesTheBackendThatAsked(t *testing.T) {
	const token = `12345678901234567890`
	asking := func(tool string) *scripted {
		return newScripted(t, func(s *scripted) {
			s.lists = oneTool(tool)
			s.call = func(t *turn) {
				t.ask("sampling/createMessage", `{"messages":[],"maxTokens":1,"_meta":{"progressToken":`+token+`,"x":1.0}}`)
				t.result(`{}`)
			}
		})
	}
	backends := map[string]*scripted{"one": asking("one"), "two": asking("two")}
	g := gatewayOver(t, memory(t), at("one", backends["one"]), at("two", backends["two"]))
	progress := func(client, token string, value int) {
		t.Helper()
		note := fmt.Sprintf(`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":%s,"progress":%d,"big":9007199254740993}}`, token, value)
		expect.OK(t, g.Progress(t.Context(), sessionBased(client), json.RawMessage(note)))
	}
	for name, asker := range backends {
		client := "session " + name
		x := start(t, g, sessionBased(client), name, "1", `{"name":"t"}`)
		question := json.RawMessage(x.next(t).text)
		meta := jsonrpc.Member(jsonrpc.Member(question, "params"), "_meta")
		expect.Equal(t, "another member of _meta", string(jsonrpc.Member(meta, "x")), "1.0")
		own := string(jsonrpc.Member(meta, "progressToken"))
		progress("stranger", own, 1)
		progress(client, token, 2) // a token that the client does not know
		progress(client, own, 3)
		got := asker.next(t, spec.NoteProgress)
		expect.Equal(t, "what the backend got", string(got.Params), `{"progressToken":`+token+`,"progress":3,"big":9007199254740993}`)
		expect.Equal(t, "progress arrived in session", got.Session, asker.received("tools/call")[0].Session)
		id, _ := jsonrpc.String(jsonrpc.Member(question, "id"))
		expect.OK(t, g.Answer(t.Context(), sessionBased(client), id, accepting(id)))
		expect.OK(t, x.end(t))
		progress(client, own, 4)
		expect.Equal(t, "progress at the backend", len(asker.received(spec.NoteProgress)), 1)
	}
}

// GWN-12: the questions of a call are deleted when it ends, in whatever way it ends. Entries that are left over expire.
func TestQuestionsAreDeletedWithTheCall(t *testing.T) {
	s := newScripted(t, func(s *scripted) {
		s.call = func(t *turn) {
			t.write(`{"jsonrpc":"2.0","id":1,"method":"roots/list"}`)
			t.write(`{"jsonrpc":"2.0","id":2,"method":"sampling/createMessage","params":{}}`)
			if strings.Contains(t.Raw, "die") {
				panic(http.ErrAbortHandler)
			}
			t.result(`{}`)
		}
	})
	db := memory(t)
	g := gatewayOver(t, db, at("b", s))
	for _, params := range []string{`{"name":"t"}`, `{"name":"t","x":"die"}`} {
		x := start(t, g, sessionBased("s1"), "t", "1", params)
		var ids []string
		for range 2 {
			var m struct{ ID string }
			expect.OK(t, json.Unmarshal([]byte(x.next(t).text), &m))
			ids = append(ids, m.ID)
		}
		_ = x.end(t)
		for _, id := range ids {
			checkGone(t, db, id)
		}
	}
	for life, want := range map[time.Duration]time.Duration{10 * time.Minute: 10*time.Minute + 2*time.Second, 5 * time.Hour: elicitationLife} {
		ctx, cancel := context.WithTimeout(t.Context(), life)
		defer cancel()
		id := addRequest(t, ctx, g)
		expect.OK(t, g.Answer(ctx, sessionBased("s1"), id, json.RawMessage(`{"result":{}}`)))
		for _, it := range expect.Value(db.Get(t.Context(), elicitationKey(id), partKey(id, 0)))(t) {
			if it == nil || time.Until(it.Expires) > want || time.Until(it.Expires) < want-time.Minute {
				t.Errorf("of a call of %v is kept %+v", life, it)
			}
		}
	}
}

// addRequest stores a request of the backend for the session s1, and returns its id.
func addRequest(t *testing.T, ctx context.Context, g *Gateway) (id string) {
	t.Helper()
	return expect.Value(g.elicitations.addRequest(ctx, sessionBased("s1"), g.VisibleTo(ctx, ann)[0], backendSession{}, nil, nil))(t)
}

// GWN-12: an answer that arrives while its call ends is deleted, too.
func TestLateAnswerIsDeletedWithTheCall(t *testing.T) {
	_, g := alone(t)
	id := addRequest(t, t.Context(), g)
	answer := json.RawMessage(`{"jsonrpc":"2.0","id":"` + id + `","result":{"x":"` + strings.Repeat("x", store.MaxItem) + `"}}`)
	expect.OK(t, g.Answer(t.Context(), sessionBased("s1"), id, answer))
	g.elicitations.cleanUp([]store.Key{elicitationKey(id)}, []*input{{id: id}}) // the call has not looked since
	page := expect.Value(g.options.DB.Query(t.Context(), store.Query{Table: store.Sessions, Partition: elicitationKey(id).Partition}))(t)
	expect.Equal(t, "the number of items", len(page.Items), 0)
	expect.Fault(t, "after the call an answer", g.Answer(t.Context(), sessionBased("s1"), id, answer), fault.NotFound)
}

// GWN-10, GWN-17: a backend that asks for something that the client did not declare gets an error, and the client is not asked.
func TestClientIsNotAskedWhatItDidNotDeclare(t *testing.T) {
	s := newAsking(t, `"q"`)
	g := gatewayOver(t, memory(t), at("b", s))
	client := sessionBased("s1")
	client.Capabilities = json.RawMessage(`{"sampling":{}}`)
	x := start(t, g, client, "t", "1", `{"name":"t"}`)
	if m := s.next(t, ""); string(m.ID) != `"q"` || !strings.Contains(string(m.Error), "-32601") {
		t.Errorf("the backend got %s", m.Raw)
	}
	if m := x.next(t); !m.response {
		t.Errorf("the client got %s", m.text)
	}
}

// GWN-04: a change of the client's roots reaches exactly the backends with which the client has a session.
func TestChangedRootsReachTheClientsSessions(t *testing.T) {
	s := newScripted(t)
	idle := newScripted(t)
	g := gatewayOver(t, memory(t), at("b", s), at("idle", idle, prefix("idle_")))
	for _, id := range []string{"s1", "s2"} {
		mustCall(t, g, sessionBased(id), "t")
	}
	expect.OK(t, g.Notify(t.Context(), sessionBased("s1"), json.RawMessage(`{"jsonrpc":"2.0","method":"`+spec.NoteRootsChange+`"}`)))
	got := s.received(spec.NoteRootsChange)
	if len(got) != 1 || got[0].Session != s.received("tools/call")[0].Session || len(idle.received(spec.NoteRootsChange)) != 0 {
		t.Errorf("the backends got %v and %v", got, idle.received(spec.NoteRootsChange))
	}
}

// GWN-16: a session's log level reaches the backends with which the client has a session, and later ones when their session
// begins.
func TestLogLevelIsSent(t *testing.T) {
	s := newScripted(t)
	late := newScripted(t, func(s *scripted) { s.lists = oneTool("late") })
	g := gatewayOver(t, memory(t), at("b", s), at("late", late))
	client := sessionBased("s1")
	mustCall(t, g, client, "t")
	client.Level = "error"
	expect.OK(t, g.SetLevel(t.Context(), client))
	mustCall(t, g, client, "late")
	for _, b := range []*scripted{s, late} {
		notified := b.received("logging/setLevel")
		if len(notified) != 1 || string(notified[0].Params) != `{"level":"error"}` || notified[0].Session != b.received("tools/call")[0].Session {
			t.Errorf("got %v", notified)
		}
	}
}

// GWN-16: given a backend that could not set the log level, when the client calls it again after a pause, then the level is set.
func TestALogLevelThatCouldNotBeSetIsSetWithALaterCall(t *testing.T) {
	for name, inSession := range map[string]bool{"when the session began": false, "later": true} {
		bubble(t, name, func(t *testing.T) {
			s, g := alone(t)
			fails, set := false, 0
			client := sessionBased("s1")
			if inSession {
				mustCall(t, g, client, "t") // without a level
			}
			s.on(spec.MethodSetLevel, func(w http.ResponseWriter, _ *http.Request, m got) {
				if fails {
					w.WriteHeader(http.StatusServiceUnavailable)
					return
				}
				set++
				(&turn{got: m, w: w}).result(`{}`)
			})
			client.Level, fails = "error", true
			if inSession {
				expect.OK(t, g.SetLevel(t.Context(), client))
			} else {
				mustCall(t, g, client, "t")
			}
			fails = false
			mustCall(t, g, client, "t")
			expect.Equal(t, "how often the call right after the failure set the level", set, 0)
			time.Sleep(levelPause + time.Second)
			for range 2 {
				mustCall(t, g, client, "t")
			}
			expect.Equal(t, "how often later calls set the level", set, 1)
		})
	}
}

// GWN-13, GWN-14: a backend that does not accept notifications delays other backends not at all, and the client only up to a limit.
func TestHangingBackendDoesNotHoldUpCancellations(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hanging := newScripted(t, func(s *scripted) {
			s.hang = func(method string) bool { return method == "notifications/cancelled" }
		})
		fine := newScripted(t, func(s *scripted) { s.lists = oneTool("u") })
		g := gatewayOver(t, memory(t), at("hanging", hanging), at("fine", fine))
		for _, name := range []string{"t", "u"} {
			mustCall(t, g, sessionBased("s"), name)
		}
		began := time.Now()
		body := `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":7}}`
		if err := g.Cancel(t.Context(), sessionBased("s"), json.RawMessage(body)); err != nil || time.Since(began) > notifyTime {
			t.Errorf("the client waited %s for the one that hangs: %v", time.Since(began), err)
		}
		fine.next(t, "notifications/cancelled")
	})
}

// GWN-10: a backend that keeps asking gets errors from the limit on, and the call continues.
func TestEndlessQuestionsAreRefused(t *testing.T) {
	s, g := alone(t, func(s *scripted) {
		s.call = func(r *turn) {
			for i := range maxAsked + 3 {
				r.write(`{"jsonrpc":"2.0","id":%d,"method":"elicitation/create","params":{"message":"?"}}`, i)
			}
			r.result(`{}`)
		}
	})
	x := start(t, g, sessionBased("s"), "t", "1", `{"name":"t"}`)
	asked := 0
	for !x.next(t).response {
		asked++
	}
	if err := x.end(t); err != nil || asked != maxAsked {
		t.Errorf("the client was asked %d times, %v", asked, err)
	}
	for range 3 {
		if m := s.next(t, ""); m.Error == nil {
			t.Errorf("the backend got %s", m.Raw)
		}
	}
}

// GWN-08: a server that ends a session may end its current answers without a response.
func TestListOfASessionThatEnds(t *testing.T) {
	s, g := alone(t, func(s *scripted) {
		s.lost = func(w http.ResponseWriter) { w.Header().Set("Content-Type", "text/event-stream") }
	})
	sees(t, g, of(ann), "t")
	s.forget()
	g.Followed(t.Context())[0].Outdate()
	s.list(oneTool("u"))
	sees(t, g, of(ann), "u")
}
