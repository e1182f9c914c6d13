package standalone

import (
	"math"
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"time"
)

const (
	// minReserve and maxReserve limit the reserve, in bytes. The reserve is how much the process may allocate between two garbage
	// collections. It matters while the live heap is small, because Go would then collect garbage after every few megabytes.
	minReserve, maxReserve = 16 << 20, 64 << 20
	// betweenGCs is the intended time between two garbage collections. A collection slows down requests for about 10 ms. With one collection
	// every 2 s, it slows down 0.5% of all requests, so the 99th percentile of response times hardly changes.
	betweenGCs = 2 * time.Second
	// quietAfter is how long a server must be quiet before it returns unused memory to the system. The time counts from the last garbage
	// collection while the server was busy.
	quietAfter = 3 * betweenGCs
	// maxPercent is the largest value for GOGC. It applies if the live heap is almost empty.
	maxPercent = 800
)

// CollectLessOften makes the garbage collector run less often. The collector runs when the heap has grown by a reserve or by a quarter,
// whichever is more. The reserve is the amount of memory that the process allocates in two seconds, but at least 16 and at most 64 MiB.
// So a busy server collects garbage about every two seconds.
//
// A server that becomes quiet returns memory to the system, because the Go runtime would otherwise keep most of it for minutes.
// CollectLessOften does nothing if the operator has set GOGC or GOMEMLIMIT. It changes the whole process, so call it only in programs
// whose main task is the server.
func CollectLessOften() {
	if os.Getenv("GOGC") == "" && os.Getenv("GOMEMLIMIT") == "" {
		collectLessOften(quietAfter, debug.FreeOSMemory)
	}
}

func collectLessOften(quietAfter time.Duration, returnMemory func()) {
	quiet := time.AfterFunc(quietAfter, returnMemory)
	quiet.Stop()
	set, allocated, last := 0, uint64(0), time.Now()
	var after func()
	after = func() {
		now := []metrics.Sample{{Name: "/gc/heap/live:bytes"}, {Name: "/gc/heap/allocs:bytes"}}
		metrics.Read(now)
		live, total := now[0].Value.Uint64(), now[1].Value.Uint64()
		reserve := reserveFor(total-allocated, time.Since(last))
		if reserve > minReserve {
			quiet.Reset(quietAfter)
		}
		if percent := gcPercent(live, reserve); percent != set {
			debug.SetGCPercent(percent)
			set = percent
		}
		allocated, last = total, time.Now()
		cycle := new(*byte) // the next collection frees this object, and then the runtime calls after()
		runtime.AddCleanup(cycle, func(func()) { after() }, after)
	}
	after()
}

// reserveFor returns the reserve: how many bytes the process may allocate until the next garbage collection. This is as much as it
// allocates in betweenGCs at the current rate, within minReserve and maxReserve. The parameter allocated is how many bytes were allocated
// since the last collection, and since is the time since then.
func reserveFor(allocated uint64, since time.Duration) float64 {
	return min(max(float64(allocated)*float64(betweenGCs)/float64(max(since, time.Millisecond)), minReserve), maxReserve)
}

// gcPercent returns the value for GOGC with which the heap may grow by the parameter reserve before the next garbage collection. The
// parameter live is the number of bytes in the heap that are in use.
func gcPercent(live uint64, reserve float64) int {
	percent := int(min(math.Ceil(100*reserve/float64(max(live, 1))), maxPercent))
	return max(percent/25*25, 25) // in steps of 25, because each change stops the world
}
