package boot

import (
	"testing"
	"time"
)

func TestGivenTheTimeOfAnInvocationWhenItHandlesABatchThenItLeavesTimeToReport(t *testing.T) {
	now := time.Now()
	for limit, want := range map[time.Duration]time.Duration{
		20 * time.Second:        18 * time.Second,
		3 * time.Second:         2 * time.Second,
		1500 * time.Millisecond: time.Second,
	} {
		if got := batchDeadline(now, now.Add(limit)).Sub(now); got != want {
			t.Errorf("a batch has %v of an invocation of %v, want %v", got, limit, want)
		}
	}
}
