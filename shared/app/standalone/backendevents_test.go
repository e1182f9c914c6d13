package standalone_test

import (
	"bufio"
	"context"
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

	"github.com/mcp-events/mcpevents/client"
	"github.com/mcp-events/mcpevents/shared/app/standalone"
	"github.com/mcp-events/mcpevents/shared/app/standalone/servertest"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
	"github.com/mcp-events/mcpevents/test/expect"
)

// shipments is the catalog of a backend.
const shipments = `
events:
  - name: order.shipped
    uriTemplate: event://orders/{order}/shipped
    description: An order has left the warehouse.
    payloadSchema: {type: object, required: [carrier], properties: {carrier: {type: string}}}
`

// startBackend starts a server with events, which is the backend of another one.
func startBackend(t *testing.T) (*standalone.Server, standalone.Options) {
	t.Helper()
	o := servertest.Options(t, nil)
	o.Catalog = []byte(shipments)
	return servertest.Start(t, o), o
}

// callers are the callers of the gateway. Only alice has the scope that the backend needs.
var callers = map[string]servertest.Caller{
	"alice": {Workspace: "default", Scopes: `"events:read","events:subscribe","events:publish",shop`},
	"bob":   {Workspace: "default", Scopes: `"events:read","events:subscribe"`},
	"op":    {Workspace: "default", Scopes: `"events:operate"`},
}

// startGateway starts a server in front of a backend.
func startGateway(t *testing.T, backend string, change func(*standalone.Options)) *standalone.Server {
	t.Helper()
	o := servertest.Options(t, nil)
	o.Auth = "keys"
	o.Config = servertest.Config(t, callers, fmt.Sprintf("backends:\n  - {name: shop, url: %q, prefix: shop_, scopes: [shop]}\n", backend))
	if change != nil {
		change(&o)
	}
	return servertest.Start(t, o)
}

func connect(t *testing.T, s *standalone.Server, key, revision string) *client.Client {
	t.Helper()
	c := expect.Value(client.Connect(t.Context(), s.URL, client.Options{Key: key, Agent: "test/1", Revision: revision, MinPoll: 20 * time.Millisecond}))(t)
	return c
}

// eventTypes waits until the gateway lists an event type for a caller.
func awaitType(t *testing.T, c *client.Client, name string) client.EventType {
	t.Helper()
	for {
		types := expect.Value(c.EventTypes(t.Context()))(t)
		if at := slices.IndexFunc(types, func(e client.EventType) bool { return e.Name == name }); at >= 0 {
			return types[at]
		}
		select {
		case <-t.Context().Done():
			t.Fatalf("%s is not listed", name)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func ship(t *testing.T, backend *standalone.Server, order int, id, data string) {
	t.Helper()
	expect.OK(t, expect.ErrOf(backend.Publish(t.Context(), "default", standalone.Event{
		URI: fmt.Sprintf("event://orders/%d/shipped", order), ID: id, Data: json.RawMessage(data),
	})))
}

// startEndpoint starts an endpoint that accepts all webhooks, and returns its URL and the bodies that it gets.
func startEndpoint(t *testing.T) (url string, bodies <-chan string) {
	t.Helper()
	posted := make(chan string, 100)
	endpoint := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !servertest.Echo(w, r) {
			body, _ := io.ReadAll(r.Body)
			posted <- string(body)
		}
	}))
	t.Cleanup(endpoint.Close)
	return endpoint.URL, posted
}

// received collects the events of a subscription.
type received struct {
	mu     sync.Mutex
	events []client.Event
	gaps   int
	more   chan struct{}
}

func subscribe(t *testing.T, c *client.Client, mode, name string, arguments any) *received {
	t.Helper()
	r := &received{more: make(chan struct{}, 1000)}
	s := expect.Value(c.Subscribe(t.Context(), client.SubscribeOptions{
		Name: name, Arguments: arguments, Mode: mode,
		Event: func(_ context.Context, e client.Event) error {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.events = append(r.events, e)
			r.more <- struct{}{}
			return nil
		},
		Gap: func(context.Context, client.Gap) error {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.gaps++
			r.more <- struct{}{}
			return nil
		},
	}))(t)
	t.Cleanup(func() { _ = s.Close() })
	return r
}

// await waits until done reports true.
func (r *received) await(t *testing.T, done func() bool) {
	t.Helper()
	late := time.After(servertest.Patience)
	for {
		r.mu.Lock()
		ok := done()
		r.mu.Unlock()
		if ok {
			return
		}
		select {
		case <-r.more:
		case <-late:
			t.Fatalf("got %d events and %d gaps: %+v", len(r.events), r.gaps, r.events)
		}
	}
}

func TestEventsOfABackend(t *testing.T) {
	backend, _ := startBackend(t)
	gateway := startGateway(t, backend.URL+"/mcp", nil)
	alice := connect(t, gateway, "alice", "2026-07-28")

	t.Run("GWN-20 the list has the backend's event types, for callers who may see it", func(t *testing.T) {
		got := awaitType(t, alice, "shop_order.shipped")
		expect.Equal(t, "the description", got.Description, "An order has left the warehouse.")
		expect.List(t, "the modes", got.Delivery, []string{"push", "poll", "webhook"})
		expect.Contains(t, "the payload schema", string(got.PayloadSchema), `"carrier"`)
		expect.Contains(t, "the input schema", string(got.InputSchema), `"order"`)
		bob := connect(t, gateway, "bob", "2026-07-28")
		types := expect.Value(bob.EventTypes(t.Context()))(t)
		if slices.ContainsFunc(types, func(e client.EventType) bool { return strings.HasPrefix(e.Name, "shop_") }) {
			t.Errorf("bob, who lacks the scope, sees %v", types)
		}
		expect.Error(t, "bob's poll of the events", bob.Call(t.Context(), "events/poll", map[string]any{"name": "shop_order.shipped"}, nil))
	})

	t.Run("GWN-21, GWN-22 stream, poll and webhook receive an event of the backend once", func(t *testing.T) {
		arguments := map[string]string{"order": "1"}
		streamed := subscribe(t, alice, "push", "shop_order.shipped", arguments)
		polled := subscribe(t, connect(t, gateway, "alice", "2025-11-25"), "poll", "shop_order.shipped", arguments)
		url, posted := startEndpoint(t)
		servertest.SubscribeEvents(t, gateway.URL, "alice", url, "shop_order.shipped", map[string]any{"order": "1"})

		ship(t, backend, 2, "other", `{"carrier":"DHL"}`) // matches no arguments
		ship(t, backend, 1, "first", `{"carrier":"DHL"}`)
		ship(t, backend, 1, "second", `{"carrier":"UPS"}`)
		for _, r := range []*received{streamed, polled} {
			r.await(t, func() bool { return len(r.events) == 2 })
		}
		for mode, r := range map[string]*received{"push": streamed, "poll": polled} {
			expect.Equal(t, "the events", string(r.events[0].Data)+string(r.events[1].Data), `{"carrier":"DHL"}{"carrier":"UPS"}`)
			expect.Equal(t, "the gaps", r.gaps, 0)
			expect.Equal(t, mode+": the ID", r.events[0].ID, streamed.events[0].ID)
			expect.Equal(t, mode+": the name", r.events[0].Name, "shop_order.shipped")
		}
		for range 2 {
			body := expect.Receive(t, "a webhook", posted)
			var got struct {
				EventID string
				Meta    struct {
					Arguments map[string]string `json:"io.github.mcp-events/arguments"`
				} `json:"_meta"`
			}
			expect.OK(t, json.Unmarshal([]byte(body), &got))
			if got.EventID != streamed.events[0].ID && got.EventID != streamed.events[1].ID || got.Meta.Arguments["order"] != "1" {
				t.Errorf("got the webhook %s, want an event of the stream with its arguments", body)
			}
		}
		expect.Len(t, "the further webhooks", posted, 0)
	})
}

// TestWhatABackendSends uses a backend that repeats events, and sends some that do not fit their schema.
func TestWhatABackendSends(t *testing.T) {
	backend := newFakeBackend(t, shippedType)
	var logged expect.Buffer
	gateway := startGateway(t, backend.URL, func(o *standalone.Options) { o.Log = slog.New(slog.NewTextHandler(&logged, nil)) })
	alice := connect(t, gateway, "alice", "2026-07-28")
	awaitType(t, alice, "shop_order.shipped")

	r := subscribe(t, alice, "push", "shop_order.shipped", map[string]any{"b": 1, "a": []int{2}})
	t.Run("GWN-21 equal interests share one subscription, with the arguments of the clients", func(t *testing.T) {
		subscribe(t, alice, "push", "shop_order.shipped", map[string]any{"a": []int{2}, "b": 1})
		params := <-backend.opened
		expect.Equal(t, "the request of the backend's events", fmt.Sprint(params["name"], " ", params["arguments"], params["cursor"]), "order.shipped map[a:[2] b:1] <nil>")
		expect.Len(t, "the further subscriptions at the backend", backend.opened, 0)
	})
	t.Run("GWN-22 an event that arrives again is one event, and one that does not fit its schema is counted and not delivered", func(t *testing.T) {
		backend.send("1", "c1", `{"carrier":"DHL"}`)
		backend.send("1", "c1", `{"carrier":"DHL"}`)
		backend.send("2", "c2", `{"order":7}`)
		backend.send("3", "c3", `{"carrier":"UPS"}`)
		r.await(t, func() bool { return len(r.events) >= 2 })
		if string(r.events[0].Data) != `{"carrier":"DHL"}` || string(r.events[1].Data) != `{"carrier":"UPS"}` || r.events[0].Time != "2026-11-28T10:00:00Z" {
			t.Errorf("got %+v", r.events)
		}
		logged.Await(t, "an event that does not fit its schema", 1)
	})
	t.Run("GWN-22 truncated of the backend reaches a stream and a webhook as such", func(t *testing.T) {
		url, gaps := startEndpoint(t)
		servertest.SubscribeEvents(t, gateway.URL, "alice", url, "shop_order.shipped", map[string]any{"b": 1, "a": []int{2}})
		backend.mu.Lock()
		backend.first = `{"cursor":"c9","truncated":true}`
		backend.mu.Unlock()
		backend.CloseClientConnections() // the relay resumes
		expect.Equal[any](t, "the cursor from which the relay resumes", (<-backend.opened)["cursor"], "c3")
		r.await(t, func() bool { return r.gaps == 1 && len(r.events) == 2 })
		expect.Contains(t, "the webhook", expect.Receive(t, "the webhook", gaps), `"type":"gap"`)
	})
	t.Run("GWN-22 nobody else can publish an event of a backend", func(t *testing.T) {
		req := expect.Value(http.NewRequestWithContext(t.Context(), http.MethodPost, gateway.URL+"/events", strings.NewReader(fmt.Sprintf(`{"uri":%q,"data":{"carrier":"x"}}`, "event://~shop/order.shipped/e30"))))(t)
		req.Header.Set("Authorization", "Bearer alice")
		req.Header.Set("Content-Type", "application/json")
		resp := expect.Value(http.DefaultClient.Do(req))(t)
		defer resp.Body.Close()
		expect.Equal(t, "the status", resp.StatusCode, http.StatusNotFound)
	})
}

// GWN-20: types whose schemas explode or refer to other documents are not used, and do not keep the others from being listed.
func TestHostileEventTypes(t *testing.T) {
	explode := `{"$defs":{"x0":{"type":"string"}`
	for i := 1; i <= 30; i++ {
		explode += fmt.Sprintf(`,"x%d":{"allOf":[{"$ref":"#/$defs/x%d"},{"$ref":"#/$defs/x%d"}]}`, i, i-1, i-1)
	}
	explode += `},"$ref":"#/$defs/x30"}`
	var types []string
	for i, schema := range []string{explode, `{"$ref":"https://example.com/x"}`, `{"properties":{"a":{"$ref":"#"}}}`, `{"type":"nothing"}`, `[]`} {
		types = append(types, fmt.Sprintf(`{"name":"bad%d","description":"","delivery":["push"],"payloadSchema":%s}`, i, schema))
	}
	types = append(types, `{"name":"../x","delivery":["push"]}`, `{"name":"hooks","delivery":["webhook"]}`, shippedType)
	for i := range 300 {
		types = append(types, fmt.Sprintf(`{"name":"more%d","delivery":["poll"]}`, i))
	}
	gateway := startGateway(t, newFakeBackend(t, strings.Join(types, ",")).URL, nil)
	alice := connect(t, gateway, "alice", "2026-07-28")
	awaitType(t, alice, "shop_order.shipped")
	all := expect.Value(alice.EventTypes(t.Context()))(t)
	n := 0
	for _, e := range all {
		if strings.HasPrefix(e.Name, "shop_") {
			n++
		}
		expect.Lacks(t, "an event type in the list", e.Name, "bad", "hooks")
	}
	expect.Equal(t, "the event types of the backend", n, 200)
}

// GWN-20: a change of a backend's event types reaches clients as notifications/events/list_changed, and the list then has the new types.
func TestChangedEventTypesOfABackend(t *testing.T) {
	backend, o := startBackend(t)
	gateway := startGateway(t, backend.URL+"/mcp", nil)
	alice := connect(t, gateway, "alice", "2026-07-28")
	awaitType(t, alice, "shop_order.shipped")

	body := `{"jsonrpc":"2.0","id":1,"method":"subscriptions/listen","params":{"notifications":{"eventsListChanged":true},
		"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{},"io.modelcontextprotocol/clientInfo":{"name":"test","version":"1"}}}}`
	ctx, cancel := context.WithTimeout(t.Context(), servertest.Patience)
	defer cancel()
	req := expect.Value(http.NewRequestWithContext(ctx, http.MethodPost, gateway.URL+"/mcp", strings.NewReader(body)))(t)
	for name, value := range map[string]string{
		"Authorization": "Bearer alice", "Content-Type": "application/json", "Accept": "application/json, text/event-stream",
		"Mcp-Protocol-Version": "2026-07-28", "Mcp-Method": "subscriptions/listen",
	} {
		req.Header.Set(name, value)
	}
	resp := expect.Value(http.DefaultClient.Do(req))(t)
	defer resp.Body.Close()
	lines := bufio.NewScanner(resp.Body)
	await := func(text string) {
		t.Helper()
		for lines.Scan() {
			if strings.Contains(lines.Text(), text) {
				return
			}
		}
		t.Fatalf("the stream ended without %s: %v", text, lines.Err())
	}
	await("notifications/subscriptions/acknowledged")
	o.Catalog = []byte(shipments + "  - {name: order.lost, uri: event://orders/lost}\n")
	expect.OK(t, backend.Reload(t.Context(), o))
	await("notifications/events/list_changed")
	awaitType(t, alice, "shop_order.lost")
}

// GWN-20: the event types of a backend disappear when it is removed.
func TestEventTypesFollowTheConfiguration(t *testing.T) {
	var o standalone.Options
	backend, _ := startBackend(t)
	gateway := startGateway(t, backend.URL+"/mcp", func(used *standalone.Options) { o = *used })
	alice := connect(t, gateway, "alice", "2026-07-28")
	awaitType(t, alice, "shop_order.shipped")
	o.Config = servertest.Config(t, callers, "backends: []\n")
	expect.OK(t, gateway.Reload(t.Context(), o))
	expect.Eventually(t, "the event type is not listed any more", func() bool {
		types := expect.Value(alice.EventTypes(t.Context()))(t)
		return !slices.ContainsFunc(types, func(e client.EventType) bool { return e.Name == "shop_order.shipped" })
	})
	expect.Error(t, "a poll of the events", alice.Call(t.Context(), "events/poll", map[string]any{"name": "shop_order.shipped", "arguments": map[string]string{"order": "1"}}, nil))
}

// GWN-22: if the stream of a backend without cursors is interrupted, its subscribers learn that events may be missing.
func TestABackendWithoutCursors(t *testing.T) {
	backend := newFakeBackend(t, shippedType)
	backend.first = `{"cursor":null,"truncated":false}`
	alice := connect(t, startGateway(t, backend.URL, nil), "alice", "2026-07-28")
	awaitType(t, alice, "shop_order.shipped")
	r := subscribe(t, alice, "push", "shop_order.shipped", nil)
	<-backend.opened
	backend.send("1", "", `{"carrier":"DHL"}`)
	before := 0
	r.await(t, func() bool { before = r.gaps; return len(r.events) == 1 })
	backend.CloseClientConnections()
	<-backend.opened
	r.await(t, func() bool { return r.gaps == before+1 })
}

// GWN-20: a backend without a prefix cannot take the names of another backend's event types, as it cannot for tools.
func TestABackendKeepsItsPrefix(t *testing.T) {
	forged := strings.Replace(shippedType, `"order.shipped","description":""`, `"shop_order.shipped","description":"forged"`, 1)
	hostile := newFakeBackend(t, forged+`,{"name":"done","delivery":["push"]}`)
	honest := newFakeBackend(t, shippedType)
	gateway := startGateway(t, honest.URL, func(o *standalone.Options) {
		o.Config = servertest.Config(t, callers, fmt.Sprintf(
			"backends:\n  - {name: another, url: %q}\n  - {name: shop, url: %q, prefix: shop_}\n", hostile.URL, honest.URL))
	})
	alice := connect(t, gateway, "alice", "2026-07-28")
	awaitType(t, alice, "done")
	expect.Equal(t, "the description", awaitType(t, alice, "shop_order.shipped").Description, "")
}

// listBackends returns the response of the admin API to an operator.
func listBackends(t *testing.T, s *standalone.Server) string {
	t.Helper()
	req := expect.Value(http.NewRequestWithContext(t.Context(), "GET", s.URL+"/admin/v1/backends", nil))(t)
	req.Header.Set("Authorization", "Bearer op")
	resp := expect.Value(http.DefaultClient.Do(req))(t)
	defer resp.Body.Close()
	return string(expect.Value(io.ReadAll(resp.Body))(t))
}

// GWN-20: operators see in the list of backends that an event type of a backend is hidden by another one of the same name.
func TestOperatorsSeeHiddenEventTypes(t *testing.T) {
	backends := map[string]*fakeBackend{"first": newFakeBackend(t, shippedType), "second": newFakeBackend(t, shippedType+`,{"name":"done","delivery":["push"]}`)}
	gateway := startGateway(t, backends["first"].URL, func(o *standalone.Options) {
		o.Config = servertest.Config(t, callers, fmt.Sprintf(
			"backends:\n  - {name: first, url: %q}\n  - {name: second, url: %q}\n", backends["first"].URL, backends["second"].URL))
	})
	alice := connect(t, gateway, "alice", "2026-07-28")
	awaitType(t, alice, "done")
	awaitType(t, alice, "order.shipped")
	const want = `"name":"second","url":"%s","prefix":"","state":"ready","warnings":["its event type order.shipped is not listed, because backend first has one with this name"]}`
	expect.Eventually(t, "the second backend is ready and has the warning", func() bool {
		return strings.Contains(listBackends(t, gateway), fmt.Sprintf(want, backends["second"].URL))
	})
}

// GWN-20: the list of backends leaves out the state of a backend that accepts only callers' tokens, because operators lack such a token.
func TestABackendForCallersHasNoState(t *testing.T) {
	asked := make(chan struct{}, 100)
	private := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		asked <- struct{}{}
		w.WriteHeader(http.StatusUnauthorized)
	}))
	defer private.Close()
	gateway := startGateway(t, private.URL, func(o *standalone.Options) {
		o.Config = servertest.Config(t, callers, fmt.Sprintf("backends:\n  - {name: private, url: %q, forwardToken: true}\n", private.URL))
	})
	got := listBackends(t, gateway)
	expect.Contains(t, "the name", got, `"name":"private"`)
	expect.Lacks(t, "the state", got, `"state"`)
	expect.Len(t, "the requests without a token", asked, 0)
}

// GWN-25: a server that shuts down writes the log lines of the calls that have just ended.
func TestShutdownWritesTheLinesOfCalls(t *testing.T) {
	var logged expect.Buffer
	gateway := startGateway(t, "http://127.0.0.1:1/mcp", func(o *standalone.Options) { o.Log = slog.New(slog.NewTextHandler(&logged, nil)) })
	req := expect.Value(http.NewRequestWithContext(t.Context(), "POST", gateway.URL+"/mcp", strings.NewReader(
		`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"shop_buy","_meta":{"`+spec.MetaVersion+`":"2026-07-28","`+spec.MetaCapabilities+`":{}}}}`)))(t)
	req.Header = http.Header{
		"Authorization": {"Bearer alice"}, "Content-Type": {"application/json"}, "Accept": {"application/json, text/event-stream"},
		spec.HeaderVersion: {"2026-07-28"}, spec.HeaderMethod: {"tools/call"}, spec.HeaderName: {"shop_buy"},
	}
	resp := expect.Value(http.DefaultClient.Do(req))(t)
	_ = resp.Body.Close()
	expect.OK(t, gateway.Shutdown(t.Context()))
	if text := logged.String(); !strings.Contains(text, `msg="gateway call"`) || !strings.Contains(text, "tool=shop_buy") {
		t.Errorf("the log lacks the call (HTTP status %d): %s", resp.StatusCode, text)
	}
}

// fakeBackend is an MCP server of revision 2026-07-28 whose events a test controls.
type fakeBackend struct {
	*httptest.Server
	t *testing.T

	mu      sync.Mutex
	types   string              // the elements of events/list
	first   string              // the params of notifications/events/active
	streams []fakeStream        // the open streams
	callers map[string]string   // if set, the elements of events/list by token; other tokens get 401
	opened  chan map[string]any // receives the params of each events/stream
	closed  chan bool           // receives when one has ended
	seen    map[string]bool     // the tokens of all requests
}

// fakeStream is a stream of a [fakeBackend].
type fakeStream struct {
	token  string
	events chan string // receives the params of notifications/events/event
	end    context.CancelFunc
}

const shippedType = `{"name":"order.shipped","description":"","delivery":["push"],"inputSchema":{"type":"object"},
	"payloadSchema":{"type":"object","required":["carrier"]}}`

func newFakeBackend(t *testing.T, types string) *fakeBackend {
	t.Helper()
	b := &fakeBackend{t: t, types: types, first: `{"cursor":"c0","truncated":false}`, opened: make(chan map[string]any, 1000), closed: make(chan bool, 1000)}
	b.seen = map[string]bool{}
	b.Server = httptest.NewServer(b)
	t.Cleanup(func() { b.CloseClientConnections(); b.Close() })
	return b
}

func (b *fakeBackend) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var m struct {
		ID     json.RawMessage
		Method string
		Params map[string]any
	}
	if json.NewDecoder(r.Body).Decode(&m) != nil {
		w.WriteHeader(http.StatusMethodNotAllowed)
		return
	}
	b.mu.Lock()
	types, first := b.types, b.first
	token := strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
	b.seen[token] = true
	own, known := b.callers[token]
	refuses := b.callers != nil && !known
	b.mu.Unlock()
	if known {
		types = own
	}
	if refuses { // the error repeats the token, as a careless server does
		w.WriteHeader(http.StatusUnauthorized)
		fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"error":{"code":-32001,"message":"the token %s is not valid"}}`, m.ID, token)
		return
	}
	result := ""
	switch m.Method {
	case "server/discover":
		result = `{"supportedVersions":["2026-07-28"],"capabilities":{"extensions":{"io.modelcontextprotocol/events":{}}},"serverInfo":{"name":"fake","version":"1"}}`
	case "events/list":
		result = `{"events":[` + types + `]}`
	case "events/stream":
		w.Header().Set("Content-Type", "text/event-stream")
		events := make(chan string, 1000)
		ctx, end := context.WithCancel(r.Context())
		defer end()
		b.mu.Lock()
		b.streams = append(b.streams, fakeStream{token, events, end})
		b.mu.Unlock()
		m.Params["token"] = token
		send := func(method, params string) {
			params = `{"_meta":{"io.modelcontextprotocol/subscriptionId":` + string(m.ID) + `},` + params[1:]
			fmt.Fprintf(w, "data: {\"jsonrpc\":\"2.0\",\"method\":%q,\"params\":%s}\n\n", method, params)
			w.(http.Flusher).Flush()
		}
		send("notifications/events/active", first)
		b.opened <- m.Params
		for {
			select {
			case e := <-events:
				send("notifications/events/event", e)
			case <-ctx.Done():
				b.closed <- true
				return
			}
		}
	default:
		fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"error":{"code":-32601,"message":"unknown method"}}`, m.ID)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"result":%s}`, m.ID, result)
}

// send sends an event on all streams.
func (b *fakeBackend) send(id, cursor, data string) { b.sendTo("", id, cursor, data) }

// sendTo sends an event on the streams of a token.
func (b *fakeBackend) sendTo(token, id, cursor, data string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, s := range b.streams {
		if token != "" && s.token != token {
			continue
		}
		s.events <- fmt.Sprintf(`{"eventId":%q,"name":"order.shipped","timestamp":"2026-11-28T10:00:00Z","data":%s,"cursor":%q}`, id, data, cursor)
	}
}
