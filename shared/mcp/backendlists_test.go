package mcp

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/gateway"
	"github.com/mcp-events/mcpevents/shared/gateway/api"
	"github.com/mcp-events/mcpevents/shared/platform/opaque"
	"github.com/mcp-events/mcpevents/shared/protocol/jsonrpc"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
	"github.com/mcp-events/mcpevents/shared/protocol/sse"
	"github.com/mcp-events/mcpevents/shared/storage/store"
	"github.com/mcp-events/mcpevents/test/expect"
)

// lister is a backend that serves only lists, in pages of two entries.
type lister struct {
	*httptest.Server
	name      string
	stateless bool

	mu      sync.Mutex
	names   []string // the names of the entries, the same in every list
	hints   string   // extra members of each page, e.g. `"ttlMs":5`
	down    bool
	methods []string      // of the requests that it has received
	hold    chan struct{} // if set, list requests block until it is closed
	// handle, if set, handles messages first. It reports false for messages that the lister itself answers.
	handle func(w http.ResponseWriter, r *http.Request, m received) bool
}

// received is a message that a lister received.
type received struct {
	ID     json.RawMessage
	Method string
	Params struct{ Cursor *string }
	raw    []byte
}

func startLister(t *testing.T, name string, stateless bool, entries ...string) *lister {
	t.Helper()
	l := &lister{name: name, stateless: stateless, names: entries}
	l.Server = httptest.NewServer(l)
	t.Cleanup(l.Close)
	return l
}

// set changes the lister's fields under its lock.
func (l *lister) set(change func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	change()
}

func (l *lister) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var m received
	m.raw, _ = io.ReadAll(r.Body)
	_ = json.Unmarshal(m.raw, &m) // a test of the gateway's own message
	l.mu.Lock()
	if m.ID != nil {
		l.methods = append(l.methods, m.Method)
	}
	hold, handle := l.hold, l.handle
	l.mu.Unlock()
	if handle != nil && handle(w, r, m) {
		return
	}
	if m.ID == nil {
		w.WriteHeader(http.StatusAccepted)
		return
	}
	if hold != nil && strings.HasSuffix(m.Method, "/list") {
		<-hold
	}
	w.Header().Set("Content-Type", "application/json")
	fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,%s}`, m.ID, l.answer(m.Method, m.Params.Cursor))
}

func (l *lister) answer(method string, cursor *string) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	const capabilities = `"capabilities":{"tools":{},"prompts":{},"resources":{}}`
	switch {
	case l.down:
		return `"error":{"code":-32603,"message":"down"}`
	case method == "server/discover" && l.stateless:
		return `"result":{"supportedVersions":["2026-07-28"],` + capabilities + `}`
	case method == "initialize" && !l.stateless:
		return `"result":{"protocolVersion":"2025-11-25","serverInfo":{},` + capabilities + `}`
	case !strings.HasSuffix(method, "/list"):
		return `"error":{"code":-32601,"message":"no such method"}`
	}
	// In 2026-07-28 the empty string is a valid cursor.
	first, next := 0, ""
	if cursor != nil && *cursor == "" {
		first = 2
	} else if cursor != nil {
		fmt.Sscan(*cursor, &first)
	}
	end := min(first+2, len(l.names))
	if end < len(l.names) {
		next = fmt.Sprintf(`,"nextCursor":"%d"`, end)
		if end == 2 && l.stateless {
			next = `,"nextCursor":""`
		}
	}
	hints := ""
	if l.hints != "" {
		hints = "," + l.hints
	}
	var entries []string
	for _, name := range l.names[min(first, end):end] {
		entries = append(entries, map[string]string{
			spec.MethodToolsList:   fmt.Sprintf(`{"name":%q,"inputSchema":{"type":"object"}}`, name),
			spec.MethodPromptsList: fmt.Sprintf(`{"name":%q}`, name),
			spec.MethodResources:   fmt.Sprintf(`{"name":%q,"uri":"%s://%s"}`, name, l.name, name),
			spec.MethodTemplates:   fmt.Sprintf(`{"name":%q,"uriTemplate":"%s://%s/{id}"}`, name, l.name, name),
		}[method])
	}
	member := map[string]string{
		spec.MethodToolsList: "tools", spec.MethodPromptsList: "prompts", spec.MethodResources: "resources", spec.MethodTemplates: "resourceTemplates",
	}[method]
	return fmt.Sprintf(`"result":{%q:[%s]%s%s}`, member, strings.Join(entries, ","), next, hints)
}

// answers makes the lister answer a method with the result that result returns.
func (l *lister) answers(method string, result func(m received) string) {
	l.set(func() {
		l.handle = func(w http.ResponseWriter, _ *http.Request, m received) bool {
			if m.Method == method {
				w.Header().Set("Content-Type", "application/json")
				fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"result":%s}`, m.ID, result(m))
			}
			return m.Method == method
		}
	})
}

// behindGateway returns an endpoint in front of the backends. The prefix of each is its name and an underscore, e.g.
// "first_". Only the backend "plain" has no prefix.
func behindGateway(t *testing.T, change func(*Options), backends ...*lister) *fixture {
	t.Helper()
	var configured []api.Backend
	for _, l := range backends {
		b := l.backend()
		if b.Prefix = l.name + "_"; l.name == "plain" {
			b.Prefix = ""
		}
		configured = append(configured, b)
	}
	return newFixture(t, func(o *Options) {
		o.Gateway = gatewayTo(t, o.Sessions, time.Millisecond, configured...)
		if change != nil {
			change(o)
		}
	})
}

// backend returns the gateway configuration for the lister.
func (l *lister) backend() api.Backend {
	return api.Backend{Name: l.name, URL: l.URL, Workspace: auth.DefaultWorkspace, ProtocolVersion: api.AutoVersion}
}

// gatewayTo returns a gateway to the backends that caches their lists for ttl.
func gatewayTo(t *testing.T, db store.DB, ttl time.Duration, backends ...api.Backend) *gateway.Gateway {
	t.Helper()
	g := expect.Value(gateway.New(gateway.Options{
		Backends: backends, DB: db, Server: json.RawMessage(`{"name":"gw","version":"1"}`),
		Key: bytes.Repeat([]byte{7}, 32), ListTTL: ttl, CallTimeout: patience, Log: slog.New(slog.DiscardHandler),
	}))(t)
	return g
}

// wholeList is a list that was read from the endpoint to its last page.
type wholeList struct {
	names     []string
	sizes     []int // of the pages
	pages     int
	scopes    []string
	ttls      []int64
	conflicts []string // from the last page
}

type backendPage struct {
	Tools, Prompts, Resources, ResourceTemplates, Events []struct{ Name string }

	NextCursor *string
	TTLMs      *int64
	CacheScope string
	Meta       struct {
		Conflicts []string `json:"io.github.mcp-events/conflicts"`
	} `json:"_meta"`
}

func (p backendPage) names() (all []string) {
	for _, x := range slices.Concat(p.Tools, p.Prompts, p.Resources, p.ResourceTemplates, p.Events) {
		all = append(all, x.Name)
	}
	return all
}

// wholeList reads all pages of a list as alice, and calls between after every page except the last.
func (f *fixture) wholeList(t *testing.T, method, session string, between func(page int)) (out wholeList) {
	t.Helper()
	return f.wholeListOf(t, alice, method, session, between)
}

// wholeListOf reads all pages of a list like [fixture.wholeList], as the caller with the given key.
func (f *fixture) wholeListOf(t *testing.T, key, method, session string, between func(page int)) (out wholeList) {
	t.Helper()
	params := ""
	for {
		var p backendPage
		r := f.in(key, session, method, params)
		r.result(t, &p)
		out.pages++
		out.names, out.sizes = append(out.names, p.names()...), append(out.sizes, len(p.names()))
		out.scopes = append(out.scopes, p.CacheScope)
		if p.TTLMs != nil {
			out.ttls = append(out.ttls, *p.TTLMs)
		}
		out.conflicts = p.Meta.Conflicts
		if p.NextCursor == nil {
			return out
		}
		if out.pages > 50 {
			t.Fatal("the list does not end")
		}
		if between != nil {
			between(out.pages)
		}
		params = fmt.Sprintf(`"cursor":%q`, *p.NextCursor)
	}
}

// noEvents is a catalog with a single event type. Lists of resources show it before the backends' resources.
const noEvents = "events:\n  - {name: event, uri: \"event://e\", payloadSchema: {type: object}}\n"

// GWN-01: if backends list URIs that this server serves itself, clients that list resources and templates see only this
// server's entries for them, because this server also handles reads of those URIs.
func TestOwnResourcesHideThoseOfBackends(t *testing.T) {
	f := behindGateway(t, func(o *Options) { o.Subscriptions = nil },
		startLister(t, "event", false, "e", "t", "other"), startLister(t, "subscription", true, "sub_1"))
	f.catalogs.Replace(mustParse(t, noEvents+"  - {name: open, uriTemplate: \"event://t/{id}\", payloadSchema: {type: object}}\n"))
	for method, want := range map[string][]string{
		spec.MethodResources: {"event", "other"},
		spec.MethodTemplates: {"open", "e", "other"},
	} {
		expect.List(t, method, f.wholeList(t, method, "", nil).names, want)
	}
}

// GWN-02: a client can read a resource that no list has, because a tool may have returned a link to it. If several backends have resources,
// the URI's scheme tells which one has the resource.
func TestUnlistedResourcesAreRead(t *testing.T) {
	start := func(name string) *lister {
		l := startLister(t, name, false, "r")
		l.answers(spec.MethodRead, func(m received) string {
			return fmt.Sprintf(`{"contents":[{"uri":%s,"text":"of %s"}]}`, jsonrpc.Member(jsonrpc.Member(m.raw, "params"), "uri"), name)
		})
		return l
	}
	one, two := start("one"), start("two")
	alone, both := behindGateway(t, nil, one), behindGateway(t, nil, one, two)
	down := startLister(t, "down", false, "r")
	down.Close()
	besideDown := behindGateway(t, nil, one, down)
	ruled := one.backend()
	ruled.Resources.Allow, ruled.Resources.Deny = []string{"one://*", "other:*"}, []string{"one://r/{id}", "other:secret"}
	limited := newFixture(t, func(o *Options) { o.Gateway = gatewayTo(t, o.Sessions, time.Millisecond, ruled) })
	for _, c := range []struct {
		name string
		f    *fixture
		uri  string
		want string // the backend, or empty if none gets the request
	}{
		{"the only backend", alone, "other:x", "one"},
		{"an event URI", alone, "event://none", ""},
		{"the scheme of the first", both, "one://linked", "one"},
		{"a scheme of no backend", both, "other:x", ""},
		{"the scheme of the first beside a backend that is down", besideDown, "one://linked", "one"},
		{"a scheme that the backend that is down may have", besideDown, "other:x", ""},
		{"allowed by rules", limited, "other:x", "one"},
		{"denied by rules", limited, "other:secret", ""},
		{"matched by a denied template", limited, "one://r/5", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := c.f.in(alice, c.f.session(alice, spec.V20251125), spec.MethodRead, fmt.Sprintf(`"uri":%q`, c.uri))
			if c.want == "" {
				r.is(t, c.uri, 200, -32002, `"message":"resource not found"`)
				return
			}
			var got struct{ Contents []struct{ Text string } }
			r.result(t, &got)
			expect.Equal(t, "the text", got.Contents[0].Text, "of "+c.want)
		})
	}
}

// GWN-01: the four lists of several backends are complete and in order, use the prefixes, and name the conflicts on each
// page. This holds for every page size and for every revision of the client and the backends.
func TestListsOfBackendsOverPages(t *testing.T) {
	first := startLister(t, "first", false, "a", "b", "c")
	second := startLister(t, "plain", true, "first_b", "x", "y", "z", "w")
	third := startLister(t, "third", true, "d")
	for _, size := range []int{1, 2, 3, 7, 100} {
		f := behindGateway(t, func(o *Options) { o.PageSize, o.Subscriptions = size, nil }, first, second, third)
		f.catalogs.Replace(mustParse(t, noEvents))
		for _, session := range []string{"", f.session(alice, spec.V20251125), f.session(alice, spec.V20250326)} {
			for method, want := range map[string][]string{
				spec.MethodToolsList:   {"first_a", "first_b", "first_c", "x", "y", "z", "w", "third_d"},
				spec.MethodPromptsList: {"first_a", "first_b", "first_c", "x", "y", "z", "w", "third_d"},
				// Resources and templates have no prefix. Their URIs differ, so there are no conflicts.
				spec.MethodResources: {"event", "a", "b", "c", "first_b", "x", "y", "z", "w", "d"},
				spec.MethodTemplates: {"a", "b", "c", "first_b", "x", "y", "z", "w", "d"},
			} {
				got := f.wholeList(t, method, session, func(int) { time.Sleep(2 * time.Millisecond) }) // The lists expire, so the gateway fetches them again for each page.
				expect.Deep(t, fmt.Sprintf("%s by pages of %d", method, size), got.names, want)
				expect.Deep(t, fmt.Sprintf("the number of pages of %d", size), got.pages, (len(want)+size-1)/size)
				var conflicts []string
				if method == spec.MethodToolsList || method == spec.MethodPromptsList {
					conflicts = []string{"first_b"}
				}
				expect.Deep(t, method+": the conflicts", got.conflicts, conflicts)
				if session != "" && len(got.ttls) > 0 {
					t.Errorf("%s: a client of an earlier revision got the ttls %v, want none", method, got.ttls)
				}
			}
		}
	}
}

// GWN-01: if a list changes between two pages, the next page continues at the cursor, even if the entry that the cursor
// names is gone. Unchanged entries appear exactly once.
func TestListThatChangesBetweenPages(t *testing.T) {
	start := []string{"a", "b", "c", "d", "e"}
	for _, c := range []struct {
		name string
		now  []string // the first backend's entries after the second page was read
		down bool
		want []string
	}{
		{name: "the last that was seen is gone", now: []string{"a", "b", "c", "e"}, want: []string{"a", "b", "c", "d", "e", "x", "y"}},
		{name: "one comes before", now: []string{"0", "a", "b", "c", "d", "e"}, want: []string{"a", "b", "c", "d", "e", "x", "y"}},
		{name: "one comes behind", now: []string{"a", "b", "c", "d", "e", "f"}, want: []string{"a", "b", "c", "d", "e", "f", "x", "y"}},
		{name: "another order", now: []string{"e", "d", "c", "b", "a"}, want: []string{"a", "b", "c", "d", "c", "b", "a", "x", "y"}},
		{name: "all are gone", now: nil, want: []string{"a", "b", "c", "d", "x", "y"}},
		{name: "it is away", down: true, want: []string{"a", "b", "c", "d", "e", "x", "y"}},
	} {
		for _, kind := range []string{spec.MethodToolsList, spec.MethodPromptsList, spec.MethodResources, spec.MethodTemplates} {
			t.Run(c.name+" "+kind, func(t *testing.T) {
				first, second := startLister(t, "plain", true, start...), startLister(t, "second", false, "x", "y")
				f := behindGateway(t, func(o *Options) { o.PageSize, o.Subscriptions = 2, nil }, first, second)
				f.catalogs.Replace(mustParse(t, "events: []\n"))
				got := f.wholeList(t, kind, "", func(page int) {
					if page == 2 {
						first.set(func() { first.names, first.down = c.now, c.down })
					}
					time.Sleep(2 * time.Millisecond)
				})
				for i, name := range got.names {
					got.names[i] = strings.TrimPrefix(name, "second_")
				}
				expect.Deep(t, "the list", got.names, c.want)
			})
		}
	}
}

// GWN-01: the endpoint refuses a cursor that does not belong to the list with -32602 in both revisions.
func TestForeignCursorsOfBackendLists(t *testing.T) {
	f := behindGateway(t, nil, startLister(t, "first", true, "a", "b"))
	session := f.session(alice, spec.V20251125)
	// The first letter names the part of the list: b for backends, s for subscriptions and c for the catalog. No part has z.
	for _, c := range []string{"btools gone 0 a", "btools first -1 a", "btools first x a", "btools first", "btools first 1", "stools sub_1", "ctools ci.build", "ztools a"} {
		cursor := `"cursor":"` + opaque.Encode([]byte(c)) + `"`
		f.stateless(alice, spec.MethodToolsList, cursor).is(t, c, http.StatusBadRequest, -32602)
		f.sessionBased(alice, session, spec.MethodToolsList, cursor).is(t, c+" in a session", 200, -32602)
	}
}

// GWN-01: all pages have the same hints: the smallest ttlMs and the strictest cacheScope of the backends.
func TestCachingHintsOfBackendLists(t *testing.T) {
	const long, short = `"ttlMs":60000,"cacheScope":"public"`, `"ttlMs":2500,"cacheScope":"public"`
	for _, c := range []struct {
		name      string
		hints     []string // one per backend of 2026-07-28; "2025" stands for a backend of 2025-11-25
		known     bool     // the endpoint authenticates callers
		forward   bool     // the endpoint forwards the callers' tokens to the first backend
		tools     string
		resources string // includes our event types, which are public and cached for at most 5 s
	}{
		{name: "one", hints: []string{long}, tools: "60000 public", resources: "5000 public"},
		{name: "the smaller of two", hints: []string{long, short}, tools: "2500 public", resources: "2500 public"},
		{name: "the stricter of two", hints: []string{long, `"ttlMs":70000,"cacheScope":"private"`}, tools: "60000 private", resources: "5000 private"},
		{name: "none at all", hints: []string{long, `"ttlMs":0,"cacheScope":"public"`}, tools: "0 public", resources: "0 public"},
		{name: "as good as for ever", hints: []string{`"ttlMs":1e300,"cacheScope":"public"`}, tools: "86400000 public", resources: "5000 public"},
		{name: "nonsense", hints: []string{`"ttlMs":"x","cacheScope":7`}, tools: "4000 private", resources: "4000 private"},
		{name: "a backend of 2025 has none", hints: []string{long, "2025"}, tools: "4000 private", resources: "4000 private"},
		{name: "callers differ", hints: []string{long}, known: true, tools: "60000 private", resources: "5000 private"},
		{name: "the caller's token", hints: []string{long, short}, forward: true, tools: "2500 private", resources: "2500 private"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var backends []api.Backend
			for i, hints := range c.hints {
				l := startLister(t, fmt.Sprintf("b%d", i), hints != "2025", "a", "b", "c")
				if hints != "2025" {
					l.hints = hints
				}
				b := l.backend()
				b.Prefix, b.ForwardToken = l.name, c.forward && i == 0
				backends = append(backends, b)
			}
			f := newFixture(t, func(o *Options) {
				o.Gateway, o.PageSize, o.Subscriptions = gatewayTo(t, o.Sessions, 4*time.Second, backends...), 2, nil
				if !c.known {
					o.Auth = auth.AcceptAll()
				}
			})
			f.catalogs.Replace(mustParse(t, noEvents))
			for method, want := range map[string]string{
				spec.MethodToolsList: c.tools, spec.MethodPromptsList: c.tools, spec.MethodResources: c.resources, spec.MethodTemplates: c.resources,
			} {
				got := f.wholeList(t, method, "", nil)
				expect.AtLeast(t, method+": the pages", got.pages, 2)
				for i := range got.pages {
					expect.Deep(t, fmt.Sprintf("%s, page %d", method, i), fmt.Sprint(got.ttls[i], " ", got.scopes[i]), want)
				}
			}
		})
	}
}

// GWN-01: all pages of a list have the same scope. If a public list has become private by the time the client requests
// the next page, the endpoint refuses the cursor and the client must read the list again from the beginning.
func TestScopeDoesNotChangeBetweenPages(t *testing.T) {
	l := startLister(t, "b", true, "a", "b", "c")
	f := behindGateway(t, func(o *Options) { o.PageSize, o.Auth = 2, auth.AcceptAll() }, l)
	for _, c := range []struct {
		before, now string
		status      int
		scope       string
	}{
		{"public", "public", 200, `"cacheScope":"public"`},
		{"private", "private", 200, `"cacheScope":"private"`},
		{"private", "public", 200, `"cacheScope":"private"`},
		{"public", "private", 400, ""},
	} {
		l.set(func() { l.hints = `"ttlMs":0,"cacheScope":"` + c.before + `"` })
		var p backendPage
		f.stateless("", spec.MethodToolsList, "").result(t, &p)
		expect.Deep(t, "the first page", p.CacheScope, c.before)
		l.set(func() { l.hints = `"ttlMs":0,"cacheScope":"` + c.now + `"` })
		f.stateless("", spec.MethodToolsList, fmt.Sprintf(`"cursor":%q`, *p.NextCursor)).isPlain(t, c.before+", then "+c.now, c.status, c.scope)
	}
}

// listRequest returns a request for a list in the session's revision, or in 2026-07-28 if session is empty.
func (f *fixture) listRequest(method, session, params string, headers ...string) *http.Request {
	if session == "" {
		return f.request("POST", alice, statelessBody("1", method, params), append(statelessHeaders(method, params), headers...)...)
	}
	return f.request("POST", alice, rpcText("1", method, params), append(headers, "Mcp-Session-Id: "+session)...)
}

// streamed returns the only response on an answer that must be an event stream.
func streamed(t *testing.T, r reply) (out reply) {
	t.Helper()
	if got := r.Header.Get("Content-Type"); r.Status != http.StatusOK || got != sse.ContentType {
		t.Fatalf("got status %d, %s: %s, want a stream", r.Status, got, r.Body)
	}
	events := sse.NewReader(strings.NewReader(r.Body), 1<<20)
	e := expect.Value(events.Next())(t)
	expect.Equal(t, "the end of the response", expect.ErrOf(events.Next()), io.EOF)
	return reply{Status: r.Status, Header: r.Header, Body: string(e.Data)}
}

var listMethods = []string{spec.MethodToolsList, spec.MethodPromptsList, spec.MethodResources, spec.MethodTemplates}

// GWN-01: if the backends are slow to return a list, the endpoint starts a stream, sends comments to keep the connection
// alive, and ends the stream with the result. If the list is available immediately, the answer is plain JSON.
func TestSlowListsAreStreams(t *testing.T) {
	l := startLister(t, "b", true, "a")
	f := behindGateway(t, func(o *Options) { o.AnswerStreamAfter, o.Heartbeat = 20*time.Millisecond, 5*time.Millisecond }, l)
	for _, session := range []string{"", f.session(alice, spec.V20251125)} {
		for _, method := range listMethods {
			goOn := make(chan struct{})
			l.set(func() { l.hold = goOn })
			time.Sleep(2 * time.Millisecond) // all cached lists expire
			res := expect.Value(f.server.Client().Do(f.listRequest(method, session, "")))(t)
			expect.MustEqual(t, method+": the status code", res.StatusCode, http.StatusOK)
			expect.MustEqual(t, method+": the header Content-Type", res.Header.Get("Content-Type"), sse.ContentType)
			lines := bufio.NewReader(res.Body)
			for comments := 0; comments < 3; {
				line := expect.Value(lines.ReadString('\n'))(t)
				if strings.HasPrefix(line, ":") {
					comments++
				} else if strings.TrimSpace(line) != "" {
					t.Fatalf("%s: before the response got %q, want comments", method, line)
				}
			}
			close(goOn)
			reply{Status: 200, Body: string(expect.Value(sse.NewReader(lines, 1<<20).Next())(t).Data)}.is(t, method, 200, 0, `"name":`)
			expect.OK(t, res.Body.Close())
		}
	}
	l.set(func() { l.hold = nil })
	f = behindGateway(t, nil, l)
	for _, session := range []string{"", f.session(alice, spec.V20251125)} {
		for _, method := range listMethods {
			if r := f.answer(f.listRequest(method, session, "")); r.Status != 200 || r.Header.Get("Content-Type") != "application/json" {
				t.Errorf("%s, available immediately: got status %d, %s, want JSON", method, r.Status, r.Header.Get("Content-Type"))
			}
		}
	}
}

// GWN-01: with --answer-stream-after 0 the endpoint answers with a stream whenever backends contribute to the list. Errors
// in the request itself still set the HTTP status. Errors that are found later are sent on the stream.
func TestListsThatAreStreamsAtOnce(t *testing.T) {
	l := startLister(t, "b", true, "a", "b", "c")
	f := behindGateway(t, func(o *Options) { o.AnswerStreamAfter, o.PageSize = 0, 2 }, l)
	session := f.session(alice, spec.V20251125)
	for _, revision := range []string{"", session} {
		for _, method := range listMethods {
			streamed(t, f.answer(f.listRequest(method, revision, ""))).is(t, method, 200, 0)
			f.answer(f.listRequest(method, revision, "", "Accept:", "Accept: application/json")).is(t, method+" without streams", 200, 0)
			f.answer(f.listRequest(method, revision, `"cursor":"!"`)).is(t, method+" with no cursor", map[bool]int{true: 400, false: 200}[revision == ""], -32602)
		}
		gone := `"cursor":"` + opaque.Encode([]byte("btools gone 0 a")) + `"`
		streamed(t, f.answer(f.listRequest(spec.MethodToolsList, revision, gone))).is(t, "a cursor of a backend that is gone", 200, -32602)
	}
	f.do("POST", alice, statelessBody("1", spec.MethodToolsList, ""), "Mcp-Protocol-Version: 2026-07-28", "Mcp-Method: x").isPlain(t, "a wrong header", 400)
	if r := f.answer(f.listRequest(spec.MethodEvents, "", "")); r.Status != 200 || r.Header.Get("Content-Type") != "application/json" {
		t.Errorf("a list of our own: got status %d: %s, want JSON", r.Status, r.Body)
	}
	// 2025-03-26 has batches. The answer to a batch is a single array, even if it includes a list.
	old := f.session(alice, spec.V20250326)
	r := f.do("POST", alice, `[{"jsonrpc":"2.0","id":1,"method":"tools/list"},{"jsonrpc":"2.0","id":2,"method":"ping"}]`, "Mcp-Session-Id: "+old)
	var answers []struct{ ID int }
	if err := json.Unmarshal([]byte(r.Body), &answers); err != nil || len(answers) != 2 {
		t.Errorf("a batch: got status %d: %s, want two answers", r.Status, r.Body)
	}
}
