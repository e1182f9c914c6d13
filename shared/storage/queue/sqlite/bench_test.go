package sqlite

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/shared/storage/queue"
)

// cpu reports the process's CPU time per operation.
func cpu(b *testing.B) func() {
	b.Helper()
	used := func() float64 {
		var r syscall.Rusage
		if err := syscall.Getrusage(syscall.RUSAGE_SELF, &r); err != nil {
			b.Fatal(err)
		}
		return float64(r.Utime.Nano() + r.Stime.Nano())
	}
	start := used()
	return func() { b.ReportMetric((used()-start)/float64(b.N)/1e3, "cpu-µs/op") }
}

func consume(b *testing.B, q *Queues, name queue.Name, opts queue.ConsumeOptions, h queue.Handler) {
	b.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := q.Consume(ctx, name, h, opts); err != nil {
			b.Error(err)
		}
	}()
	b.Cleanup(func() { cancel(); <-done })
}

var body = slices.Repeat([]byte("x"), 600)

// BenchmarkThrough sends messages with 64 senders and handles them, until their rows are deleted, for two queues of the
// pipeline.
func BenchmarkThrough(b *testing.B) {
	for name, message := range map[queue.Name]func(i int64) queue.Outgoing{
		queue.Deliveries: func(int64) queue.Outgoing { return queue.Outgoing{Body: body} },
		queue.Events: func(i int64) queue.Outgoing {
			return queue.Outgoing{Body: body, Group: fmt.Sprintf("g%d", i%100), Dedup: fmt.Sprintf("%x", i)}
		},
	} {
		b.Run(string(name), func(b *testing.B) {
			q := open(b, filepath.Join(b.TempDir(), "events.db"), Options{})
			var sent, handled atomic.Int64
			all := make(chan struct{})
			want := int64(b.N)
			consume(b, q, name, queue.ConsumeOptions{Concurrency: 8}, func(_ context.Context, batch []queue.Message) ([]string, error) {
				if handled.Add(int64(len(batch))) == want {
					close(all)
				}
				return nil, nil
			})
			b.SetParallelism(32)
			b.ReportAllocs()
			defer cpu(b)()
			b.ResetTimer()
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					if err := q.Send(context.Background(), name, message(sent.Add(1))); err != nil {
						b.Error(err)
					}
				}
			})
			<-all
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "messages/s")
		})
	}
}

// BenchmarkTwoHops measures the time from Send on one queue to the handler of another on an idle server. It takes two commits.
func BenchmarkTwoHops(b *testing.B) {
	q := open(b, filepath.Join(b.TempDir(), "events.db"), Options{})
	arrived := make(chan time.Time)
	consume(b, q, queue.Events, queue.ConsumeOptions{Concurrency: 4}, func(ctx context.Context, batch []queue.Message) ([]string, error) {
		return nil, q.Send(ctx, queue.Deliveries, queue.Outgoing{Body: batch[0].Body})
	})
	consume(b, q, queue.Deliveries, queue.ConsumeOptions{Concurrency: 4}, func(context.Context, []queue.Message) ([]string, error) {
		arrived <- time.Now()
		return nil, nil
	})
	times := make([]time.Duration, b.N)
	defer cpu(b)()
	b.ResetTimer()
	for i := range times {
		start := time.Now()
		if err := q.Send(context.Background(), queue.Events, queue.Outgoing{Body: body, Group: "g", Dedup: fmt.Sprint(i)}); err != nil {
			b.Fatal(err)
		}
		times[i] = (<-arrived).Sub(start)
	}
	slices.Sort(times)
	b.ReportMetric(float64(times[len(times)/2].Microseconds()), "p50-µs")
	b.ReportMetric(float64(times[len(times)*99/100].Microseconds()), "p99-µs")
}
