package standalone_test

import (
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
	"sync/atomic"
	"testing"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"github.com/mcp-events/mcpevents/client"
	"github.com/mcp-events/mcpevents/shared/app"
	"github.com/mcp-events/mcpevents/shared/app/config"
	"github.com/mcp-events/mcpevents/shared/app/relays"
	"github.com/mcp-events/mcpevents/shared/app/standalone"
	"github.com/mcp-events/mcpevents/shared/app/standalone/servertest"
	"github.com/mcp-events/mcpevents/shared/app/webhooks"
	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/events/catalog"
	"github.com/mcp-events/mcpevents/shared/events/demand"
	eventlog "github.com/mcp-events/mcpevents/shared/events/log"
	"github.com/mcp-events/mcpevents/shared/events/match"
	"github.com/mcp-events/mcpevents/shared/gateway"
	"github.com/mcp-events/mcpevents/shared/gateway/api"
	"github.com/mcp-events/mcpevents/shared/gateway/relay"
	"github.com/mcp-events/mcpevents/shared/storage/queue"
	queuesqlite "github.com/mcp-events/mcpevents/shared/storage/queue/sqlite"
	"github.com/mcp-events/mcpevents/shared/storage/settings"
	"github.com/mcp-events/mcpevents/shared/storage/store"
	"github.com/mcp-events/mcpevents/shared/storage/store/sqlite"
	"github.com/mcp-events/mcpevents/test/expect"
)

// hookBackend is an MCP server of revision 2026-07-28 that delivers its events by webhook only.
type hookBackend struct {
	*httptest.Server
	t *testing.T

	mu      sync.Mutex
	current hookSubscription
	id      string // of subscriptions

	subscribed, ended chan hookSubscription
}

type hookSubscription struct {
	Name      string
	Arguments map[string]any
	Cursor    *string
	Delivery  struct{ Mode, URL, Secret string }
}

func newHookBackend(t *testing.T) *hookBackend {
	b := &hookBackend{t: t, id: "sub-1", subscribed: make(chan hookSubscription, 100), ended: make(chan hookSubscription, 100)}
	b.Server = httptest.NewServer(b)
	t.Cleanup(b.Close)
	return b
}

func (b *hookBackend) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var m struct {
		ID     json.RawMessage
		Method string
		Params hookSubscription
	}
	if json.NewDecoder(r.Body).Decode(&m) != nil {
		w.WriteHeader(http.StatusMethodNotAllowed)
		return
	}
	result := `{}`
	switch m.Method {
	case "server/discover":
		result = `{"supportedVersions":["2026-07-28"],"capabilities":{"extensions":{"io.modelcontextprotocol/events":{}}},"serverInfo":{"name":"fake","version":"1"}}`
	case "events/list":
		result = `{"events":[` + strings.Replace(shippedType, `"push"`, `"webhook"`, 1) + `]}`
	case "events/subscribe":
		b.mu.Lock()
		b.current = m.Params
		result = fmt.Sprintf(`{"id":%q,"refreshBefore":%q}`, b.id, time.Now().Add(time.Hour).UTC().Format(time.RFC3339))
		b.mu.Unlock()
		if status, body := b.post("msg_verification_1", `{"type":"verification","challenge":"c"}`); status != http.StatusOK || !strings.Contains(body, `"challenge":"c"`) {
			b.t.Errorf("the challenge is answered with %d %s", status, body)
		}
		b.subscribed <- m.Params
	case "events/unsubscribe":
		b.ended <- m.Params
	}
	w.Header().Set("Content-Type", "application/json")
	fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"result":%s}`, m.ID, result)
}

// post sends a webhook to the last subscription, signed with its secret.
func (b *hookBackend) post(id, body string) (status int, answer string) {
	b.mu.Lock()
	to := b.current.Delivery
	b.mu.Unlock()
	return b.postTo(to.URL, to.Secret, id, body)
}

func (b *hookBackend) postTo(url, secret, id, body string) (status int, answer string) {
	b.t.Helper()
	wh, err := standardwebhooks.NewWebhook(secret)
	if err != nil {
		b.t.Errorf("the secret is not one of Standard Webhooks: %v", err)
		return 0, ""
	}
	now := time.Now()
	signature, _ := wh.Sign(id, now, []byte(body))
	req, _ := http.NewRequest(http.MethodPost, url, strings.NewReader(body))
	req.Header = http.Header{
		"Content-Type": {"application/json"}, "Webhook-Id": {id}, "Webhook-Timestamp": {fmt.Sprint(now.Unix())}, "Webhook-Signature": {signature},
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		b.t.Error(err)
		return 0, ""
	}
	defer func() { _ = resp.Body.Close() }()
	text, _ := io.ReadAll(resp.Body)
	return resp.StatusCode, string(text)
}

// send sends an event, and fails the test unless the webhook is acknowledged.
func (b *hookBackend) send(id, cursor, data string) {
	b.t.Helper()
	body := fmt.Sprintf(`{"eventId":%q,"name":"order.shipped","timestamp":"2026-11-28T10:00:00Z","data":%s,"cursor":%q}`, id, data, cursor)
	if status, answer := b.post(id, body); status != http.StatusNoContent {
		b.t.Errorf("event %s is answered with %d %s", id, status, answer)
	}
}

// public returns an address for a handler that starts later.
func public(t *testing.T) (url string, serve func(http.Handler)) {
	var handler atomic.Value
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { handler.Load().(http.Handler).ServeHTTP(w, r) }))
	t.Cleanup(front.Close)
	return front.URL, func(h http.Handler) { handler.Store(h) }
}

// TestWebhooksOfABackend: GWN-20, GWN-21, GWN-22. A backend that delivers by webhook only has subscribers in every mode.
func TestWebhooksOfABackend(t *testing.T) {
	backend := newHookBackend(t)
	url, serve := public(t)
	var logged expect.Buffer
	gateway := startGateway(t, backend.URL, func(o *standalone.Options) {
		o.Limits.PublicURL, o.Log = url, slog.New(slog.NewTextHandler(&logged, nil))
	})
	serve(gateway.Handler())
	alice := connect(t, gateway, "alice", "2026-07-28")
	if got := awaitType(t, alice, "shop_order.shipped"); !slices.Contains(got.Delivery, "push") || !slices.Contains(got.Delivery, "poll") {
		t.Errorf("GWN-20: clients can receive the events by %v only", got.Delivery)
	}
	streamed := subscribe(t, alice, "push", "shop_order.shipped", map[string]any{"order": "1"})
	polled := subscribe(t, connect(t, gateway, "alice", "2025-11-25"), "poll", "shop_order.shipped", map[string]any{"order": "1"})
	first := <-backend.subscribed
	if first.Delivery.Mode != "webhook" || !strings.HasPrefix(first.Delivery.URL, url+demand.HookPath) || first.Arguments["order"] != "1" || first.Cursor != nil {
		t.Errorf("GWN-21: the backend got %+v", first)
	}
	backend.send("1", "c1", `{"carrier":"DHL"}`)
	backend.send("1", "c1", `{"carrier":"DHL"}`) // a redelivery
	backend.send("2", "c2", `{"carrier":7}`)     // fits, because the type of carrier is not announced
	backend.send("3", "c3", `{"order":7}`)       // does not fit
	backend.send("4", "c4", `{"carrier":"UPS"}`)
	for mode, r := range map[string]*received{"push": streamed, "poll": polled} {
		r.await(t, func() bool { return len(r.events) == 3 })
		if got := fmt.Sprintf("%s %s %s", r.events[0].Data, r.events[1].Data, r.events[2].Data); got != `{"carrier":"DHL"} {"carrier":7} {"carrier":"UPS"}` || r.gaps != 0 {
			t.Errorf("GWN-22 %s: got %s and %d gaps", mode, got, r.gaps)
		}
	}
	logged.Await(t, "an event that does not fit its schema", 1)
	if status, _ := backend.post("m1", `{"type":"later"}`); status != http.StatusNoContent {
		t.Errorf("a control message of a later version is answered with %d", status)
	}

	t.Run("a webhook of anyone else is refused", func(t *testing.T) {
		const other = "whsec_b3RoZXIgc2VjcmV0IG9mIDMyIGJ5dGVzIGZvciBhIHRlc3Q="
		token, _ := strings.CutPrefix(first.Delivery.URL, url+demand.HookPath)
		for what, c := range map[string]struct {
			url, secret, body string
			want              int
		}{
			"a guessed token":        {url + demand.HookPath + strings.Repeat("A", len(token)), first.Delivery.Secret, `{}`, http.StatusNotFound},
			"a short token":          {url + demand.HookPath + "A", first.Delivery.Secret, `{}`, http.StatusNotFound},
			"another secret":         {first.Delivery.URL, other, `{"eventId":"x","data":{"carrier":"x"}}`, http.StatusUnauthorized},
			"a challenge of another": {first.Delivery.URL, other, `{"type":"verification","challenge":"c"}`, http.StatusUnauthorized},
			"a huge body":            {first.Delivery.URL, first.Delivery.Secret, strings.Repeat(" ", 6<<20), http.StatusRequestEntityTooLarge},
			"no JSON":                {first.Delivery.URL, first.Delivery.Secret, `{`, http.StatusBadRequest},
		} {
			if status, answer := backend.postTo(c.url, c.secret, "x", c.body); status != c.want {
				t.Errorf("%s: got %d %.200s, want %d", what, status, answer, c.want)
			}
		}
		resp := expect.Value(http.Get(first.Delivery.URL))(t)
		_ = resp.Body.Close()
		expect.Equal(t, "the status of a GET", resp.StatusCode, http.StatusMethodNotAllowed)
		expect.Lacks(t, "the log", logged.String(), token)
	})
	t.Run("GWN-22 after a gap, the relay continues at its cursor, and after the end it subscribes again", func(t *testing.T) {
		for range 2 { // the second one is a redelivery
			if status, _ := backend.post("msg_gap_1", `{"type":"gap","cursor":"g1"}`); status != http.StatusNoContent {
				t.Errorf("the gap is answered with %d", status)
			}
		}
		streamed.await(t, func() bool { return streamed.gaps == 1 })
		<-backend.ended // so that the backend uses the cursor
		again := <-backend.subscribed
		if again.Cursor == nil || *again.Cursor != "g1" || again.Delivery != first.Delivery {
			t.Errorf("the relay subscribed at the cursor %v with %+v", *again.Cursor, again)
		}
	})
}

// TestAWebhookSubscriptionOutlivesRelays: GWN-21, GWN-22. The next relay continues a webhook subscription with the same URL and secret, and
// events that arrive meanwhile are not lost. The subscription ends after its last demand. If the backend has lost it, there is a gap.
func TestAWebhookSubscriptionOutlivesRelays(t *testing.T) {
	backend := newHookBackend(t)
	core := newCore(t, backend.URL)
	url, serve := public(t)
	core.Limits.PublicURL = url
	mux := http.NewServeMux()
	app.NewPublishing(core, app.PublishingOptions{Key: testKey}).Sources.Mount(mux)
	serve(mux)
	gateway := expect.Value(app.NewGateway(core, app.GatewayOptions{}))(t)
	run := func() (stop func()) { return startRelay(t, core, gateway) }
	stop := run()
	selected := expect.Value(match.Select(awaitStored(t, core), json.RawMessage(`{}`), auth.Principal{}))(t)
	uri := selected.Pattern.Key
	logged := func(want int) (gaps int) {
		t.Helper()
		var events int
		for end := time.Now().Add(servertest.Patience); ; time.Sleep(10 * time.Millisecond) {
			events, gaps = 0, 0
			for _, part := range selected.Pattern.Partitions(core.EventLog, "default") {
				entries, _, _, err := core.EventLog.Read(t.Context(), part, 0, 100)
				expect.OK(t, err)
				for _, e := range entries {
					if e.Lost {
						gaps++
					} else {
						events++
					}
				}
			}
			if events >= want || time.Now().After(end) {
				break
			}
		}
		expect.Equal(t, "GWN-22: the events in the log", events, want)
		return gaps
	}
	expect.OK(t, core.Demand.Want(t.Context(), "default", "alice", uri))
	first := <-backend.subscribed
	send := func(id string) { t.Helper(); backend.send(id, "", `{"carrier":"DHL"}`) }
	send("1")
	stop()
	send("2") // no relay runs
	stop = run()
	second := <-backend.subscribed
	expect.Equal(t, "GWN-22 the delivery", first.Delivery, second.Delivery)
	expect.Equal(t, "GWN-22 the number of ended subscriptions", len(backend.ended), 0)
	send("3")
	expect.Equal(t, "the gaps, one at the beginning", logged(3), 1)

	stop()
	backend.mu.Lock()
	backend.id = "sub-2" // it has lost the subscription
	backend.mu.Unlock()
	stop = run()
	<-backend.subscribed
	send("4")
	for end := time.Now().Add(servertest.Patience); logged(4) < 2 && time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
	}
	expect.Equal(t, "the gaps after the backend has lost the subscription", logged(4), 2)

	dropDemand(t, core)
	ended := expect.Receive(t, "GWN-21: the end of the subscription", backend.ended)
	expect.Equal(t, "GWN-21: the URL of the ended subscription", ended.Delivery.URL, first.Delivery.URL)
	stop()
	if status, _ := backend.post("5", `{"eventId":"5","data":{}}`); status != http.StatusNotFound {
		t.Errorf("a webhook after the end is answered with %d", status)
	}
}

// TestWebhooksNeedAPublicURL: GWN-20. Without a public URL, event types that a backend delivers by webhook only are not listed, and the
// log says why.
func TestWebhooksNeedAPublicURL(t *testing.T) {
	backend := newHookBackend(t)
	var logged expect.Buffer
	gateway := startGateway(t, backend.URL, func(o *standalone.Options) { o.Log = slog.New(slog.NewTextHandler(&logged, nil)) })
	logged.Await(t, "--public-url is not set", 1)
	types := expect.Value(connect(t, gateway, "alice", "2026-07-28").EventTypes(t.Context()))(t)
	if slices.ContainsFunc(types, func(e client.EventType) bool { return e.Name == "shop_order.shipped" }) {
		t.Errorf("the list has the event type: %+v", types)
	}
}

// startRelay starts a relay, which stop ends.
func startRelay(t *testing.T, core *app.Core, gateway *gateway.Gateway) (stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { relays.New(core, gateway, testKey, func(context.Context) error { return nil }).Run(ctx) })
	return func() { cancel(); running.Wait() }
}

// awaitStored waits until the relay has stored the backend's event type.
func awaitStored(t *testing.T, core *app.Core) (entry *catalog.Entry) {
	t.Helper()
	expect.Eventually(t, "the event type is stored", func() bool {
		if cat, err := catalog.Latest(t.Context(), core.Catalogs, "default"); err == nil {
			entry = cat.ByName("order.shipped")
		}
		return entry != nil
	})
	return entry
}

// dropDemand removes the only demand for events of the backend.
func dropDemand(t *testing.T, core *app.Core) {
	t.Helper()
	page := expect.Value(core.DB.Query(t.Context(), store.Query{Table: store.Sessions, Partition: "ev#default#shop"}))(t)
	expect.OK(t, core.DB.Write(t.Context(), store.Delete(page.Items[0].Key)))
}

func testKey(context.Context) ([]byte, error) {
	return []byte("a key of 32 bytes for the tests.."), nil
}

// newCore returns the shared parts of instances that have a backend.
func newCore(t *testing.T, backend string) *app.Core {
	t.Helper()
	log := slog.New(slog.DiscardHandler)
	db := expect.Value(sqlite.Open(sqlite.Memory, sqlite.Options{}))(t)
	t.Cleanup(func() { _ = db.Close() })
	queues := expect.Value(queuesqlite.Open(db.Engine(), queuesqlite.Options{Log: log}))(t)
	t.Cleanup(func() { _ = queues.Close() })
	shop := api.Backend{Name: "shop", URL: backend, Workspace: "default", ProtocolVersion: api.AutoVersion}
	core := &app.Core{
		DB: db, Queues: queues, Catalogs: catalog.NewStored(db, time.Now, log, nil), Config: config.NewStored(db, time.Now, log, shop),
		EventLog: &eventlog.Log{DB: db}, Demand: demand.New(db), Limits: standalone.DefaultLimits(), Log: log,
	}
	ctx, cancel := context.WithCancel(context.Background())
	var working sync.WaitGroup
	working.Go(func() {
		_ = queues.Consume(ctx, queue.Events, webhooks.NewFanout(core).Handle, queue.ConsumeOptions{Batch: 100, Concurrency: 4})
	})
	t.Cleanup(func() { cancel(); working.Wait() })
	return core
}

// TestNoEventOfABackendIsLostAtAHandover lets four invocations of the relay take each other over, while the backend publishes.
func TestNoEventOfABackendIsLostAtAHandover(t *testing.T) {
	const orders, each, life, start = 5, 1000, 2400 * time.Millisecond, 1600 * time.Millisecond
	backend, _ := startBackend(t)
	core := newCore(t, backend.URL+"/mcp")
	gateway := expect.Value(app.NewGateway(core, app.GatewayOptions{}))(t)
	var patterns []match.Pattern
	var invocations sync.WaitGroup
	all, end := context.WithCancel(context.Background())
	defer invocations.Wait()
	defer end()
	for i := range 4 {
		invocations.Go(func() {
			time.Sleep(time.Duration(i) * start)
			ctx, cancel := context.WithTimeout(all, life)
			if i == 3 { // the last one receives the rest
				ctx, cancel = context.WithTimeout(all, 5*servertest.Patience)
			}
			defer cancel()
			_ = relay.NewInvocations(func() *relay.Relay {
				return relays.New(core, gateway, testKey, func(context.Context) error {
					return settings.Announce(ctx, core.DB, 0, func(context.Context, settings.Change) error { return nil })
				})
			}).Serve(ctx)
		})
	}
	entry := awaitStored(t, core)
	for order := range orders {
		s := expect.Value(match.Select(entry, json.RawMessage(fmt.Sprintf(`{"order":"%d"}`, order)), auth.Principal{}))(t)
		patterns = append(patterns, s.Pattern)
		expect.OK(t, core.Demand.Want(t.Context(), "default", "alice", s.Pattern.Key))
	}
	for _, p := range patterns { // events from before the subscriptions would only be announced as gaps
		expect.Eventually(t, "the subscription is active", func() bool {
			s, err := core.Demand.LoadState(t.Context(), "default", p.Key)
			return err == nil && s.Active
		})
	}
	for i := range each {
		var events []standalone.Event
		for order := range orders {
			events = append(events, standalone.Event{URI: fmt.Sprintf("event://orders/%d/shipped", order), ID: fmt.Sprint(i), Data: json.RawMessage(`{"carrier":"DHL"}`)})
		}
		expect.OK(t, expect.ErrOf(backend.Publish(t.Context(), "default", events...)))
		time.Sleep(4 * start / each * 3 / 4)
	}
	count := func() (total int, ids map[string]bool, gaps int) {
		ids = map[string]bool{}
		for _, p := range patterns {
			for _, part := range p.Partitions(core.EventLog, "default") {
				var after int64
				for more := true; more; {
					var entries []eventlog.Entry
					var err error
					entries, more, after, err = core.EventLog.Read(t.Context(), part, after, 1000)
					expect.OK(t, err)
					for _, e := range entries {
						if e.Lost {
							gaps++
							continue
						}
						total++
						ids[e.Event.URI+e.Event.ID] = true
					}
				}
			}
		}
		return total, ids, gaps
	}
	total, ids, gaps := count()
	for end := time.Now().Add(2 * servertest.Patience); total < orders*each && time.Now().Before(end); total, ids, gaps = count() {
		time.Sleep(50 * time.Millisecond) // until fanout has appended them
	}
	if total != orders*each || len(ids) != orders*each || gaps != orders {
		t.Errorf("GWN-22: got %d events, %d different ones, and %d gaps; want %d, and a gap at the beginning of each subscription", total, len(ids), gaps, orders*each)
	}
}

// TestASubscriptionEndsAtTheBackend: GWN-21. When the last demand is gone, the relay ends its subscription, and a later one begins again without a cursor.
func TestASubscriptionEndsAtTheBackend(t *testing.T) {
	backend := newFakeBackend(t, shippedType)
	core := newCore(t, backend.URL)
	gateway := expect.Value(app.NewGateway(core, app.GatewayOptions{}))(t)
	defer startRelay(t, core, gateway)()
	const uri = "event://~shop/order.shipped/e30"
	for range 2 {
		expect.OK(t, core.Demand.Want(t.Context(), "default", "alice", uri))
		expect.Equal(t, "the cursor at which the subscription begins", (<-backend.opened)["cursor"], nil)
		dropDemand(t, core)
		expect.Receive(t, "the end of the subscription", backend.closed)
		expect.Eventually(t, "the relay has forgotten the subscription", func() bool {
			s, err := core.Demand.LoadState(t.Context(), "default", uri)
			return err == nil && !s.Active
		})
		core.Demand = demand.New(core.DB) // remembers no renewal
	}
}
