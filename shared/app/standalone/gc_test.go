package standalone

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/test/expect"
)

func TestTheHeapMayGrowByTheReserveOrAQuarter(t *testing.T) {
	for live, want := range map[uint64]int{
		0: maxPercent, 1 << 20: maxPercent, 16 << 20: 400, 32 << 20: 200, 64 << 20: 100, 128 << 20: 50, 4 << 30: 25,
	} {
		expect.Equal(t, fmt.Sprintf("the percent with %d MiB live", live>>20), gcPercent(live, 64<<20), want)
	}
	for _, tt := range []struct {
		allocated uint64
		since     time.Duration
		want      float64
	}{
		{1 << 20, time.Minute, minReserve},
		{40 << 20, 2 * time.Second, 40 << 20},
		{4 << 20, 250 * time.Millisecond, 32 << 20},
		{64 << 20, 100 * time.Millisecond, maxReserve},
		{1 << 20, 0, maxReserve},
	} {
		expect.Equal(t, fmt.Sprintf("the reserve after %d MiB in %v", tt.allocated>>20, tt.since), reserveFor(tt.allocated, tt.since), tt.want)
	}
}

func TestABusyProcessReturnsItsMemoryWhenItBecomesQuiet(t *testing.T) {
	t.Parallel()
	before := debug.SetGCPercent(100)
	t.Cleanup(func() { debug.SetGCPercent(before) })
	returned := make(chan bool, 1)
	collectLessOften(10*time.Millisecond, func() {
		select {
		case returned <- true:
		default:
		}
	})
	garbage := make([][]byte, 64)
	deadline := time.After(time.Minute)
	for {
		for i := range garbage {
			garbage[i] = make([]byte, 1<<20)
		}
		runtime.GC()
		select {
		case <-returned:
			return
		case <-deadline:
			t.Fatal("the memory was not returned within a minute")
		case <-time.After(50 * time.Millisecond):
		}
	}
}
