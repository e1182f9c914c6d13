package functions_test

import (
	"net/http"
	"sync/atomic"
	"testing"

	"github.com/mcp-events/mcpevents/localstack/runner"
)

// TestRetriesAreNoLoop (AWS-03) has an endpoint fail more often than Lambda lets a function be invoked
// in one chain of requests: each retry is sent to the slow queue by the one before.
func TestRetriesAreNoLoop(t *testing.T) {
	t.Parallel()
	stack := deploy(t, func(o *runner.Options) {
		schedule := "0s"
		for range 19 {
			schedule += ",1s"
		}
		o.Env = map[string]string{"MCPEVENTS_RETRY_SCHEDULE": schedule}
		o.Speed = 1 // the due table does not bring retries within this test
	})
	var tries atomic.Int32
	target, hooks := endpoint(t, func(w http.ResponseWriter, _ *http.Request, _ []byte) {
		if tries.Add(1) < 20 {
			w.WriteHeader(http.StatusInternalServerError)
		}
	})
	register(t, stack, target)
	id := publish(t, stack, 1)
	for n := range 20 {
		if got := wait(t, "AWS-03 the attempt after the 16th hop", hooks).header.Get("Webhook-Id"); got != id {
			t.Errorf("attempt %d: got webhook-id %q, want %q", n+1, got, id)
		}
	}
	if s := stack.Stats()["DispatchFunction"]; s.Recursive > 0 {
		t.Errorf("AWS-03 %d invocations were stopped", s.Recursive)
	}
}
