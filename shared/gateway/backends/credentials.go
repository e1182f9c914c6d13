package backends

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"sync"
	"time"

	"golang.org/x/oauth2"
	"golang.org/x/oauth2/clientcredentials"
	"golang.org/x/sync/singleflight"

	"github.com/mcp-events/mcpevents/shared/gateway/api"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/platform/secret"
)

// Secrets is a function that returns the text of a secret in a backend's settings.
type Secrets func(ctx context.Context, v secret.Value) (string, error)

func (b *Backend) checkSecrets(ctx context.Context) error {
	if err := b.addHeaders(ctx, http.Header{}); err != nil {
		return err
	}
	if b.Command != nil {
		for name, value := range b.Command.Env {
			if _, err := b.options.Secrets(ctx, value); err != nil {
				return fault.Wrap(fault.Invalid, err, "backend %s: env %s", b.Name, name)
			}
		}
	}
	switch {
	case b.Exchange == nil:
	case b.Exchange.Signs():
		if _, err := b.clientSigner(ctx); err != nil {
			return err
		}
	default:
		if _, err := b.clientSecret(ctx, &b.Exchange.OAuth); err != nil {
			return err
		}
	}
	if b.OAuth == nil {
		return nil
	}
	_, err := b.clientSecret(ctx, b.OAuth)
	return err
}

func (b *Backend) addHeaders(ctx context.Context, h http.Header) error {
	for name, value := range b.Headers {
		text, err := secret.ForHeader(ctx, value, b.options.Secrets)
		if err != nil {
			return fault.Wrap(fault.Invalid, err, "backend %s: header %s", b.Name, name)
		}
		h.Set(name, text)
	}
	return nil
}

func (b *Backend) clientSecret(ctx context.Context, o *api.OAuth) (string, error) {
	secret, err := b.options.Secrets(ctx, o.ClientSecret)
	return secret, fault.Wrap(fault.Invalid, err, "backend %s: clientSecret", b.Name)
}

// oauthTokens caches the token that the gateway uses for a backend with the client credentials grant.
type oauthTokens struct {
	asking singleflight.Group
	mu     sync.Mutex
	secret string // the client secret that source sends to the authorization server
	source oauth2.TokenSource
	header string    // the Authorization header with the latest token
	since  time.Time // when the latest token was issued
}

// minTokenLife is the minimum time for which the gateway uses a token, even if the backend refuses it. Without this limit, each call to a
// backend that refuses every token would request a new one.
const minTokenLife = 10 * time.Second

// dropOAuthToken makes the next request get a new token. It has an effect only if h, the headers of a request that the backend refused,
// contain the current token. The token may have been revoked, or may have expired without the authorization server having announced when.
func (b *Backend) dropOAuthToken(h http.Header) {
	b.oauth.mu.Lock()
	defer b.oauth.mu.Unlock()
	if b.oauth.header != "" && b.oauth.header == h.Get("Authorization") && time.Since(b.oauth.since) >= minTokenLife {
		b.oauth.source = nil
	}
}

// headerOf returns the Authorization header with the token. It also stores this header, and the time of its first use, for
// [Backend.dropOAuthToken].
func (o *oauthTokens) headerOf(t *oauth2.Token) string {
	header := t.Type() + " " + t.AccessToken
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.header != header {
		o.header, o.since = header, time.Now()
	}
	return header
}

// getOAuthToken returns the Authorization header with a token from the client credentials grant. The token is cached while it is valid.
func (b *Backend) getOAuthToken(ctx context.Context) (string, error) {
	secret, err := b.clientSecret(ctx, b.OAuth)
	if err != nil {
		return "", err
	}
	// Concurrent callers share one request for a token, and each stops waiting when its own context ends.
	source := b.tokenSource(secret)
	asked := b.oauth.asking.DoChan(secret, func() (any, error) { return source.Token() })
	select {
	case r := <-asked:
		if r.Err != nil {
			return "", fault.Wrap(fault.Unavailable, withoutURL(r.Err), "get a token for backend %s", b.Name)
		}
		return b.oauth.headerOf(r.Val.(*oauth2.Token)), nil
	case <-ctx.Done():
		return "", fault.Wrap(fault.Unavailable, ctx.Err(), "wait for a token for backend %s", b.Name)
	}
}

// withoutURL removes the URL from an error of net/http, because the URL may contain a secret.
func withoutURL(err error) error {
	if named, ok := errors.AsType[*url.Error](err); ok {
		return named.Err
	}
	return err
}

func (b *Backend) tokenSource(secret string) oauth2.TokenSource {
	b.oauth.mu.Lock()
	defer b.oauth.mu.Unlock()
	if b.oauth.source == nil || b.oauth.secret != secret {
		b.oauth.secret, b.oauth.source = secret, (&clientcredentials.Config{
			ClientID: b.OAuth.ClientID, ClientSecret: secret, TokenURL: b.OAuth.TokenURL, Scopes: b.OAuth.Scopes,
		}).TokenSource(b.tokenContext())
	}
	return b.oauth.source
}

// tokenContext returns a context for package oauth2's requests to a token endpoint. Its HTTP client has a timeout and does not follow
// redirects, so that secrets go only to the configured server.
func (b *Backend) tokenContext() context.Context {
	client := &http.Client{Transport: b.own.HTTP.Transport, CheckRedirect: b.own.HTTP.CheckRedirect, Timeout: b.options.AskTimeout}
	return context.WithValue(context.Background(), oauth2.HTTPClient, client)
}

// credentials adds headers to requests to a backend: the operator's configured headers, and an Authorization header. The field token is
// the Authorization header of the caller for whom the request is made. It is empty if there is no such caller, or if the caller sent
// none.
type credentials struct {
	*Backend
	token string
	bare  bool // send no Authorization header, because the caller sent no token
}

// add adds the headers that authenticate a request to the backend, for example an Authorization header with an OAuth token. An
// [upstream.Client] calls add before it sends a request.
func (c credentials) add(ctx context.Context, h http.Header) error {
	err := c.addHeaders(ctx, h)
	switch {
	case err != nil:
	case c.bare:
		h.Del("Authorization")
	case c.Exchange != nil && c.token != "":
		t, err := c.exchangeToken(ctx, c.token)
		if err != nil {
			return err
		}
		h.Set("Authorization", t)
	case c.ForwardToken && c.token != "":
		h.Set("Authorization", c.token)
	case c.OAuth != nil:
		var t string
		if t, err = c.getOAuthToken(ctx); err == nil {
			h.Set("Authorization", t)
		}
	}
	if err != nil { // tell the caller only which backend fails, because the operator has to fix the cause
		return &fault.Error{Kind: fault.Unavailable, Message: "cannot get the credentials of backend " + c.Name, Err: err}
	}
	return nil
}
