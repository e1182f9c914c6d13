package boot

import (
	"fmt"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/test/expect"
)

func TestGivenTheTimeOfAnInvocationWhenItHandlesABatchThenItLeavesTimeToReport(t *testing.T) {
	now := time.Now()
	for limit, want := range map[time.Duration]time.Duration{
		20 * time.Second:        18 * time.Second,
		3 * time.Second:         2 * time.Second,
		1500 * time.Millisecond: time.Second,
	} {
		expect.Equal(t, fmt.Sprintf("the time of a batch in an invocation of %v", limit), batchDeadline(now, now.Add(limit)).Sub(now), want)
	}
}
