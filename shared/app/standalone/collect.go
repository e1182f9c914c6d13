package standalone

import (
	"math"
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
)

const (
	// heapReserve is how much may be allocated between two garbage collections however little is
	// live. The server's live heap is small, and would be collected for every few megabytes.
	heapReserve = 64 << 20
	// maxPercent bounds what the reserve comes to where next to nothing is live.
	maxPercent = 800
)

// CollectLessOften has the garbage collector run when the heap has grown by [heapReserve] or has
// doubled, whichever is later, unless the operator has set GOGC or GOMEMLIMIT. It is for a program that
// is a server and little else.
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

// gcPercent is the value of GOGC for a live heap of so many bytes.
func gcPercent(live uint64) int {
	percent := int(min(math.Ceil(100*heapReserve/float64(max(live, 1))), maxPercent))
	return max(percent/50*50, 100) // in steps: setting it stops the world
}
