package mcp

import (
	"context"
	"errors"
	"net/http"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/shared/mcp/method"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
)

// TestDisconnect shows what becomes of a request whose client goes away.
func TestDisconnect(t *testing.T) {
	for name, tc := range map[string]struct {
		path      string
		cancelled bool
	}{
		"SES-05_is_no_cancellation_in_a_session":   {"/mcp", false},
		"SES-05_nor_in_the_dialect":                {"/mcp/default", false},
		"SUB-05_is_the_cancellation_in_2026-07-28": {"/mcp", true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t, nil)
			arrived, gone, outcome := make(chan struct{}), make(chan struct{}), make(chan error, 1)
			f.endpoint.methods["slow"] = method.Row{SessionBased: true, Stateless: true, Handler: method.Answering{Replies: f.endpoint.replies, Timing: f.endpoint.calls.timing, Answer: func(ctx context.Context, c *method.Call) (method.Result, error) {
				close(arrived)
				<-gone
				wait := 200 * time.Millisecond // longer than the server takes to see it
				if tc.cancelled {
					wait = patience // it has to
				}
				select {
				case <-ctx.Done():
				case <-time.After(wait):
				}
				outcome <- ctx.Err()
				return method.Result{}, nil
			}}}
			headers := []string{"Mcp-Session-Id: " + f.session(alice, spec.V20251125)}
			body := rpcText("1", "slow", "")
			if tc.cancelled {
				headers, body = statelessHeaders("slow", ""), statelessBody("1", "slow", "")
			}
			if tc.path != "/mcp" {
				headers = nil
			}
			ctx, cancel := context.WithCancel(t.Context())
			req := f.request("POST", alice, body, headers...).WithContext(ctx)
			req.URL.Path = tc.path
			failed := make(chan error, 1)
			go func() {
				res, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(req)
				if err == nil {
					res.Body.Close()
				}
				failed <- err
			}()
			<-arrived
			cancel()
			<-failed
			close(gone)
			if err := <-outcome; errors.Is(err, context.Canceled) != tc.cancelled {
				t.Errorf("the request's context: %v", err)
			}
		})
	}
}
