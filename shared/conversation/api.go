// Package conversation forwards the messages of clients' conversations to the context providers to which the user has consented, and
// collects the context that they return.
//
//	client ─▶ shared/mcp ─▶ [Service.Forward] ─▶ consent? ─▶ providers ─▶ merge ─▶ context
//	                                │            (store)    at URLs
//	                                │                       backends, through shared/gateway
//	                                └─────────────────────▶ event, through shared/events/publish
//
// These messages are the most private data in the system. They never occur in errors or logs, at any level: a failure only has a
// [reason], which is one of our constants. A message is sent only to receivers for which the store has the caller's consent at that
// moment. The MCP methods are in shared/mcp.
package conversation

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"mime"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/auth/httpjson"
	"github.com/mcp-events/mcpevents/shared/conversation/rules"
	"github.com/mcp-events/mcpevents/shared/gateway/api"
	"github.com/mcp-events/mcpevents/shared/gateway/upstream"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/platform/opaque"
	"github.com/mcp-events/mcpevents/shared/platform/secret"
	"github.com/mcp-events/mcpevents/shared/protocol/jsonrpc"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
	"github.com/mcp-events/mcpevents/shared/storage/store"
)

// maxPrincipal is the maximum length of the query parameter principal, in bytes.
const maxPrincipal = 512

// View is a context provider as a principal sees it. A context provider receives the messages of the principal's conversations if the
// principal has consented to that, and returns context for them.
type View struct {
	Name        string   `json:"name"`
	Title       string   `json:"title,omitempty"`
	Description string   `json:"description,omitempty"`
	Receives    []Kind   `json:"receives"`
	Consent     *Consent `json:"consent"` // the latest decision; nil before the first one
	// Consented reports whether the latest decision is a consent that covers the provider's current destination and all kinds of messages
	// in Receives.
	Consented bool `json:"consented"`
}

// listViews returns the providers that the principal may use, each with the principal's consent.
func (s *Service) listViews(ctx context.Context, p auth.Principal) ([]View, error) {
	visible, given, err := s.listConsents(ctx, p)
	out := []View{}
	for _, v := range visible {
		out = append(out, newView(v, given))
	}
	return out, err
}

// listConsents returns the providers to which the principal can consent, and the principal's latest decisions by the
// name of the provider.
func (s *Service) listConsents(ctx context.Context, p auth.Principal) ([]*provider, map[string]consentItem, error) {
	now, err := s.current(ctx)
	if err != nil {
		return nil, nil, err
	}
	visible := slices.DeleteFunc(now.listVisible(ctx, p), func(v *provider) bool { return len(v.kinds) == 0 })
	given, err := s.readConsents(ctx, p.Workspace, p.ID)
	return visible, given, err
}

func newView(v *provider, given map[string]consentItem) View {
	out := View{Name: v.name, Title: v.title, Description: v.description, Receives: v.kinds}
	if item, ok := given[v.name]; ok {
		out.Consent = &item.Consent
		out.Consented = !slices.ContainsFunc(v.kinds, func(k Kind) bool { return !item.covers(v.to, k) })
	}
	return out
}

// Consent records that the principal gives consent to the named provider or, if give is false, revokes it. The parameter by is the id
// of the caller, who may be an operator. The change is in effect when Consent returns. If the provider does not exist, or the principal
// may not use it, the error is of kind fault.NotFound. But even then, an existing consent can be revoked.
func (s *Service) Consent(ctx context.Context, p auth.Principal, name, by string, give bool) (*View, error) {
	visible, given, err := s.listConsents(ctx, p)
	if err != nil {
		return nil, err
	}
	item, before := given[name]
	at := slices.IndexFunc(visible, func(v *provider) bool { return v.name == name })
	switch {
	case at < 0 && (give || !before):
		return nil, fault.New(fault.NotFound, "unknown provider")
	case give:
		item = consentItem{To: visible[at].to, Consent: Consent{Kinds: visible[at].kinds}}
	}
	item.Principal, item.Provider = p.ID, name
	item.Given, item.At, item.By = give, time.Now().UTC().Truncate(time.Millisecond), by
	if err := s.writeConsent(ctx, p.Workspace, item); err != nil {
		return nil, err
	}
	given[name] = item
	v := &provider{name: name}
	if at >= 0 {
		v = visible[at]
	}
	out := newView(v, given)
	return &out, nil
}

// PathProvider is the wildcard for the provider's name in the route "/consent/{provider}".
const PathProvider = "provider"

// Handler serves the consents of callers over HTTP:
//
//	GET    /consent             lists the providers and the caller's consents
//	PUT    /consent/{provider}  gives consent
//	DELETE /consent/{provider}  revokes it
//
// With ?principal=…, an operator with the scope [auth.ScopeManage] acts for another principal of the same workspace. The body of an error
// response is {"error":{"kind","message","missingScopes"?}}.
type Handler struct {
	Service *Service
	Auth    auth.Authenticator
	Guard   auth.Guard
	// MetadataURL is the URL of the protected resource metadata (RFC 9728) that a 401 response names, or empty.
	MetadataURL string
	Log         *slog.Logger
}

// ServeHTTP implements [http.Handler].
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	responder := httpjson.Responder{Scope: auth.ScopeRead, MetadataURL: h.MetadataURL, Log: h.Log}
	responder.Serve(w, r, http.StatusOK, func() (any, error) { return h.serve(r) })
}

func (h *Handler) serve(r *http.Request) (any, error) {
	if err := h.Guard.Check(r); err != nil {
		return nil, err
	}
	caller, err := h.Auth.Authenticate(r.Context(), r.Header)
	if err != nil {
		return nil, err
	}
	p, err := h.findSubject(r, caller)
	if err != nil {
		return nil, err
	}
	name := r.PathValue(PathProvider)
	switch {
	case r.Method == http.MethodGet && name == "":
		if err := caller.Require(auth.ScopeRead); err != nil {
			return nil, err
		}
		views, err := h.Service.listViews(r.Context(), p)
		return map[string]any{"principal": p.ID, "workspace": p.Workspace, "providers": views}, err
	case r.Method == http.MethodPut && name != "":
		if err := caller.Require(auth.ScopeRead); err != nil {
			return nil, err
		}
		return h.Service.Consent(r.Context(), p, name, caller.ID, true)
	case r.Method == http.MethodDelete && name != "": // does not require a scope, so that a caller who has lost all rights can still revoke
		return h.Service.Consent(r.Context(), p, name, caller.ID, false)
	}
	if name == "" {
		return nil, httpjson.NotAllowed("GET")
	}
	return nil, httpjson.NotAllowed("PUT, DELETE")
}

// findSubject returns the principal whose consents a request is about: the caller, or the principal that an operator names in the query.
func (h *Handler) findSubject(r *http.Request, caller auth.Principal) (auth.Principal, error) {
	if caller.Anonymous && !h.Service.options.AllowAnonymous {
		return caller, fault.New(fault.Forbidden,
			"without authentication all callers are the same principal, and one would consent for all; use --auth keys or jwt, or for development --allow-insecure-targets")
	}
	query, err := httpjson.ParseQuery(r.URL)
	if err != nil {
		return caller, err
	}
	for name := range query {
		if name != "principal" {
			return caller, fault.New(fault.Invalid, "unknown query parameter (allowed: principal)")
		}
	}
	id := query.Get("principal")
	switch {
	case !query.Has("principal") || id == caller.ID:
		return caller, nil
	case !caller.Has(auth.ScopeManage):
		return caller, caller.Require(auth.ScopeManage)
	case id == "" || len(id) > maxPrincipal || len(query["principal"]) > 1:
		return caller, fault.New(fault.Invalid, "principal is empty, too long or repeated")
	}
	// We do not know the rights of the named principal, so use the operator's rights to find the providers. When the principal sends a
	// message, the principal's own rights decide.
	return auth.Principal{ID: id, Workspace: caller.Workspace, Scopes: caller.Scopes, Claims: caller.Claims}, nil
}

// A consent is a principal's decision that a context provider may receive messages of the principal's conversations. The store has these
// items:
//
//	table subscriptions, consent#WORKSPACE#HASH(principal)
//	  p#PROVIDER   the principal's latest decision about a provider
//	table subscriptions, consent#by#WORKSPACE#HASH(operator)
//	  HASH(principal)#PROVIDER   exists if the operator has made the decision on behalf of the principal
//
// These items do not expire. A revoked consent stays, as a record of the revocation.
//
// A consent covers a provider's name, its destination, and the kinds of messages that the provider received when the consent was given. So
// the principal has to consent again if the provider gets a new URL or receives a new kind of message.

// Consent is a decision about one provider.
type Consent struct {
	// Given is false if the consent was revoked.
	Given bool      `json:"given"`
	At    time.Time `json:"at"`
	By    string    `json:"by"` // the principal or operator who decided
	Kinds []Kind    `json:"kinds,omitempty"`
}

type consentItem struct {
	V         int    `json:"v"`
	Principal string `json:"pr"`
	Provider  string `json:"p"`
	To        string `json:"to"` // a hash of the provider's destination
	Consent
}

const consentVersion = 1

func hashPrincipal(principal string) string { return encodeHash([]byte(principal)) }

func encodeHash(b []byte) string {
	h := sha256.Sum256(b)
	return opaque.Encode(h[:])
}

// ConsentsKey returns a key for reading all consents of a principal: it has their partition and the prefix of their sort keys.
func ConsentsKey(workspace, principal string) store.Key { return consentKey(workspace, principal, "") }

func consentKey(workspace, principal, provider string) store.Key {
	return hashedConsentKey(workspace, hashPrincipal(principal), provider)
}

func hashedConsentKey(workspace, principalHash, provider string) store.Key {
	return store.Key{Table: store.Subscriptions, Partition: "consent#" + workspace + "#" + principalHash, Sort: "p#" + provider}
}

// markKey returns the key of an item which says that an operator has decided about a consent for a principal. The key contains both ids
// only as hashes, so an erasure of the principal's data need not delete the item.
func markKey(workspace, operator, principal, provider string) store.Key {
	return store.Key{
		Table: store.Subscriptions, Partition: "consent#by#" + workspace + "#" + hashPrincipal(operator),
		Sort: hashPrincipal(principal) + "#" + provider,
	}
}

// EachMark calls the function do for each decision that an operator has made for another principal. The parameter mark of do is the key
// of the item that records the decision.
func EachMark(ctx context.Context, db store.DB, workspace, operator string, do func(mark store.Key) error) error {
	return store.Each(ctx, db, markKey(workspace, operator, "", ""), "list the consents by an operator", func(it *store.Item) error { return do(it.Key) })
}

// Unname replaces the operator's id with the given name in a consent that the operator has recorded. The parameter mark identifies the
// consent; see [EachMark]. Unname does nothing if a later decision has replaced the consent.
func Unname(ctx context.Context, db store.DB, workspace, operator string, mark store.Key, name string) error {
	principalHash, provider, _ := strings.Cut(mark.Sort, "#")
	it, err := store.One(ctx, db, hashedConsentKey(workspace, principalHash, provider), "read a consent")
	var item consentItem
	if err != nil || it == nil || json.Unmarshal(it.Value, &item) != nil || item.By != operator {
		return err
	}
	item.By = name
	it.Value, _ = json.Marshal(item) // cannot fail, because item was decoded from JSON
	err = db.Write(ctx, store.Put(*it, store.VersionIs(it.Version)))
	if errors.Is(err, store.ErrConflict) { // a later decision has replaced the consent
		return nil
	}
	return fault.Wrap(fault.Unavailable, err, "take a name off a consent")
}

// hashStrings returns one hash of all its arguments. For example, a consent contains only the hash of the provider's URL, because the
// query of a URL may contain a secret.
func hashStrings(parts ...string) string {
	b, _ := json.Marshal(parts) // cannot fail for strings
	return encodeHash(b)
}

// readConsents reads all consents of a principal with strong consistency, and returns them by the name of the provider.
func (s *Service) readConsents(ctx context.Context, workspace, principal string) (map[string]consentItem, error) {
	out := map[string]consentItem{}
	err := store.Each(ctx, s.options.DB, ConsentsKey(workspace, principal), "read the consents", func(it *store.Item) error {
		var item consentItem
		if json.Unmarshal(it.Value, &item) != nil || item.V != consentVersion {
			s.broken.Add(ctx, "consent") // count it; readers treat such a consent as not given
			return nil
		}
		out[item.Provider] = item
		return nil
	})
	return out, err
}

func (s *Service) writeConsent(ctx context.Context, workspace string, item consentItem) error {
	item.V = consentVersion
	// Each decision gets a new version, so that Unname does not overwrite a later decision.
	ops := []store.Op{store.Put(store.Item{
		Key: consentKey(workspace, item.Principal, item.Provider), Value: jsonrpc.Encode(item), Version: time.Now().UnixNano(),
	})}
	if item.By != item.Principal {
		ops = append(ops, store.Put(store.Item{Key: markKey(workspace, item.By, item.Principal, item.Provider)}))
	}
	return fault.Wrap(fault.Unavailable, s.options.DB.Write(ctx, ops...), "write a consent")
}

func (i consentItem) covers(to string, kind Kind) bool {
	return i.Given && i.To == to && slices.Contains(i.Kinds, kind)
}

// maxAnswer is the maximum size of a provider's response in bytes.
const maxAnswer = 256 << 10

// newHTTP returns a client for providers at URLs. The operator configured the URLs, so private addresses are allowed. The client does not
// follow redirects, because their destinations would receive the credentials and the message. It ignores proxies in the environment.
func newHTTP() *http.Client {
	return &http.Client{
		Transport: &http.Transport{
			DialContext:            (&net.Dialer{Timeout: 5 * time.Second, KeepAlive: 30 * time.Second}).DialContext,
			TLSClientConfig:        &tls.Config{MinVersion: tls.VersionTLS12},
			TLSHandshakeTimeout:    5 * time.Second,
			ForceAttemptHTTP2:      true,
			DisableCompression:     true,
			MaxIdleConnsPerHost:    32,
			IdleConnTimeout:        upstream.RestTime,
			MaxResponseHeaderBytes: 32 << 10,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

func (s *Service) headers(ctx context.Context, v rules.Provider) (http.Header, error) {
	h := http.Header{}
	for name, value := range v.Headers {
		text, err := secret.ForHeader(ctx, value, s.options.Secrets)
		if err != nil {
			return nil, fault.Wrap(fault.Invalid, err, "provider %s: header %s", v.Name, name)
		}
		h.Set(name, text)
	}
	return h, nil
}

// askURL returns a function that sends messages to a provider at a URL. The provider responds with its context as JSON, or with status
// 204 if it has no context.
func (s *Service) askURL(v rules.Provider) asker {
	return func(ctx context.Context, _ api.Client, m *Message, principal string) (json.RawMessage, error) {
		header, err := s.headers(ctx, v)
		if err != nil {
			s.options.Log.ErrorContext(ctx, "provider header missing", "error", err)
			return nil, failure{reason: internal}
		}
		return post(ctx, s.options.HTTP, v.URL, header, m, principal)
	}
}

func post(ctx context.Context, client *http.Client, url string, header http.Header, m *Message, principal string) (json.RawMessage, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(m.Params(nil)))
	if err != nil {
		return nil, failure{reason: internal}
	}
	req.Header = header
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json")
	req.Header.Set(spec.HeaderMethod, m.Kind.Method())
	req.Header.Set(rules.PrincipalHeader, principal)
	resp, err := client.Do(req)
	if err != nil {
		return nil, failure{reason: unreachable}
	}
	defer func() { _ = resp.Body.Close() }()
	media, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	switch {
	case resp.StatusCode == http.StatusNoContent:
		return json.RawMessage(`{}`), nil
	case resp.StatusCode != http.StatusOK:
		return nil, failure{reason: refused}
	case media != "application/json":
		return nil, failure{reason: malformed}
	}
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1))
	switch {
	case err != nil:
		return nil, failure{reason: unreachable}
	case len(text) > maxAnswer:
		return nil, failure{reason: oversized}
	}
	parts, batch, bad := jsonrpc.Split(text)
	if bad != nil || batch {
		return nil, failure{reason: malformed}
	}
	return parts[0], nil
}
