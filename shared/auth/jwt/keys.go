package jwt

import (
	"context"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rsa"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/go-jose/go-jose/v4"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/platform/refresh"
)

const (
	// fresh is how long keys are used before they are fetched again. A key that the issuer has removed still works for up to this time.
	fresh = 5 * time.Minute
	// usable is the age up to which keys are used if the issuer cannot be reached.
	usable = time.Hour
	// pause is the shortest time between two fetches, so that tokens with made-up key ids cause few requests to the issuer. For up to 5 s
	// after a fetch, a token that is signed with a newer key is refused.
	pause = 5 * time.Second
	// retry is the pause after a failed fetch while the old keys are still usable.
	retry = 30 * time.Second
	// patience limits how long a fetch of an issuer's keys and metadata may take.
	patience = 5 * time.Second
)

type keySet struct{ *refresh.Value[*issuerKeys] }

// issuerKeys has the keys of an issuer from one fetch.
type issuerKeys struct{ keys []jose.JSONWebKey }

// newKeySet returns a key set that fetches an issuer's keys from url or, if url is empty, from the URL that the issuer's metadata names.
func newKeySet(issuer, url string, f fetcher, o *Options) *keySet {
	found := url // the URL of the keys; it needs no mutex, because only one fetch runs at a time
	fetch := func(ctx context.Context) (keys []jose.JSONWebKey, err error) {
		if found == "" {
			if found, err = f.keysURL(ctx, issuer); err != nil {
				return nil, err
			}
		}
		if keys, err = f.fetchKeys(ctx, found); err != nil {
			found = url // the issuer may have moved its keys, so the next fetch reads its metadata again
		}
		return keys, err
	}
	load := func(ctx context.Context, _ *issuerKeys) (*issuerKeys, error) {
		keys, err := fetch(ctx)
		if err != nil {
			o.Log.WarnContext(ctx, "issuer keys not fetched", "issuer", issuer, "error", err)
		}
		return &issuerKeys{keys}, err
	}
	return &keySet{refresh.New(refresh.Options{
		Name: "the keys of the authorization server", Fresh: fresh, Shared: usable, Stale: usable,
		Backoff: retry, EmptyBackoff: pause, Timeout: patience, Now: o.Now,
	}, load)}
}

// find returns the keys with which a token with this key id and algorithm may be signed, and the [issuerKeys] that contain them. If the
// issuer has no such key, find returns no keys and no error. If the issuer cannot be reached, the error is of kind fault.Unavailable.
func (k *keySet) find(ctx context.Context, kid string, alg jose.SignatureAlgorithm) ([]jose.JSONWebKey, *issuerKeys, error) {
	all, err := k.Get(ctx)
	found := all.match(kid, alg)
	if err == nil && len(found) == 0 { // the issuer may have added the key since the last fetch
		all, err = k.Within(ctx, pause)
		found = all.match(kid, alg)
	}
	if err != nil {
		return nil, nil, fault.Wrap(fault.Unavailable, err, "the keys of the authorization server cannot be fetched at the moment")
	}
	return found, all, nil
}

// freshUntil returns the time until which the given keys are fresh, or the zero time if newer keys have replaced them.
func (k *keySet) freshUntil(keys *issuerKeys) time.Time {
	current, loaded := k.Peek()
	if current != keys {
		return time.Time{}
	}
	return loaded.Add(fresh)
}

// match returns the keys with the key id kid that fit the algorithm. If a token has no key id, match returns a key only if it is the
// issuer's only key for the algorithm. Otherwise a token without a key id could make the server try many keys.
func (k *issuerKeys) match(kid string, alg jose.SignatureAlgorithm) []jose.JSONWebKey {
	if k == nil {
		return nil
	}
	var found []jose.JSONWebKey
	for _, key := range k.keys {
		if (kid == "" || key.KeyID == kid) && fitsAlgorithm(key, alg) {
			found = append(found, key)
		}
	}
	if kid == "" && len(found) > 1 {
		return nil
	}
	return found
}

// fitsAlgorithm reports whether a key has the right type for an algorithm and names no other algorithm. This prevents an attacker from
// using a public key as a shared secret.
func fitsAlgorithm(key jose.JSONWebKey, alg jose.SignatureAlgorithm) bool {
	if key.Algorithm != "" && key.Algorithm != string(alg) {
		return false
	}
	switch k := key.Key.(type) {
	case *rsa.PublicKey:
		return strings.HasPrefix(string(alg), "RS") || strings.HasPrefix(string(alg), "PS")
	case *ecdsa.PublicKey:
		return map[jose.SignatureAlgorithm]int{jose.ES256: 256, jose.ES384: 384, jose.ES512: 521}[alg] == k.Curve.Params().BitSize
	case ed25519.PublicKey:
		return alg == jose.EdDSA
	}
	return false
}

// minRSA is the smallest size of an RSA key in bits (RFC 7518, section 3.3).
const minRSA = 2048

func canVerify(key *jose.JSONWebKey) bool {
	if !key.IsPublic() || !key.Valid() || key.Use != "" && key.Use != "sig" {
		return false
	}
	r, ok := key.Key.(*rsa.PublicKey)
	return !ok || r.N.BitLen() >= minRSA
}

const (
	maxDocument = 512 << 10 // maximum size of a response in bytes
	maxKeys     = 100
)

// newClient returns a client that uses the proxy that the environment variables name, and that follows no redirects.
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

// fetcher fetches the keys and metadata of issuers. Its errors are of kind fault.Internal, so that their details are logged but not shown
// to callers.
type fetcher struct{ client *http.Client }

func (f fetcher) fetchJSON(ctx context.Context, url string, into any) error {
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

// fetchKeys fetches a JSON Web Key Set (RFC 7517, section 5), without keys that cannot verify signatures.
func (f fetcher) fetchKeys(ctx context.Context, url string) ([]jose.JSONWebKey, error) {
	var set struct {
		Keys *[]json.RawMessage `json:"keys"`
	}
	if err := f.fetchJSON(ctx, url, &set); err != nil {
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

type serverMetadata struct {
	Issuer    string `json:"issuer"`
	Keys      string `json:"jwks_uri"`
	Authorize string `json:"authorization_endpoint"`
	Token     string `json:"token_endpoint"`
}

func (f fetcher) keysURL(ctx context.Context, issuer string) (string, error) {
	doc, err := f.fetchMetadata(ctx, issuer, func(doc serverMetadata, at string) error {
		if _, bad := parseSecureURL(doc.Keys); bad != nil {
			return fault.New(fault.Internal, "%s has no jwks_uri with https", at)
		}
		return nil
	})
	return doc.Keys, err
}

// fetchMetadata tries the possible URLs of an issuer's metadata one after the other, until the function check accepts a document.
func (f fetcher) fetchMetadata(ctx context.Context, issuer string, check func(doc serverMetadata, at string) error) (serverMetadata, error) {
	var failed []error
	for _, at := range metadataURLs(issuer) {
		var doc serverMetadata
		err := f.fetchJSON(ctx, at, &doc)
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

// Endpoints returns the URLs of the authorization and token endpoints of the first issuer. The console uses them to sign people in.
func (a *Authenticator) Endpoints(ctx context.Context) (authorize, token string, err error) {
	doc, err := fetcher{a.options.Client}.fetchMetadata(ctx, a.options.Issuers[0], func(doc serverMetadata, at string) error {
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

// parseSecureURL parses an https URL, or an http URL of this machine.
func parseSecureURL(text string) (*url.URL, error) {
	u, err := url.Parse(text)
	if err != nil || u.Host == "" || u.Fragment != "" || u.User != nil {
		return nil, fault.New(fault.Invalid, "%.200q is not the URL of a server", text)
	}
	if u.Scheme == "https" || u.Scheme == "http" && auth.IsLoopback(u.Hostname()) {
		return u, nil
	}
	return nil, fault.New(fault.Invalid, "%.200q is not https", text)
}

// WellKnown is the path of the protected resource metadata (RFC 9728, section 3). The path of the resource is appended to it, for example
// /mcp.
const WellKnown = "/.well-known/oauth-protected-resource"

// resourcePath matches paths such as /mcp that need no encoding and have no segments . and .. to resolve.
var resourcePath = regexp.MustCompile(`^(/[A-Za-z0-9_~-][A-Za-z0-9._~-]*)*/?$`)

// metadataURL returns the URL of the metadata of a resource. The parameter text is the resource's URL, which has no fragment (RFC 8707,
// section 2).
func metadataURL(text string) (*url.URL, error) {
	u, err := parseSecureURL(text)
	if err != nil {
		return nil, fault.Wrap(fault.Invalid, err, "--jwt-audience must begin with the URL of the MCP endpoint")
	}
	if u.RawQuery != "" {
		return nil, fault.New(fault.Invalid, "--jwt-audience: %.200q has a query", text)
	}
	if !resourcePath.MatchString(u.Path) {
		return nil, fault.New(fault.Invalid, "--jwt-audience: %.200q has a path that is not simple", text)
	}
	return &url.URL{Scheme: u.Scheme, Host: u.Host, Path: WellKnown + strings.TrimSuffix(u.Path, "/")}, nil
}

// MetadataURL returns the URL of this resource's metadata, which 401 and 403 responses contain (RFC 9728, section 5.1).
func (a *Authenticator) MetadataURL() string { return a.metadata.String() }

// metadata is the metadata of this resource (RFC 9728, section 2).
type metadata struct {
	Resource             string   `json:"resource"`
	AuthorizationServers []string `json:"authorization_servers"`
	Scopes               []string `json:"scopes_supported"`
	Methods              []string `json:"bearer_methods_supported"`
	Name                 string   `json:"resource_name"`
}

// Mount serves the metadata at [WellKnown], at [WellKnown] with the path of the resource, and at [WellKnown] with /mcp, because clients
// look for it at any of these. Anyone may read it, including web pages of other sites.
func (a *Authenticator) Mount(mux *http.ServeMux) {
	var scopes []string
	for _, scope := range auth.Scopes() {
		scopes = append(scopes, a.options.ScopePrefix+scope)
	}
	body, _ := json.Marshal(metadata{ // strings always marshal
		Resource: a.options.Audience[0], AuthorizationServers: a.options.Issuers,
		Scopes: scopes, Methods: []string{"header"}, Name: "mcp-events",
	})
	serve := func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Access-Control-Allow-Origin", "*")
		if r.Method == http.MethodOptions {
			h.Set("Access-Control-Allow-Methods", "GET")
			h.Set("Access-Control-Allow-Headers", "Mcp-Protocol-Version")
			w.WriteHeader(http.StatusNoContent)
			return
		}
		h.Set("Content-Type", "application/json")
		h.Set("Cache-Control", "public, max-age=300")
		_, _ = w.Write(body)
	}
	paths := []string{WellKnown, WellKnown + "/mcp", a.metadata.Path}
	slices.Sort(paths)
	for _, path := range slices.Compact(paths) {
		for _, method := range []string{http.MethodGet, http.MethodOptions} { // GET includes HEAD
			mux.HandleFunc(method+" "+path, serve)
		}
	}
}
