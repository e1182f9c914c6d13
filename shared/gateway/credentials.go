package gateway

import (
	"context"
	"net/http"
	"sync"

	"golang.org/x/oauth2"
	"golang.org/x/oauth2/clientcredentials"
	"golang.org/x/sync/singleflight"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/platform/secret"
)

// Secrets looks up what a setting of a backend refers to.
type Secrets func(ctx context.Context, v secret.Value) (string, error)

// resolve looks all secrets up, to see whether they are there.
func (b *backend) resolve(ctx context.Context) error {
	if err := b.fixed(ctx, http.Header{}); err != nil {
		return err
	}
	if b.OAuth == nil {
		return nil
	}
	_, err := b.clientSecret(ctx)
	return err
}

// fixed adds the operator's fixed headers.
func (b *backend) fixed(ctx context.Context, h http.Header) error {
	for name, value := range b.Headers {
		text, err := b.options.Secrets(ctx, value)
		if err != nil {
			return fault.Wrap(fault.Invalid, err, "backend %s: header %s", b.Name, name)
		}
		h.Set(name, text)
	}
	return nil
}

func (b *backend) clientSecret(ctx context.Context) (string, error) {
	secret, err := b.options.Secrets(ctx, b.OAuth.ClientSecret)
	return secret, fault.Wrap(fault.Invalid, err, "backend %s: clientSecret", b.Name)
}

// granted keeps the token of a backend with OAuth.
type granted struct {
	asking singleflight.Group
	mu     sync.Mutex
	secret string // that the source was made with
	source oauth2.TokenSource
}

// oauthToken gets a token by the client's credentials, or the one that is still good.
func (b *backend) oauthToken(ctx context.Context) (string, error) {
	secret, err := b.clientSecret(ctx)
	if err != nil {
		return "", err
	}
	// All that need one wait together, each for as long as its context lets it.
	source := b.tokens(secret)
	asked := b.granted.asking.DoChan(secret, func() (any, error) { return source.Token() })
	select {
	case r := <-asked:
		if r.Err != nil {
			return "", fault.Wrap(fault.Unavailable, r.Err, "get a token for backend %s", b.Name)
		}
		t := r.Val.(*oauth2.Token)
		return t.Type() + " " + t.AccessToken, nil
	case <-ctx.Done():
		return "", fault.Wrap(fault.Unavailable, ctx.Err(), "wait for a token for backend %s", b.Name)
	}
}

// tokens makes a new source when the secret is another.
func (b *backend) tokens(secret string) oauth2.TokenSource {
	b.granted.mu.Lock()
	defer b.granted.mu.Unlock()
	if b.granted.source == nil || b.granted.secret != secret {
		// Not by any client: the secret must not follow a redirect, nor may everybody wait for ever.
		client := &http.Client{Transport: b.own.HTTP.Transport, CheckRedirect: b.own.HTTP.CheckRedirect, Timeout: b.options.AskTimeout}
		b.granted.secret, b.granted.source = secret, (&clientcredentials.Config{
			ClientID: b.OAuth.ClientID, ClientSecret: secret, TokenURL: b.OAuth.TokenURL, Scopes: b.OAuth.Scopes,
		}).TokenSource(context.WithValue(context.Background(), oauth2.HTTPClient, client))
	}
	return b.granted.source
}

// credentials are what a request to a backend carries: for a caller, or for the gateway itself
// with an empty token.
type credentials struct {
	*backend
	token string
	bare  bool // without Authorization
}

// add is the Credentials of an [upstream.Client].
func (c credentials) add(ctx context.Context, h http.Header) error {
	err := c.fixed(ctx, h)
	switch {
	case err != nil:
	case c.bare:
		h.Del("Authorization")
	case c.ForwardToken && c.token != "":
		h.Set("Authorization", c.token)
	case c.OAuth != nil:
		var t string
		if t, err = c.oauthToken(ctx); err == nil {
			h.Set("Authorization", t)
		}
	}
	if err != nil { // nothing that the caller could mend
		return &fault.Error{Kind: fault.Unavailable, Message: "the credentials of backend " + c.Name + " cannot be had", Err: err}
	}
	return nil
}
