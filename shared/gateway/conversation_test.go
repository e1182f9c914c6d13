package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mcp-events/mcpevents/shared/gateway/api"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/protocol/jsonrpc"
	"github.com/mcp-events/mcpevents/test/expect"
)

const said = `{"messageId":"m","content":"c","_meta":{"io.github.mcp-events/principal":"p"}}`

// listener returns a backend that asks for messages of conversations.
func listener(t *testing.T, stateless bool, call func(*turn)) *scripted {
	return newScripted(t, func(s *scripted) {
		s.stateless, s.call = stateless, call
		s.capabilities = `{"conversationEvents":{"onUserMessage":true}}`
	})
}

const userMessage = "conversation/userMessage"

// CNV-03: a backend that declares it gets conversation/userMessage in its own revision: in a session that begins with the first
// message, or with the headers and _meta of 2026-07-28.
func TestUserMessageReachesABackend(t *testing.T) {
	revisions(t, func(t *testing.T, stateless bool) {
		b := listener(t, stateless, func(x *turn) {
			x.write(`{"jsonrpc":"2.0","method":"notifications/message","params":{}}`)
			x.result(`{"context":"known"}`)
		})
		g := gatewayOver(t, memory(t), at("notes", b))
		_, err := g.Converse(t.Context(), sessionBased("s"), "notes", "conversation/assistantResponse", json.RawMessage(said))
		expect.Is(t, "a message that it does not ask for", err, api.ErrIncapable)
		for i := range 3 {
			if i == 2 {
				b.forget() // all sessions
			}
			got := expect.Value(g.Converse(t.Context(), sessionBased("s"), "notes", userMessage, json.RawMessage(said)))(t)
			expect.MustEqual(t, "the result", string(got), `{"context":"known"}`)
		}
		calls := b.received(userMessage)
		params := calls[0].Params
		meta := jsonrpc.Member(params, "_meta")
		expect.Contains(t, "the params", string(params), `"messageId":"m","content":"c"`)
		expect.Equal(t, "the principal", string(jsonrpc.Member(meta, "io.github.mcp-events/principal")), `"p"`)
		version := string(jsonrpc.Member(meta, "io.modelcontextprotocol/protocolVersion"))
		if stateless && (version != `"2026-07-28"` || calls[0].Header.Get("Mcp-Method") != userMessage || calls[0].Session != "") {
			t.Errorf("got %s, %v, want the form of 2026-07-28", params, calls[0].Header)
		}
		if !stateless && (version != "" || calls[0].Session == "" || calls[0].Session != calls[1].Session || string(calls[0].ID) == string(calls[1].ID)) {
			t.Errorf("got %+v and %+v, want one session and two ids", calls[0], calls[1])
		}
	})
}

// CNV-03: each reason why a backend does not accept a message has its own error. The error does not contain the message or the
// backend's words.
func TestUserMessageThatABackendDoesNotTake(t *testing.T) {
	refuses := listener(t, true, func(x *turn) { x.write(`{"jsonrpc":"2.0","id":%s,"error":{"code":-32602,"message":"marigold"}}`, x.ID) })
	asks := listener(t, true, func(x *turn) { x.result(`{"resultType":"input_required","inputRequests":{}}`) })
	silent := newScripted(t, func(s *scripted) { s.stateless = true })
	g := gatewayOver(t, memory(t), at("refuses", refuses), at("asks", asks), at("silent", silent), at("secret", refuses, func(b *api.Backend) { b.Scopes = []string{"more"} }))
	for name, want := range map[string]error{"refuses": api.ErrRefused, "asks": api.ErrRefused, "silent": api.ErrIncapable} {
		if _, err := g.Converse(t.Context(), statelessClient(ann), name, userMessage, json.RawMessage(said)); err == nil || err.Error() != want.Error() {
			t.Errorf("%s: got %v", name, err)
		}
	}
	expect.Fault(t, "one that the caller may not use", expect.ErrOf(g.Converse(t.Context(), statelessClient(ann), "secret", userMessage, json.RawMessage(said))), fault.Invalid)
}

// CNV-03: a status from 400 to 499 refuses one message, so the backend still gets other clients' messages. Any other status is a
// failure of the backend.
func TestAStatusInsteadOfAnAnswerToAUserMessage(t *testing.T) {
	for status, refused := range map[int]bool{http.StatusBadRequest: true, http.StatusForbidden: true, http.StatusBadGateway: false} {
		b := listener(t, false, func(x *turn) { x.w.WriteHeader(status) })
		g := gatewayOver(t, memory(t), at("notes", b))
		_, err := g.Converse(t.Context(), sessionBased("s"), "notes", userMessage, json.RawMessage(said))
		if err == nil || errors.Is(err, api.ErrRefused) != refused {
			t.Errorf("with status %d got error %v, want a refusal: %v", status, err, refused)
		}
	}
}

// CNV-03: given a backend that gets its callers' tokens, when it refuses a caller's token, then it has refused that caller's message.
// It is not unreachable, because others can still use it.
func TestARefusedTokenOfOneCallerIsNoFailureOfTheBackend(t *testing.T) {
	revisions(t, func(t *testing.T, stateless bool) {
		b := listener(t, stateless, func(x *turn) { x.result(`{"context":"known"}`) })
		b.allow = func(h http.Header) bool { return h.Get("Authorization") == "Bearer good" }
		exchanged := func(b *api.Backend) {
			b.Exchange = &api.Exchange{OAuth: api.OAuth{TokenURL: b.URL, ClientID: "gateway"}}
		}
		g := gatewayOver(t, memory(t), at("notes", b, forwarded), at("exchanged", b, exchanged))
		expect.OK(t, expect.ErrOf(g.Converse(t.Context(), withToken("ann", "Bearer good"), "notes", userMessage, json.RawMessage(said))))
		for name, token := range map[string]string{"notes": "Bearer bad", "exchanged": "Bearer no-jwt"} {
			_, err := g.Converse(t.Context(), withToken("bob", token), name, userMessage, json.RawMessage(said))
			expect.Is(t, "the error of "+name, err, api.ErrRefused)
		}
	})
}

// CNV-03: a message that takes too long is cancelled in the way of the backend's revision.
func TestLateUserMessageIsCancelled(t *testing.T) {
	for _, stateless := range []bool{false, true} {
		bubble(t, fmt.Sprint("stateless ", stateless), func(t *testing.T) {
			gone := make(chan struct{})
			b := listener(t, stateless, func(x *turn) {
				x.write(`{"jsonrpc":"2.0","method":"notifications/message","params":{}}`)
				<-x.r.Context().Done()
				close(gone)
			})
			g := gatewayOver(t, memory(t), at("notes", b))
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			expect.Fault(t, "the call", expect.ErrOf(g.Converse(ctx, sessionBased("s"), "notes", userMessage, json.RawMessage(said))), fault.Unavailable)
			<-gone
			if stateless {
				return
			}
			n := b.next(t, "notifications/cancelled")
			var p struct{ RequestID json.RawMessage }
			if err := json.Unmarshal(n.Params, &p); err != nil || string(p.RequestID) != string(b.received(userMessage)[0].ID) {
				t.Errorf("got %s, %v", n.Params, err)
			}
		})
	}
}

// CNV-03: given a backend whose sessions take longer to begin than a message may wait, when the session was prepared, then the
// next message is sent in it.
func TestPreparedSessionIsReadyForAMessage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const budget = 100 * time.Millisecond
		b := listener(t, false, func(x *turn) { x.result(`{"context":"known"}`) })
		b.allow = func(h http.Header) bool {
			if h.Get("Mcp-Session-Id") == "" {
				time.Sleep(3 * budget)
			}
			return true
		}
		g := gatewayOver(t, memory(t), at("notes", b))
		converse := func(within time.Duration) error {
			ctx, cancel := context.WithTimeout(t.Context(), within)
			defer cancel()
			_, err := g.Converse(ctx, sessionBased("s"), "notes", userMessage, json.RawMessage(said))
			return err
		}
		for range 4 { // first the capabilities are not known, then there is no session
			err := converse(budget)
			expect.Fault(t, "a message whose session is not ready", err, fault.Unavailable)
			expect.Is(t, "its cause", err, api.ErrNoSession)
		}
		expect.OK(t, g.Prepare(t.Context(), sessionBased("s"), "notes"))
		made := len(b.received("initialize"))
		if err := converse(patience); err != nil || len(b.received("initialize")) != made {
			t.Errorf("prepared, got %v after %d more sessions", err, len(b.received("initialize"))-made)
		}
		expect.Fault(t, "one that is not there", g.Prepare(t.Context(), sessionBased("s"), "other"), fault.Invalid)
	})
}

// CNV-03: a session that is being prepared at a backend that hangs does not delay a shutdown, which cancels the preparation.
func TestPreparationThatIsCancelledEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := listener(t, false, func(*turn) {})
		g := gatewayOver(t, memory(t), at("notes", b))
		expect.OK(t, g.Prepare(t.Context(), sessionBased("before"), "notes")) // the capabilities are known
		b.on("initialize", func(_ http.ResponseWriter, r *http.Request, _ got) { <-r.Context().Done() })
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		began := time.Now()
		expect.Fault(t, "the preparation", g.Prepare(ctx, sessionBased("s"), "notes"), fault.Unavailable)
		expect.Equal(t, "the time of the preparation", time.Since(began), time.Second)
	})
}
