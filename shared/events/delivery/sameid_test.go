package delivery

import (
	"encoding/json"
	"testing"

	"github.com/mcp-events/mcpevents/shared/events/webhook"

	"github.com/mcp-events/mcpevents/shared/events/delivery/state"
)

// TestEventsOfOneIDAreRetriedEachByItself publishes two events of different URIs
// under one id, as independent publishers may.
func TestEventsOfOneIDAreRetriedEachByItself(t *testing.T) {
	const build, push = "event://ci/build-finished", "event://github/acme/site/push"
	r := newRig(t)
	r.register(build)
	r.register(push)
	r.register(build, push)
	failed := map[string]bool{}
	r.script = func(int) webhook.Outcome {
		p := r.posts[len(r.posts)-1]
		if key := p.SubscriptionID + bodyURI(t, p); !failed[key] {
			failed[key] = true
			return webhook.Outcome{Status: 500, Category: webhook.HTTP5xx}
		}
		return webhook.Outcome{Status: 200}
	}
	r.publish("1")
	r.publishTo(push, "github.push", "1", `{"ok":true}`)
	r.run()

	got := map[string]map[string]int{}
	for _, p := range r.posts {
		if got[p.SubscriptionID] == nil {
			got[p.SubscriptionID] = map[string]int{}
		}
		got[p.SubscriptionID][bodyURI(t, p)]++
	}
	uris := 0
	for id, posts := range got {
		uris += len(posts)
		for uri, n := range posts {
			if n != 2 {
				t.Errorf("WHK-02 EVS-06: subscription %s got %s %d times, want a failure and a success", id, uri, n)
			}
		}
	}
	if len(got) != 3 || uris != 4 {
		t.Errorf("EVS-06: deliveries by subscription and URI: %v", got)
	}
}

// TestTasksWithoutKeyAreRead retries a delivery that was written when deliveries
// were found by the event's id.
func TestTasksWithoutKeyAreRead(t *testing.T) {
	del := &state.Delivery{Workspace: "default", Subscription: "sub_1", Event: "1", Target: "https://hooks.example.com/a"}
	if got := del.Item().Key; got != state.Key("default", "sub_1", "1") {
		t.Errorf("the delivery lies at %v", got)
	}
	var due state.DueEntry
	if err := json.Unmarshal(del.DueItem().Value, &due); err != nil {
		t.Fatal(err)
	}
	if due.Task.EventKey() != "1" {
		t.Errorf("its task points at %q", due.Task.EventKey())
	}
}

func bodyURI(t *testing.T, p webhook.Request) string {
	t.Helper()
	var body struct{ URI string }
	if err := json.Unmarshal(p.Body, &body); err != nil {
		t.Fatal(err)
	}
	return body.URI
}
