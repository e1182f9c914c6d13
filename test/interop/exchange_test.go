//go:build unix

package interop

import (
	"context"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	sdkauth "github.com/modelcontextprotocol/go-sdk/auth"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/mcp-events/mcpevents/test/expect"
	"github.com/mcp-events/mcpevents/test/harness"
	"github.com/mcp-events/mcpevents/test/identity"
)

// crm is a server of the official Go SDK. It checks each token at the authorization server, as one that was issued for it.
type crm struct {
	URL string

	mu   sync.Mutex
	seen []string // headers and bodies of all requests
}

func startCRM(t *testing.T, a *harness.AuthServer) *crm {
	t.Helper()
	server := sdk.NewServer(&sdk.Implementation{Name: "crm", Version: "1"}, nil)
	sdk.AddTool(server, &sdk.Tool{Name: "whoami"}, func(ctx context.Context, r *sdk.CallToolRequest, _ struct{}) (*sdk.CallToolResult, any, error) {
		if token := r.Params.GetProgressToken(); token != nil { // makes the answer a stream
			if err := r.Session.NotifyProgress(ctx, &sdk.ProgressNotificationParams{ProgressToken: token, Progress: 1}); err != nil {
				return nil, nil, err
			}
		}
		info := r.Extra.TokenInfo
		return &sdk.CallToolResult{Content: []sdk.Content{&sdk.TextContent{Text: fmt.Sprint(info.UserID, " ", info.Scopes)}}}, nil, nil
	})
	verify := func(_ context.Context, token string, _ *http.Request) (*sdkauth.TokenInfo, error) {
		got := a.Introspect(t, "crm", token)
		if !got.Active {
			return nil, sdkauth.ErrInvalidToken
		}
		return &sdkauth.TokenInfo{UserID: got.Subject, Scopes: strings.Fields(got.Scope), Expiration: time.Unix(got.Expires, 0)}, nil
	}
	handler := sdkauth.RequireBearerToken(verify, nil)(sdk.NewStreamableHTTPHandler(func(*http.Request) *sdk.Server { return server }, nil))
	c := &crm{}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		r.Body = io.NopCloser(strings.NewReader(string(body)))
		c.mu.Lock()
		c.seen = append(c.seen, fmt.Sprint(r.URL, r.Header, string(body)))
		c.mu.Unlock()
		handler.ServeHTTP(w, r)
	}))
	t.Cleanup(s.Close)
	c.URL = s.URL
	return c
}

const audience = "https://mcp.example.com/mcp"

// TestTokenExchange checks that a backend acts for the caller without the caller's token (GWN-27). The authorization server is Zitadel's
// library, and the backend is a server of the official Go SDK.
func TestTokenExchange(t *testing.T) {
	t.Parallel()
	key := identity.NewKey(t, "key-1", "ES256")
	a := harness.StartAuthServer(t, audience, marshal(t, key.JWK()))
	tokens := map[string]string{}
	for _, client := range []string{"alice", "mallory"} {
		tokens[client] = a.Token(t, client, "events:read")
	}
	const withSecret = `clientId: gateway, clientSecret: "env:CRM_SECRET"`
	withKey := fmt.Sprintf(`clientAuth: private_key_jwt, clientId: keyholder, clientKey: "env:CRM_SECRET", keyId: key-1, issuer: %q`, a.Issuer)
	start := func(t *testing.T, client string) (*crm, string) {
		c := startCRM(t, a)
		return c, fmt.Sprintf(`
backends:
  - name: crm
    url: %s
    credentials: exchange
    exchange: {tokenUrl: %q, %s, audience: crm, scopes: [crm.read]}
`, c.URL, a.Issuer+"/oauth/token", client)
	}
	standAlone := func(t *testing.T, config, secret string) *harness.Server {
		s := harness.StartServer(t, harness.ServerOptions{
			Auth: "jwt", Args: []string{"--jwt-issuer", a.Issuer, "--jwt-audience", audience}, Config: config, Env: []string{"CRM_SECRET=" + secret},
		})
		s.Keys = tokens
		return s
	}
	t.Run("local AWS with a key", func(t *testing.T) {
		c, config := start(t, withKey)
		aws := harness.StartAWS(t, harness.AWSOptions{
			Issuer: a.Issuer, Audience: audience, Tokens: tokens, Config: config,
			Env: map[string]string{"CRM_SECRET": marshal(t, jose.JSONWebKey{Key: key.Private})},
		})
		testExchange(t, a, c, &aws.Target, 100) // each process has a cache of its own
	})
	t.Run("GWN-27 if the gateway has another key than the authorization server knows, callers get an error and the log has the reason", func(t *testing.T) {
		c, config := start(t, withKey)
		der := expect.Value(x509.MarshalPKCS8PrivateKey(identity.NewKey(t, "key-1", "ES256").Private))(t)
		text := string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}))
		s := standAlone(t, config, text)
		// Zitadel's library answers invalid_grant, where RFC 7521, section 4.2.1, has invalid_client.
		got := s.Stateless("alice").Refused(t, 401, "tools/call", map[string]any{"name": "whoami", "arguments": map[string]any{}})
		expect.Contains(t, "the error", got.Message, "the authorization server no longer accepts the token, so backend crm cannot be used")
		harness.Eventually(t, harness.Patience, "the reason in the log", func() bool { return strings.Contains(s.Output(), "token exchange failed") })
		expect.Lacks(t, "the log", s.Output(), strings.Split(text, "\n")[1])
		expect.Equal(t, "requests at the backend", len(c.seen), 0)
	})
	t.Run("stand-alone", func(t *testing.T) {
		c, config := start(t, withSecret)
		s := standAlone(t, config, harness.AuthSecret)
		testExchange(t, a, c, &s.Target, 1)
		t.Run("GWN-27 the log contains no token", func(t *testing.T) {
			for client, token := range tokens {
				expect.Lacks(t, "the log, without the token of "+client, s.Output(), token[len(token)-30:])
			}
		})
		t.Run("GWN-27 without the authorization server, a caller without a cached token gets an error that says so", func(t *testing.T) {
			fresh := a.Token(t, "alice", "events:read")
			a.Kill()
			s.Keys["fresh"] = fresh
			for range 3 {
				got := s.Stateless("fresh").Refused(t, 503, "tools/call", map[string]any{"name": "whoami", "arguments": map[string]any{}})
				expect.Contains(t, "the error", got.Message, "the authorization server gives no tokens for backend crm now")
			}
		})
	})
}

// marshal returns a value as JSON.
func marshal(t *testing.T, v any) string {
	t.Helper()
	text := expect.Value(json.Marshal(v))(t)
	return string(text)
}

func testExchange(t *testing.T, a *harness.AuthServer, c *crm, s *harness.Target, most int) {
	before := a.Exchanges(t)
	whoami := map[string]any{"name": "whoami", "arguments": map[string]any{}, "_meta": map[string]any{"progressToken": "p"}}
	t.Run("GWN-27 the backend sees the caller as the user of another token", func(t *testing.T) {
		for range 3 {
			for _, client := range []*harness.Client{s.Stateless("alice"), s.SessionBased(t, "alice", harness.V20251125)} {
				var got struct{ Content []struct{ Text string } }
				if client.Call(t, "tools/call", whoami, &got); len(got.Content) != 1 || got.Content[0].Text != "alice [crm.read]" {
					t.Errorf("the backend is called by %+v, want alice with the scope crm.read", got)
				}
			}
		}
	})
	t.Run("GWN-27 an exchanged token is cached", func(t *testing.T) {
		if n := a.Exchanges(t) - before; n < 1 || n > most {
			t.Errorf("%d exchanges, want 1 to %d", n, most)
		}
	})
	t.Run("GWN-27 a caller to whom the authorization server gives no token is refused", func(t *testing.T) {
		got := s.Stateless("mallory").Refused(t, 403, "tools/call", whoami)
		expect.Equal(t, "the error", got.Message, "the authorization server gives this caller no token for backend crm")
		expect.Len(t, "the tools of the caller", s.Stateless("mallory").All(t, "tools/list", "tools"), 0)
	})
	t.Run("GWN-27 the caller's token does not reach the backend", func(t *testing.T) {
		c.mu.Lock()
		defer c.mu.Unlock()
		expect.AtLeast(t, "the requests at the backend", len(c.seen), 1)
		for _, request := range c.seen {
			for client, token := range s.Keys {
				expect.Lacks(t, "the request, without the token of "+client, request, token)
			}
		}
	})
}
