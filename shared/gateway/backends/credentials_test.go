package backends

import (
	"context"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/shared/gateway/api"
	"github.com/mcp-events/mcpevents/shared/gateway/upstream"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/platform/secret"
)

// GWN-19: while a token endpoint hangs, all callers share one request for the token, and each waits no longer than its own context.
func TestCallersShareARequestToAHangingTokenEndpoint(t *testing.T) {
	var asked atomic.Int64
	arrived, gate := make(chan struct{}, 10), make(chan struct{})
	tokens := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		asked.Add(1)
		arrived <- struct{}{}
		<-gate
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(`{"access_token":"granted","token_type":"bearer","expires_in":3600}`))
	}))
	defer tokens.Close()
	b := newBackend(&Options{
		Secrets: func(context.Context, secret.Value) (string, error) { return "s3cret", nil }, HTTP: upstream.NewHTTP(), AskTimeout: time.Minute,
	}, api.Backend{Name: "b", OAuth: &api.OAuth{TokenURL: tokens.URL, ClientID: "me"}})
	impatient, cancel := context.WithCancel(t.Context())
	gone := make(chan error, 1)
	go func() {
		_, err := b.getOAuthToken(impatient)
		gone <- err
	}()
	<-arrived
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			if got, err := b.getOAuthToken(t.Context()); got != "Bearer granted" || err != nil {
				t.Errorf("got %q, %v, want Bearer granted", got, err)
			}
		})
	}
	cancel()
	select {
	case err := <-gone:
		if !fault.Is(err, fault.Unavailable) {
			t.Errorf("the caller that gave up got %v, want a fault of kind Unavailable", err)
		}
	case <-time.After(20 * time.Second):
		t.Error("a caller waits longer than its context")
	}
	close(gate)
	wg.Wait()
	if n := asked.Load(); n != 1 {
		t.Errorf("the endpoint was asked %d times, want once", n)
	}
}
