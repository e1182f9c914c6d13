package mcp

import (
	"bytes"
	"context"
	"net/http"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/shared/protocol/spec"
)

// counter is a response that counts the events written to it.
type counter struct {
	header http.Header
	events *atomic.Int64
}

func (c *counter) Header() http.Header { return c.header }
func (c *counter) WriteHeader(int)     {}
func (c *counter) Write(b []byte) (int, error) {
	c.events.Add(int64(bytes.Count(b, []byte("data: "))))
	return len(b), nil
}

// BenchmarkOpenStreams holds 10,000 listens to one URI and sends one event to
// all: the memory of each without its connection, and the time until the last was written
// (goal, with the connection: 40 KiB and 500 ms).
func BenchmarkOpenStreams(b *testing.B) {
	const streams = 10_000
	f := newEndpoint(b, func(o *Options) { o.Auth = static{principalOfBench} })
	memory := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapInuse + m.StackInuse
	}
	before := memory()
	var events atomic.Int64
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	body := statelessBody("1", spec.MethodListen, `"notifications":{"resourceSubscriptions":["event://ci/deploy"]}`)
	for range streams {
		req := f.request("POST", alice, body, statelessHeaders(spec.MethodListen, "")...).WithContext(ctx)
		wg.Go(func() { f.endpoint.ServeHTTP(&counter{http.Header{}, &events}, req) })
	}
	reach := func(n int64) {
		for deadline := time.Now().Add(time.Minute); events.Load() < n; {
			if time.Now().After(deadline) {
				b.Fatalf("%d of %d", events.Load(), n)
			}
			time.Sleep(100 * time.Microsecond)
		}
	}
	reach(streams)
	each := float64(memory()-before) / streams
	n := int64(streams)
	for b.Loop() {
		f.publish("event://ci/deploy", `{"n":1}`)
		n += streams
		reach(n)
	}
	b.ReportMetric(each, "B/stream")
	cancel()
	wg.Wait()
}
