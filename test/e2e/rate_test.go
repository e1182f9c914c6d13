//go:build unix

package e2e

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/test/harness"
)

// TestRateOfOneSubscriberOnAWS publishes a burst of events to one subscriber. The functions run with the template's
// default parameters, so two concurrent invocations of dispatch send the webhooks. On a busy machine a rate says little.
// By Little's law, 30 requests per second of 200 ms each are six at a time, so the endpoint does not answer before six
// requests are open.
func TestRateOfOneSubscriberOnAWS(t *testing.T) {
	aws := harness.StartAWS(t, harness.AWSOptions{Defaults: true})
	const atOnce, events, array = 6, 300, 100
	var mu sync.Mutex
	open, arrived, enough := 0, map[string]bool{}, make(chan struct{})
	reached := sync.OnceFunc(func() { close(enough) })
	endpoint := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		mu.Lock()
		if open++; open == atOnce {
			reached()
		}
		mu.Unlock()
		select {
		case <-enough:
			mu.Lock()
			arrived[r.Header.Get("webhook-id")] = true
			mu.Unlock()
		case <-r.Context().Done():
		}
		mu.Lock()
		open--
		mu.Unlock()
	}))
	defer endpoint.Close()
	aws.Stateless("alice").Call(t, "resources/subscriptions/register", object{"uris": []string{"event://chat/acme/busy"}, "targetUri": endpoint.URL}, nil)
	for first := 0; first < events; first += array {
		var burst []harness.Event
		for i := range array {
			burst = append(burst, message(fmt.Sprint("busy-", first+i), "busy"))
		}
		aws.Publish(t, burst...)
	}
	t.Run("WHK-24 an endpoint that responds in 200 ms gets six requests at a time, which are 30 per second", func(t *testing.T) {
		select {
		case <-enough:
		case <-time.After(harness.Patience):
			t.Fatalf("%d requests were never open at a time", atOnce)
		}
	})
	t.Run("WHK-24 all events of a burst arrive", func(t *testing.T) {
		count := func() int { mu.Lock(); defer mu.Unlock(); return len(arrived) }
		if !harness.Within(t, harness.Patience, func() bool { return count() == events }) {
			t.Errorf("%d of %d events arrived", count(), events)
		}
	})
}
