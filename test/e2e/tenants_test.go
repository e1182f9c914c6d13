//go:build unix

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/test/expect"
	"github.com/mcp-events/mcpevents/test/harness"
	"github.com/mcp-events/mcpevents/test/identity"
)

// TestTenants tests AUT-05: every method and every other kind of request, with every kind of credentials, gets the
// expected response, and no response or stream contains another tenant's data.
func TestTenants(t *testing.T) {
	t.Parallel()
	p := identity.Start(t, "")
	o := harness.ServerOptions{Provider: p, Args: []string{"--event-tools", "--jwt-workspace-claim", "ws"}}
	dir := t.TempDir()
	for name, text := range map[string]string{"tenants": owned, "outside": granted} {
		expect.OK(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
		o.Args = append(o.Args, "--workspace-catalog", name+"="+filepath.Join(dir, name))
	}
	s := harness.StartServer(t, o)
	acme := claims{"org": "acme", "ws": "tenants"}
	with := func(more claims) claims { c := maps.Clone(acme); maps.Copy(c, more); return c }
	s.Keys["victim"] = p.Token("victim", everything, acme)
	tenants(t, &s.Target, map[string]string{
		"no token":        "",
		"expired":         p.Token("victim", everything, with(claims{"exp": time.Now().Add(-time.Hour).Unix()})),
		"wrong audience":  p.Token("victim", everything, with(claims{"aud": s.Base() + "/other"})),
		"wrong workspace": p.Token("victim", everything, with(claims{"ws": "outside"})),
		"other principal": p.Token("rival", everything, with(claims{"org": "evil"})),
		"missing scope":   p.Token("mute", "profile", acme),
	})
}

// tenantKeys returns the same credentials as API keys.
func tenantKeys(s *harness.Target) map[string]string {
	return map[string]string{
		"no token": "", "expired": s.Keys["late"], "wrong workspace": s.Keys["outsider"],
		"other principal": s.Keys["rival"], "missing scope": s.Keys["mute"],
	}
}

// want is an expected response: the HTTP status, and the JSON-RPC code, which is 0 for a result.
type want struct{ status, code int }

func (w want) String() string { return fmt.Sprintf("%d/%d", w.status, w.code) }

// attack is a request for the victim's data.
type attack struct {
	// scope is required by the method. It may be empty.
	scope  string
	params object
	// stateless and sessionBased are the expected responses to a good token of another principal of the workspace,
	// and of a principal of another workspace. They are nil where the method does not exist.
	stateless, sessionBased []want
}

var (
	fine    = []want{{200, 0}, {200, 0}}
	unknown = want{404, -32601}
)

// victim is a tenant whose data is attacked.
type victim struct {
	*harness.Client
	session, named *harness.Client // with a session-based revision, and with the dialect
	private        []string        // texts that only the victim may see
	workspace      []string        // texts that only its workspace may see
	own            string          // its subscription:// URI
	hook, extended *harness.Endpoint
	cursor         string
	watch          *harness.Stream
}

const (
	secretURI = "event://repos/acme/hidden-repo-7c1/changed"
	publicURI = "event://repos/acme/shared-repo-93b/announced"
)

func newVictim(t *testing.T, s *harness.Target) *victim {
	hooks := harness.NewReceiver(t)
	v := &victim{Client: s.Stateless("victim"), hook: hooks.Endpoint("hook-d41d8c"), extended: hooks.Endpoint("hook-e58a7f")}
	v.session = s.SessionBased(t, "victim", harness.V20251125)
	v.named = s.Dialect("victim", "tenants")
	v.own = register(t, v.Client, v.hook, secretURI).Subscription.URI
	id := subscribe(t, v.Client, v.extended, "repo.changed", object{"owner": "acme"}).ID
	v.session.Call(t, "resources/subscribe", object{"uri": secretURI}, nil)
	v.session.Open(t, "")
	v.named.OpenDialect(t, "")
	v.watch = v.Listen(t, 1, object{"resourceSubscriptions": []string{secretURI, publicURI}}, nil)
	v.watch.Next(t)
	var page page
	v.Call(t, "events/poll", object{"name": "repo.changed", "arguments": object{"owner": "acme"}, "cursor": nil}, &page)
	v.cursor = page.Cursor
	v.private = []string{
		"hidden-repo-7c1", "private-payload", "private-event", v.own[len("subscription://"):], id, v.hook.Name, v.extended.Name,
		v.session.Session, v.named.Session,
	}
	v.workspace = append(v.private, "shared-repo-93b", "shared-payload", "shared-event", "repo.changed", "repo.announced")
	v.publish(t, s, 1)
	return v
}

// publish publishes an event that belongs to the victim, and one that belongs to its workspace.
func (v *victim) publish(t *testing.T, s *harness.Target, n int) {
	t.Helper()
	for kind, uri := range map[string]string{"private": secretURI, "shared": publicURI} {
		e := harness.Event{ID: fmt.Sprintf("%s-event-%d", kind, n), URI: uri, Data: object{"text": kind + "-payload"}}
		expect.OK(t, expect.ErrOf(s.TryPublish(t.Context(), "victim", e)))
	}
	v.hook.Wait(t, n)
	v.extended.Wait(t, n)
	v.watch.Wait(t, 2*n)
}

// attacks contains every method at least once.
func (v *victim) attacks() map[string][]attack {
	read, webhooks := "events:read", "events:subscribe"
	changed := object{"name": "repo.changed", "arguments": object{"owner": "acme"}}
	from := func(name string) object {
		return object{"name": name, "arguments": object{}, "cursor": v.cursor}
	}
	return map[string][]attack{
		"initialize":      {{params: object{"protocolVersion": harness.V20251125, "capabilities": object{}, "clientInfo": object{"name": "x", "version": "1"}}, sessionBased: fine}},
		"ping":            {{sessionBased: fine}},
		"server/discover": {{stateless: fine}},
		"resources/list":  {{scope: read, stateless: fine, sessionBased: fine}}, "resources/templates/list": {{scope: read, stateless: fine, sessionBased: fine}},
		"events/list": {{scope: read, stateless: fine, sessionBased: fine}},
		"resources/read": {
			{scope: read, params: object{"uri": v.own}, stateless: []want{{400, -32602}, {400, -32602}}, sessionBased: []want{{200, -32002}, {200, -32002}}},
			{scope: read, params: object{"uri": secretURI}, stateless: []want{{200, 403}, {400, -32602}}, sessionBased: []want{{200, 403}, {200, -32002}}},
			{scope: read, params: object{"uri": "event://repos"}, stateless: []want{{200, 0}, {400, -32602}}, sessionBased: []want{{200, 0}, {200, -32002}}},
		},
		"resources/subscribe": {
			{scope: read, params: object{"uri": v.own}, sessionBased: []want{{200, -32002}, {200, -32002}}},
			{scope: read, params: object{"uri": secretURI}, sessionBased: []want{{200, 403}, {200, -32602}}},
			{scope: read, params: object{"uri": "event://repos"}, sessionBased: []want{{200, 0}, {200, -32602}}},
		},
		"resources/unsubscribe": {{scope: read, params: object{"uri": v.own}, sessionBased: fine}},
		"resources/subscriptions/register": {
			{scope: webhooks, params: object{"uris": []string{secretURI}, "targetUri": v.hook.URL()}, stateless: []want{{200, 403}, {400, -32602}}, sessionBased: []want{{200, 403}, {200, -32602}}},
			{scope: webhooks, params: object{"uris": []string{"event://repos/acme"}, "targetUri": v.hook.URL()}, stateless: []want{{200, 403}, {400, -32602}}, sessionBased: []want{{200, 403}, {200, -32602}}},
		},
		"resources/subscriptions/deregister": {
			{scope: webhooks, params: object{"uri": v.own}, stateless: []want{{400, -32602}, {400, -32602}}, sessionBased: []want{{200, -32002}, {200, -32002}}},
		},
		"events/poll": {
			{scope: read, params: changed, stateless: []want{{200, -32012}, {200, -32011}}, sessionBased: []want{{200, -32012}, {200, -32011}}},
			{scope: read, params: from("ending.kept"), stateless: []want{{200, -32011}, {400, -32602}}, sessionBased: []want{{200, -32011}, {200, -32602}}},
			{scope: read, params: from("repo.announced"), stateless: []want{{200, 0}, {200, -32011}}, sessionBased: []want{{200, 0}, {200, -32011}}},
		},
		"events/stream": {
			{scope: read, params: changed, stateless: []want{{200, -32012}, {200, -32011}}},
			{scope: read, params: from("ending.kept"), stateless: []want{{200, -32011}, {400, -32602}}},
			{scope: read, params: from("repo.announced"), stateless: []want{{200, 0}, {200, -32011}}},
		},
		"events/subscribe": {
			{scope: webhooks, params: subscription("repo.changed", object{"owner": "acme"}, v.extended.URL(), harness.NewSecret()), stateless: []want{{200, -32012}, {200, -32011}}, sessionBased: []want{{200, -32012}, {200, -32011}}},
		},
		"events/unsubscribe": {
			{scope: webhooks, params: subscription("repo.changed", object{"owner": "acme"}, v.extended.URL(), v.extended.Secret()), stateless: fine, sessionBased: fine},
		},
		"completion/complete": {
			{scope: read, params: object{"ref": object{"type": "ref/resource", "uri": "event://repos/{owner}/{repo}/changed"}, "argument": object{"name": "repo", "value": ""}, "context": object{"arguments": object{"owner": "acme"}}}, stateless: []want{{200, 0}, {400, -32602}}, sessionBased: []want{{200, 0}, {200, -32602}}},
		},
		"logging/setLevel": {{scope: read, params: object{"level": "debug"}, sessionBased: fine}},
		"subscriptions/listen": {
			{scope: read, params: object{"notifications": object{"resourceSubscriptions": []string{secretURI, v.own, "event://repos", "event://repos/acme"}, "resourcesListChanged": true, "eventsListChanged": true}}, stateless: fine},
			{scope: read, params: object{"notifications": object{"resourceSubscriptions": []string{"event://repos"}}, "_meta": object{harness.Prefix + "cursor": v.cursor}}, stateless: []want{{200, 0}, {400, -32602}}},
		},
		"tools/list": {{scope: read, stateless: fine, sessionBased: fine}},
		"tools/call": {
			{scope: read, params: object{"name": "x"}, stateless: []want{{400, -32602}, {400, -32602}}, sessionBased: []want{{200, -32602}, {200, -32602}}},
		},
		"prompts/list": {{}},
		"prompts/get":  {{params: object{"name": "x"}}},
		// These exist only with backends, see TestTasks.
		"tasks/get":    {{params: object{"taskId": "x"}}},
		"tasks/update": {{params: object{"taskId": "x", "inputResponses": object{}}}},
		"tasks/cancel": {{params: object{"taskId": "x"}}},
		// These exist only where they are enabled, see TestConversation.
		"conversation/userMessage":       {{params: object{"messageId": "x", "content": "x"}}},
		"conversation/assistantResponse": {{params: object{"messageId": "x", "content": "x"}}},
	}
}

// asked are methods that servers call on clients. The endpoint does not serve them.
var asked = []string{"elicitation/create", "sampling/createMessage", "roots/list"}

// methods reads the names of the endpoint's methods from its source, so that a new method must be added to the table.
func methods(t *testing.T) (names []string) {
	file := expect.Value(parser.ParseFile(token.NewFileSet(), filepath.Join(harness.Root(t), "shared/protocol/spec/spec.go"), nil, 0))(t)
	ast.Inspect(file, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if ok && strings.HasPrefix(spec.Names[0].Name, "Method") && len(spec.Values) == 1 {
			name := expect.Value(strconv.Unquote(spec.Values[0].(*ast.BasicLit).Value))(t)
			if !slices.Contains(asked, name) {
				names = append(names, name)
			}
		}
		return true
	})
	if len(names) < 20 {
		t.Fatalf("only %d methods were found", len(names))
	}
	return names
}

// received is the content of a response or stream so far.
type received struct {
	what, asked string
	limit       []string // texts that it must not contain
	status      int
	header      string
	cancel      context.CancelFunc
	ended       chan struct{}
	expect.Buffer
}

// over reports whether the response is complete.
func (h *received) over() bool {
	select {
	case <-h.ended:
		return true
	default:
		return false
	}
}

// code returns the JSON-RPC code of the response. It is 0 for a stream that has begun, too.
func (h *received) code() int {
	text := h.String()
	if i := strings.LastIndex(text, "data: {"); i >= 0 {
		text, _, _ = strings.Cut(text[i+len("data: "):], "\n")
	}
	var m struct{ Error *harness.RPCError }
	if json.Unmarshal([]byte(text), &m) == nil && m.Error != nil {
		return m.Error.Code
	}
	return 0
}

// listenTo sends a request and reads the response in the background: to its end, or until the test ends if it is a
// stream.
func listenTo(t *testing.T, what string, req *http.Request, asked string, limit []string) *received {
	t.Helper()
	h := &received{what: what, asked: asked + req.Header.Get("Mcp-Session-Id"), limit: limit, ended: make(chan struct{})}
	var ctx context.Context
	ctx, h.cancel = context.WithCancel(t.Context())
	resp, err := http.DefaultClient.Do(req.WithContext(ctx))
	expect.OK(t, err, what)
	h.status, h.header = resp.StatusCode, fmt.Sprint(resp.Header)
	begun := make(chan struct{})
	go func() {
		defer close(h.ended)
		defer resp.Body.Close()
		first := make([]byte, 1) // a stream begins with a message
		n, _ := io.ReadFull(resp.Body, first)
		_, _ = h.Write(first[:n])
		close(begun)
		_, _ = io.Copy(h, resp.Body)
	}()
	enough := h.ended
	if strings.HasPrefix(resp.Header.Get("Content-Type"), "text/event-stream") {
		enough = begun
	}
	select {
	case <-enough:
	case <-time.After(harness.Patience):
		t.Errorf("%s: no response", what)
	}
	return h
}

func (h *received) check(t *testing.T) {
	t.Helper()
	text := h.header + h.String()
	for _, s := range h.limit {
		if s != "" && strings.Contains(text, s) && !strings.Contains(h.asked, s) {
			t.Errorf("%s: the response contains %q: %.600s", h.what, s, text)
		}
	}
}

func tenants(t *testing.T, s *harness.Target, credentials map[string]string) {
	v := newVictim(t, s)
	table := v.attacks()
	var all []*received
	known := methods(t)
	for name := range table {
		expect.Has(t, "the methods of the endpoint", known, name)
	}
	for _, who := range slices.Sorted(maps.Keys(credentials)) {
		key := credentials[who]
		limit := v.private
		if who == "wrong workspace" {
			limit = v.workspace
		}
		stateless := &harness.Client{URL: s.MCP, Key: key, Version: harness.V20260728}
		sessionBased := &harness.Client{URL: s.MCP, Key: key, Version: harness.V20251125, Session: "any"}
		authentic := who == "wrong workspace" || who == "other principal" || who == "missing scope"
		if authentic {
			sessionBased.Initialize(t)
		}
		for _, name := range known {
			expect.AtLeast(t, fmt.Sprintf("AUT-05 the expected responses of %s in the table", name), len(table[name]), 1)
			for i, a := range table[name] {
				for _, c := range []*harness.Client{stateless, sessionBased} {
					revision, wants := "2026", a.stateless
					if c == sessionBased {
						revision, wants = "2025", a.sessionBased
					}
					w := expected(who, name, a, wants, c == sessionBased)
					req := expect.Value(c.Request(t.Context(), name, a.params, 1))(t)
					if name == "initialize" && c == sessionBased {
						req.Header.Del("Mcp-Session-Id")
						req.Header.Del("Mcp-Protocol-Version")
					}
					what := fmt.Sprintf("AUT-05 %s, %s #%d, %s", who, name, i, revision)
					h := listenTo(t, what, req, string(marshal(t, a.params)), limit)
					if got := (want{h.status, h.code()}); got != w {
						t.Errorf("%s: got %v, want %v: %.300s", what, got, w, h)
					}
					all = append(all, h)
				}
			}
		}
		for what, way := range v.otherWays(t, s, key) {
			w := way.wants[who]
			h := listenTo(t, "AUT-05 "+who+", "+what, way.req, way.asked, limit)
			if h.status != w {
				t.Errorf("AUT-05 %s, %s: status %d, want %d: %.300s", who, what, h.status, w, h)
			}
			all = append(all, h)
		}
	}
	// The victim's own requests still work. When a second round of events has arrived, the first one would have arrived
	// wherever it must not.
	v.publish(t, s, 2)
	v.publish(t, s, 3)
	shared := harness.Within(t, harness.Patience, func() bool {
		return slices.ContainsFunc(all, func(h *received) bool { return !h.over() && strings.Contains(h.String(), "shared-event-3") })
	})
	open := 0
	for _, h := range all {
		if !h.over() {
			open++
		}
		h.cancel()
		<-h.ended
		h.check(t)
	}
	if open < 5 || !shared {
		t.Errorf("%d streams were open when the victim's events arrived; one had the events for all: %v", open, shared)
	}
	expect.Equal(t, "the status of the victim's session", v.session.Do(t, "ping", nil).Status, 200)
	t.Logf("%d responses, %d of them open streams", len(all), open)
}

func expected(who, method string, a attack, wants []want, sessionBased bool) want {
	absent := unknown
	if sessionBased {
		absent = want{200, -32601}
	}
	switch {
	case !sessionBased && strings.HasSuffix(method, "subscribe") && strings.HasPrefix(method, "events/") && strings.Contains("no token, expired, wrong audience", who):
		return want{401, -32012} // EVX-16
	case who == "no token" || who == "expired" || who == "wrong audience":
		return want{401, 401}
	case wants == nil:
		return absent
	case who == "missing scope" && a.scope == "":
		return want{200, 0}
	case who == "missing scope" && strings.HasPrefix(method, "events/"):
		return want{403, -32012}
	case who == "missing scope":
		return want{403, 403}
	case who == "other principal":
		return wants[0]
	}
	return wants[1]
}

// way is a request other than the methods, with the expected status for each kind of credentials.
type way struct {
	req   *http.Request
	asked string
	wants map[string]int
}

func (v *victim) otherWays(t *testing.T, s *harness.Target, key string) map[string]way {
	request := func(method, url, body string, header ...string) *http.Request {
		req := expect.Value(http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body)))(t)
		req.Header.Set("Accept", "application/json, text/event-stream")
		if body != "" {
			req.Header.Set("Content-Type", "application/json")
		}
		if method == http.MethodGet {
			req.Header.Set("Accept", "text/event-stream")
		}
		if key != "" {
			req.Header.Set("Authorization", "Bearer "+key)
		}
		for i := 0; i+1 < len(header); i += 2 {
			req.Header.Set(header[i], header[i+1])
		}
		return req
	}
	statuses := func(mute, other int) map[string]int {
		return map[string]int{
			"no token": 401, "expired": 401, "wrong audience": 401,
			"missing scope": mute, "other principal": other, "wrong workspace": 404,
		}
	}
	list := `{"jsonrpc":"2.0","id":1,"method":"resources/list","params":{}}`
	event := fmt.Sprintf(`{"uri":%q,"data":{}}`, "event://repos/evil/web/announced")
	theirs := []string{"Mcp-Session-Id", v.session.Session, "Mcp-Protocol-Version", harness.V20251125}
	tenant := s.MCP + "/tenants"
	return map[string]way{
		"POST /events":                          {request("POST", s.Events, event), event, statuses(403, 202)},
		"GET /mcp of the victim's session":      {request("GET", s.MCP, "", theirs...), "", statuses(404, 404)},
		"POST /mcp in the victim's session":     {request("POST", s.MCP, list, theirs...), list, statuses(404, 404)},
		"DELETE /mcp of the victim's session":   {request("DELETE", s.MCP, "", theirs...), "", statuses(404, 404)},
		"GET /mcp/{workspace}":                  {request("GET", tenant, ""), "", statuses(403, 200)},
		"GET /mcp/{workspace} of its session":   {request("GET", tenant, "", "Mcp-Session-Id", v.named.Session), "", statuses(404, 404)},
		"POST /mcp/{workspace}":                 {request("POST", tenant, list, "Accept", "application/json"), list, statuses(403, 200)},
		"POST /mcp/{workspace} in its session":  {request("POST", tenant, list, "Mcp-Session-Id", v.named.Session), list, statuses(404, 404)},
		"GET /mcp/{workspace} with its last id": {request("GET", tenant, "", "Mcp-Session-Id", v.named.Session, "Last-Event-ID", v.cursor), "", statuses(404, 404)},
	}
}
