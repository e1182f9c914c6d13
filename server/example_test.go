package server_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"time"

	"github.com/mcp-events/mcpevents/server"
)

// A program serves events at an address of its own, and publishes by a function call.
func Example() {
	const catalog = `
events:
  - name: order.shipped
    uriTemplate: event://orders/{order}/shipped
    description: An order left the warehouse.
    payloadSchema: {type: object, required: [carrier]}
`
	ctx := context.Background()
	s, err := server.New(ctx, server.Options{
		Data: server.InMemory, Catalog: []byte(catalog), Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() {
		ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
		defer cancel()
		_ = s.Shutdown(ctx)
	}()
	mine := httptest.NewServer(s.Handler()) // or http.ListenAndServe
	defer mine.Close()

	accepted, err := s.Publish(ctx, server.DefaultWorkspace, server.Event{
		ID: "shipped-42", URI: "event://orders/42/shipped", Data: json.RawMessage(`{"carrier":"DHL"}`),
	})
	fmt.Println(accepted, err)
	_, err = s.Publish(ctx, server.DefaultWorkspace, server.Event{URI: "event://orders/42/shipped", Data: json.RawMessage(`{}`)})
	fmt.Println(errors.Is(err, server.ErrSchema), err)

	resp, err := http.Post(mine.URL+"/events", "application/json",
		bytes.NewBufferString(`{"uri":"event://orders/43/shipped","data":{"carrier":"UPS"}}`))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer resp.Body.Close()
	fmt.Println(resp.Status)
	// Output:
	// [{shipped-42 event://orders/42/shipped}] <nil>
	// true the body lacks "carrier"
	// 202 Accepted
}
