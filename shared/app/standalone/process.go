package standalone

import (
	"context"
	"encoding/json"
	"math"
	"net"
	"net/http"
	"net/http/pprof"
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"time"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/conversation"
	"github.com/mcp-events/mcpevents/shared/gateway"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
)

// debugConnections is the maximum number of connections to the address for debugging.
const debugConnections = 16

// ServeDebug serves net/http/pprof and [Server.Counters] at a separate address until ctx ends, and returns immediately. The address
// must be a loopback address, because callers are not authenticated. Requests of web pages, and for other host names, are refused.
// The function started returns the server, or nil while it starts.
func ServeDebug(ctx context.Context, addr string, started func() *Server) error {
	if err := auth.CheckListen(addr, auth.ModeNone); err != nil {
		return fault.Wrap(fault.Invalid, err, "--debug-addr")
	}
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", addr)
	if err != nil {
		return fault.Wrap(fault.Unavailable, err, "listen for debugging")
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /debug/pprof/", pprof.Index)
	mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	mux.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("GET /debug/vars", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		counters := map[string]any{} // empty while the server starts
		if s := started(); s != nil {
			counters = s.Counters()
		}
		_ = json.NewEncoder(w).Encode(counters) // fails if the client has disconnected
	})
	guard := auth.NewGuard(nil, nil, nil)
	guarded := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := guard.Check(r); err != nil {
			http.Error(w, fault.Public(err), http.StatusForbidden)
			return
		}
		mux.ServeHTTP(w, r)
	})
	s := &http.Server{Handler: boundBodies(guarded, bodyTime), ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 32 << 10}
	limited := limitConnections(l, debugConnections)
	limited.attach(s)
	context.AfterFunc(ctx, func() { _ = s.Close() })
	go func() { _ = s.Serve(limited) }()
	return nil
}

// Counters returns internal counters since the start, for debugging.
func (s *Server) Counters() map[string]any {
	return map[string]any{
		"database":                 s.db.Engine().Stats(),
		gateway.MetricDropped:      s.backends.Dropped(),
		conversation.MetricMissing: s.conversation.Counts(),
	}
}

const (
	// minReserve and maxReserve limit how much may be allocated between two garbage collections while the live heap is small.
	// A server's live heap is small, so by default Go would collect garbage after every few megabytes.
	minReserve, maxReserve = 16 << 20, 64 << 20
	// betweenGCs is the time between two collections that the reserve aims at. A collection slows down the requests of about ten
	// milliseconds, which must be less than a hundredth of all requests.
	betweenGCs = 2 * time.Second
	// maxPercent limits GOGC if the live heap is almost empty.
	maxPercent = 800
)

// CollectLessOften makes the garbage collector run when the heap has grown by a reserve or by a quarter, whichever is later. The
// reserve is what the process allocates in two seconds, so a busy server collects about every two seconds and a quiet one stays small.
// CollectLessOften does nothing if the operator has set GOGC or GOMEMLIMIT. It changes the whole process, so it is for programs
// whose main task is the server.
func CollectLessOften() {
	if os.Getenv("GOGC") != "" || os.Getenv("GOMEMLIMIT") != "" {
		return
	}
	set, allocated, last := 0, uint64(0), time.Now()
	var after func()
	after = func() {
		now := []metrics.Sample{{Name: "/gc/heap/live:bytes"}, {Name: "/gc/heap/allocs:bytes"}}
		metrics.Read(now)
		live, total := now[0].Value.Uint64(), now[1].Value.Uint64()
		if percent := gcPercent(live, reserveFor(total-allocated, time.Since(last))); percent != set {
			debug.SetGCPercent(percent)
			set = percent
		}
		allocated, last = total, time.Now()
		cycle := new(*byte) // collected by the next cycle
		runtime.AddCleanup(cycle, func(func()) { after() }, after)
	}
	after()
}

// reserveFor returns how much may be allocated before the next collection if allocated bytes were allocated in the time since the
// last one.
func reserveFor(allocated uint64, since time.Duration) float64 {
	return min(max(float64(allocated)*float64(betweenGCs)/float64(max(since, time.Millisecond)), minReserve), maxReserve)
}

// gcPercent returns the value of GOGC for a live heap and a reserve.
func gcPercent(live uint64, reserve float64) int {
	percent := int(min(math.Ceil(100*reserve/float64(max(live, 1))), maxPercent))
	return max(percent/25*25, 25) // in steps: setting it stops the world
}
