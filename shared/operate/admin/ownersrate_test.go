package admin_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/mcp-events/mcpevents/shared/app/standalone"
)

// SRF-07: an owner cannot have webhooks sent again to an endpoint that answered 410. An operator can.
func TestAnOwnerDoesNotResumeASubscriptionOfAnEndpointThatIsGone(t *testing.T) {
	f := start(t, nil)
	id := f.subscribe("alice", "/a", built)
	f.answerWith(http.StatusGone)
	f.publish(built, "evt_1")
	f.eventually("the end of the subscription", func() bool {
		return len(f.list("op", "subscriptions?state=disabled").Items) == 1
	})
	if raw := f.call("alice", http.MethodPost, "subscriptions/"+id+"/resume", "", http.StatusConflict, nil); !strings.Contains(string(raw), "410 Gone") {
		t.Errorf("the reason is not named: %s", raw)
	}
	f.call("op", http.MethodPost, "subscriptions/"+id+"/resume", "", http.StatusOK, nil)
}

// AUT-07: the quota of registrations limits the changes of owners. Changes of operators and reads are not limited.
func TestOwnersChangesHaveARate(t *testing.T) {
	f := start(t, func(o *standalone.Options) { o.Limits.RegistrationRate = 0.1 }) // a burst of one
	id := f.subscribe("alice", "/a", built)
	f.call("alice", http.MethodPost, "subscriptions/"+id+"/pause", "", http.StatusOK, nil)
	if raw := f.call("alice", http.MethodPost, "subscriptions/"+id+"/resume", "", http.StatusTooManyRequests, nil); !strings.Contains(string(raw), `"limit":"registrationRate"`) {
		t.Errorf("the limit is not named: %s", raw)
	}
	f.call("alice", http.MethodGet, "subscriptions/"+id, "", http.StatusOK, nil)
	for range 3 {
		f.call("op", http.MethodPost, "subscriptions/"+id+"/resume", "", http.StatusOK, nil)
		f.call("op", http.MethodPost, "subscriptions/"+id+"/pause", "", http.StatusOK, nil)
	}
}
