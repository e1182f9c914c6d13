//go:build unix

package e2e

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/auth/extauth"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/modelcontextprotocol/go-sdk/oauthex"

	"github.com/mcp-events/mcpevents/test/expect"
	"github.com/mcp-events/mcpevents/test/harness"
	"github.com/mcp-events/mcpevents/test/identity"
)

// TestAuthNone tests where --auth none is allowed.
func TestAuthNone(t *testing.T) {
	t.Parallel()
	for _, addr := range []string{"[::]:0", ":0"} {
		t.Run("AUT-08 refused at "+addr, func(t *testing.T) {
			s := harness.NewServer(t, harness.ServerOptions{Auth: "none", Args: []string{"--addr", addr}})
			err := s.TryStart(t.Context())
			if err == nil {
				t.Fatal("the server started")
			}
			if out := s.Output(); !strings.Contains(out, "none") || !strings.Contains(out, "loopback") {
				t.Errorf("the output lacks the reason: %s", out)
			}
		})
	}
	t.Run("AUT-08 allowed on loopback", func(t *testing.T) {
		s := harness.StartServer(t, harness.ServerOptions{Auth: "none"})
		s.Publish(t, build("", 1))
	})
	t.Run("AUT-02 keys without a key do not start", func(t *testing.T) {
		s := harness.NewServer(t, harness.ServerOptions{Callers: []harness.Caller{}})
		if s.TryStart(t.Context()) == nil {
			t.Error("the server started")
		}
	})
}

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

func startJWT(t *testing.T) (*harness.Server, *identity.Provider) {
	t.Helper()
	p := identity.Start(t, "")
	s := harness.StartServer(t, harness.ServerOptions{Provider: p, Catalog: owned})
	s.Keys["publisher"] = p.Token("publisher", "events:publish", nil)
	s.Keys["acme"] = p.Token("alice", everything, claims{"org": "acme"})
	s.Keys["reader"] = p.Token("reader", "events:read", nil)
	return s, p
}

// TestTokensAreNeeded checks how requests without a good token are refused, and how a client learns where to get one
// (AUT-01). TestTenants sends all methods, and shared/auth/jwt tests all defects of tokens.
func TestTokensAreNeeded(t *testing.T) {
	t.Parallel()
	s, p := startJWT(t)
	expired := p.Token("alice", everything, claims{"exp": time.Now().Add(-time.Hour).Unix()})
	for what, tc := range map[string]struct {
		scope string
		send  func(token string) (status int, h http.Header)
	}{
		"a call": {"events:read", func(token string) (int, http.Header) {
			a := (&harness.Client{URL: s.MCP, Key: token, Version: harness.V20260728}).Do(t, "resources/list", nil)
			return a.Status, a.Header
		}},
		"a subscription": {"events:subscribe", func(token string) (int, http.Header) {
			a := (&harness.Client{URL: s.MCP, Key: token, Version: harness.V20260728}).Do(t, "events/subscribe", subscription("repo.announced", nil, "http://127.0.0.1:9/", harness.NewSecret()))
			return a.Status, a.Header
		}},
		"a stream": {"events:read", func(token string) (int, http.Header) {
			a := (&harness.Client{URL: s.MCP, Key: token, Version: harness.V20251125, Session: "any"}).Raw(t, http.MethodGet, "")
			return a.Status, a.Header
		}},
		"an event": {"events:publish", func(token string) (int, http.Header) {
			target := harness.Target{Events: s.Events, Keys: map[string]string{"caller": token}}
			a := target.PostEvents(t, "caller", "application/json", `{"uri":"event://scoped/thing","data":{}}`)
			return a.Status, a.Header
		}},
	} {
		for fault, token := range map[string]string{"": "", `error="invalid_token", `: expired} {
			t.Run("AUT-01 "+what+" is refused with: "+fault, func(t *testing.T) {
				status, header := tc.send(token)
				want := fmt.Sprintf(`Bearer %sscope="%s", resource_metadata="%s/.well-known/oauth-protected-resource/mcp"`, fault, tc.scope, s.Base())
				expect.Equal(t, "the status", status, 401)
				expect.Equal(t, "the header WWW-Authenticate", header.Get("WWW-Authenticate"), want)
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
		for _, token := range []string{expired, s.Keys["acme"]} {
			expect.Lacks(t, "the log", s.Output(), token[len(token)-30:])
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
			handler := expect.Value(extauth.NewClientCredentialsHandler(&extauth.ClientCredentialsHandlerConfig{
				Credentials: &oauthex.ClientCredentials{
					ClientID: "robot", ClientSecretAuth: &oauthex.ClientSecretAuth{ClientSecret: identity.Secret},
				},
			}))(t)
			client := sdk.NewClient(&sdk.Implementation{Name: "robot", Version: "1"}, nil)
			session := expect.Value(client.Connect(t.Context(), &sdk.StreamableClientTransport{
				Endpoint: s.MCP, OAuthHandler: handler, DisableStandaloneSSE: true,
			}, &sdk.ClientSessionOptions{ProtocolVersion: version}))(t)
			defer session.Close()
			expect.OK(t, expect.ErrOf(session.ListResources(t.Context(), nil)))
			if granted := p.Granted(); granted[len(granted)-1] != "events:read" {
				t.Errorf("the client asked for %q", granted)
			}
			expect.OK(t, expect.ErrOf(session.ReadResource(t.Context(), &sdk.ReadResourceParams{URI: "event://scoped/thing"})))
			granted := strings.Fields(p.Granted()[len(p.Granted())-1])
			if slices.Sort(granted); !slices.Equal(granted, []string{"audit", "events:read", "secrets"}) {
				t.Errorf("the client stepped up to %q", p.Granted())
			}
		})
	}
}
