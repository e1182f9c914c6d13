package delivery

import (
	"regexp"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/shared/events/delivery/state"
	"github.com/mcp-events/mcpevents/shared/events/delivery/task"
)

// A queue refuses a group of other characters, and a retry would then have to
// wait for its due entry.
func TestARetryHasAGroupThatQueuesTake(t *testing.T) {
	seen := map[string]string{}
	for _, target := range []string{"https://a.example/x", "http://127.0.0.1:9999/hook", "https://[2001:db8::1]:8443/"} {
		group := state.DueEntry{Task: task.Single{Endpoint: task.EndpointID(target)}}.Outgoing(time.Second).Group
		if !regexp.MustCompile(`^[A-Za-z0-9_-]{1,128}$`).MatchString(group) {
			t.Errorf("the group of %s is %q", target, group)
		}
		if other := seen[group]; other != "" {
			t.Errorf("%s and %s share a group", target, other)
		}
		seen[group] = target
	}
	if task.EndpointID("https://a.example/x") == task.EndpointID("https://a.example/y") {
		t.Error("two paths of one origin share a group")
	}
	if task.EndpointID("https://a.example/x?key=1") != task.EndpointID("https://a.example/x?key=2") {
		t.Error("one path with two queries has two groups")
	}
}
