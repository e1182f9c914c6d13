package client_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/mcp-events/mcpevents/client"
	"github.com/mcp-events/mcpevents/server"
	"github.com/mcp-events/mcpevents/shared/mcpspec"
)

const catalog = `
events:
  - name: order.shipped
    uriTemplate: event://orders/{order}/shipped
    description: An order left the warehouse.
`

// serve starts a server for the examples.
func serve(ctx context.Context) (s *server.Server, end func(), err error) {
	o := server.Options{
		Addr: "127.0.0.1:0", Data: ":memory:", Catalog: []byte(catalog), CatalogName: "catalog.yaml",
		Limits: server.DefaultLimits(), Log: slog.New(slog.DiscardHandler),
	}
	o.Limits.AllowInsecureTargets = true // the receiver is on this machine
	s, err = server.New(ctx, o)
	return s, func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		_ = s.Shutdown(ctx)
	}, err
}

func Example_webhook() {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	s, end, err := serve(ctx)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer end()

	events := make(chan client.Event, 1)
	receiver, err := client.NewReceiver("127.0.0.1:0", client.ViaEvents, func(e client.Event) error {
		events <- e
		return nil
	}, slog.New(slog.DiscardHandler))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer receiver.Close()
	c, err := client.New(client.Server{URL: s.URL, Agent: "example/1"}, mcpspec.V20260728)
	if err != nil {
		fmt.Println(err)
		return
	}
	subscription := &client.EventsSubscription{
		Client: c, Name: "order.shipped", Arguments: json.RawMessage(`{"order":"42"}`),
		Target: receiver.URL, Key: client.NewSecret(),
	}
	if err := subscription.Begin(ctx, receiver); err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = subscription.End(ctx) }()

	if _, err := s.Publish(ctx, "default", server.Event{ID: "1", URI: "event://orders/42/shipped", Data: []byte(`{"carrier":"DHL"}`)}); err != nil {
		fmt.Println(err)
		return
	}
	select {
	case e := <-events:
		fmt.Println(e.Name, e.ID, *e.Verified, string(e.Data))
	case <-ctx.Done():
		fmt.Println(ctx.Err())
	}
	// Output: order.shipped 1 true {"carrier":"DHL"}
}

func Example_follower() {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	s, end, err := serve(ctx)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer end()
	c, err := client.New(client.Server{URL: s.URL, Agent: "example/1"}, mcpspec.V20260728)
	if err != nil {
		fmt.Println(err)
		return
	}
	if _, err := s.Publish(ctx, "default", server.Event{ID: "1", URI: "event://orders/42/shipped", Data: []byte(`1`)}); err != nil {
		fmt.Println(err)
		return
	}
	done := fmt.Errorf("enough")
	publish := func() {
		_, _ = s.Publish(ctx, "default", server.Event{ID: "2", URI: "event://orders/43/shipped", Data: []byte(`2`)})
	}
	follower := &client.Follower{
		Client: c, Name: "order.shipped", Arguments: json.RawMessage(`{}`), Log: slog.New(slog.DiscardHandler),
		Opened: publish, // it hears what is published from now on
		Event: func(e client.Event) error {
			fmt.Println(e.Via, e.ID, string(e.Data))
			return done
		},
	}
	fmt.Println(follower.Run(ctx, mcpspec.ModePush))
	// Output:
	// push 2 2
	// enough
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
		Server: client.Server{URL: s.URL, Agent: "example/1"}, URI: "event://orders/42/shipped", ID: "1",
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
