package functions_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	neturl "net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/client"
	"github.com/mcp-events/mcpevents/localstack/runner"
	"github.com/mcp-events/mcpevents/shared/app/standalone"
	"github.com/mcp-events/mcpevents/shared/app/standalone/servertest"
	"github.com/mcp-events/mcpevents/shared/events/demand"
	"github.com/mcp-events/mcpevents/shared/events/webhook"
	"github.com/mcp-events/mcpevents/test/expect"
	"github.com/mcp-events/mcpevents/test/harness"
)

// backendEvents shows that an event of a backend reaches a stream and a webhook once, also if the relay dies while the backend publishes.
//
// GWN-20, GWN-21, GWN-22
func backendEvents(t *testing.T, stack *runner.Stack) {
	o := servertest.Options(t, nil)
	o.Catalog = []byte("events:\n  - {name: order.shipped, uriTemplate: \"event://orders/{order}/shipped\", payloadSchema: {type: object}}\n")
	backend := servertest.Start(t, o)
	configure := func(text string) { configureStack(t, stack, text) }
	configure(fmt.Sprintf("backends:\n  - {name: shop, url: %q, prefix: shop_}\n", backend.URL+"/mcp"))
	defer configure("backends: []\n")
	c := expect.Value(client.Connect(t.Context(), stack.URL(), client.Options{Agent: "test/1", Revision: "2026-07-28"}))(t)
	awaitType(t, c, "shop_order.shipped")

	target, hooks := endpoint(t, echo)
	secret, _ := webhook.NewSecret()
	params := `"name":"shop_order.shipped","arguments":{"order":"1"},"delivery":{"mode":"webhook","url":"` + target + `","secret":"` + secret + `"}`
	rpc(t, stack.URL(), "events/subscribe", params)
	expect.Receive(t, "the challenge", hooks)
	ctx := t.Context()
	body, header := request("events/stream", `"name":"shop_order.shipped","arguments":{"order":"1"}`)
	req := expect.Value(http.NewRequestWithContext(ctx, http.MethodPost, stack.URL()+"/mcp", strings.NewReader(body)))(t)
	stream := open(t, req, header)
	expect.Receive(t, "the confirmation", stream)
	awaitActive(t, stack, "shop", 1)
	ship := func(id string) {
		t.Helper()
		expect.OK(t, expect.ErrOf(backend.Publish(ctx, "default", standalone.Event{URI: "event://orders/1/shipped", ID: id, Data: json.RawMessage(`{}`)})))
	}
	ids := map[string]int{}
	// next waits for the next event, and skips heartbeats and notices of the gap with which a subscription may begin.
	next := func() {
		t.Helper()
		for {
			var hook struct{ EventID string }
			if got := expect.Receive(t, "the webhook", hooks); json.Unmarshal(got.body, &hook) == nil && hook.EventID != "" {
				ids[hook.EventID]++
				break
			}
		}
		for {
			got := expect.Receive(t, "the event on the stream", stream)
			if _, rest, ok := strings.Cut(got, `"eventId":"`); ok {
				id, _, _ := strings.Cut(rest, `"`)
				ids[id]++
				break
			}
		}
	}
	ship("1")
	next()
	stack.Kill("RelayFunction")
	ship("2")
	ship("3")
	next()
	next()
	expect.Len(t, "the events", ids, 3)
	for id, n := range ids {
		expect.Equal(t, "the arrivals of "+id+" on the stream and at the webhook", n, 2)
	}
	rpc(t, stack.URL(), "events/unsubscribe", params)
}

func awaitType(t *testing.T, c *client.Client, name string) {
	t.Helper()
	eventually(t, "the backend's event type is listed", func() bool {
		types := expect.Value(c.EventTypes(t.Context()))(t)
		for _, e := range types {
			if e.Name == name {
				return true
			}
		}
		time.Sleep(200 * time.Millisecond)
		return false
	})
}

// subscribe subscribes to an event type that was just listed. Until all instances have read the catalog again, which takes up to five seconds,
// some of them do not know the type.
func subscribe(t *testing.T, c *client.Client, o client.SubscribeOptions) (sub *client.Subscription) {
	t.Helper()
	eventually(t, "the instances know "+o.Name, func() (known bool) {
		var err error
		if sub, err = c.Subscribe(t.Context(), o); err != nil && !errors.Is(err, client.ErrNotFound) {
			t.Fatal(err)
		}
		return err == nil
	})
	return sub
}

// awaitActive waits until the relay has n subscriptions at a backend. A client waits for its subscription too, but only for three seconds,
// which may be too short on a busy machine. Then it misses the first events.
func awaitActive(t *testing.T, stack *runner.Stack, backend string, n int) {
	t.Helper()
	r := demand.New(database(t, stack))
	eventually(t, fmt.Sprintf("%d subscriptions at the backend", n), func() bool {
		active := 0
		for uri := range expect.Value(r.ListWanted(t.Context(), "default", backend))(t) {
			if expect.Value(r.LoadState(t.Context(), "default", uri))(t).Active {
				active++
			}
		}
		return active == n
	})
}

// onlyWebhooks starts a proxy of a backend that removes all modes except webhook from its list of event types.
func onlyWebhooks(t *testing.T, backend string) (url string) {
	to := expect.Value(neturl.Parse(backend))(t)
	proxy := httputil.NewSingleHostReverseProxy(to)
	proxy.FlushInterval = -1
	modes := regexp.MustCompile(`"delivery":\[[^]]*\]`)
	proxy.ModifyResponse = func(r *http.Response) error {
		if r.Header.Get("Content-Type") != "application/json" {
			return nil
		}
		b, err := io.ReadAll(r.Body)
		b = modes.ReplaceAll(b, []byte(`"delivery":["webhook"]`))
		r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(b)), int64(len(b))
		r.Header.Set("Content-Length", strconv.Itoa(len(b)))
		return err
	}
	server := httptest.NewServer(proxy)
	t.Cleanup(server.Close)
	return server.URL
}

// backendWebhooks shows that the function publish receives the events of a backend that delivers by webhook only, also while no relay runs.
func backendWebhooks(t *testing.T, stack *runner.Stack) {
	o := servertest.Options(t, nil)
	o.Catalog = []byte("events:\n  - {name: parcel.sent, uriTemplate: \"event://parcels/{parcel}\", payloadSchema: {type: object}}\n")
	backend := servertest.Start(t, o)
	configureStack(t, stack, fmt.Sprintf("backends:\n  - {name: post, url: %q, prefix: post_}\n", onlyWebhooks(t, backend.URL)+"/mcp"))
	defer configureStack(t, stack, "backends: []\n")
	c := expect.Value(client.Connect(t.Context(), stack.URL(), client.Options{Agent: "test/1", Revision: "2026-07-28"}))(t)
	awaitType(t, c, "post_parcel.sent")
	ids := make(chan string, 100)
	sub := subscribe(t, c, client.SubscribeOptions{
		Name: "post_parcel.sent", Arguments: map[string]string{"parcel": "1"}, Mode: client.ModePush,
		Event: func(_ context.Context, e client.Event) error { ids <- e.ID; return nil },
	})
	defer func() { _ = sub.Close() }()
	awaitActive(t, stack, "post", 1)
	send := func(id string) {
		t.Helper()
		expect.OK(t, expect.ErrOf(backend.Publish(t.Context(), "default", standalone.Event{URI: "event://parcels/1", ID: id, Data: json.RawMessage(`{}`)})))
	}
	send("1")
	got := []string{expect.Receive(t, "the first event", ids)}
	stack.Kill("RelayFunction")
	send("2")
	send("3")
	got = append(got, expect.Receive(t, "the second event", ids), expect.Receive(t, "the third event", ids))
	if slices.Sort(got); len(slices.Compact(got)) != 3 || len(ids) > 0 {
		t.Errorf("got the events %v and %d more, want three different ones", got, len(ids))
	}
}

// TestBackendEventsAtHandOversOnAWS: GWN-22. While a backend publishes 500 events within half a minute, or 5,000 at full size, the invocations
// of relay hand over at least twice. Each event reaches the client once.
func TestBackendEventsAtHandOversOnAWS(t *testing.T) {
	t.Parallel()
	const orders = 5
	each := harness.Size(100, 1000)
	stack := deploy(t, func(o *runner.Options) { o.Timeouts = map[string]time.Duration{"RelayFunction": relayTime} })
	o := servertest.Options(t, nil)
	o.Catalog = []byte("events:\n  - {name: order.shipped, uriTemplate: \"event://orders/{order}/shipped\", payloadSchema: {type: object}}\n")
	backend := servertest.Start(t, o)
	to := expect.Value(neturl.Parse(backend.URL))(t)
	proxy := httputil.NewSingleHostReverseProxy(to)
	var streams atomic.Int64
	proxy.FlushInterval = -1
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Mcp-Method") == "events/stream" {
			streams.Add(1)
		}
		proxy.ServeHTTP(w, r)
	}))
	t.Cleanup(func() { front.CloseClientConnections(); front.Close() })
	configureStack(t, stack, fmt.Sprintf("backends:\n  - {name: shop, url: %q, prefix: shop_}\n", front.URL+"/mcp"))
	c := expect.Value(client.Connect(t.Context(), stack.URL(), client.Options{Agent: "test/1", Revision: "2026-07-28"}))(t)
	awaitType(t, c, "shop_order.shipped")
	arrived := make(chan string, 2*orders*each)
	for order := range orders {
		sub := subscribe(t, c, client.SubscribeOptions{
			Name: "shop_order.shipped", Arguments: map[string]string{"order": fmt.Sprint(order)}, Mode: client.ModePush,
			Event: func(_ context.Context, e client.Event) error { arrived <- fmt.Sprint(order, " ", e.ID); return nil },
		})
		t.Cleanup(func() { _ = sub.Close() })
	}
	awaitActive(t, stack, "shop", orders)
	began := time.Now()
	for i := 0; i < each || streams.Load() < 3*orders && time.Since(began) < 2*time.Minute; i++ {
		if i >= each { // the hand-overs take longer than the events
			time.Sleep(100 * time.Millisecond)
			continue
		}
		var events []standalone.Event
		for order := range orders {
			events = append(events, standalone.Event{URI: fmt.Sprintf("event://orders/%d/shipped", order), ID: fmt.Sprint(order, "-", i), Data: json.RawMessage(`{}`)})
		}
		expect.OK(t, expect.ErrOf(backend.Publish(t.Context(), "default", events...)))
		time.Sleep(30 * time.Second / time.Duration(each))
	}
	published := time.Since(began)
	ids := map[string]int{}
	for len(ids) < orders*each {
		select {
		case id := <-arrived:
			ids[id]++
			continue
		case <-time.After(time.Minute): // since the latest event
		}
		break
	}
	twice := 0
	for len(arrived) > 0 {
		ids[<-arrived]++
	}
	for _, n := range ids {
		twice += n - 1
	}
	t.Logf("%d events in %.0f s, the last arrived after %.0f s, and the relays opened %d streams", orders*each, published.Seconds(), time.Since(began).Seconds(), streams.Load())
	if len(ids) != orders*each || twice > 0 || streams.Load() < 3*orders {
		t.Errorf("%d of %d events arrived, %d of them again, over %d streams", len(ids), orders*each, twice, streams.Load())
	}
}
