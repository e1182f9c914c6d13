package standalone_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/mcp-events/mcpevents/client"
	"github.com/mcp-events/mcpevents/shared/app"
	"github.com/mcp-events/mcpevents/shared/app/config"
	"github.com/mcp-events/mcpevents/shared/app/standalone"
	"github.com/mcp-events/mcpevents/shared/app/standalone/servertest"
	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/events/catalog"
	"github.com/mcp-events/mcpevents/shared/gateway/api"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/test/expect"
)

const secretType = `{"name":"order.secret","description":"","delivery":["push"]}`

// awaitStream waits for the next stream at a backend, and checks its token and cursor.
func awaitStream(t *testing.T, b *fakeBackend, token string, cursor any) {
	t.Helper()
	params := expect.Receive(t, "a stream for "+token, b.opened)
	expect.Equal(t, "the stream's token and cursor", fmt.Sprint(params["token"], " ", params["cursor"]), fmt.Sprint(token, " ", cursor))
}

func (b *fakeBackend) refuse(token string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.callers, token)
	for _, s := range b.streams {
		if s.token == token {
			s.end()
		}
	}
}

// TestEventsPerCaller: GWN-21. If the backend gets its callers' own tokens, then each principal has a subscription of its own, and receives
// only its own events, even if the arguments and the ids of the events are equal. Alice has two keys.
func TestEventsPerCaller(t *testing.T) {
	backend := newFakeBackend(t, "")
	backend.callers = map[string]string{"tok-a1": shippedType + "," + secretType, "tok-a2": shippedType, "tok-b1": shippedType}
	var log expect.Buffer
	var dir string
	gateway := startGateway(t, backend.URL, func(o *standalone.Options) {
		var keys string
		for key, principal := range map[string]string{"tok-a1": "alice", "tok-a2": "alice", "tok-b1": "bob"} {
			keys += fmt.Sprintf("  - {principal: %s, scopes: [\"events:read\", \"events:subscribe\"], sha256: %x}\n", principal, sha256.Sum256([]byte(key)))
		}
		text := fmt.Sprintf("backends:\n  - {name: shop, url: %q, prefix: shop_, forwardToken: true}\nkeys:\n%s", backend.URL, keys)
		o.Config = expect.Value(config.ParseFile("config.yaml", []byte(text)))(t)
		o.Log, dir = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug})), o.Data
	})
	alice, bob := connect(t, gateway, "tok-a1", "2026-07-28"), connect(t, gateway, "tok-b1", "2026-07-28")

	t.Run("GWN-21, GWN-20 the list has the event types that the backend shows to the caller", func(t *testing.T) {
		awaitType(t, alice, "shop_order.secret")
		got := awaitType(t, bob, "shop_order.shipped")
		expect.List(t, "the modes", got.Delivery, []string{"push", "poll", "webhook"})
		expect.Contains(t, "the schema", string(got.PayloadSchema), `"carrier"`)
		types := expect.Value(bob.EventTypes(t.Context()))(t)
		if slices.ContainsFunc(types, func(e client.EventType) bool { return e.Name == "shop_order.secret" }) {
			t.Error("bob sees an event type that the backend shows only to alice")
		}
	})

	posted := make(chan string, 100)
	endpoint := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !servertest.Echo(w, r) {
			if body, _ := io.ReadAll(r.Body); bytes.Contains(body, []byte(`"carrier"`)) {
				posted <- string(body)
			}
		}
	}))
	defer endpoint.Close()
	arguments := map[string]any{"order": "1"}
	streamed := subscribe(t, alice, "push", "shop_order.shipped", arguments)
	awaitStream(t, backend, "tok-a1", nil)
	polled := subscribe(t, connect(t, gateway, "tok-a1", "2025-11-25"), "poll", "shop_order.shipped", arguments)
	servertest.SubscribeEvents(t, gateway.URL, "tok-a1", endpoint.URL, "shop_order.shipped", arguments)
	bobs := subscribe(t, bob, "push", "shop_order.shipped", arguments)
	awaitStream(t, backend, "tok-b1", nil)

	poll := func(c *client.Client, name string, cursor any) (page struct {
		Events []json.RawMessage
		Cursor string
	}, err error,
	) {
		return page, c.Call(t.Context(), "events/poll", map[string]any{"name": name, "arguments": arguments, "cursor": cursor}, &page)
	}
	before := expect.Value(poll(alice, "shop_order.shipped", nil))(t)
	t.Run("GWN-21, GWN-22 an event reaches only the subscribers of its principal, if it fits the schema", func(t *testing.T) {
		backend.sendTo("tok-a1", "1", "c1", `{"carrier":"for alice"}`)
		backend.sendTo("tok-b1", "1", "c1", `{"carrier":"for bob"}`)
		backend.sendTo("tok-a1", "2", "c2", `{"lacks":"the carrier"}`)
		backend.sendTo("tok-a1", "3", "c3", `{"carrier":"for alice, too"}`)
		for who, r := range map[string]*received{"alice's stream": streamed, "alice's poll": polled} {
			r.await(t, func() bool { return len(r.events) == 2 })
			expect.Equal(t, who, string(r.events[0].Data)+string(r.events[1].Data), `{"carrier":"for alice"}{"carrier":"for alice, too"}`)
		}
		bobs.await(t, func() bool { return len(bobs.events) == 1 })
		expect.Equal(t, "bob's event", string(bobs.events[0].Data), `{"carrier":"for bob"}`)
		for range 2 {
			expect.Contains(t, "alice's webhook", expect.Receive(t, "alice's webhook", posted), "for alice")
		}
		if len(backend.opened) > 0 || len(posted) > 0 || len(bobs.events) > 1 {
			t.Errorf("got %d more subscriptions at the backend, %d more webhooks and %d events for bob", len(backend.opened), len(posted), len(bobs.events))
		}
	})
	t.Run("GWN-21 clients cannot reach the events of others with a cursor, a URI or a hidden event type", func(t *testing.T) {
		if page, err := poll(bob, "shop_order.shipped", before.Cursor); err != nil || strings.Contains(fmt.Sprintf("%s", page.Events), "for alice") {
			t.Errorf("with alice's cursor, bob gets %s, %v", page.Events, err)
		}
		uri := "event://~shop/order.shipped/eyJvcmRlciI6IjEifQ." + catalog.CallerID("alice")
		expect.Fault(t, "bob reads alice's events", bob.Call(t.Context(), "resources/read", map[string]any{"uri": uri}, nil), fault.Invalid)
		expect.Fault(t, "bob polls a hidden type", expect.ErrOf(poll(bob, "shop_order.secret", nil)), fault.NotFound)
	})
	t.Run("GWN-21 a refused token is reported, and the next one continues where it was refused", func(t *testing.T) {
		backend.refuse("tok-a1")
		<-backend.closed
		log.Await(t, "it refuses the token of the caller", 1)
		expect.Fault(t, "a poll with another refused token", expect.ErrOf(poll(alice, "shop_order.secret", nil)), fault.Unavailable)
		expect.OK(t, expect.ErrOf(poll(connect(t, gateway, "tok-a2", "2026-07-28"), "shop_order.shipped", nil)))
		awaitStream(t, backend, "tok-a2", "c3")
		backend.sendTo("tok-a2", "5", "c5", `{"carrier":"recovered"}`)
		streamed.await(t, func() bool { return len(streamed.events) == 3 })
		expect.Equal(t, "the event", string(streamed.events[2].Data), `{"carrier":"recovered"}`)
	})
	t.Run("GWN-21 neither the log nor the store shows a token", func(t *testing.T) {
		texts := map[string]string{"the log": log.String()}
		for _, file := range expect.Value(filepath.Glob(filepath.Join(dir, "*.db*")))(t) {
			texts[file] = string(expect.Value(os.ReadFile(file))(t))
		}
		expect.AtLeast(t, "the log and the files of the database in "+dir, len(texts), 2)
		for where, text := range texts {
			expect.Lacks(t, where, text, "tok-")
		}
	})
}

// TestCallersWithoutIdentity: GWN-21. If callers are not authenticated, all are the same principal, so they cannot receive the events.
func TestCallersWithoutIdentity(t *testing.T) {
	backend := newFakeBackend(t, shippedType)
	gateway := startGateway(t, backend.URL, func(o *standalone.Options) {
		o.Auth, o.Config = auth.ModeNone, servertest.Config(t, callers, fmt.Sprintf("backends:\n  - {name: shop, url: %q, prefix: shop_, forwardToken: true}\n", backend.URL))
	})
	alice := connect(t, gateway, "alice", "2026-07-28")
	types := expect.Value(alice.EventTypes(t.Context()))(t)
	if slices.ContainsFunc(types, func(e client.EventType) bool { return strings.HasPrefix(e.Name, "shop_") }) {
		t.Errorf("a caller without identity sees %v", types)
	}
	if err := alice.Call(t.Context(), "events/poll", map[string]any{"name": "shop_order.shipped"}, nil); err == nil || len(backend.opened) > 0 {
		t.Errorf("a caller without identity can poll the events: %v", err)
	}
}

// TestSharedSubscriptionsEndWithTheirCredentials: GWN-21. Given a backend that gets its callers' tokens from now on, when an event arrives for
// one caller, then clients that subscribed before do not receive it.
func TestSharedSubscriptionsEndWithTheirCredentials(t *testing.T) {
	backend := newFakeBackend(t, shippedType)
	var o standalone.Options
	gateway := startGateway(t, backend.URL, func(used *standalone.Options) { o = *used })
	alice := connect(t, gateway, "alice", "2026-07-28")
	awaitType(t, alice, "shop_order.shipped")
	shared := subscribe(t, alice, "push", "shop_order.shipped", nil)
	awaitStream(t, backend, "", nil)
	o.Config = servertest.Config(t, callers, fmt.Sprintf("backends:\n  - {name: shop, url: %q, prefix: shop_, scopes: [shop], forwardToken: true}\n", backend.URL))
	expect.OK(t, gateway.Reload(t.Context(), o))
	<-backend.closed
	own := subscribe(t, connect(t, gateway, "alice", "2026-07-28"), "push", "shop_order.shipped", nil)
	awaitStream(t, backend, "alice", nil)
	backend.sendTo("alice", "1", "c1", `{"carrier":"for alice"}`)
	own.await(t, func() bool { return len(own.events) == 1 })
	shared.await(t, func() bool { return len(shared.events) == 0 })
}

// TestExpiredTokensOfCallers: GWN-21. When a token expires, the relay ends the principal's subscription. With the next token it continues from
// the cursor, also if another relay has taken over.
func TestExpiredTokensOfCallers(t *testing.T) {
	backend := newFakeBackend(t, "")
	backend.callers, backend.first = map[string]string{"first": shippedType, "second": shippedType}, `{"cursor":null,"truncated":false}`
	core := newCore(t, backend.URL)
	shop := api.Backend{Name: "shop", URL: backend.URL, Workspace: "default", ProtocolVersion: api.AutoVersion, ForwardToken: true}
	core.Config = config.NewStored(core.DB, time.Now, core.Log, shop)
	core.Demand.Key = testKey
	gateway := expect.Value(app.NewGateway(core, app.GatewayOptions{}))(t)
	start := func() (stop func()) { return startRelay(t, core, gateway) }
	stop := start()
	uri := "event://~shop/order.shipped/e30." + catalog.CallerID("alice")
	want := func(token string, life time.Duration) error {
		ctx := auth.WithToken(t.Context(), auth.Token{Header: "Bearer " + token, Expires: time.Now().Add(life)})
		return core.Demand.Want(ctx, "default", "alice", uri)
	}
	expect.OK(t, want("first", 2*time.Second))
	awaitStream(t, backend, "first", nil)
	backend.send("1", "after 1", `{"carrier":"DHL"}`)
	<-backend.closed
	expect.Eventually(t, "the state says that the token has expired", func() bool {
		return strings.Contains(expect.Value(core.Demand.LoadState(t.Context(), "default", uri))(t).Error, "has expired")
	})
	expect.OK(t, want("second", time.Hour))
	awaitStream(t, backend, "second", "after 1")
	stop()
	<-backend.closed
	defer start()()
	awaitStream(t, backend, "second", "after 1")
}

// TestAPrincipalDoesNotCrowdOutOthers: GWN-21. Given a principal that has as many subscriptions to the events of a backend as it may, and asks
// for more, then another principal still receives its events, and so does the first one.
func TestAPrincipalDoesNotCrowdOutOthers(t *testing.T) {
	const most, more, clients = 200, 20, 8
	backend := newFakeBackend(t, "")
	backend.callers = map[string]string{"greedy": shippedType, "modest": shippedType}
	gateway := startGateway(t, backend.URL, func(o *standalone.Options) {
		who := map[string]servertest.Caller{}
		for name := range backend.callers {
			who[name] = servertest.Caller{Workspace: "default", Scopes: `"events:read","events:subscribe"`}
		}
		o.Config = servertest.Config(t, who, fmt.Sprintf("backends:\n  - {name: shop, url: %q, prefix: shop_, forwardToken: true}\n", backend.URL))
	})
	greedy := connect(t, gateway, "greedy", "2026-07-28")
	awaitType(t, greedy, "shop_order.shipped")
	poll := func(order int) (page struct {
		Events []struct{ Data json.RawMessage }
		Cursor string
	}, err error,
	) {
		params := map[string]any{"name": "shop_order.shipped", "arguments": map[string]any{"order": order}, "cursor": nil}
		return page, greedy.Call(t.Context(), "events/poll", params, &page)
	}
	var polling errgroup.Group
	polling.SetLimit(clients)
	for order := range most {
		polling.Go(func() error { return expect.ErrOf(poll(order)) })
	}
	expect.OK(t, polling.Wait())
	for order := range more {
		err := expect.ErrOf(poll(most + order))
		expect.Fault(t, "one more than allowed", err, fault.Exhausted)
		expect.Contains(t, "the error", err.Error(), "the limit backendEvents of 200 different subscriptions to events of one backend is reached")
	}
	for range most {
		expect.Equal(t, "whose stream the backend has", fmt.Sprint((<-backend.opened)["token"]), "greedy")
	}
	modest := subscribe(t, connect(t, gateway, "modest", "2026-07-28"), "push", "shop_order.shipped", map[string]any{"order": 1})
	awaitStream(t, backend, "modest", nil)
	others := subscribe(t, greedy, "push", "shop_order.shipped", map[string]any{"order": 1})
	backend.sendTo("greedy", "1", "c1", `{"carrier":"for greedy"}`)
	backend.sendTo("modest", "1", "c1", `{"carrier":"for modest"}`)
	for who, r := range map[string]*received{"modest": modest, "greedy": others} {
		r.await(t, func() bool { return len(r.events) == 1 })
		expect.Equal(t, "the event of "+who, string(r.events[0].Data), fmt.Sprintf(`{"carrier":"for %s"}`, who))
	}
	expect.Equal(t, "the further streams of the backend", len(backend.opened), 0)
}
