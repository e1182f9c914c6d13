package gateway

import (
	"encoding/base64"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/shared/gateway/api"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/test/expect"
	"github.com/mcp-events/mcpevents/test/pipes"
)

// GWN-27: given a backend with token exchange, then a call, the session that it begins and the lists use the exchanged token. If the
// authorization server later refuses the caller, the caller gets that error instead of one of the backend, and the backend gets no request.
func TestExchangedTokensAtTheBackend(t *testing.T) {
	t.Setenv("EXCHANGE_TEST_SECRET", "s3cret")
	revisions(t, func(t *testing.T, stateless bool) {
		var refusal atomic.Value
		refusal.Store("")
		authority := pipes.Serve(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			if code := refusal.Load(); code != "" {
				w.WriteHeader(http.StatusBadRequest)
				fmt.Fprintf(w, `{"error":%q}`, code)
				return
			}
			fmt.Fprint(w, `{"access_token":"exchanged","token_type":"Bearer","expires_in":60}`)
		}))
		s := newScripted(t, func(s *scripted) {
			s.stateless = stateless
			s.allow = func(h http.Header) bool { return h.Get("Authorization") == "Bearer exchanged" }
			s.call = func(t *turn) { t.result(`{"resultType":"complete","content":[]}`) }
		})
		c := parsed(t, `  - name: b
    url: %q
    credentials: exchange
    exchange: {tokenUrl: "https://id.example/", clientId: me, clientSecret: "env:EXCHANGE_TEST_SECRET", audience: b}
`, s.URL)
		c.Backends[0].Exchange.TokenURL = authority.URL
		g := gatewayOver(t, memory(t), c.Backends...)
		claims := base64.RawURLEncoding.EncodeToString(fmt.Appendf(nil, `{"exp":%d}`, time.Now().Add(time.Hour).Unix()))
		client := func(session string) api.Client {
			c := withToken("ann", "Bearer e30."+claims+".c2ln")
			c.Session = session
			return c
		}
		mustCall(t, g, client("one"), "t")
		l := newLog()
		defer relaying(t, "r", g, l)()
		for code, want := range map[string]fault.Kind{"invalid_grant": fault.Unauthenticated, "invalid_target": fault.Forbidden, "invalid_client": fault.Unavailable} {
			time.Sleep(time.Minute) // the token expires
			refusal.Store(code)
			before := len(s.received("tools/call"))
			for _, session := range []string{"one", "begun after " + code} {
				_, err := call(t, g, client(session), "t")
				expect.Fault(t, code+" in session "+session, err, want)
				if text := fault.Public(err); !strings.Contains(text, "the authorization server") || !strings.Contains(text, "backend b") {
					t.Errorf("%s: the caller gets %q", code, text)
				}
			}
			expect.Equal(t, code+": calls that reached the backend", len(s.received("tools/call")), before)
			refusal.Store("")
			time.Sleep(time.Minute)
			mustCall(t, g, client("one"), "t")
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, m := range s.seen {
			if m.Header.Get("Authorization") != "Bearer exchanged" || strings.Contains(m.Raw, claims) {
				t.Errorf("%s arrived with the headers %v", m.Method, m.Header)
			}
		}
	})
}
