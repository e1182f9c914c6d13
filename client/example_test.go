package client_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http/httptest"
	"os"
	"time"

	"github.com/mcp-events/mcpevents/client"
	"github.com/mcp-events/mcpevents/server"
)

const catalog = `
events:
  - name: order.shipped
    uriTemplate: event://orders/{order}/shipped
    description: An order left the warehouse.
`

// serve starts a server for the examples.
func serve(ctx context.Context) (s *server.Server, end func()) {
	s, err := server.New(ctx, server.Options{
		Addr: "127.0.0.1:0", Data: server.InMemory, Catalog: []byte(catalog), Log: slog.New(slog.DiscardHandler),
		Settings: map[string]string{"allow-insecure-targets": "true"}, // because the receiver is on this machine
	})
	if err != nil {
		panic(err)
	}
	return s, func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		_ = s.Shutdown(ctx)
	}
}

// publish publishes an event that says that an order was shipped.
func publish(ctx context.Context, s *server.Server, order, data string) {
	_, err := s.Publish(ctx, server.DefaultWorkspace, server.Event{URI: "event://orders/" + order + "/shipped", Data: []byte(data)})
	if err != nil {
		fmt.Println(err)
	}
}

func ExampleClient_Subscribe() {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	s, end := serve(ctx)
	defer end()
	c, err := client.Connect(ctx, s.URL(), client.Options{Agent: "example/1"})
	if err != nil {
		fmt.Println(err)
		return
	}
	arrived := make(chan client.Event)
	sub, err := c.Subscribe(ctx, client.SubscribeOptions{
		Name:  "order.shipped",
		Event: func(_ context.Context, e client.Event) error { arrived <- e; return nil },
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	publish(ctx, s, "42", `{"carrier":"DHL"}`)
	e := <-arrived
	fmt.Println(sub.Mode(), e.Name, e.URI, string(e.Data))
	fmt.Println(sub.Close())
	// Output:
	// push order.shipped event://orders/42/shipped {"carrier":"DHL"}
	// <nil>
}

// Without an event type, a client can subscribe to the URIs of events. This one subscribes to everything below an order.
func ExampleClient_Subscribe_uris() {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	s, end := serve(ctx)
	defer end()
	c, err := client.Connect(ctx, s.URL(), client.Options{Agent: "example/1"})
	if err != nil {
		fmt.Println(err)
		return
	}
	arrived := make(chan client.Event)
	sub, err := c.Subscribe(ctx, client.SubscribeOptions{
		URIs:  []string{"event://orders/42"},
		Event: func(_ context.Context, e client.Event) error { arrived <- e; return nil },
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer sub.Close()
	publish(ctx, s, "42", `{"carrier":"DHL"}`)
	e := <-arrived
	fmt.Println(e.URI, string(e.Data))
	// Output: event://orders/42/shipped {"carrier":"DHL"}
}

func ExampleHandler() {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	s, end := serve(ctx)
	defer end()

	hooks := &client.Handler{}
	mine := httptest.NewServer(hooks) // a program has a public address
	defer mine.Close()
	hooks.URL = mine.URL + "/hooks"

	c, err := client.Connect(ctx, s.URL(), client.Options{Agent: "example/1", Webhooks: hooks})
	if err != nil {
		fmt.Println(err)
		return
	}
	arrived := make(chan client.Event)
	sub, err := c.Subscribe(ctx, client.SubscribeOptions{
		Name:      "order.shipped",
		Arguments: map[string]string{"order": "42"},
		Event:     func(_ context.Context, e client.Event) error { arrived <- e; return nil },
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer sub.Close()
	fmt.Println("subscribed by", sub.Mode())
	publish(ctx, s, "41", `{}`)
	publish(ctx, s, "42", `{}`)
	e := <-arrived
	fmt.Println(e.URI, *e.Verified)
	// Output:
	// subscribed by webhook
	// event://orders/42/shipped true
}

func ExampleDir() {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	s, end := serve(ctx)
	defer end()
	dir, err := os.MkdirTemp("", "cursors-")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = os.RemoveAll(dir) }()

	// start starts a program that prints one event and ends.
	start := func() (wait func()) {
		c, err := client.Connect(ctx, s.URL(), client.Options{Agent: "example/1", Store: client.Dir(dir)})
		if err != nil {
			fmt.Println(err)
			return func() {}
		}
		handled := make(chan struct{}, 1)
		sub, err := c.Subscribe(ctx, client.SubscribeOptions{
			Name: "order.shipped", Mode: client.ModePush,
			Event: func(_ context.Context, e client.Event) error {
				fmt.Println(e.URI)
				handled <- struct{}{}
				return nil
			},
		})
		if err != nil {
			fmt.Println(err)
			return func() {}
		}
		return func() { <-handled; _ = sub.Close() }
	}
	wait := start()
	publish(ctx, s, "1", `{}`)
	wait()
	publish(ctx, s, "2", `{}`) // while no program runs
	start()()
	// Output:
	// event://orders/1/shipped
	// event://orders/2/shipped
}

func ExamplePublisher() {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	s, end := serve(ctx)
	defer end()
	publisher := client.Publisher{URL: s.URL(), Agent: "example/1"}
	shipped := client.Event{URI: "event://orders/42/shipped", ID: "1", Data: json.RawMessage(`{"carrier":"DHL"}`)}
	accepted, err := publisher.Publish(ctx, shipped)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(accepted)
	// Output: [{1 event://orders/42/shipped}]
}
