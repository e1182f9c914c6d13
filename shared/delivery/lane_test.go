package delivery

import (
	"regexp"
	"testing"
	"time"
)

// A queue refuses a group of other characters, and a retry would then have to
// wait for its due entry.
func TestARetryHasAGroupThatQueuesTake(t *testing.T) {
	seen := map[string]string{}
	for _, target := range []string{"https://a.example/x", "http://127.0.0.1:9999/hook", "https://[2001:db8::1]:8443/"} {
		group := dueEntry{Origin: origin(target)}.outgoing(time.Second).Group
		if !regexp.MustCompile(`^[A-Za-z0-9_-]{1,128}$`).MatchString(group) {
			t.Errorf("the group of %s is %q", target, group)
		}
		if other := seen[group]; other != "" {
			t.Errorf("%s and %s share a group", target, other)
		}
		seen[group] = target
	}
	if a, b := (dueEntry{Origin: origin("https://a.example/x")}).outgoing(0), (dueEntry{Origin: origin("https://a.example/y")}).outgoing(0); a.Group != b.Group {
		t.Error("two paths of one origin have different groups")
	}
}
