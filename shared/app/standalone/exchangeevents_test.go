package standalone_test

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/mcp-events/mcpevents/shared/app/config"
	"github.com/mcp-events/mcpevents/shared/app/standalone"
	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/test/expect"
	"github.com/mcp-events/mcpevents/test/identity"
)

// exchanger is the token endpoint of an authorization server. Its tokens for a subject are SUBJECT-1, SUBJECT-2 and so on, and the backend
// accepts them. They are valid for so short a time that the gateway uses each for a single request.
type exchanger struct {
	*httptest.Server
	backend *fakeBackend

	mu      sync.Mutex
	issued  map[string]int
	strange []string        // requests that are not for the backend's audience
	refuses map[string]bool // the subjects that get no tokens
}

func startExchanger(t *testing.T, b *fakeBackend) *exchanger {
	t.Helper()
	b.callers = map[string]string{}
	x := &exchanger{backend: b, issued: map[string]int{}, refuses: map[string]bool{}}
	x.Server = httptest.NewServer(x)
	t.Cleanup(x.Close)
	return x
}

func (x *exchanger) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	x.mu.Lock()
	defer x.mu.Unlock()
	var subject struct{ Sub string }
	parts := strings.Split(r.PostFormValue("subject_token")+"..", ".")
	payload, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil || json.Unmarshal(payload, &subject) != nil || r.PostFormValue("audience") != "shop" {
		x.strange = append(x.strange, r.PostForm.Encode())
	}
	w.Header().Set("Content-Type", "application/json")
	if x.refuses[subject.Sub] {
		w.WriteHeader(http.StatusBadRequest)
		fmt.Fprint(w, `{"error":"invalid_grant"}`)
		return
	}
	x.issued[subject.Sub]++
	token := fmt.Sprintf("%s-%d", subject.Sub, x.issued[subject.Sub])
	x.backend.mu.Lock()
	x.backend.callers[token] = shippedType
	x.backend.mu.Unlock()
	fmt.Fprintf(w, `{"access_token":%q,"issued_token_type":"urn:ietf:params:oauth:token-type:access_token","token_type":"Bearer","expires_in":10}`, token)
}

func (x *exchanger) refuse(subject string, refuses bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.refuses[subject] = refuses
}

// awaitStreamOf waits for the next stream at a backend. It checks that its token was issued for the subject and that it begins at the
// cursor, and returns the token.
func awaitStreamOf(t *testing.T, b *fakeBackend, subject string, cursor any) string {
	t.Helper()
	params := expect.Receive(t, "a stream for "+subject, b.opened)
	token := fmt.Sprint(params["token"])
	if !strings.HasPrefix(token, subject+"-") || params["cursor"] != cursor {
		t.Fatalf("got a stream with the token %.20s at the cursor %v, want one for %s at %v", token, params["cursor"], subject, cursor)
	}
	return token
}

// TestEventsWithExchangedTokens: GWN-21, GWN-27. The relay subscribes at a backend with a token that was issued for the backend in exchange
// for the caller's, separately for each principal.
func TestEventsWithExchangedTokens(t *testing.T) {
	backend := newFakeBackend(t, "")
	x := startExchanger(t, backend)
	const audience = "https://mcp.example.com/mcp"
	p := identity.Start(t, audience)
	var log expect.Buffer
	t.Setenv("SHOP_SECRET", "s3cret")
	gateway := startGateway(t, backend.URL, func(o *standalone.Options) {
		o.Auth, o.Limits.JWTIssuers, o.Limits.JWTAudience = auth.ModeJWT, []string{p.Issuer}, []string{audience}
		o.Config = expect.Value(config.ParseFile("config.yaml", fmt.Appendf(nil, `
backends:
  - name: shop
    url: %q
    prefix: shop_
    credentials: exchange
    exchange: {tokenUrl: %q, clientId: gateway, clientSecret: "env:SHOP_SECRET", audience: shop}
`, backend.URL, x.URL)))(t)
		o.Log = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	})
	const scopes = "events:read events:subscribe"
	tokens := map[string]string{"alice": p.Token("alice", scopes, nil), "bob": p.Token("bob", scopes, nil)}
	got, arguments := map[string]*received{}, map[string]any{"order": "1"}
	streams := map[string]string{} // the tokens of the streams at the backend
	for _, who := range []string{"alice", "bob"} {
		c := connect(t, gateway, tokens[who], "2026-07-28")
		awaitType(t, c, "shop_order.shipped")
		got[who] = subscribe(t, c, "push", "shop_order.shipped", arguments)
		streams[who] = awaitStreamOf(t, backend, who, nil)
	}
	send := func(id string) {
		for who, token := range streams {
			backend.sendTo(token, id, "c"+id, fmt.Sprintf(`{"carrier":"event %s for %s"}`, id, who))
		}
	}
	check := func(t *testing.T, who string, n int) {
		t.Helper()
		r := got[who]
		r.await(t, func() bool { return len(r.events) == n })
		expect.Equal(t, "the last event of "+who, string(r.events[n-1].Data), fmt.Sprintf(`{"carrier":"event %d for %s"}`, n, who))
	}
	poll := func(token, order string) error {
		params := map[string]any{"name": "shop_order.shipped", "arguments": map[string]any{"order": order}, "cursor": nil}
		return connect(t, gateway, token, "2026-07-28").Call(t.Context(), "events/poll", params, nil)
	}

	t.Run("GWN-21, GWN-27 equal interests of two principals are two subscriptions, each with a token issued for its principal", func(t *testing.T) {
		send("1")
		check(t, "alice", 1)
		check(t, "bob", 1)
		expect.Equal(t, "the further subscriptions at the backend", len(backend.opened), 0)
	})
	t.Run("GWN-21, GWN-27 when an exchanged token expires, the subscription continues at its cursor with the next one", func(t *testing.T) {
		gaps := got["alice"].gaps
		backend.refuse(streams["alice"])
		<-backend.closed
		next := awaitStreamOf(t, backend, "alice", "c1")
		expect.Differ(t, "the token of the next stream", next, streams["alice"])
		streams["alice"] = next
		send("2")
		check(t, "alice", 2)
		check(t, "bob", 2)
		expect.Equal(t, "alice's new gaps", got["alice"].gaps-gaps, 0)
	})
	t.Run("GWN-21, GWN-27 without another exchanged token, the subscription pauses and the client learns why", func(t *testing.T) {
		x.refuse("alice", true)
		backend.refuse(streams["alice"])
		<-backend.closed
		log.Await(t, "subscription to events ended", 1)
		err := poll(tokens["alice"], "2")
		expect.Fault(t, "alice's next subscription", err, fault.Unavailable)
		expect.Error(t, "alice's next subscription", err, "the authorization server no longer accepts the token, so backend shop cannot be used; sign in again")
		delete(streams, "alice")
		send("3")
		check(t, "bob", 3)
	})
	t.Run("GWN-21, GWN-27 with another token of the caller, the subscription continues at its cursor", func(t *testing.T) {
		x.refuse("alice", false)
		tokens["again"] = p.Token("alice", scopes, identity.Claims{"jti": "again"})
		// The relay may still record that it has lost the earlier token.
		expect.Eventually(t, "the other token is accepted", func() bool { return poll(tokens["again"], "1") == nil })
		streams["alice"] = awaitStreamOf(t, backend, "alice", "c2")
		backend.sendTo(streams["alice"], "3", "c3", `{"carrier":"event 3 for alice"}`)
		check(t, "alice", 3)
	})
	t.Run("GWN-27 the backend and the log never get a caller's token", func(t *testing.T) {
		backend.mu.Lock()
		defer backend.mu.Unlock()
		for who, token := range tokens {
			expect.True(t, "the backend does not get the token of "+who, !backend.seen[token])
			expect.Lacks(t, "the log, without the token of "+who, log.String(), token[len(token)-30:])
		}
		for token := range backend.seen {
			if token != "" && !strings.HasPrefix(token, "alice-") && !strings.HasPrefix(token, "bob-") {
				t.Errorf("the backend got the token %s", token)
			}
		}
		expect.Len(t, "the unexpected requests to the authorization server", x.strange, 0)
	})
}
