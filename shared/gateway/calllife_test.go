package gateway

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mcp-events/mcpevents/shared/gateway/api"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/test/expect"
)

// cancelling is the cancellation of the request 1.
var cancelling = json.RawMessage(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`)

// cancelFirst cancels the request 1 of session s.
func cancelFirst(t *testing.T, g *Gateway) {
	t.Helper()
	expect.OK(t, g.Cancel(t.Context(), sessionBased("s"), cancelling))
}

// GWN-13: a request and its cancellation reach the backend on two connections. A busy backend may see the cancellation first and
// ignore it, so the gateway repeats the cancellation after the backend must have seen the request.
func TestACancellationThatOvertakesItsRequestIsRepeated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScripted(t, func(s *scripted) { s.call = func(t *turn) { <-t.r.Context().Done() } })
		arrived := make(chan struct{})
		var mu sync.Mutex
		var order []string // in which the backend saw the messages
		see := func(method string) {
			mu.Lock()
			defer mu.Unlock()
			order = append(order, method)
		}
		s.intercept(func(_ http.ResponseWriter, _ *http.Request, m got) bool {
			switch m.Method {
			case "tools/call":
				close(arrived)
				time.Sleep(500 * time.Millisecond)
				see("request")
			case "notifications/cancelled":
				see("cancellation")
			}
			return false
		})
		g := gatewayOver(t, memory(t), at("b", s))
		x := start(t, g, sessionBased("s"), "t", "1", `{"name":"t","arguments":{}}`)
		<-arrived
		cancelFirst(t, g)
		expect.Fault(t, "the call", x.end(t), fault.Conflict)
		time.Sleep(time.Minute)
		mu.Lock()
		defer mu.Unlock()
		expect.List(t, "the backend saw", order, []string{"cancellation", "request", "cancellation"})
	})
}

// GWN-13: a cancellation applies only to a call that began before it.
func TestIDThatIsUsedAgainAfterItsCancellation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, g := alone(t, func(s *scripted) {
			s.stateless = true
			s.call = func(t *turn) { time.Sleep(3 * time.Second); t.result(`{"content":[],"resultType":"complete"}`) }
		})
		cancelFirst(t, g)
		time.Sleep(5 * time.Second)
		expect.OK(t, expect.ErrOf(call(t, g, sessionBased("s"), "t")), "a call with the id of one that was cancelled before")
	})
}

// A call whose response is an error is made once, whatever the status and the words of the error.
func TestErrorOfACallIsItsAnswer(t *testing.T) {
	for message, c := range map[string]struct{ status, code int }{
		"sent, but the database session timed out before the commit": {400, -32000},
		"Method not found":                {404, -32601},
		"no such session in the database": {404, -32602},
		"session store is down":           {500, -32603},
	} {
		s, g := alone(t, func(s *scripted) { s.call = func(t *turn) { t.fails(t.w, c.status, c.code, message) } })
		expect.Contains(t, "the error", mustCall(t, g, sessionBased("s"), "t"), message)
		expect.Equal(t, "calls that got the error "+message, len(s.received("tools/call")), 1)
	}
}

// newPolled returns a gateway whose backend ends the stream of a call after an event with an id. The function again answers the
// requests that resume the stream.
func newPolled(t *testing.T, first string, again func(w http.ResponseWriter, id string)) *Gateway {
	t.Helper()
	s := newScripted(t, func(s *scripted) {
		s.call = func(t *turn) {
			t.w.Header().Set("Content-Type", "text/event-stream")
			fmt.Fprintf(t.w, "id: %s.1\n"+first+"data: \n\n", t.ID)
		}
	})
	s.intercept(func(w http.ResponseWriter, r *http.Request, _ got) bool {
		id, _, resumed := strings.Cut(r.Header.Get("Last-Event-ID"), ".")
		if r.Method == http.MethodGet && resumed {
			again(w, id)
		}
		return r.Method == http.MethodGet && resumed
	})
	return gatewayOver(t, memory(t), at("b", s))
}

// "The client MUST respect the retry field, waiting the given number of milliseconds before attempting to reconnect" (2025-11-25,
// Transports). Without the field, the gateway polls once per second.
func TestCallIsPolledAsItsBackendWantsIt(t *testing.T) {
	for name, retry := range map[string]time.Duration{"5 s": 5 * time.Second, "without a wish": 0} {
		bubble(t, name, func(t *testing.T) {
			began, polls, line := time.Now(), 0, ""
			if retry > 0 {
				line = fmt.Sprintf("retry: %d\n", retry.Milliseconds())
			}
			g := newPolled(t, line, func(w http.ResponseWriter, id string) {
				polls++
				w.Header().Set("Content-Type", "text/event-stream")
				if time.Since(began) < 4*time.Minute {
					fmt.Fprintf(w, "id: %s.1\ndata: \n\n", id)
					return
				}
				fmt.Fprintf(w, "id: %s.2\ndata: {\"jsonrpc\":\"2.0\",\"id\":%s,\"result\":{\"content\":[]}}\n\n", id, id)
			})
			if err := <-start(t, g, sessionBased("s"), "t", "1", `{"name":"t"}`).done; err != nil {
				t.Errorf("the call failed after %s: %v", time.Since(began), err)
			}
			expect.AtMost(t, "the polls at the backend", polls, int(4*time.Minute/max(retry, time.Second))+2)
		})
	}
}

// GWN-14: a call fails soon if the backend refuses to resume its stream, or never sends an event on it.
func TestCallThatCannotBeResumedFailsSoon(t *testing.T) {
	for name, again := range map[string]func(http.ResponseWriter, string){
		"refused with JSON": func(w http.ResponseWriter, _ string) {
			refuseWith(400, -32000, "Invalid event ID")(w)
		},
		"without an event": func(w http.ResponseWriter, _ string) { w.Header().Set("Content-Type", "text/event-stream") },
	} {
		bubble(t, name, func(t *testing.T) {
			began := time.Now()
			g := newPolled(t, "", again)
			expect.Fault(t, "the call", expect.ErrOf(call(t, g, sessionBased("s"), "t")), fault.Unavailable)
			expect.AtMost(t, "the time until the call failed", time.Since(began), 15*time.Second)
		})
	}
}

// GWN-08: the gateway never ends a session in which calls may be running in order to begin another one.
func TestSessionInUseIsNotEndedForAnother(t *testing.T) {
	running, release := make(chan bool, 1), make(chan bool)
	_, g := alone(t, func(s *scripted) {
		s.call = func(t *turn) {
			if strings.Contains(string(t.Params), "wait") {
				running <- true
				<-release
				t.at.mu.Lock()
				info := t.at.sessions[t.Session]
				t.at.mu.Unlock()
				if !info {
					panic(http.ErrAbortHandler) // as servers do when a session is ended
				}
			}
			t.result(`{"content":[]}`)
		}
	})
	x := start(t, g, declaring(ann, 0), "t", "1", `{"name":"t","arguments":{"wait":true}}`)
	<-running
	for i := 1; i < maxSessionsInUse; i++ {
		mustCall(t, g, declaring(ann, i), "t")
	}
	if _, err := call(t, g, declaring(ann, maxSessionsInUse), "t"); !fault.Is(err, fault.Exhausted) {
		t.Errorf("one session more than %d in use: got %v, want a fault of kind exhausted", maxSessionsInUse, err)
	}
	close(release)
	expect.OK(t, x.end(t), "the call under way")
}

func TestIDsAreComparedAsNumbers(t *testing.T) {
	_, g := alone(t, func(s *scripted) {
		s.call = func(t *turn) { t.write(`{"jsonrpc":"2.0","id":%s.0,"result":{"content":[]}}`, t.ID) }
	})
	mustCall(t, g, sessionBased("s"), "t")
}

func TestListThatChangesBetweenItsPagesHasNoConflictWithItself(t *testing.T) {
	_, g := alone(t, func(s *scripted) {
		s.lists = func(method, cursor string) string {
			if cursor == "" {
				return strings.Replace(oneTool("a", "b")(method, ""), `}]}`, `}],"nextCursor":"2"}`, 1)
			}
			return oneTool("b", "c")(method, "")
		}
	})
	l := g.List(t.Context(), of(ann), api.Tools)
	expect.Len(t, "the conflicts", l.Conflicts, 0)
	expect.Equal(t, "the number of entries", len(l.Entries), 3)
}

func TestConflictsOfAListAreBounded(t *testing.T) {
	const maxConflicts = 100
	var all []string
	for i := range 2 * maxConflicts {
		all = append(all, fmt.Sprint("tool", i))
	}
	s := newScripted(t, func(s *scripted) { s.lists = oneTool(all...) })
	l := gatewayOver(t, memory(t), at("a", s), at("b", s)).List(t.Context(), of(ann), api.Tools)
	expect.Equal(t, "the number of conflicts", len(l.Conflicts), maxConflicts)
	expect.Equal(t, "the number of entries", len(l.Entries), len(all))
}

// "Mcp-Name: required for tools/call, resources/read, prompts/get requests" (2026-07-28, Streamable HTTP).
func TestCompletionHasNoNameHeader(t *testing.T) {
	s, g := alone(t, func(s *scripted) {
		s.stateless, s.capabilities = true, `{"prompts":{},"completions":{}}`
		s.lists = listing("prompts/list", `{"prompts":[{"name":"p"}],"resultType":"complete"}`)
	})
	o := do(t, g, api.Call{
		Client: statelessClient(ann), Kind: api.Prompts, Name: "p", Member: "ref", Method: "completion/complete",
		Params: json.RawMessage(`{"ref":{"type":"ref/prompt","name":"p"},"argument":{"name":"x","value":""}}`),
	})
	expect.OK(t, o.err)
	expect.Len(t, "the headers Mcp-Name", s.received("completion/complete")[0].Header["Mcp-Name"], 0)
}

// GWN-09: "The progress value MUST increase with each notification", even if the gateway repeats the call with the client's
// answers.
func TestProgressDoesNotGoBackBetweenRounds(t *testing.T) {
	_, g := alone(t, func(s *scripted) {
		s.stateless = true
		s.call = func(t *turn) {
			t.notify("notifications/progress", `{"progressToken":"p","progress":50}`)
			if !strings.Contains(string(t.Params), "inputResponses") {
				t.result(`{"resultType":"input_required","inputRequests":{"k":{"method":"elicitation/create","params":` + sure + `}}}`)
				return
			}
			t.notify("notifications/progress", `{"progressToken":"p","progress":60}`)
			t.result(`{"content":[],"resultType":"complete"}`)
		}
	})
	x := start(t, g, sessionBased("s"), "t", "1", `{"name":"t","arguments":{},"_meta":{"progressToken":"p"}}`)
	expect.Contains(t, "the first progress", x.next(t).text, `"progress":50`)
	x.accept(t, g, "s")
	expect.Contains(t, "the next progress", x.next(t).text, `"progress":60`)
	x.responds(t)
}

// GWN-11, GWN-13: given a call that waits for the client's answer, when an operator removes its stateless backend or changes its
// URL, then the call ends. [TestStatesOfACall] shows it for a session-based one.
func TestCallWaitingForAnAnswerEndsWhenItsBackendIsRemoved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, g := alone(t, func(s *scripted) {
			s.stateless, s.call = true, wantsInput(`{"k":{"method":"elicitation/create","params":`+sure+`}}`)
		})
		x, id := startAsked(t, g)
		g.Replace(t.Context(), []api.Backend{at("other", newScripted(t))})
		expect.Fault(t, "an answer to the removed backend", g.Answer(t.Context(), sessionBased("s"), id, accepting(id)), fault.NotFound)
		expect.Fault(t, "the call", x.end(t), fault.Unavailable)
	})
}

// SES-01, GWN-12: given a call that waits for the client's answer, when the client ends its session, at this instance or at another one, then
// the call ends, because no answer can arrive any more. Calls of other sessions continue.
func TestCallsEndWithTheirSession(t *testing.T) {
	revisions(t, func(t *testing.T, stateless bool) {
		s := newScripted(t, func(s *scripted) {
			if s.stateless = stateless; stateless {
				s.call = wantsInput(`{"k":{"method":"elicitation/create","params":` + sure + `}}`)
			} else {
				s.call = func(t *turn) { t.ask("elicitation/create", sure); t.result(`{"content":[]}`) }
			}
		})
		g := instances(t, 2, s)
		for _, by := range g {
			x, _ := startAsked(t, g[0])
			other := start(t, g[0], sessionBased("other"), "t", "1", `{"name":"t","arguments":{}}`)
			id, _ := other.question(t)
			time.Sleep(time.Minute)
			expect.OK(t, by.End(t.Context(), sessionBased("s")))
			began := time.Now()
			expect.Fault(t, "the call", x.end(t), fault.Conflict)
			expect.AtMost(t, "the time from the session's end to the call's end", time.Since(began), 10*time.Second)
			expect.OK(t, g[0].Answer(t.Context(), sessionBased("other"), id, accepting(id)))
			expect.OK(t, other.end(t))
			time.Sleep(2 * time.Minute) // the client begins another session
		}
	})
}

// startAsked starts a call whose backend asks a question with id 42. It returns the call and the question's id at the client.
func startAsked(t *testing.T, g *Gateway) (x *calling, id string) {
	t.Helper()
	x = start(t, g, sessionBased("s"), "t", "1", `{"name":"t","arguments":{}}`)
	id, _ = x.question(t)
	return x, id
}

// sure is an elicitation of a form without fields.
const sure = `{"message":"sure?","requestedSchema":{"type":"object","properties":{}}}`

func accepting(id string) json.RawMessage {
	return json.RawMessage(fmt.Sprintf(`{"jsonrpc":"2.0","id":%q,"result":{"action":"accept"}}`, id))
}

// GWN-11: given a backend that refuses an answer, or cannot be reached, when the client sends the answer again, then the backend
// gets it. A refusal with a body in JSON is a refusal, too.
func TestAnswerThatTheBackendRefusesCanBeSentAgain(t *testing.T) {
	const unreachable = 0
	for _, status := range []int{unreachable, 400, 404, 409, 500, 503} {
		bubble(t, fmt.Sprint(status), func(t *testing.T) {
			var refusing atomic.Bool
			refusing.Store(true)
			s := newAsking(t, `42`)
			s.intercept(func(w http.ResponseWriter, _ *http.Request, m got) bool {
				if m.Method != "" || !refusing.Load() {
					return false
				}
				if status == unreachable {
					panic(http.ErrAbortHandler)
				}
				refuseWith(status, -32603, "try again later")(w)
				return true
			})
			g := gatewayOver(t, memory(t), at("b", s))
			x, id := startAsked(t, g)
			expect.Fault(t, fmt.Sprintf("an answer that the backend refuses with %d", status), g.Answer(t.Context(), sessionBased("s"), id, accepting(id)), fault.Unavailable)
			refusing.Store(false)
			expect.OK(t, g.Answer(t.Context(), sessionBased("s"), id, accepting(id)), "the answer sent again")
			expect.OK(t, x.end(t))
		})
	}
}

// GWN-11: two answers may arrive together, because the client repeats one whose response is late, or because two users answer.
func TestOfTwoAnswersAtTheSameTimeTheBackendGetsOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var answers atomic.Int64
		s := newAsking(t, `42`)
		s.intercept(func(_ http.ResponseWriter, _ *http.Request, m got) bool {
			if m.Method == "" && string(m.ID) == "42" {
				answers.Add(1)
				time.Sleep(time.Second)
			}
			return false
		})
		g := gatewayOver(t, memory(t), at("b", s))
		x, id := startAsked(t, g)
		done := make(chan error, 2)
		for range 2 {
			go func() { done <- g.Answer(t.Context(), sessionBased("s"), id, accepting(id)) }()
		}
		one, other := <-done, <-done
		if (one == nil) == (other == nil) {
			t.Errorf("got %v and %v, want one of the answers to be accepted and the other to be refused", one, other)
		}
		expect.OK(t, x.end(t))
		expect.Equal(t, "answers at the backend", answers.Load(), 1)
	})
}

// callWalk is a call whose client and backend follow a row of [TestStatesOfACall].
type callWalk struct {
	*testing.T
	gateway *Gateway
	second  *Gateway // another instance, at which the client cancels
	backend *scripted
	db      *mortal
	turns   chan *turn // the request as the backend has it; the backend answers when the row says so
	over    chan struct{}
	x       *calling
	gone    atomic.Bool // the client takes no more messages
	ending  time.Time   // when the client cancelled, or zero
}

const plainResult = `{"content":[]}`

// called waits until the backend has the call.
func (w *callWalk) called() *turn {
	w.Helper()
	return expect.Receive(w.T, "the call at the backend", w.turns)
}

// waiting brings the call to the state in which the client has to answer a question. It returns the client's id of the question.
func (w *callWalk) waiting() (at *turn, answered <-chan got, id string) {
	w.Helper()
	at = w.called()
	answered = at.send("42", "elicitation/create", sure)
	id, _ = w.x.question(w.T)
	return at, answered, id
}

func (w *callWalk) cancel() {
	w.Helper()
	w.ending = time.Now()
	cancelFirst(w.T, w.second)
}

// endStream ends the stream of a call after an event from which it can be resumed.
func (w *callWalk) endStream(at *turn) {
	at.w.Header().Set("Content-Type", "text/event-stream")
	fmt.Fprintf(at.w, "id: %s.1\ndata: \n\n", at.ID)
	close(w.over)
}

// GWN-10, GWN-11, GWN-13, GWN-14: each row follows one arrow of the diagram in the comment of [exchange]. A call that ends without
// a response also ends at the backend, if the backend has received it. A cancelled call ends soon, at whichever instance the client
// cancels it, though servers of the official TypeScript library send nothing after a cancellation and keep the connection open.
func TestStatesOfACall(t *testing.T) {
	kind := func(k fault.Kind) func(error) bool { return func(err error) bool { return fault.Is(err, k) } }
	none := func(err error) bool { return err == nil }
	some := func(err error) bool { return err != nil }
	for _, row := range []struct {
		name     string
		when     func(w *callWalk)
		want     func(error) bool // the error of the call
		response bool             // the client has a response
		calls    int              // that the backend had
		notified int              // how often the backend was notified that the call has ended; -1 is at least once
	}{
		{"begun, cancelled while the session begins: ended, not called", func(w *callWalk) {
			time.Sleep(500 * time.Millisecond) // the session takes a second
			w.cancel()
		}, kind(fault.Conflict), false, 0, 0},
		{"called, the response: answered", func(w *callWalk) {
			w.called().result(plainResult)
			close(w.over)
		}, none, true, 1, 0},
		{"called, the stream ends: resumed, and then answered", func(w *callWalk) {
			w.endStream(w.called())
		}, none, true, 1, 0},
		{"called, cancelled: ended", func(w *callWalk) {
			w.called()
			time.Sleep(2 * requestLead)
			w.cancel()
		}, kind(fault.Conflict), false, 1, -1},
		{"called, cancelled after a message: ended", func(w *callWalk) {
			w.called().notify("notifications/message", `{"level":"info","data":"x"}`)
			w.x.next(w.T)
			w.cancel()
		}, kind(fault.Conflict), false, 1, -1},
		{"called, the connection breaks: ended", func(w *callWalk) {
			w.called().notify("notifications/message", `{"level":"info","data":"x"}`)
			close(w.over)
		}, kind(fault.Unavailable), false, 1, 1},
		{"called, the question cannot be stored: ended", func(w *callWalk) {
			at := w.called()
			w.db.dead.Store(true)
			at.send("42", "elicitation/create", sure)
		}, some, false, 1, 1},
		{"called, the client is gone: ended", func(w *callWalk) {
			at := w.called()
			w.gone.Store(true)
			at.notify("notifications/message", `{"level":"info","data":"x"}`)
		}, some, false, 1, -1},
		{"called, the time is over: ended", func(w *callWalk) {
			w.called()
			time.Sleep(w.gateway.options.CallTimeout)
		}, func(err error) bool {
			return fault.Is(err, fault.Unavailable) && strings.Contains(fault.Public(err), "timed out") && strings.Contains(err.Error(), "tools/call t: ")
		}, false, 1, -1},
		{"waiting, the answer: called, and then answered", func(w *callWalk) {
			at, answered, id := w.waiting()
			if err := w.gateway.Answer(w.Context(), sessionBased("s"), id, accepting(id)); err != nil {
				w.Error(err)
			}
			<-answered
			at.result(plainResult)
			close(w.over)
		}, none, true, 1, 0},
		{"waiting, the backend withdraws its question: called, and then answered", func(w *callWalk) {
			at, _, id := w.waiting() // servers of the official TypeScript library withdraw a question after a minute
			at.notify("notifications/cancelled", `{"requestId":42.0,"reason":"Request timed out"}`)
			want := fmt.Sprintf(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":%q,"reason":"Request timed out"}}`, id)
			expect.Equal(w.T, "what the client got", w.x.next(w.T).text, want)
			expect.Fault(w.T, "an answer to the withdrawn question", w.gateway.Answer(w.Context(), sessionBased("s"), id, accepting(id)), fault.NotFound)
			at.result(plainResult)
			close(w.over)
		}, none, true, 1, 0},
		{"waiting, cancelled: ended", func(w *callWalk) {
			w.waiting()
			w.cancel()
		}, kind(fault.Conflict), false, 1, -1},
		{"waiting, the backend is removed: ended", func(w *callWalk) {
			_, _, id := w.waiting()
			w.gateway.Replace(w.Context(), []api.Backend{at("other", newScripted(w.T))})
			expect.Fault(w.T, "an answer to the removed backend", w.gateway.Answer(w.Context(), sessionBased("s"), id, accepting(id)), fault.NotFound)
		}, kind(fault.Unavailable), false, 1, 1},
	} {
		bubble(t, row.name, func(t *testing.T) {
			w := &callWalk{T: t, turns: make(chan *turn, 1), over: make(chan struct{}), x: &calling{messages: make(chan sent, 100), done: make(chan error, 1)}}
			w.backend = newScripted(t, func(s *scripted) {
				s.call = func(at *turn) {
					w.turns <- at
					select {
					case <-w.over:
					case <-at.r.Context().Done():
					}
					at.mu.Lock() // the test may still be writing the message that ended the call
					defer at.mu.Unlock()
				}
			})
			w.backend.intercept(func(rw http.ResponseWriter, r *http.Request, m got) bool {
				id, _, resumed := strings.Cut(r.Header.Get("Last-Event-ID"), ".")
				switch {
				case m.Method == "initialize":
					time.Sleep(time.Second)
				case r.Method == http.MethodGet && resumed:
					rw.Header().Set("Content-Type", "text/event-stream")
					fmt.Fprintf(rw, "id: %s.2\ndata: {\"jsonrpc\":\"2.0\",\"id\":%s,\"result\":"+plainResult+"}\n\n", id, id)
					return true
				}
				return false
			})
			w.db = &mortal{DB: memory(t)}
			w.gateway, w.second = gatewayOver(t, w.db, at("b", w.backend)), gatewayOver(t, w.db, at("b", w.backend))
			for _, g := range []*Gateway{w.gateway, w.second} {
				sees(t, g, sessionBased("s"), "t")
			}
			go func() {
				w.x.done <- w.gateway.Call(t.Context(), api.Call{
					Client: sessionBased("s"), Kind: api.Tools, Name: "t", Member: "name", Method: "tools/call",
					ID: json.RawMessage(`1`), Params: json.RawMessage(`{"name":"t","arguments":{}}`),
					Send: func(m json.RawMessage, response bool) error {
						if w.gone.Load() {
							return errors.New("the client is gone")
						}
						w.x.messages <- sent{string(m), response}
						return nil
					},
				})
			}()
			row.when(w)
			if err := w.x.end(t); !row.want(err) {
				t.Errorf("the call ended with %v", err)
			}
			if took := time.Since(w.ending); !w.ending.IsZero() && took > 10*time.Second {
				t.Errorf("the call ended %s after it was cancelled, want 10 s at most", took)
			}
			time.Sleep(time.Minute)
			response := false
			for len(w.x.messages) > 0 {
				response = response || (<-w.x.messages).response
			}
			expect.Equal(t, "the client had a response", response, row.response)
			expect.Equal(t, "calls of the backend", len(w.backend.received("tools/call")), row.calls)
			if n := len(w.backend.received("notifications/cancelled")); n != row.notified && (row.notified != -1 || n == 0) {
				t.Errorf("the backend was notified %d times that the call has ended, want %d (-1: at least once)", n, row.notified)
			}
		})
	}
}
