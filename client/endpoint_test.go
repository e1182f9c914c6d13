package client_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/client"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/test/expect"
)

// TestAnEndpointOutsideOfTheProgram: each refresh has the endpoint's secret and the cursor that the endpoint has saved meanwhile. The
// subscription stays at the server when it is closed here, and Resume makes the server continue at the cursor.
func TestAnEndpointOutsideOfTheProgram(t *testing.T) {
	type request struct {
		Method string
		ID     json.RawMessage
		Params struct {
			Cursor   *string
			Delivery struct{ Mode, URL, Secret string }
		}
	}
	requests := make(chan request, 100)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var m request
		_ = json.NewDecoder(r.Body).Decode(&m)
		requests <- m
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"result":{"id":"s1","refreshBefore":%q}}`, m.ID, time.Now().Add(time.Second).UTC().Format(time.RFC3339Nano))
	}))
	defer server.Close()
	c := expect.Value(client.Connect(t.Context(), server.URL, client.Options{Revision: "2026-07-28", Store: client.Dir(t.TempDir())}))(t)
	var asked, accepted atomic.Int64
	store := client.File(t.TempDir() + "/cursor")
	o := client.SubscribeOptions{Name: "order.shipped", Store: store, Endpoint: &client.Endpoint{
		URL:    "https://events.example.com/hook",
		Secret: func(context.Context) (string, error) { return fmt.Sprint("secret-", asked.Add(1)), nil },
		Accepted: func(_ context.Context, id string, until time.Time) error {
			if id == "s1" && !until.IsZero() {
				accepted.Add(1)
			}
			return nil
		},
	}}
	s := expect.Value(c.Subscribe(t.Context(), o))(t)
	first := <-requests
	if d := first.Params.Delivery; d.Mode != "webhook" || d.URL != o.Endpoint.URL || d.Secret != "secret-1" || first.Params.Cursor != nil {
		t.Errorf("the registration is %+v", first.Params)
	}
	expect.OK(t, store.Save(t.Context(), "", "c1")) // as the endpoint does
	second := <-requests
	if d := second.Params; d.Delivery.Secret != "secret-2" || d.Cursor == nil || *d.Cursor != "c1" {
		t.Errorf("the refresh is %+v", d)
	}
	expect.OK(t, s.Close())
	if accepted.Load() == 0 {
		t.Error("Accepted was not called")
	}
	for len(requests) > 0 {
		expect.Equal(t, "the client's method", (<-requests).Method, "events/subscribe")
	}
	o.Endpoint.Resume = true
	s = expect.Value(c.Subscribe(t.Context(), o))(t)
	defer func() { _ = s.Close() }()
	expect.Equal(t, "the first request", (<-requests).Method, "events/unsubscribe")
	expect.Equal(t, "the second request", (<-requests).Method, "events/subscribe")

	for what, bad := range map[string]client.SubscribeOptions{
		"no URL":    {Name: "x", Endpoint: &client.Endpoint{Secret: o.Endpoint.Secret}},
		"no secret": {Name: "x", Endpoint: &client.Endpoint{URL: "https://x.example"}},
		"URIs":      {URIs: []string{shipped}, Endpoint: o.Endpoint},
	} {
		_, err := c.Subscribe(t.Context(), bad)
		expect.Fault(t, what, err, fault.Invalid)
	}
}
