package gateway

import (
	"encoding/json"
	"fmt"
	"net/http"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
)

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
		t.Run(fmt.Sprint(status), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
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
				if err := g.Answer(t.Context(), sessionBased("s"), id, accepting(id)); !fault.Is(err, fault.Unavailable) {
					t.Errorf("an answer that the backend refuses with %d: got %v, want a fault of kind unavailable", status, err)
				}
				refusing.Store(false)
				if err := g.Answer(t.Context(), sessionBased("s"), id, accepting(id)); err != nil {
					t.Fatalf("the answer sent again: %v", err)
				}
				if err := x.end(t); err != nil {
					t.Error(err)
				}
			})
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
		if err := x.end(t); err != nil {
			t.Error(err)
		}
		if n := answers.Load(); n != 1 {
			t.Errorf("the backend got %d answers, want 1", n)
		}
	})
}
