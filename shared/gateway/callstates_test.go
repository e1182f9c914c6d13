package gateway

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mcp-events/mcpevents/shared/gateway/api"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/test/expect"
)

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
	select {
	case at := <-w.turns:
		return at
	case <-time.After(patience):
		w.Fatal("the backend was not called")
	}
	return nil
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
						w.x.messages <- sent{string(m), response, time.Now()}
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

// GWN-17: the gateway asks a client of 2026-07-28 immediately. It cancels the call at the backend without a pause, because a
// backend that asks has received the request.
func TestAnInputRequiredIsNotDelayed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := gatewayOver(t, memory(t), at("b", newAsking(t, "42")))
		client := statelessClient(ann)
		client.Capabilities = json.RawMessage(`{"elicitation":{}}`)
		sees(t, g, client, "t")
		began := time.Now()
		text, err := call(t, g, client, "t")
		if err != nil || !strings.Contains(text, "input_required") {
			t.Errorf("the client got %s, %v, want to be asked", text, err)
		}
		if took := time.Since(began); took > 100*time.Millisecond {
			t.Errorf("the client was asked after %v, want 100 ms at most", took)
		}
	})
}
