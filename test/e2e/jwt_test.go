//go:build unix

package e2e

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/auth/extauth"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/modelcontextprotocol/go-sdk/oauthex"

	"github.com/mcp-events/mcpevents/test/harness"
	"github.com/mcp-events/mcpevents/test/identity"
)

type claims = identity.Claims

// owned is a catalog in which events belong to an organization.
const owned = `
events:
  - name: repo.changed
    uriTemplate: event://repos/{owner}/{repo}/changed
    payloadSchema: {type: object}
    access: {claims: {owner: org}}
  - name: repo.secret
    uriTemplate: event://repos/{owner}/{repo}/secret
    payloadSchema: {type: object}
    access: {scopes: [secrets], claims: {owner: org}}
  - name: repo.announced
    uriTemplate: event://repos/{owner}/{repo}/announced
    payloadSchema: {type: object}
  - name: scoped.thing
    uri: event://scoped/thing
    payloadSchema: {type: object}
    access: {scopes: [secrets, audit]}
`

const everything = "events:read events:subscribe events:publish"

func startJWT(t *testing.T, args ...string) (*harness.Server, *identity.Provider) {
	t.Helper()
	p := identity.Start(t, "")
	s := harness.StartServer(t, harness.ServerOptions{Provider: p, Catalog: owned, Args: args})
	s.Keys["publisher"] = p.Token("publisher", "events:publish", nil)
	s.Keys["acme"] = p.Token("alice", everything, claims{"org": "acme"})
	s.Keys["reader"] = p.Token("reader", "events:read", nil)
	return s, p
}

// protectedRequests returns requests that require a token, by name and required scope.
func protectedRequests(s *harness.Server) map[string]func(t *testing.T, token string) *harness.Answer {
	ways := map[string]func(*testing.T, string) *harness.Answer{
		"GET /mcp events:read": func(t *testing.T, token string) *harness.Answer {
			c := &harness.Client{URL: s.MCP, Key: token, Version: harness.V20251125, Session: "any"}
			return c.Raw(t, http.MethodGet, "")
		},
		"DELETE /mcp events:read": func(t *testing.T, token string) *harness.Answer {
			c := &harness.Client{URL: s.MCP, Key: token, Version: harness.V20251125, Session: "any"}
			return c.Raw(t, http.MethodDelete, "")
		},
		"initialize events:read": func(t *testing.T, token string) *harness.Answer {
			return (&harness.Client{URL: s.MCP, Key: token, Version: harness.V20251125}).Do(t, "initialize", object{"protocolVersion": harness.V20251125})
		},
		"POST /events events:publish": func(t *testing.T, token string) *harness.Answer {
			target := harness.Target{Events: s.Events, Keys: map[string]string{"caller": token}}
			a := target.PostEvents(t, "caller", "application/json", `{"uri":"event://scoped/thing","data":{}}`)
			return &harness.Answer{Status: a.Status, Header: a.Header, Body: a.Body}
		},
	}
	for method, way := range map[string]struct {
		scope  string
		params object
	}{
		"server/discover":                    {"events:read", nil},
		"resources/list":                     {"events:read", nil},
		"resources/templates/list":           {"events:read", nil},
		"resources/read":                     {"events:read", object{"uri": "event://repos/acme/web/announced"}},
		"subscriptions/listen":               {"events:read", object{"notifications": object{"resourceSubscriptions": []string{"event://repos"}}}},
		"events/list":                        {"events:read", nil},
		"events/subscribe":                   {"events:subscribe", subscription("repo.announced", nil, "http://127.0.0.1:9/", newSecret())},
		"events/unsubscribe":                 {"events:subscribe", subscription("repo.announced", nil, "http://127.0.0.1:9/", newSecret())},
		"resources/subscriptions/register":   {"events:subscribe", object{"uris": []string{"event://scoped/thing"}, "targetUri": "http://127.0.0.1:9/"}},
		"resources/subscriptions/deregister": {"events:subscribe", object{"uri": "subscription://x"}},
	} {
		ways[method+" "+way.scope] = func(t *testing.T, token string) *harness.Answer {
			return (&harness.Client{URL: s.MCP, Key: token, Version: harness.V20260728}).Do(t, method, way.params)
		}
	}
	return ways
}

// TestTokensAreNeeded tests --auth jwt from outside: how requests without a good token are refused everywhere, and
// how a client learns where to get one (AUT-01).
func TestTokensAreNeeded(t *testing.T) {
	t.Parallel()
	s, p := startJWT(t)
	now := time.Now()
	stranger := identity.NewKey(t, "rsa-1", "RS256")
	bad := map[string]string{ // shared/auth/jwt tests all defects of tokens
		"expired":          p.Token("alice", everything, claims{"exp": now.Add(-time.Hour).Unix()}),
		"another audience": p.Token("alice", everything, claims{"aud": s.Base() + "/other"}),
		"another key":      stranger.Sign(t, nil, p.Claims("alice", everything, nil)),
		"garbage":          "garbage",
	}
	meta := s.Base() + "/.well-known/oauth-protected-resource/mcp"
	for way, call := range protectedRequests(s) {
		what, scope, _ := cutLast(way)
		t.Run("AUT-01 "+what+" without a token", func(t *testing.T) {
			a := call(t, "")
			if want := fmt.Sprintf(`Bearer scope="%s", resource_metadata="%s"`, scope, meta); a.Status != 401 || a.Header.Get("WWW-Authenticate") != want {
				t.Errorf("status %d, WWW-Authenticate %s, want %s", a.Status, a.Header.Get("WWW-Authenticate"), want)
			}
		})
		for why, token := range bad {
			t.Run("AUT-01 "+what+" with a token: "+why, func(t *testing.T) {
				a := call(t, token)
				if want := fmt.Sprintf(`Bearer error="invalid_token", scope="%s", resource_metadata="%s"`, scope, meta); a.Status != 401 || a.Header.Get("WWW-Authenticate") != want {
					t.Errorf("status %d, WWW-Authenticate %s, want %s", a.Status, a.Header.Get("WWW-Authenticate"), want)
				}
				if strings.HasPrefix(a.Header.Get("Content-Type"), "text/event-stream") || strings.Contains(string(a.Body), "event://") {
					t.Errorf("got the response %s %.200s", a.Header.Get("Content-Type"), a.Body)
				}
			})
		}
	}
	t.Run("AUT-01 a token in the query is ignored", func(t *testing.T) {
		c := &harness.Client{URL: s.MCP + "?access_token=" + s.Keys["acme"], Version: harness.V20260728}
		if a := c.Do(t, "resources/list", nil); a.Status != 401 || strings.Contains(a.Header.Get("WWW-Authenticate"), "error") {
			t.Errorf("status %d, WWW-Authenticate %s", a.Status, a.Header.Get("WWW-Authenticate"))
		}
	})
	t.Run("AUT-06 the log contains no token", func(t *testing.T) {
		for _, token := range append(slices.Collect(maps.Values(bad)), s.Keys["acme"]) {
			if len(token) > 30 && strings.Contains(s.Output(), token[len(token)-30:]) {
				t.Error("the token is in the log")
			}
		}
	})
}

func cutLast(s string) (before, after string, found bool) {
	i := strings.LastIndexByte(s, ' ')
	return s[:i], s[i+1:], i >= 0
}

// TestTokensLetIn checks that every kind of request accepts a good token (AUT-01).
func TestTokensLetIn(t *testing.T) {
	t.Parallel()
	s, p := startJWT(t)
	receiver := harness.NewReceiver(t)
	alice := s.Stateless("acme")
	const uri = "event://repos/acme/web/changed"
	t.Run("AUT-01 lists", func(t *testing.T) {
		if n := len(alice.All(t, "events/list", "events")); n != 2 {
			t.Errorf("%d event types are listed, want 2", n)
		}
		s.Keys["nowhere"] = p.Token("erin", everything, nil)
		if n := len(s.Stateless("nowhere").All(t, "events/list", "events")); n != 1 {
			t.Errorf("%d event types are listed without the claim, want 1", n)
		}
	})
	t.Run("AUT-01 publish, stream, webhooks, read", func(t *testing.T) {
		hook, extension := receiver.Endpoint("hook"), receiver.Endpoint("extension")
		registered := register(t, alice, hook, uri)
		subscribe(t, alice, extension, "repo.changed", object{"owner": "acme", "repo": "web"})
		stream := alice.Listen(t, 1, object{"resourceSubscriptions": []string{uri}}, nil)
		sessionBased := s.SessionBased(t, "acme", harness.V20251125)
		sessionBased.Call(t, "resources/subscribe", object{"uri": uri}, nil)
		session := sessionBased.Open(t, "")
		s.Publish(t, harness.Event{ID: "e1", URI: uri, Data: object{"n": 1}})
		hook.Wait(t, 1)
		extension.Wait(t, 1)
		stream.Wait(t, 1)
		session.Wait(t, 1)
		if a := alice.Do(t, "resources/read", object{"uri": uri}); !strings.Contains(string(a.Body), "e1") {
			t.Errorf("read: %s", a.Body)
		}
		// A new token with the same subject is the same principal.
		s.Keys["acme again"] = p.Token("alice", everything, claims{"org": "acme"})
		deregister(t, s.Stateless("acme again"), registered.Subscription.URI)
	})
	t.Run("AUT-05 another subject is another principal", func(t *testing.T) {
		made := register(t, alice, receiver.Endpoint("mine"), uri)
		s.Keys["bob"] = p.Token("bob", everything, claims{"org": "acme"})
		if a := s.Stateless("bob").Do(t, "resources/subscriptions/deregister", object{"uri": made.Subscription.URI}); a.Error == nil {
			t.Errorf("bob ended alice's subscription: %s", a.Body)
		}
	})
	t.Run("AUT-01 the Go SDK's client with a token", func(t *testing.T) {
		for _, version := range []string{harness.V20260728, harness.V20251125} {
			c := s.SDK(t, "acme", version, harness.SDKOptions{})
			c.Follow(t, uri)
			s.Publish(t, harness.Event{URI: uri, Data: object{}})
			harness.Eventually(t, harness.Patience, "the update at "+version, func() bool { return len(c.Updates()) > 0 })
		}
	})
}

// TestTheSDKGetsATokenByItself checks that the challenges and the metadata lead the official client to the provider
// and to every scope it needs, without further configuration (AUT-01).
func TestTheSDKGetsATokenByItself(t *testing.T) {
	t.Parallel()
	s, p := startJWT(t)
	for _, version := range []string{harness.V20260728, harness.V20251125} {
		t.Run("AUT-01 "+version, func(t *testing.T) {
			handler, err := extauth.NewClientCredentialsHandler(&extauth.ClientCredentialsHandlerConfig{
				Credentials: &oauthex.ClientCredentials{
					ClientID: "robot", ClientSecretAuth: &oauthex.ClientSecretAuth{ClientSecret: identity.Secret},
				},
			})
			if err != nil {
				t.Fatal(err)
			}
			client := sdk.NewClient(&sdk.Implementation{Name: "robot", Version: "1"}, nil)
			session, err := client.Connect(t.Context(), &sdk.StreamableClientTransport{
				Endpoint: s.MCP, OAuthHandler: handler, DisableStandaloneSSE: true,
			}, &sdk.ClientSessionOptions{ProtocolVersion: version})
			if err != nil {
				t.Fatal(err)
			}
			defer session.Close()
			if _, err := session.ListResources(t.Context(), nil); err != nil {
				t.Error(err)
			}
			if granted := p.Granted(); granted[len(granted)-1] != "events:read" {
				t.Errorf("the client asked for %q", granted)
			}
			if _, err := session.ReadResource(t.Context(), &sdk.ReadResourceParams{URI: "event://scoped/thing"}); err != nil {
				t.Error(err)
			}
			granted := strings.Fields(p.Granted()[len(p.Granted())-1])
			if slices.Sort(granted); !slices.Equal(granted, []string{"audit", "events:read", "secrets"}) {
				t.Errorf("the client stepped up to %q", p.Granted())
			}
		})
	}
}

// TestMissingScopes checks that a 403 names all scopes that a request lacks (AUT-01, AUT-03).
func TestMissingScopes(t *testing.T) {
	t.Parallel()
	s, p := startJWT(t)
	s.Keys["nobody"] = p.Token("nobody", "", claims{"org": "acme"})
	s.Keys["some"] = p.Token("some", "events:subscribe secrets", claims{"org": "acme"})
	scoped, plain := "event://scoped/thing", "event://repos/acme/web/announced"
	hook := "http://127.0.0.1:9/"
	for _, tc := range []struct {
		who, method string
		params      object
		want        string
	}{
		{"nobody", "resources/list", nil, "events:read"},
		{"nobody", "resources/read", object{"uri": plain}, "events:read"},
		{"nobody", "resources/read", object{"uri": scoped}, "audit events:read secrets"},
		{"reader", "resources/read", object{"uri": scoped}, "audit secrets"},
		{"nobody", "resources/read", object{"uri": "event://nothing/here"}, "events:read"},
		{"nobody", "subscriptions/listen", object{"notifications": object{"resourceSubscriptions": []string{scoped}}}, "audit events:read secrets"},
		{"nobody", "resources/subscriptions/register", object{"uris": []string{plain, scoped}, "targetUri": hook}, "audit events:subscribe secrets"},
		{"some", "resources/subscriptions/register", object{"uris": []string{plain, scoped}, "targetUri": hook}, "audit"},
		{"nobody", "resources/subscriptions/register", object{"uris": []string{"event://repos/acme/web/secret", scoped}, "targetUri": hook}, "audit events:subscribe secrets"},
		{"acme", "resources/subscriptions/register", object{"uris": []string{"event://repos/acme/web/secret", scoped}, "targetUri": hook}, "audit secrets"},
		{"nobody", "events/subscribe", subscription("scoped.thing", nil, hook, newSecret()), "audit events:subscribe secrets"},
		{"some", "events/subscribe", subscription("scoped.thing", nil, hook, newSecret()), "audit"},
		{"nobody", "events/list", nil, "events:read"},
	} {
		t.Run("AUT-01 "+tc.who+" "+tc.method+" "+tc.want, func(t *testing.T) {
			a := s.Stateless(tc.who).Do(t, tc.method, tc.params)
			want := `Bearer error="insufficient_scope", scope="` + tc.want + `", resource_metadata="` + s.Base() + `/.well-known/oauth-protected-resource/mcp"`
			if a.Status != http.StatusForbidden || a.Header.Get("WWW-Authenticate") != want {
				t.Errorf("status %d, WWW-Authenticate %s\nwant %s\n%s", a.Status, a.Header.Get("WWW-Authenticate"), want, a.Body)
			}
		})
	}
	t.Run("AUT-03 POST /events", func(t *testing.T) {
		a := s.PostEvents(t, "reader", "application/json", `{"uri":"event://scoped/thing","data":{}}`)
		if challenge := a.Header.Get("WWW-Authenticate"); a.Status != http.StatusForbidden || !strings.Contains(challenge, `error="insufficient_scope", scope="events:publish", resource_metadata=`) {
			t.Errorf("status %d, %s", a.Status, challenge)
		}
	})
	t.Run("AUT-01 GET of a session", func(t *testing.T) {
		c := s.SessionBased(t, "nobody", harness.V20251125)
		a := c.Raw(t, http.MethodGet, "")
		if challenge := a.Header.Get("WWW-Authenticate"); a.Status != http.StatusForbidden || !strings.Contains(challenge, `scope="events:read"`) {
			t.Errorf("status %d, %s", a.Status, challenge)
		}
	})
}

// TestResourceMetadata tests where a client finds the authorization server (AUT-01, RFC 9728).
func TestResourceMetadata(t *testing.T) {
	t.Parallel()
	s, p := startJWT(t)
	keys := harness.StartServer(t, harness.ServerOptions{})
	for _, path := range []string{"/.well-known/oauth-protected-resource", "/.well-known/oauth-protected-resource/mcp"} {
		t.Run("AUT-01 "+path, func(t *testing.T) {
			resp, err := http.Get(s.Base() + path)
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			var doc struct {
				Resource string
				Servers  []string `json:"authorization_servers"`
				Scopes   []string `json:"scopes_supported"`
				Methods  []string `json:"bearer_methods_supported"`
			}
			if err := json.NewDecoder(resp.Body).Decode(&doc); err != nil || resp.StatusCode != 200 || resp.Header.Get("Content-Type") != "application/json" {
				t.Fatalf("status %d, %v, %v", resp.StatusCode, resp.Header, err)
			}
			if doc.Resource != s.MCP || !slices.Equal(doc.Servers, []string{p.Issuer}) || !slices.Equal(doc.Methods, []string{"header"}) ||
				!slices.Equal(doc.Scopes, strings.Fields(everything)) {
				t.Errorf("got %+v", doc)
			}
			other, err := http.Get(keys.Base() + path)
			if err != nil {
				t.Fatal(err)
			}
			other.Body.Close()
			if other.StatusCode != http.StatusNotFound {
				t.Errorf("with --auth keys: status %d", other.StatusCode)
			}
		})
	}
}

// TestTheProviderCannotBeReached checks that a token that cannot be verified is an error of the server, not of the
// client (AUT-01).
func TestTheProviderCannotBeReached(t *testing.T) {
	t.Parallel()
	s, p := startJWT(t)
	p.Down(true)
	a := s.Stateless("acme").Do(t, "resources/list", nil)
	if a.Status != http.StatusServiceUnavailable || a.Header.Get("Retry-After") == "" || a.Header.Get("WWW-Authenticate") != "" {
		t.Errorf("POST /mcp: status %d, %v", a.Status, a.Header)
	}
	e := s.PostEvents(t, "acme", "application/json", `{"uri":"event://scoped/thing","data":{}}`)
	if e.Status != http.StatusServiceUnavailable || strings.Contains(string(e.Body), p.Issuer) {
		t.Errorf("POST /events: status %d, %s", e.Status, e.Body)
	}
	p.Down(false)
	harness.Eventually(t, harness.Patience, "it is let in", func() bool { return s.Stateless("acme").Do(t, "resources/list", nil).Status == 200 })
}

// TestAStreamEndsWithItsToken checks that a stream ends when its token expires (AUT-01, AUT-04).
func TestAStreamEndsWithItsToken(t *testing.T) {
	t.Parallel()
	s, p := startJWT(t)
	var stream *harness.Stream
	const leeway = 30                         // seconds that the server adds, because clocks differ
	for life := 3; stream == nil; life *= 2 { // a busy machine may need a longer lifetime
		s.Keys["short"] = p.Token("alice", everything, claims{"org": "acme", "exp": time.Now().Add(time.Duration(life-leeway) * time.Second).Unix()})
		st, err := s.Stateless("short").TryListen(t.Context(), 1, object{"resourceSubscriptions": []string{"event://repos/acme/web/changed"}}, nil)
		if err != nil && life > 10 {
			t.Fatal(err)
		}
		stream = st
	}
	t.Cleanup(stream.Close)
	select {
	case <-stream.Ended():
	case <-time.After(harness.Patience):
		t.Fatal("the stream stays open")
	}
	s.Publish(t, harness.Event{URI: "event://repos/acme/web/changed", Data: object{}})
	if n := len(stream.Updates()); n != 0 {
		t.Errorf("got %d updates after the expiry", n)
	}
}

// TestOwners tests the access rule owner: org of a catalog, with claims of tokens. Members of one organization must
// not get events of another, whatever they request (AUT-04, AUT-05).
func TestOwners(t *testing.T) {
	t.Parallel()
	s, p := startJWT(t)
	s.Keys["both"] = p.Token("carol", everything+" secrets", claims{"org": []string{"acme", "globex"}})
	s.Keys["number"] = p.Token("dave", everything, claims{"org": 42})
	s.Keys["nowhere"] = p.Token("erin", everything, nil)
	receiver := harness.NewReceiver(t)
	const own, foreign = "event://repos/acme/web/changed", "event://repos/globex/web/changed"
	publish := func(t *testing.T, ids string, uris ...string) {
		for i, uri := range uris {
			s.Publish(t, harness.Event{ID: fmt.Sprint(ids, i), URI: uri, Data: object{"of": uri}})
		}
	}
	publish(t, "before", foreign, own)
	hook := receiver.Endpoint("refused")

	for _, tc := range []struct {
		who  string
		uris []string
	}{
		{"acme", []string{foreign, "event://repos/*/web/changed", "event://repos/*/*/changed", "event://repos/globex/*/changed", "event://repos/ACME/web/changed", "event://repos/acm/web/changed", "event://repos/acme%2Fx/web/changed"}},
		{"nowhere", []string{own, foreign, "event://repos/*/web/changed"}},
		{"number", []string{own, "event://repos/4/web/changed"}},
		{"both", []string{"event://repos/initech/web/changed", "event://repos/*/web/changed"}},
	} {
		c, sessionBased := s.Stateless(tc.who), s.SessionBased(t, tc.who, harness.V20251125)
		for _, uri := range tc.uris {
			t.Run("AUT-04 "+tc.who+" does not get "+uri, func(t *testing.T) {
				refused := func(a *harness.Answer) {
					t.Helper()
					if a.Error == nil || strings.Contains(string(a.Body), `"of"`) {
						t.Errorf("answered %s", a.Body)
					}
				}
				refused(c.Do(t, "resources/read", object{"uri": uri}))
				refused(c.Do(t, "resources/subscriptions/register", object{"uris": []string{uri}, "targetUri": hook.URL()}))
				refused(sessionBased.Do(t, "resources/subscribe", object{"uri": uri}))
				l := c.Listen(t, 1, object{"resourceSubscriptions": []string{uri}}, nil)
				if p := decode[struct{ Notifications map[string]any }](t, l.Next(t).Params); len(p.Notifications) != 0 {
					t.Errorf("listen accepted %v", p.Notifications)
				}
				owner, repo := strings.Split(uri, "/")[3], strings.Split(uri, "/")[4]
				arguments := object{}
				if owner != "*" {
					arguments["owner"] = owner
				}
				if repo != "*" {
					arguments["repo"] = repo
				}
				for _, method := range []string{"events/subscribe", "events/poll", "events/stream"} {
					params := subscription("repo.changed", arguments, hook.URL(), newSecret())
					if method != "events/subscribe" {
						delete(params, "delivery")
					}
					refused(c.Do(t, method, params))
				}
			})
		}
	}

	t.Run("AUT-04 polls return the caller's own events", func(t *testing.T) {
		var page struct{ Cursor string }
		arguments := object{"owner": "acme", "repo": "web"}
		s.Stateless("acme").Call(t, "events/poll", object{"name": "repo.changed", "arguments": arguments}, &page)
		publish(t, "poll", own, foreign)
		harness.Eventually(t, harness.Patience, "the event", func() bool {
			a := s.Stateless("acme").Do(t, "events/poll", object{"name": "repo.changed", "arguments": arguments, "cursor": page.Cursor})
			if strings.Contains(string(a.Body), "globex") {
				t.Errorf("a poll returned %s", a.Body)
			}
			return strings.Contains(string(a.Body), "poll0")
		})
	})
	t.Run("AUT-04 an owner may be one of several organizations, or a number", func(t *testing.T) {
		for who, uri := range map[string]string{"both": foreign, "number": "event://repos/42/web/changed", "acme": own} {
			hook := receiver.Endpoint("own-" + who)
			register(t, s.Stateless(who), hook, uri)
			publish(t, who, uri)
			hook.Wait(t, 1)
		}
	})
	t.Run("AUT-04 a webhook of a parent with several owners is refused", func(t *testing.T) {
		for _, uri := range []string{"event://repos", "event://repos/globex", "event://repos/globex/web"} {
			a := s.Stateless("acme").Do(t, "resources/subscriptions/register", object{"uris": []string{uri}, "targetUri": hook.URL()})
			if a.Error == nil || a.Error.Code != 403 {
				t.Errorf("%s: %s", uri, a.Body)
			}
		}
	})
	t.Run("AUT-04 on a stream, a parent with several owners delivers the caller's own events and unrestricted ones", func(t *testing.T) {
		c := s.Stateless("acme")
		stream := c.Listen(t, 1, object{"resourceSubscriptions": []string{"event://repos"}}, nil)
		sessionBased := s.SessionBased(t, "acme", harness.V20251125)
		sessionBased.Call(t, "resources/subscribe", object{"uri": "event://repos"}, nil)
		session := sessionBased.Open(t, "")
		for i := range 3 {
			publish(t, fmt.Sprint("p", i), foreign, "event://repos/acme/web/secret", "event://repos/globex/web/announced")
		}
		for what, got := range map[string][]*harness.Update{"listen": stream.Wait(t, 3), "session": session.Wait(t, 3)} {
			for _, u := range got {
				if u.URI != "event://repos/globex/web/announced" {
					t.Errorf("%s got %s", what, u.URI)
				}
			}
		}
		a := c.Do(t, "resources/read", object{"uri": "event://repos"})
		if body := string(a.Body); a.Error != nil || strings.Contains(body, foreign) || strings.Contains(body, "/secret") || !strings.Contains(body, "announced") {
			t.Errorf("read: %s", body)
		}
	})
	t.Run("AUT-05 no event of another owner was delivered", func(t *testing.T) {
		if n := len(hook.IDs()); n != 0 {
			t.Errorf("got %d webhooks", n)
		}
	})
}

// TestTheRateIsNamed tests the error for a publisher over its quota (AUT-07).
func TestTheRateIsNamed(t *testing.T) {
	t.Parallel()
	s, p := startJWT(t, "--publish-rate", "1", "--quota", "1")
	s.Keys["another"] = p.Token("another", everything, nil)
	events := "[" + strings.TrimSuffix(strings.Repeat(`{"uri":"event://repos/acme/web/announced","data":{}},`, 1000), ",") + "]"
	t.Run("AUT-07 publishing", func(t *testing.T) {
		if a := s.PostEvents(t, "publisher", "application/json", events); a.Status != http.StatusAccepted {
			t.Fatalf("status %d: %.300s", a.Status, a.Body)
		}
		a := s.PostEvents(t, "publisher", "application/json", events)
		if a.Status != http.StatusTooManyRequests || a.Header.Get("Retry-After") == "" || !strings.Contains(string(a.Body), `"limit":"publishRate","max":1`) {
			t.Errorf("status %d, Retry-After %q: %s", a.Status, a.Header.Get("Retry-After"), a.Body)
		}
		if a := s.PostEvents(t, "another", "application/json", events); a.Status != http.StatusAccepted {
			t.Errorf("another principal: status %d", a.Status)
		}
	})
	t.Run("AUT-07 subscriptions", func(t *testing.T) {
		params := object{"uris": []string{"event://repos/acme/web/announced"}, "targetUri": "http://127.0.0.1:9/"}
		s.Stateless("acme").Call(t, "resources/subscriptions/register", params, nil)
		// A new token does not have a new quota.
		s.Keys["acme"] = p.Token("alice", everything, claims{"org": "acme"})
		a := s.Stateless("acme").Do(t, "resources/subscriptions/register", params)
		if a.Error == nil || a.Error.Code != 429 || !strings.Contains(string(a.Error.Data), `"limit":"subscriptions"`) {
			t.Errorf("got %s", a.Body)
		}
		s.Stateless("another").Call(t, "resources/subscriptions/register", params, nil)
	})
}

// TestTheRegistrationRateIsNamed tests the error for a subscriber over its quota (AUT-07).
func TestTheRegistrationRateIsNamed(t *testing.T) {
	t.Parallel()
	s, p := startJWT(t, "--registration-rate", "0.1") // allows a burst of one
	s.Keys["another"] = p.Token("another", everything, nil)
	register := object{"uris": []string{"event://repos/acme/web/announced"}, "targetUri": "http://127.0.0.1:9/"}
	s.Stateless("acme").Call(t, "resources/subscriptions/register", register, nil)
	for method, tc := range map[string]struct {
		params object
		code   int
	}{
		"resources/subscriptions/register": {register, 429},
		"events/subscribe":                 {subscription("repo.announced", nil, "http://127.0.0.1:9/", newSecret()), -32013},
	} {
		a := s.Stateless("acme").Do(t, method, tc.params)
		if a.Error == nil || a.Error.Code != tc.code || !strings.Contains(string(a.Error.Data), `"limit":"registrationRate","max":0.1,"retryAfterSeconds":`) {
			t.Errorf("AUT-07 %s: %s", method, a.Body)
		}
	}
	s.Stateless("another").Call(t, "resources/subscriptions/register", register, nil)
}
