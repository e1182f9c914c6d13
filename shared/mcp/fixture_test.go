package mcp

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/events/catalog"
	"github.com/mcp-events/mcpevents/shared/events/event"
	"github.com/mcp-events/mcpevents/shared/events/fanout"
	eventlog "github.com/mcp-events/mcpevents/shared/events/log"
	"github.com/mcp-events/mcpevents/shared/events/stream"
	"github.com/mcp-events/mcpevents/shared/events/subscription"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
	"github.com/mcp-events/mcpevents/shared/storage/queue"
	"github.com/mcp-events/mcpevents/shared/storage/store"
	"github.com/mcp-events/mcpevents/shared/storage/store/sqlite"
	"github.com/mcp-events/mcpevents/test/expect"
)

// testCatalog is the catalog for most tests. It has fixed and templated event types, a parent with several children,
// filters, access rules of both kinds, and types without streams or without webhooks.
const testCatalog = `
events:
  - name: ci.build
    uri: event://ci/build-finished
    title: Build finished
    description: A build came to its end.
    payloadSchema: {type: object, required: [status], properties: {status: {type: string}}}
    filters: {status: /status}
  - name: ci.deploy
    uri: event://ci/deploy
    description: Something was deployed.
    payloadSchema: {type: object}
  - name: github.pull_request
    uriTemplate: event://github/{owner}/{repo}/pull_request
    title: Pull request changed
    description: A pull request changed.
    paramsSchema: {type: object, properties: {owner: {type: string, pattern: "^[a-z]+$"}, repo: {type: string}}, required: [owner, repo]}
    payloadSchema: {type: object}
    webhookType: github.pr
  - name: github.push
    uriTemplate: event://github/{owner}/{repo}/push
    description: Something was pushed.
    payloadSchema: {type: object}
  - name: billing.invoice
    uri: event://billing/invoice
    description: Only for those with the scope.
    payloadSchema: {type: object}
    access: {scopes: [billing]}
  - name: tenant.alarm
    uriTemplate: event://tenant/{org}/alarm
    description: Only for the own organisation.
    payloadSchema: {type: object}
    access: {claims: {org: org}}
  - name: audit.entry
    uri: event://audit/entry
    description: By webhook only.
    payloadSchema: {type: object}
    delivery: [webhook]
  - name: chat.typing
    uri: event://chat/typing
    description: On streams only.
    payloadSchema: {type: object}
    delivery: [push]
`

// withoutDeploy is the same catalog, except that access to ci.deploy requires a scope that no caller has.
var withoutDeploy = strings.Replace(testCatalog, "description: Something was deployed.", "description: Something was deployed.\n    access: {scopes: [deployers]}", 1)

// fixture is an endpoint with a real log, real subscriptions and an in-memory store, served over HTTP.
type fixture struct {
	t         testing.TB
	db        store.DB
	log       *eventlog.Log
	tails     *stream.Tails
	catalogs  *catalog.Static
	service   *subscription.Service
	registrar *subscription.Registrar
	fanout    *fanout.Fanout
	endpoint  *Endpoint
	server    *httptest.Server
	targets   *fakeTargets
}

// These are the callers' API keys.
const (
	alice   = "alice-key"
	bob     = "bob-key"
	reader  = "reader-key" // has only the read scope
	billing = "billing-key"
	acme    = "acme-key"    // has the claim org: acme
	foreign = "foreign-key" // alice in another workspace
)

func keyFor(key, principal, workspace string, claims map[string]string, scopes ...string) auth.Key {
	h := sha256.Sum256([]byte(key))
	return auth.Key{Principal: principal, Workspace: workspace, Scopes: scopes, SHA256: hex.EncodeToString(h[:]), Claims: claims}
}

func newFixture(t testing.TB, change func(*Options)) *fixture {
	t.Helper()
	f := newEndpoint(t, change)
	f.serve()
	return f
}

// run runs a subtest with a new fixture.
func run(t *testing.T, name string, change func(*Options), test func(t *testing.T, f *fixture)) {
	t.Run(name, func(t *testing.T) { test(t, newFixture(t, change)) })
}

// serve starts to serve the endpoint over HTTP.
func (f *fixture) serve() {
	f.server = httptest.NewServer(routed(f.endpoint))
	f.t.Cleanup(func() {
		f.close()
		f.server.Close()
	})
}

// routed returns a handler that serves the endpoint at its paths.
func routed(e *Endpoint) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("/mcp", e)
	mux.Handle("/mcp/{"+PathWorkspace+"}", e)
	return mux
}

func (f *fixture) close() {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	if err := f.endpoint.Close(ctx); err != nil {
		f.t.Errorf("close the endpoint: %v", err)
	}
}

// newEndpoint returns a fixture without an HTTP server.
func newEndpoint(t testing.TB, change func(*Options)) *fixture {
	t.Helper()
	db := expect.Value(sqlite.Open(sqlite.Memory, sqlite.Options{}))(t)
	t.Cleanup(func() { db.Close() })
	return newEndpointOn(t, db, change)
}

func newEndpointOn(t testing.TB, db store.DB, change func(*Options)) *fixture {
	t.Helper()
	cat := mustParse(t, testCatalog)
	log := &eventlog.Log{DB: db}
	sealer := expect.Value(eventlog.NewSealer(bytes.Repeat([]byte{7}, 32)))(t)
	f := &fixture{t: t, db: db, log: log, catalogs: catalog.NewStatic(cat), targets: &fakeTargets{}}
	f.tails = stream.New(log, db, sealer)
	t.Cleanup(f.tails.Close)
	f.service = &subscription.Service{
		Store: subscription.Store{DB: db}, Catalog: f.catalogs, Log: log,
		PrincipalTopic: stream.TopicPrincipal, SubscriptionTopic: stream.TopicSubscription,
	}
	f.registrar = &subscription.Registrar{Service: f.service, Sealer: sealer, Targets: f.targets}
	f.fanout = &fanout.Fanout{DB: db, Log: log, Catalog: f.catalogs, Queue: noQueue{}}
	all := []string{auth.ScopeRead, auth.ScopeSubscribe}
	keys := expect.Value(auth.NewStaticKeys([]auth.Key{
		keyFor(alice, "alice", "", nil, all...),
		keyFor(bob, "bob", "", nil, all...),
		keyFor(reader, "reader", "", nil, auth.ScopeRead),
		keyFor(billing, "billing", "", nil, append(all, "billing")...),
		keyFor(acme, "acme", "", map[string]string{"org": "acme"}, all...),
		keyFor(foreign, "alice", "elsewhere", nil, all...),
	}, nil))(t)
	o := Options{
		Server: Implementation{Name: "mcp-events", Version: "1.2.3"},
		Auth:   keys, Catalogs: f.catalogs, Feeds: f.tails, Sessions: db,
		MaxAge: 5 * time.Minute, Heartbeat: 15 * time.Second, AnswerStreamAfter: time.Second, PollMin: time.Second, PollMax: 30 * time.Second,
		Subscriptions: &subscription.Lists{DB: db}, Registrar: f.registrar, Deregistrar: f.service,
		Dialect: NamedEvents, Logger: slog.New(slog.DiscardHandler),
	}
	if change != nil {
		change(&o)
	}
	f.endpoint = expect.Value(New(o))(t)
	return f
}

func mustParse(t testing.TB, src string) *catalog.Catalog {
	t.Helper()
	return expect.Value(catalog.Parse([]byte(src)))(t)
}

// changeCatalog switches to testCatalog with a text replaced. Call announceCatalog to notify streams of the change.
func (f *fixture) changeCatalog(from, to string) {
	f.t.Helper()
	f.catalogs.Replace(mustParse(f.t, strings.Replace(testCatalog, from, to, 1)))
}

// announceCatalog announces that the catalog has changed.
func (f *fixture) announceCatalog() {
	f.t.Helper()
	expect.OK(f.t, f.log.Notify(context.Background(), auth.DefaultWorkspace, stream.TopicCatalog, json.RawMessage(`{}`)))
}

// waitShape waits until a stream has registered its interest in the events below a parent.
func (f *fixture) waitShape(uri string) {
	f.t.Helper()
	f.waitFor("a reader of "+uri, func() bool {
		return expect.Value(f.db.Get(context.Background(), eventlog.InterestKey(auth.DefaultWorkspace, uri+"/**")))(f.t)[0] != nil
	})
}

// waitFor polls until done returns true. It polls because changes by other goroutines are not announced.
func (f *fixture) waitFor(what string, done func() bool) {
	f.t.Helper()
	deadline := time.Now().Add(patience)
	for !done() {
		if time.Now().After(deadline) {
			f.t.Fatalf("waiting for %s: %d streams, %d tails", what, f.endpoint.OpenStreams(), f.tails.Running())
		}
		time.Sleep(time.Millisecond)
	}
}

type noQueue struct{}

func (noQueue) Send(context.Context, queue.Name, ...queue.Outgoing) error { return nil }

// fakeTargets accepts https URLs. The challenge fails if the URL contains "unverified".
type fakeTargets struct{}

func (*fakeTargets) Check(url string) error {
	if !strings.HasPrefix(url, "https://") {
		return fault.New(fault.Invalid, "the target URL is not https")
	}
	return nil
}

func (*fakeTargets) Verify(_ context.Context, url, _ string, _ []byte) error {
	if strings.Contains(url, "unverified") {
		return fault.New(fault.Unavailable, "the challenge failed").With(map[string]any{"reason": "challenge_failed"})
	}
	return nil
}

func (*fakeTargets) ParseSecret(secret string) ([]byte, error) {
	if !strings.HasPrefix(secret, "whsec_") {
		return nil, fault.New(fault.Invalid, "the secret does not begin with whsec_")
	}
	return []byte(secret), nil
}

func (*fakeTargets) NewSecret(t subscription.SecretType) (string, []byte) {
	return "whsec_generated" + string(t), []byte("key")
}

func (*fakeTargets) Seal(_ context.Context, key []byte, _ subscription.Binding) ([]byte, error) {
	return key, nil
}

// publish passes an event through fanout.
func (f *fixture) publish(uri, data string) event.Event {
	f.t.Helper()
	return f.publishIn(auth.DefaultWorkspace, uri, data)
}

func (f *fixture) publishIn(workspace, uri, data string) event.Event {
	f.t.Helper()
	return f.publishEvent(event.Event{Workspace: workspace, ID: event.NewID(), URI: uri, Data: json.RawMessage(data)})
}

// publishEvent adds the name and the time to an event and passes it through fanout.
func (f *fixture) publishEvent(e event.Event) event.Event {
	f.t.Helper()
	cat, _ := f.catalogs.Catalog(context.Background(), e.Workspace)
	entry, _, ok := cat.Match(e.URI)
	if !ok {
		f.t.Fatalf("no event type has the URI %s", e.URI)
	}
	e.Name, e.Time = entry.Name, time.Now().UTC().Truncate(time.Microsecond)
	e.Published = e.Time
	body := expect.Value(json.Marshal(e))(f.t)
	failed, err := f.fanout.Handle(context.Background(), []queue.Message{{ID: e.ID + e.URI, Outgoing: queue.Outgoing{Body: body}, Sent: time.Now()}})
	if err != nil || len(failed) > 0 {
		f.t.Fatalf("fanout: %v, failed %v", err, failed)
	}
	return e
}

// reply is an HTTP response with its whole body.
type reply struct {
	Status int
	Header http.Header
	Body   string
}

// rpc decodes the JSON-RPC message in the body.
func (r reply) rpc(t testing.TB) (m struct {
	ID     json.RawMessage
	Result json.RawMessage
	Error  *struct {
		Code    int
		Message string
		Data    json.RawMessage
	}
},
) {
	t.Helper()
	expect.OK(t, json.Unmarshal([]byte(r.Body), &m), r.Status, r.Body)
	return m
}

// result decodes the result of a reply that must succeed.
func (r reply) result(t testing.TB, into any) {
	t.Helper()
	m := r.rpc(t)
	if m.Error != nil || r.Status != 200 {
		t.Fatalf("got status %d and the error %+v, want 200 and a result", r.Status, m.Error)
	}
	expect.OK(t, json.Unmarshal(m.Result, into))
}

// code returns the error's code, or 0 if the reply is not an error.
func (r reply) code(t testing.TB) int {
	t.Helper()
	if m := r.rpc(t); m.Error != nil {
		return m.Error.Code
	}
	return 0
}

// is checks the reply's status and error code, and that its body contains the parts. The code 0 stands for a result. The
// text sent describes the request in failure messages.
func (r reply) is(t testing.TB, sent string, status, code int, parts ...string) {
	t.Helper()
	if got := r.code(t); r.Status != status || got != code || !r.has(parts) {
		t.Errorf("%.200s: got status %d, code %d: %.2000s; want status %d, code %d and %q", sent, r.Status, got, r.Body, status, code, parts)
	}
}

// isPlain checks the status and parts of the body, as [reply.is] does, also of a reply that is no JSON-RPC message. With status 202 or
// 204 the body must be empty.
func (r reply) isPlain(t testing.TB, sent string, status int, parts ...string) {
	t.Helper()
	if r.Status != status || !r.has(parts) || (status == 202 || status == 204) && r.Body != "" {
		t.Errorf("%.200s: got status %d, %v: %.2000s; want status %d and %q", sent, r.Status, r.Header, r.Body, status, parts)
	}
}

func (r reply) has(parts []string) bool {
	return !slices.ContainsFunc(parts, func(part string) bool { return !strings.Contains(r.Body, part) })
}

// hasHeader checks that a header is set and contains a text.
func (r reply) hasHeader(t testing.TB, name, part string) {
	t.Helper()
	if got := r.Header.Get(name); got == "" || !strings.Contains(got, part) {
		t.Errorf("the header %s: got %q, want %q in it", name, got, part)
	}
}

// fails checks that the reply is an error with this code and, unless data is empty, with this data.
func (r reply) fails(t testing.TB, sent string, code int, data string) {
	t.Helper()
	m := r.rpc(t)
	if m.Error == nil || m.Error.Code != code {
		t.Fatalf("%.200s: got status %d: %s; want the error %d", sent, r.Status, r.Body, code)
	}
	if data != "" {
		sameJSON(t, m.Error.Data, data)
	}
}

// do sends a request and returns the reply. Each header is a line like "Name: value". A line without a value, e.g. "Accept:",
// removes the default.
func (f *fixture) do(method, key, body string, headers ...string) reply {
	f.t.Helper()
	return f.answer(f.request(method, key, body, headers...))
}

func (f *fixture) answer(req *http.Request) reply {
	f.t.Helper()
	res := expect.Value(f.server.Client().Do(req))(f.t)
	defer res.Body.Close()
	return reply{res.StatusCode, res.Header, string(expect.Value(io.ReadAll(res.Body))(f.t))}
}

func (f *fixture) request(method, key, body string, headers ...string) *http.Request {
	url := "http://127.0.0.1/mcp"
	if f.server != nil {
		url = f.server.URL + "/mcp"
	}
	req := expect.Value(http.NewRequestWithContext(f.t.Context(), method, url, strings.NewReader(body)))(f.t)
	if key != "" {
		req.Header.Set("Authorization", "Bearer "+key)
	}
	req.Header.Set("Accept", "application/json, text/event-stream")
	if method == http.MethodPost {
		req.Header.Set("Content-Type", "application/json")
	}
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ":")
		if value = strings.TrimSpace(value); value == "" {
			req.Header.Del(name)
		} else {
			req.Header.Add(name, value)
		}
	}
	return req
}

// statelessBody returns the body of a request in 2026-07-28. Pass the members of its params without braces and without
// _meta.
func statelessBody(id, method, params string) string {
	if params != "" {
		params += ","
	}
	return `{"jsonrpc":"2.0","id":` + id + `,"method":"` + method + `","params":{` + params +
		`"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}}}`
}

func statelessHeaders(method, params string) []string {
	h := []string{"Mcp-Protocol-Version: 2026-07-28", "Mcp-Method: " + method}
	if member := spec.Mirrored[method]; member != "" {
		var p map[string]any
		_ = json.Unmarshal([]byte("{"+params+"}"), &p)
		if name, ok := p[member].(string); ok {
			h = append(h, "Mcp-Name: "+spec.EncodeHeader(name))
		}
	}
	return h
}

// statelessRequest returns a request in 2026-07-28.
func (f *fixture) statelessRequest(key, method, params string) *http.Request {
	return f.request("POST", key, statelessBody("1", method, params), statelessHeaders(method, params)...)
}

// stateless calls a method in 2026-07-28. Every result must have its type and the server's identity (SUB-09, EVX-18).
func (f *fixture) stateless(key, method, params string) reply {
	f.t.Helper()
	r := f.answer(f.statelessRequest(key, method, params))
	var m struct {
		Result *described
	}
	if json.Unmarshal([]byte(r.Body), &m) == nil && m.Result != nil &&
		(m.Result.ResultType == "" || m.Result.Meta[spec.MetaServer] == nil) {
		f.t.Errorf("%s: got the result %.500s, want its type and the server", method, r.Body)
	}
	return r
}

// initialize starts a session for a client with these capabilities.
func (f *fixture) initialize(key string, v spec.Version, capabilities string) reply {
	f.t.Helper()
	return f.do("POST", key, rpcText("0", spec.MethodInitialize, `"protocolVersion":"`+string(v)+`","capabilities":`+capabilities+`,"clientInfo":{"name":"t","version":"1"}`))
}

// session starts a session in this revision and returns its id.
func (f *fixture) session(key string, v spec.Version) string {
	f.t.Helper()
	r := f.initialize(key, v, `{}`)
	id := r.Header.Get(spec.HeaderSession)
	if r.Status != 200 || id == "" {
		f.t.Fatalf("initialize: %+v", r)
	}
	return id
}

// sessionBased calls a method within a session.
func (f *fixture) sessionBased(key, session, method, params string) reply {
	f.t.Helper()
	return f.do("POST", key, rpcText("1", method, params), "Mcp-Session-Id: "+session)
}

// in calls a method in the session's revision, or in 2026-07-28 if session is empty.
func (f *fixture) in(key, session, method, params string) reply {
	f.t.Helper()
	if session == "" {
		return f.stateless(key, method, params)
	}
	return f.sessionBased(key, session, method, params)
}

// instance starts another instance over the same store.
func (f *fixture) instance(change ...func(*Options)) *fixture {
	f.t.Helper()
	other := *f
	other.log = &eventlog.Log{DB: f.db}
	other.tails = stream.New(other.log, f.db, f.tails.Sealer)
	f.t.Cleanup(other.tails.Close)
	o := f.endpoint.options
	o.Feeds = other.tails
	for _, c := range change {
		c(&o)
	}
	var err error
	other.endpoint, err = New(o)
	expect.OK(f.t, err)
	other.serve()
	return &other
}

// waitTargets waits until the tails read n event partitions in addition to the three topics.
func (f *fixture) waitTargets(n int) {
	f.t.Helper()
	f.waitFor("the partitions", func() bool { return f.tails.Running() == n+3 }) // 3 topics: session, catalog and principal
}
