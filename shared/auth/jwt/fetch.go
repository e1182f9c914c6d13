package jwt

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/go-jose/go-jose/v4"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
)

// Limits of fetched documents.
const (
	maxDocument = 512 << 10 // bytes
	maxKeys     = 100
)

// newClient returns a client for the operator's authorization servers. It uses the proxy in the environment and follows no redirects.
func newClient() *http.Client {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.MaxIdleConns = 4
	transport.IdleConnTimeout = 30 * time.Second
	transport.MaxResponseHeaderBytes = 64 << 10
	return &http.Client{
		Transport:     transport,
		Timeout:       patience,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// fetcher fetches the keys and metadata of issuers. Its errors are of kind fault.Internal, because their details are for the log.
type fetcher struct{ client *http.Client }

// document fetches a JSON document.
func (f fetcher) document(ctx context.Context, url string, into any) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return fault.Wrap(fault.Internal, err, "make the request")
	}
	req.Header.Set("Accept", "application/json, application/jwk-set+json")
	resp, err := f.client.Do(req)
	if err != nil {
		return fault.Wrap(fault.Internal, err, "get")
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fault.New(fault.Internal, "get %s: status %d", url, resp.StatusCode)
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxDocument+1))
	switch {
	case err != nil:
		return fault.Wrap(fault.Internal, err, "read %s", url)
	case len(body) > maxDocument:
		return fault.New(fault.Internal, "%s is larger than %d bytes", url, maxDocument)
	}
	return fault.Wrap(fault.Internal, json.Unmarshal(body, into), "decode %s", url)
}

// keys fetches a JWK set (RFC 7517, section 5). It leaves out keys that cannot verify signatures.
func (f fetcher) keys(ctx context.Context, url string) ([]jose.JSONWebKey, error) {
	var set struct {
		Keys *[]json.RawMessage `json:"keys"`
	}
	if err := f.document(ctx, url, &set); err != nil {
		return nil, err
	}
	if set.Keys == nil {
		return nil, fault.New(fault.Internal, "%s is not a JSON Web Key Set", url)
	}
	var keys []jose.JSONWebKey
	for _, raw := range *set.Keys {
		var key jose.JSONWebKey
		if json.Unmarshal(raw, &key) != nil || !canVerify(&key) {
			continue
		}
		if keys = append(keys, key); len(keys) == maxKeys {
			break
		}
	}
	return keys, nil
}

// serverMetadata has the members of an issuer's metadata that we use.
type serverMetadata struct {
	Issuer    string `json:"issuer"`
	Keys      string `json:"jwks_uri"`
	Authorize string `json:"authorization_endpoint"`
	Token     string `json:"token_endpoint"`
}

// keysURL returns the URL of an issuer's keys, from its metadata.
func (f fetcher) keysURL(ctx context.Context, issuer string) (string, error) {
	doc, err := f.metadata(ctx, issuer, func(doc serverMetadata, at string) error {
		if _, bad := parseSecureURL(doc.Keys); bad != nil {
			return fault.New(fault.Internal, "%s has no jwks_uri with https", at)
		}
		return nil
	})
	return doc.Keys, err
}

// metadata fetches the metadata of an issuer. It tries all URLs until it finds a document that passes the check.
func (f fetcher) metadata(ctx context.Context, issuer string, check func(doc serverMetadata, at string) error) (serverMetadata, error) {
	var failed []error
	for _, at := range metadataURLs(issuer) {
		var doc serverMetadata
		err := f.document(ctx, at, &doc)
		if err == nil && doc.Issuer != issuer { // RFC 8414, section 3.3
			err = fault.New(fault.Internal, "%s belongs to the issuer %.200q", at, doc.Issuer)
		}
		if err == nil {
			err = check(doc, at)
		}
		if err == nil {
			return doc, nil
		}
		failed = append(failed, err)
	}
	return serverMetadata{}, fault.Wrap(fault.Internal, errors.Join(failed...), "find the metadata of %s", issuer)
}

// Endpoints returns the authorization and token endpoints of the first issuer, where people sign in.
func (a *Authenticator) Endpoints(ctx context.Context) (authorize, token string, err error) {
	doc, err := fetcher{a.options.Client}.metadata(ctx, a.options.Issuers[0], func(doc serverMetadata, at string) error {
		for _, url := range []string{doc.Authorize, doc.Token} {
			if _, bad := parseSecureURL(url); bad != nil {
				return fault.New(fault.Internal, "%s has no authorization_endpoint or token_endpoint with https", at)
			}
		}
		return nil
	})
	return doc.Authorize, doc.Token, err
}

// metadataURLs returns the possible URLs of an issuer's metadata in the order of MCP's authorization chapter: RFC 8414, OpenID Connect with
// the issuer's path after the well-known part, and OpenID Connect with the path before it.
func metadataURLs(issuer string) []string {
	u, err := url.Parse(issuer)
	if err != nil {
		return nil // cannot happen, because New checks issuers
	}
	path := strings.TrimSuffix(u.EscapedPath(), "/")
	origin := u.Scheme + "://" + u.Host
	const openID = "/.well-known/openid-configuration"
	urls := []string{origin + "/.well-known/oauth-authorization-server" + path, origin + openID + path}
	if path != "" {
		urls = append(urls, origin+path+openID)
	}
	return urls
}

// parseSecureURL parses a URL that is https, or http on this machine.
func parseSecureURL(text string) (*url.URL, error) {
	u, err := url.Parse(text)
	if err != nil || u.Host == "" || u.Fragment != "" || u.User != nil {
		return nil, fault.New(fault.Invalid, "%.200q is not the URL of a server", text)
	}
	if u.Scheme == "https" || u.Scheme == "http" && auth.Loopback(u.Hostname()) {
		return u, nil
	}
	return nil, fault.New(fault.Invalid, "%.200q is not https", text)
}
