package gateway

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mcp-events/mcpevents/shared/gateway/api"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
)

// cancelling is the cancellation of the request 1.
var cancelling = json.RawMessage(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`)

// cancelFirst cancels the request 1 of session s.
func cancelFirst(t *testing.T, g *Gateway) {
	t.Helper()
	if err := g.Cancel(t.Context(), sessionBased("s"), cancelling); err != nil {
		t.Fatal(err)
	}
}

// GWN-13: given a call whose session is being begun, when the client cancels it, at the same or at another instance, then the
// backend is not called.
func TestCancellationWhileTheSessionBegins(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScripted(t, func(s *scripted) { s.call = func(t *turn) { t.result(`{"content":[]}`) } })
		var slow atomic.Bool
		s.intercept(func(_ http.ResponseWriter, _ *http.Request, m got) bool {
			if m.Method == "initialize" && slow.Load() {
				time.Sleep(time.Second)
			}
			return false
		})
		db := memory(t)
		g, second := gatewayOver(t, db, at("b", s)), gatewayOver(t, db, at("b", s))
		sees(t, g, sessionBased("s"), "t")
		sees(t, second, sessionBased("s"), "t")
		slow.Store(true)
		x := start(t, g, sessionBased("s"), "t", "1", `{"name":"t","arguments":{}}`)
		time.Sleep(300 * time.Millisecond)
		cancelFirst(t, second)
		if err := x.end(t); !fault.Is(err, fault.Conflict) {
			t.Errorf("the call ended with %v, want a fault of kind conflict", err)
		}
		if n := len(s.received("tools/call")); n != 0 {
			t.Errorf("the backend was called %d times after the call was cancelled", n)
		}
	})
}

// GWN-13: servers of the official TypeScript library send nothing after a cancellation and keep the connection open. The call ends
// all the same, at whichever instance the client cancels.
func TestCancelledCallEndsThoughItsBackendStaysSilent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScripted(t, func(s *scripted) {
			s.call = func(t *turn) {
				t.notify("notifications/message", `{"level":"info","data":"x"}`)
				<-t.r.Context().Done()
			}
		})
		db := memory(t)
		g, second := gatewayOver(t, db, at("b", s)), gatewayOver(t, db, at("b", s))
		x := start(t, g, sessionBased("s"), "t", "1", `{"name":"t","arguments":{}}`)
		x.next(t)
		began := time.Now()
		cancelFirst(t, second)
		s.next(t, "notifications/cancelled")
		if err := x.end(t); !fault.Is(err, fault.Conflict) {
			t.Errorf("the call ended with %v, want a fault of kind conflict", err)
		}
		if took := time.Since(began); took > 10*time.Second {
			t.Errorf("the call ended %s after it was cancelled, want 10 s at most", took)
		}
	})
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
		if err := x.end(t); !fault.Is(err, fault.Conflict) {
			t.Errorf("the call ended with %v, want a fault of kind conflict", err)
		}
		time.Sleep(time.Minute)
		mu.Lock()
		defer mu.Unlock()
		if want := []string{"cancellation", "request", "cancellation"}; !slices.Equal(order, want) {
			t.Errorf("the backend saw %q, want %q", order, want)
		}
	})
}

// GWN-13: a cancellation applies only to a call that began before it.
func TestIDThatIsUsedAgainAfterItsCancellation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScripted(t, func(s *scripted) {
			s.stateless = true
			s.call = func(t *turn) { time.Sleep(3 * time.Second); t.result(`{"content":[],"resultType":"complete"}`) }
		})
		g := gatewayOver(t, memory(t), at("b", s))
		cancelFirst(t, g)
		time.Sleep(5 * time.Second)
		if _, err := call(t, g, sessionBased("s"), "t"); err != nil {
			t.Errorf("a call with the id of one that was cancelled before: %v", err)
		}
	})
}

// GWN-13: if a call fails at the gateway, the gateway cancels it at the backend, because the client no longer waits for it.
func TestCallThatFailsHereIsCancelledAtTheBackend(t *testing.T) {
	for name, say := range map[string]func(*turn, *mortal){
		"the question cannot be stored": func(t *turn, db *mortal) {
			db.dead.Store(true)
			t.send("42", "elicitation/create", sure)
		},
		"a message is too large": func(t *turn, _ *mortal) {
			t.notify("notifications/message", `{"level":"info","data":"`+strings.Repeat("x", 9<<20)+`"}`)
		},
		"the stream ends": func(t *turn, _ *mortal) {
			t.notify("notifications/message", `{"level":"info","data":"x"}`)
			panic(http.ErrAbortHandler)
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				db := &mortal{DB: memory(t)}
				s := newScripted(t, func(s *scripted) {
					s.call = func(t *turn) {
						if strings.Contains(string(t.Params), "go") {
							say(t, db)
						}
						t.result(`{"content":[]}`)
					}
				})
				g := gatewayOver(t, db, at("b", s))
				mustCall(t, g, sessionBased("s"), "t")
				x := start(t, g, sessionBased("s"), "t", "2", `{"name":"t","arguments":{"go":1}}`)
				if err := x.end(t); err == nil {
					t.Fatal("the call has not failed")
				}
				if n := len(s.received("notifications/cancelled")); n != 1 {
					t.Errorf("the backend was notified %d times that the call has failed, want once", n)
				}
			})
		})
	}
}

// A call whose response is an error is made once, whatever the status and the words of the error.
func TestErrorOfACallIsItsAnswer(t *testing.T) {
	for _, c := range []struct {
		status, code int
		message      string
	}{
		{400, -32000, "sent, but the database session timed out before the commit"},
		{404, -32601, "Method not found"},
		{404, -32602, "no such session in the database"},
		{500, -32603, "session store is down"},
	} {
		t.Run(fmt.Sprint(c.status, c.code), func(t *testing.T) {
			calls := 0
			s := newScripted(t, func(s *scripted) {
				s.call = func(t *turn) {
					calls++
					t.w.Header().Set("Content-Type", "application/json")
					t.w.WriteHeader(c.status)
					fmt.Fprintf(t.w, `{"jsonrpc":"2.0","id":%s,"error":{"code":%d,"message":%q}}`, t.ID, c.code, c.message)
				}
			})
			g := gatewayOver(t, memory(t), at("b", s))
			text, err := call(t, g, sessionBased("s"), "t")
			if err != nil || !strings.Contains(text, c.message) {
				t.Errorf("got %s, %v, want the backend's error", text, err)
			}
			if calls != 1 {
				t.Errorf("the call was made %d times, want once", calls)
			}
		})
	}
}

// GWN-10, GWN-11: servers of the official TypeScript library withdraw a question after a minute.
func TestQuestionThatTheBackendWithdraws(t *testing.T) {
	withdraw, release := make(chan bool), make(chan bool)
	s := newScripted(t, func(s *scripted) {
		s.call = func(t *turn) {
			t.send("42", "elicitation/create", sure)
			<-withdraw
			t.notify("notifications/cancelled", `{"requestId":42.0,"reason":"Request timed out"}`)
			<-release
			t.result(`{"content":[]}`)
		}
	})
	g := gatewayOver(t, memory(t), at("b", s))
	x, id := startAsked(t, g)
	close(withdraw)
	want := fmt.Sprintf(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":%q,"reason":"Request timed out"}}`, id)
	if m := x.next(t); m.text != want {
		t.Errorf("the client got %s, want %s", m.text, want)
	}
	if err := g.Answer(t.Context(), sessionBased("s"), id, accepting(id)); !fault.Is(err, fault.NotFound) {
		t.Errorf("the answer to the withdrawn question: got %v, want a fault of kind not found", err)
	}
	close(release)
	if err := x.end(t); err != nil {
		t.Error(err)
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
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
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
				if least := 4 * time.Minute / max(retry, time.Second); polls > int(least)+2 {
					t.Errorf("the backend was polled %d times, want %d at most", polls, least)
				}
			})
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
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				g := newPolled(t, "", again)
				if _, err := call(t, g, sessionBased("s"), "t"); !fault.Is(err, fault.Unavailable) {
					t.Errorf("got %v, want a fault of kind unavailable", err)
				}
				if took := time.Since(began); took > 15*time.Second {
					t.Errorf("the call failed after %s, want 15 s at most", took)
				}
			})
		})
	}
}

// GWN-11, GWN-13: given a call that waits for the client's answer, when an operator removes the backend or changes its URL, then
// the call ends.
func TestCallWaitingForAnAnswerEndsWhenItsBackendIsRemoved(t *testing.T) {
	for name, stateless := range map[string]bool{"2025-11-25": false, "2026-07-28": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newScripted(t, func(s *scripted) {
					s.stateless = stateless
					s.call = func(t *turn) {
						if !stateless {
							t.ask("elicitation/create", sure)
							return
						}
						t.result(`{"resultType":"input_required","inputRequests":{"k":{"method":"elicitation/create","params":{"message":"x","requestedSchema":{"type":"object","properties":{}}}}}}`)
					}
				})
				g := gatewayOver(t, memory(t), at("b", s))
				x, id := startAsked(t, g)
				g.Replace(t.Context(), []api.Backend{at("other", newScripted(t))})
				if err := g.Answer(t.Context(), sessionBased("s"), id, accepting(id)); !fault.Is(err, fault.NotFound) {
					t.Errorf("an answer to the removed backend: got %v, want a fault of kind not found", err)
				}
				if err := x.end(t); !fault.Is(err, fault.Unavailable) {
					t.Errorf("the call ended with %v, want a fault of kind unavailable", err)
				}
				if n := len(s.received("notifications/cancelled")); !stateless && n != 1 {
					t.Errorf("the backend was notified %d times, want once", n)
				}
			})
		})
	}
}

// GWN-08: the gateway never ends a session in which calls may be running in order to begin another one.
func TestSessionInUseIsNotEndedForAnother(t *testing.T) {
	running, release := make(chan bool, 1), make(chan bool)
	s := newScripted(t, func(s *scripted) {
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
	g := gatewayOver(t, memory(t), at("b", s))
	x := start(t, g, declaring(ann, 0), "t", "1", `{"name":"t","arguments":{"wait":true}}`)
	<-running
	for i := 1; i < maxInUse; i++ {
		mustCall(t, g, declaring(ann, i), "t")
	}
	if _, err := call(t, g, declaring(ann, maxInUse), "t"); !fault.Is(err, fault.Exhausted) {
		t.Errorf("one session more than %d in use: got %v, want a fault of kind exhausted", maxInUse, err)
	}
	close(release)
	if err := x.end(t); err != nil {
		t.Errorf("the call under way: %v", err)
	}
}

// The gateway asks for a backend's revision again when the backend answers that it does not speak the known one.
func TestBackendThatChangesItsRevision(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScripted(t, func(s *scripted) {
			s.stateless = true
			s.call = func(t *turn) { t.result(`{"content":[],"resultType":"complete"}`) }
		})
		var old atomic.Bool
		s.intercept(func(w http.ResponseWriter, r *http.Request, m got) bool {
			if !old.Load() || r.Header.Get("Mcp-Protocol-Version") != "2026-07-28" {
				return false
			}
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusBadRequest)
			fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"error":{"code":-32022,"message":"Unsupported protocol version","data":{"supported":["2025-11-25"]}}}`, m.ID)
			return true
		})
		g := gatewayOver(t, memory(t), at("b", s))
		mustCall(t, g, sessionBased("s"), "t")
		s.stateless = false
		old.Store(true) // an operator went back to an older version
		began := time.Now()
		for {
			if text, err := call(t, g, sessionBased("s"), "t"); err == nil && !strings.Contains(text, "error") {
				break
			}
			if time.Since(began) > 10*time.Second {
				t.Fatal("after 10 s calls still fail")
			}
			time.Sleep(time.Second)
		}
	})
}

func TestIDsAreComparedAsNumbers(t *testing.T) {
	s := newScripted(t, func(s *scripted) {
		s.call = func(t *turn) { t.write(`{"jsonrpc":"2.0","id":%s.0,"result":{"content":[]}}`, t.ID) }
	})
	mustCall(t, gatewayOver(t, memory(t), at("b", s)), sessionBased("s"), "t")
}

func TestListThatChangesBetweenItsPagesHasNoConflictWithItself(t *testing.T) {
	s := newScripted(t, func(s *scripted) {
		s.lists = func(method, cursor string) string {
			switch {
			case method != "tools/list":
				return emptyList(method)
			case cursor == "":
				return strings.Replace(oneTool("a", "b")(method, ""), `]}`, `],"nextCursor":"2"}`, 1)
			}
			return oneTool("b", "c")(method, "")
		}
	})
	l := gatewayOver(t, memory(t), at("b", s)).List(t.Context(), of(ann), api.Tools)
	if len(l.Conflicts) > 0 || len(l.Entries) != 3 {
		t.Errorf("got %d entries and the conflicts %q, want 3 and none", len(l.Entries), l.Conflicts)
	}
}

func TestConflictsOfAListAreBounded(t *testing.T) {
	const maxConflicts = 100
	var all []string
	for i := range 2 * maxConflicts {
		all = append(all, fmt.Sprint("tool", i))
	}
	one, two := newScripted(t, func(s *scripted) { s.lists = oneTool(all...) }), newScripted(t, func(s *scripted) { s.lists = oneTool(all...) })
	l := gatewayOver(t, memory(t), at("a", one), at("b", two)).List(t.Context(), of(ann), api.Tools)
	if len(l.Conflicts) != maxConflicts || len(l.Entries) != len(all) {
		t.Errorf("got %d conflicts and %d entries, want %d and %d", len(l.Conflicts), len(l.Entries), maxConflicts, len(all))
	}
}

// "Mcp-Name: required for tools/call, resources/read, prompts/get requests" (2026-07-28, Streamable HTTP).
func TestCompletionHasNoNameHeader(t *testing.T) {
	var name []string
	s := newScripted(t, func(s *scripted) {
		s.stateless, s.capabilities = true, `{"prompts":{},"completions":{}}`
		s.lists = func(method, _ string) string {
			if method == "prompts/list" {
				return `{"prompts":[{"name":"p"}],"resultType":"complete"}`
			}
			return emptyList(method)
		}
		s.call = func(t *turn) {
			name = t.Header["Mcp-Name"]
			t.result(`{"completion":{"values":[]},"resultType":"complete"}`)
		}
	})
	err := gatewayOver(t, memory(t), at("b", s)).Call(t.Context(), api.Call{
		Client: statelessClient(ann), Kind: api.Prompts, Name: "p", Member: "ref", Method: "completion/complete", ID: json.RawMessage(`1`),
		Params: json.RawMessage(`{"ref":{"type":"ref/prompt","name":"p"},"argument":{"name":"x","value":""}}`),
		Send:   func(json.RawMessage, bool) error { return nil },
	})
	if err != nil || name != nil {
		t.Errorf("got the header %q, %v, want none", name, err)
	}
}

// GWN-09: "The progress value MUST increase with each notification", even if the gateway repeats the call with the client's
// answers.
func TestProgressDoesNotGoBackBetweenRounds(t *testing.T) {
	s := newScripted(t, func(s *scripted) {
		s.stateless = true
		s.call = func(t *turn) {
			t.notify("notifications/progress", `{"progressToken":"p","progress":1}`)
			t.notify("notifications/progress", `{"progressToken":"p","progress":50}`)
			if !strings.Contains(string(t.Params), "inputResponses") {
				t.result(`{"resultType":"input_required","inputRequests":{"k":{"method":"elicitation/create","params":{"message":"x","requestedSchema":{"type":"object","properties":{}}}}}}`)
				return
			}
			t.notify("notifications/progress", `{"progressToken":"p","progress":60}`)
			t.result(`{"content":[],"resultType":"complete"}`)
		}
	})
	g := gatewayOver(t, memory(t), at("b", s))
	x := start(t, g, sessionBased("s"), "t", "1", `{"name":"t","arguments":{},"_meta":{"progressToken":"p"}}`)
	var values []string
	for {
		m := x.next(t)
		if m.response {
			break
		}
		var n struct {
			ID     string
			Method string
			Params struct{ Progress json.Number }
		}
		if err := json.Unmarshal([]byte(m.text), &n); err != nil {
			t.Fatal(err)
		}
		if n.Method != "elicitation/create" {
			values = append(values, n.Params.Progress.String())
		} else if err := g.Answer(t.Context(), sessionBased("s"), n.ID, accepting(n.ID)); err != nil {
			t.Fatal(err)
		}
	}
	if got := strings.Join(values, " "); got != "1 50 60" {
		t.Errorf("the client got the progress %s, want 1 50 60", got)
	}
}

func TestBackendThatWantsToBeCalledLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began, calls := time.Now(), 0
		s := newScripted(t, func(s *scripted) {
			s.stateless = true
			s.call = func(t *turn) {
				if calls++; time.Since(began) < 5*time.Minute {
					t.result(`{"resultType":"input_required","requestState":"later"}`)
					return
				}
				t.result(`{"content":[],"resultType":"complete"}`)
			}
		})
		if err := <-start(t, gatewayOver(t, memory(t), at("b", s)), sessionBased("s"), "t", "1", `{"name":"t"}`).done; err != nil {
			t.Errorf("the call failed after %s: %v", time.Since(began), err)
		}
		if calls > 100 {
			t.Errorf("the backend was called %d times in five minutes", calls)
		}
	})
}
