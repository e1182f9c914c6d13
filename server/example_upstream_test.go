package server_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log"
	"log/slog"
	"net/http"
	"net/http/httptest"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/mcp-events/mcpevents/server"
)

// A program with an MCP server of the official SDK adds events to it. A tool publishes one.
func ExampleNew_upstream() {
	type order struct{ ID string }
	var events *server.Server
	mine := mcp.NewServer(&mcp.Implementation{Name: "orders", Version: "1"}, nil)
	mcp.AddTool(mine, &mcp.Tool{Name: "ship"}, func(ctx context.Context, _ *mcp.CallToolRequest, o order) (*mcp.CallToolResult, any, error) {
		_, err := events.Publish(ctx, server.DefaultWorkspace, server.Event{URI: "event://orders/" + o.ID + "/shipped", Data: json.RawMessage(`{"carrier":"DHL"}`)})
		return nil, nil, err
	})
	events, err := server.New(context.Background(), server.Options{
		Data:     server.InMemory,
		Catalog:  []byte(`events: [{name: order.shipped, uriTemplate: "event://orders/{order}/shipped"}]`),
		Upstream: mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return mine }, nil),
		Log:      slog.New(slog.DiscardHandler),
	})
	if err != nil {
		log.Fatal(err)
	}
	defer events.Shutdown(context.Background())
	order42(httptest.NewServer(events.Handler())) // or http.ListenAndServe(addr, events.Handler())
	// Output: the tool fails: false
	// event://orders/42/shipped
}

// order42 connects a client to the program. The client subscribes to an order, calls a tool and waits for the event.
func order42(s *httptest.Server) {
	defer s.Close()
	ctx, updated := context.Background(), make(chan string)
	session, err := mcp.NewClient(&mcp.Implementation{Name: "agent", Version: "1"}, &mcp.ClientOptions{
		ResourceUpdatedHandler: func(_ context.Context, r *mcp.ResourceUpdatedNotificationRequest) { updated <- r.Params.URI },
	}).Connect(ctx, &mcp.StreamableClientTransport{Endpoint: s.URL + "/mcp"}, &mcp.ClientSessionOptions{ProtocolVersion: "2025-11-25"})
	if err != nil {
		log.Fatal(err)
	}
	defer session.Close()
	if err := session.Subscribe(ctx, &mcp.SubscribeParams{URI: "event://orders/42"}); err != nil { // and all below it
		log.Fatal(err)
	}
	shipped, err := session.CallTool(ctx, &mcp.CallToolParams{Name: "ship", Arguments: map[string]string{"ID": "42"}})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("the tool fails:", shipped.IsError)
	fmt.Println(<-updated)
}
