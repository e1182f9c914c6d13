package retry

import (
	"strconv"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/shared/platform/bounded"
	"github.com/mcp-events/mcpevents/test/expect"
)

// TestStatusesOfOneEventToVeryMany: AWS-15. Statuses of a wide fan-out are bounded.
func TestStatusesOfOneEventToVeryMany(t *testing.T) {
	s := statuses{seen: bounded.NewMap[string, seenStatus](maxStatuses)}
	at := time.Unix(1_800_000_000, 0)
	written := func(id string, retried bool, now time.Time) bool {
		_, due := s.afterSuccess("default", id, retried, now)
		return due
	}
	first, rest := 0, 0
	for n := range 16_000 {
		switch due := written(strconv.Itoa(n), false, at); {
		case due && n < statusBudget:
			first++
		case due:
			rest++
		}
	}
	expect.Equal(t, "AWS-15 first successes that were written", first, statusBudget)
	if rest < 800 || rest > 1200 { // a thousand on average; four deviations are 120
		t.Errorf("AWS-15 %d of about 16,000 further ones were written, want about a thousand", rest)
	}
	if !written("retried", true, at) {
		t.Error("the success of a retry was not written")
	}
	s.seen.Put("default#failing", seenStatus{written: at, failing: true})
	if !written("failing", false, at) {
		t.Error("the success after a failure was not written")
	}
	if written("failing", false, at.Add(time.Second)) {
		t.Error("a status was written twice in a minute")
	}
	if !written("quiet", false, at.Add(time.Minute)) {
		t.Error("the next minute has no budget of its own")
	}
}
