package delivery

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/shared/events/subscription"
)

// TestARotatedSecretSignsForADay: WHK-06. The old secret signs next to the new one for the default
// overlap of 24 hours, and no longer.
func TestARotatedSecretSignsForADay(t *testing.T) {
	r := newRig(t)
	for _, secret := range []string{"whsec_old", "whsec_new"} {
		r.subscribe(func(s *subscription.SubscribeRequest) { s.Secret = secret })
	}
	rotated := r.now
	for i, step := range []struct {
		after time.Duration
		want  []string
	}{
		{0, []string{"whsec_new", "whsec_old"}},
		{24*time.Hour - time.Second, []string{"whsec_new", "whsec_old"}},
		{24*time.Hour + time.Second, []string{"whsec_new"}},
	} {
		r.now = rotated.Add(step.after)
		r.publish(fmt.Sprint("e", i))
		r.work()
		var keys []string
		for _, k := range r.posts[len(r.posts)-1].Keys {
			keys = append(keys, string(k))
		}
		if len(r.posts) != i+1 || !slices.Equal(keys, step.want) {
			t.Errorf("%v after the rotation: %d posts, signed by %v, want %v", step.after, len(r.posts), keys, step.want)
		}
	}
}
