package gateway

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
)

// GWN-19: while a token endpoint hangs, all that need its token wait once, together, and none for longer than its own time.
func TestATokenEndpointThatHangs(t *testing.T) {
	t.Setenv("GATEWAY_TEST_CLIENT_SECRET", "s3cret")
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
	c := parsed(t, "  - {name: b, url: 'http://127.0.0.1:1', oauth: {tokenUrl: %q, clientId: me, clientSecret: 'env:GATEWAY_TEST_CLIENT_SECRET'}}\n", tokens.URL)
	g, err := New(Options{Backends: c.Backends, DB: memory(t), Server: json.RawMessage(`{}`), Log: quiet, AskTimeout: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	b := g.backends.set[0]
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
				t.Errorf("got %q, %v", got, err)
			}
		})
	}
	cancel()
	select {
	case err := <-gone:
		if !fault.Is(err, fault.Unavailable) {
			t.Errorf("who gave up got %v", err)
		}
	case <-time.After(patience):
		t.Error("a caller waits longer than its context")
	}
	close(gate)
	wg.Wait()
	if n := asked.Load(); n != 1 {
		t.Errorf("the endpoint was asked %d times", n)
	}
}
