// Command authserver is an authorization server for tests of the gateway's token exchange: the OpenID Provider of Zitadel's library, which
// implements RFC 8693, RFC 7662 and the client credentials grant itself. Clients and tokens are in memory.
//
// The clients alice, bob and mallory get tokens for the MCP endpoint. The client gateway exchanges them for tokens with the audience crm,
// except mallory's, and so does the client keyholder, which authenticates itself with a key (private_key_jwt). The client crm checks tokens
// by introspection. GET /exchanges returns the number of requests for an exchange.
package main

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/zitadel/oidc/v3/example/server/storage"
	"github.com/zitadel/oidc/v3/pkg/oidc"
	"github.com/zitadel/oidc/v3/pkg/op"
)

// secret is the secret of every client. Its characters show whether it is encoded as RFC 6749, section 2.3.1 says.
const secret = "s3cret:%+ ?"

func main() {
	addr := flag.String("addr", "127.0.0.1:0", "where to listen")
	mcp := flag.String("mcp", "", "the audience of tokens for the MCP endpoint")
	jwk := flag.String("jwk", "", "the public key of the client keyholder")
	life := flag.Duration("exchanged-life", time.Hour, "how long tokens with the audience crm are valid")
	flag.Parse()
	issuer := "http://" + *addr
	s := &server{Storage: storage.NewStorage(storage.NewUserStore(issuer)), mcp: *mcp, life: *life, tokens: map[string]token{}}
	if err := json.Unmarshal([]byte(*jwk), &s.key); *jwk != "" && err != nil {
		log.Fatal(err)
	}
	provider, err := op.NewProvider(&op.Config{AuthMethodPost: true, AuthMethodPrivateKeyJWT: true}, s, op.StaticIssuer(issuer), op.WithAllowInsecure())
	if err != nil {
		log.Fatal(err)
	}
	endpoints := op.NewLegacyServer(provider, *op.DefaultEndpoints) // unlike the provider itself, it accepts keys for token exchanges
	mux := http.NewServeMux()
	mux.Handle("/", refuseReplays(op.RegisterLegacyServer(endpoints, op.AuthorizeCallbackHandler(provider))))
	mux.HandleFunc("GET /exchanges", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, s.exchanges.Load()) })
	log.Fatal(http.ListenAndServe(*addr, mux))
}

// refuseReplays refuses a client assertion whose jti was used before, as RFC 7523 allows. The library does not check this.
func refuseReplays(next http.Handler) http.Handler {
	var used sync.Map
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if assertion := r.PostFormValue("client_assertion"); assertion != "" {
			payload, _ := base64.RawURLEncoding.DecodeString(strings.Split(assertion+"..", ".")[1])
			var claims struct{ JTI string }
			err := json.Unmarshal(payload, &claims)
			if _, replayed := used.LoadOrStore(claims.JTI, true); err != nil || claims.JTI == "" || replayed {
				w.Header().Set("Content-Type", "application/json")
				w.WriteHeader(http.StatusUnauthorized)
				fmt.Fprint(w, `{"error":"invalid_client","error_description":"the assertion has no new jti"}`)
				return
			}
		}
		next.ServeHTTP(w, r)
	})
}

// server is the storage of the provider. It inherits the signing key and the parts for browsers.
type server struct {
	*storage.Storage
	mcp       string
	life      time.Duration   // of exchanged tokens
	key       jose.JSONWebKey // of the client keyholder
	exchanges atomic.Int64

	mu     sync.Mutex
	tokens map[string]token
}

// token is an issued token.
type token struct {
	audience, scopes []string
	expires          time.Time
}

// client gets JWTs as access tokens.
type client struct{ *storage.Client }

// AuthMethod says that only the client keyholder has a key instead of a secret.
func (c client) AuthMethod() oidc.AuthMethod {
	if c.GetID() == "keyholder" {
		return oidc.AuthMethodPrivateKeyJWT
	}
	return c.Client.AuthMethod()
}

func (client) AccessTokenType() op.AccessTokenType { return op.AccessTokenTypeJWT }

func (client) GrantTypes() []oidc.GrantType {
	return []oidc.GrantType{oidc.GrantTypeClientCredentials, oidc.GrantTypeTokenExchange}
}

func (s *server) GetClientByClientID(_ context.Context, id string) (op.Client, error) {
	if !slices.Contains([]string{"alice", "bob", "mallory", "gateway", "keyholder", "crm"}, id) {
		return nil, errors.New("there is no such client")
	}
	return client{storage.WebClient(id, secret)}, nil
}

// GetKeyByIDAndClientID returns the key that verifies a client's assertion.
func (s *server) GetKeyByIDAndClientID(_ context.Context, id, client string) (*jose.JSONWebKey, error) {
	if client != "keyholder" || id != s.key.KeyID {
		return nil, errors.New("there is no such key")
	}
	return &s.key, nil
}

func (s *server) AuthorizeClientIDSecret(ctx context.Context, id, given string) error {
	if _, err := s.GetClientByClientID(ctx, id); err != nil || given != secret {
		return errors.New("there is no such client, or it has another secret")
	}
	return nil
}

func (s *server) ClientCredentials(ctx context.Context, id, given string) (op.Client, error) {
	if err := s.AuthorizeClientIDSecret(ctx, id, given); err != nil {
		return nil, err
	}
	return s.GetClientByClientID(ctx, id)
}

func (s *server) ClientCredentialsTokenRequest(_ context.Context, id string, scopes []string) (op.TokenRequest, error) {
	return &oidc.JWTTokenRequest{Subject: id, Audience: []string{s.mcp}, Scopes: scopes}, nil
}

func (s *server) CreateAccessToken(_ context.Context, r op.TokenRequest) (id string, expires time.Time, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	id, expires = fmt.Sprint("token-", len(s.tokens)), time.Now().Add(time.Hour)
	if slices.Contains(r.GetAudience(), "crm") {
		expires = time.Now().Add(s.life)
	}
	s.tokens[id] = token{r.GetAudience(), r.GetScopes(), expires}
	return id, expires, nil
}

// ValidateTokenExchangeRequest decides whether a client may exchange a token.
func (s *server) ValidateTokenExchangeRequest(_ context.Context, r op.TokenExchangeRequest) error {
	s.exchanges.Add(1)
	switch {
	case r.GetClientID() != "gateway" && r.GetClientID() != "keyholder":
		return oidc.ErrUnauthorizedClient()
	case !slices.Equal(r.GetAudience(), []string{"crm"}), r.GetExchangeSubject() == "mallory":
		return oidc.ErrInvalidTarget()
	}
	return nil
}

func (s *server) GetPrivateClaimsFromTokenExchangeRequest(_ context.Context, r op.TokenExchangeRequest) (map[string]any, error) {
	return map[string]any{"scope": strings.Join(r.GetScopes(), " "), "act": map[string]any{"sub": r.GetClientID()}}, nil
}

func (s *server) GetPrivateClaimsFromScopes(_ context.Context, _, _ string, scopes []string) (map[string]any, error) {
	return map[string]any{"scope": strings.Join(scopes, " ")}, nil
}

func (s *server) SetIntrospectionFromToken(_ context.Context, out *oidc.IntrospectionResponse, id, subject, client string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	t, ok := s.tokens[id]
	if !ok || time.Now().After(t.expires) || !slices.Contains(t.audience, client) {
		return errors.New("the token is not valid for this client")
	}
	out.Subject, out.Audience, out.Scope, out.Expiration = subject, t.audience, t.scopes, oidc.FromTime(t.expires)
	return nil
}
