package mcp

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/events/catalog"
	"github.com/mcp-events/mcpevents/shared/events/subscription"
	"github.com/mcp-events/mcpevents/shared/mcp/method"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
	"github.com/mcp-events/mcpevents/test/expect"
)

// sink is a response that only counts the bytes written to it.
type sink struct {
	header http.Header
	n      int
}

func (s *sink) Header() http.Header         { return s.header }
func (s *sink) WriteHeader(int)             {}
func (s *sink) Write(b []byte) (int, error) { s.n += len(b); return len(b), nil }

// static authenticates every caller as the same principal.
type static struct{ p auth.Principal }

func (s static) Authenticate(context.Context, http.Header) (auth.Principal, error) { return s.p, nil }

func benchmarkCatalog(b *testing.B, entries int, access bool) *catalog.Catalog {
	var src strings.Builder
	src.WriteString("events:\n")
	for i := range entries {
		rule := ""
		if access && i%2 == 0 {
			rule = "\n    access: {scopes: [events:read]}"
		}
		fmt.Fprintf(&src, `  - name: service.event_%d
    uri: event://service/event-%d
    title: Event %d
    description: Something happened to thing number %d, which is described in a sentence of usual length.
    payloadSchema: {type: object, required: [id, kind], properties: {id: {type: string}, kind: {enum: [a, b, c]}, at: {type: string, format: date-time}}}%s
`, i, i, i, i, rule)
	}
	return mustParse(b, src.String())
}

type none struct{}

func (none) List(context.Context, auth.Principal, string, int) ([]subscription.View, string, error) {
	return nil, "", nil
}

func (none) Read(context.Context, auth.Principal, string) (*subscription.View, error) {
	return nil, method.NotFound("")
}

// BenchmarkResourcesList measures resources/list in the handler, without the network and the store. The goal is 20 µs and
// 50 allocations.
func BenchmarkResourcesList(b *testing.B) {
	for _, bc := range []struct {
		entries int
		access  bool
	}{{5, false}, {50, false}, {50, true}, {100, false}} {
		for _, revision := range []string{"2026", "2025"} {
			b.Run(fmt.Sprintf("entries=%d/access=%v/%s", bc.entries, bc.access, revision), func(b *testing.B) {
				p := principalOfBench
				o := Options{
					Server: Implementation{Name: "mcp-events", Version: "1"}, Auth: static{p}, Feeds: newEndpoint(b, nil).tails, Subscriptions: none{},
					Catalogs: catalog.NewStatic(benchmarkCatalog(b, bc.entries, bc.access)),
				}
				e := expect.Value(New(o))(b)
				body := []byte(statelessBody("1", spec.MethodResources, ""))
				header := http.Header{"Content-Type": {"application/json"}, "Accept": {"application/json, text/event-stream"}}
				if revision == "2026" {
					header.Set(spec.HeaderVersion, "2026-07-28")
					header.Set(spec.HeaderMethod, spec.MethodResources)
				} else {
					body = []byte(`{"jsonrpc":"2.0","id":1,"method":"resources/list","params":{}}`)
				}
				b.ReportAllocs()
				for b.Loop() {
					r, _ := http.NewRequest("POST", "http://127.0.0.1/mcp", nil)
					r.Header = header
					r.ContentLength = int64(len(body))
					r.Body = io.NopCloser(bytes.NewReader(body))
					w := &sink{header: http.Header{}}
					e.ServeHTTP(w, r)
					if w.n < 500 {
						b.Fatal("a short answer")
					}
				}
			})
		}
	}
}

var principalOfBench = auth.Principal{ID: "alice", Workspace: "default", Scopes: auth.Scopes()}

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

// BenchmarkOpenStreams opens 10,000 listens to one URI and sends one event to all of them. It measures the memory per
// stream without its connection, and the time until the last stream was written. The goal, with the connection, is 40 KiB
// and 500 ms.
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
