package client_test

import (
	"context"
	"fmt"
	"log/slog"
	"net/http/httptest"
	"os"
	"strings"
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
func serve(ctx context.Context) (s *server.Server, end func(), err error) {
	s, err = server.New(ctx, server.Options{
		Addr: "127.0.0.1:0", Data: server.InMemory, Catalog: []byte(catalog), Log: slog.New(slog.DiscardHandler),
		Settings: map[string]string{"allow-insecure-targets": "true"}, // because the receiver is on this machine
	})
	return s, func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		_ = s.Shutdown(ctx)
	}, err
}

func ExampleClient_Subscribe() {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	s, end, err := serve(ctx)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer end()

	c, err := client.Connect(ctx, s.URL(), client.Options{Agent: "example/1"})
	if err != nil {
		fmt.Println(err)
		return
	}
	err = c.Subscribe(ctx, client.Subscription{
		Name: "order.shipped",
		Begun: func(client.Begun) { // what is published from now on comes
			_, _ = s.Publish(ctx, server.DefaultWorkspace, server.Event{ID: "1", URI: "event://orders/42/shipped", Data: []byte(`{"carrier":"DHL"}`)})
		},
		Event: func(_ context.Context, e client.Event) error {
			fmt.Println(e.Via, e.Name, e.ID, string(e.Data))
			cancel() // one is enough
			return nil
		},
	})
	fmt.Println(err)
	// Output:
	// push order.shipped 1 {"carrier":"DHL"}
	// <nil>
}

func ExampleHandler() {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	s, end, err := serve(ctx)
	if err != nil {
		fmt.Println(err)
		return
	}
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
	err = c.Subscribe(ctx, client.Subscription{
		Name:      "order.shipped",
		Arguments: map[string]string{"order": "42"},
		Begun: func(b client.Begun) {
			fmt.Println("subscribed by", b.Mode)
			for _, order := range []string{"41", "42"} {
				_, _ = s.Publish(ctx, server.DefaultWorkspace, server.Event{URI: "event://orders/" + order + "/shipped", Data: []byte(order)})
			}
		},
		Event: func(_ context.Context, e client.Event) error {
			fmt.Println(e.Name, *e.Verified, string(e.Data))
			cancel()
			return nil
		},
	})
	fmt.Println(err)
	// Output:
	// subscribed by webhook
	// order.shipped true 42
	// <nil>
}

func ExampleDir() {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	s, end, err := serve(ctx)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer end()
	dir, err := os.MkdirTemp("", "cursors-")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = os.RemoveAll(dir) }()

	// run is a program that handles one event and ends.
	run := func(begun func()) {
		ctx, stop := context.WithCancel(ctx)
		defer stop()
		c, err := client.Connect(ctx, s.URL(), client.Options{Agent: "example/1", Store: client.Dir(dir)})
		if err != nil {
			fmt.Println(err)
			return
		}
		_ = c.Subscribe(ctx, client.Subscription{
			Name: "order.shipped", Mode: client.ModePush,
			Begun: func(client.Begun) { begun() },
			Event: func(_ context.Context, e client.Event) error {
				fmt.Println(e.ID)
				stop()
				return nil
			},
		})
	}
	publish := func(id string) {
		_, _ = s.Publish(ctx, server.DefaultWorkspace, server.Event{ID: id, URI: "event://orders/42/shipped", Data: []byte("1")})
	}
	run(func() { publish("first") })
	publish("while-it-was-away")
	run(func() {})
	// Output:
	// first
	// while-it-was-away
}

func ExamplePublisher() {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	s, end, err := serve(ctx)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer end()
	publisher := client.Publisher{
		Server: client.Server{URL: s.URL(), Agent: "example/1"}, URI: "event://orders/42/shipped", ID: "1",
		Accepted: func(events []client.Accepted) error {
			fmt.Println(events)
			return nil
		},
	}
	if err := publisher.Publish(ctx, strings.NewReader(`{"carrier":"DHL"}`)); err != nil {
		fmt.Println(err)
	}
	// Output: [{1 event://orders/42/shipped}]
}
