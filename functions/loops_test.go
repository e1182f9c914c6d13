package functions_test

import (
	"net/http"
	"sync/atomic"
	"testing"

	"github.com/mcp-events/mcpevents/localstack/runner"
)

// TestRetriesAreNoLoop (AWS-03): an endpoint fails more often than Lambda allows a function to invoke itself through
// a chain of requests. Each retry is a message that the previous one sent to the slow queue.
func TestRetriesAreNoLoop(t *testing.T) {
	t.Parallel()
	stack := deploy(t, func(o *runner.Options) {
		schedule := "0s"
		for range 17 {
			schedule += ",1s"
		}
		o.Env = map[string]string{"MCPEVENTS_RETRY_SCHEDULE": schedule}
		o.Speed = 1 // so that the due table returns no retries during this test
	})
	var tries atomic.Int32
	target, hooks := endpoint(t, func(w http.ResponseWriter, _ *http.Request, _ []byte) {
		if tries.Add(1) < 18 {
			w.WriteHeader(http.StatusInternalServerError)
		}
	})
	register(t, stack, target)
	id := publish(t, stack, 1)
	for n := range 18 {
		if got := wait(t, "AWS-03 the attempt after the 16th hop", hooks).header.Get("Webhook-Id"); got != id {
			t.Errorf("attempt %d: got webhook-id %q, want %q", n+1, got, id)
		}
	}
	if s := stack.Stats()["DispatchFunction"]; s.Recursive > 0 {
		t.Errorf("AWS-03 %d invocations were stopped", s.Recursive)
	}
}
