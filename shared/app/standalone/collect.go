package standalone

import (
	"math"
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
)

const (
	// heapReserve is how much may be allocated between two garbage collections even if the live heap is small. The server's
	// live heap is small, so by default Go would collect garbage after every few megabytes.
	heapReserve = 64 << 20
	// maxPercent limits GOGC if the live heap is almost empty.
	maxPercent = 800
)

// CollectLessOften makes the garbage collector run when the heap has grown by [heapReserve] or has doubled, whichever is later. It
// does nothing if the operator has set GOGC or GOMEMLIMIT. It changes the whole process, so it is for programs whose main task is
// the server.
func CollectLessOften() {
	if os.Getenv("GOGC") != "" || os.Getenv("GOMEMLIMIT") != "" {
		return
	}
	set := 0
	var after func()
	after = func() {
		live := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
		metrics.Read(live)
		if percent := gcPercent(live[0].Value.Uint64()); percent != set {
			debug.SetGCPercent(percent)
			set = percent
		}
		cycle := new(*byte) // collected by the next cycle
		runtime.AddCleanup(cycle, func(func()) { after() }, after)
	}
	after()
}

// gcPercent returns the value of GOGC for a live heap of the given size.
func gcPercent(live uint64) int {
	percent := int(min(math.Ceil(100*heapReserve/float64(max(live, 1))), maxPercent))
	return max(percent/50*50, 100) // in steps: setting it stops the world
}
