package method

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/test/expect"
)

// GWN-17, SUB-09: the errors that 2026-07-28 has an HTTP status for keep it on their way from a backend.
func TestStatusOfABackendsErrors(t *testing.T) {
	for code, want := range map[string]int{"-32021": 400, "-32020": 400, "-32022": 400, "-32602": 400, "-32601": 404, "-32050": 200} {
		message := json.RawMessage(`{"jsonrpc":"2.0","id":1,"error":{"code":` + code + `,"message":"m"}}`)
		expect.Equal(t, code, statusOf(message), want)
	}
}

// Given a call that has ended, its response does not wait in a buffer for the end of the handler. A call without a response
// leaves it to the handler.
func TestFlushOfARelayedResponse(t *testing.T) {
	for _, responds := range []bool{true, false} {
		w := httptest.NewRecorder()
		c := NewCall(httptest.NewRequest(http.MethodPost, "/mcp", nil), t.Context())
		r := Timing{Heartbeat: time.Hour}.NewRelayed(w, c, Faults{})
		_, end := r.Begin()
		defer end()
		if responds {
			expect.OK(t, r.Send(json.RawMessage(`{"jsonrpc":"2.0","id":1,"result":{}}`), true))
		}
		r.Flush()
		expect.Equal(t, "flushed", w.Flushed, responds)
	}
}

// AWS-24: a backend refuses the caller's token, for example because its exchange failed.
func TestChallengeOfACallNamesTheScopePrefix(t *testing.T) {
	w := httptest.NewRecorder()
	c := NewCall(httptest.NewRequest(http.MethodPost, "/mcp", nil), t.Context())
	c.Principal.ScopePrefix = "https://events.example.com/"
	NewReplies(nil, Faults{}, Catalogs{}, "").SendFault(w, c, Row{Scope: auth.ScopeRead}, fault.New(fault.Unauthenticated, "sign in again"))
	expect.Equal(t, "the header", w.Header().Get("WWW-Authenticate"), `Bearer scope="https://events.example.com/events:read"`)
}
