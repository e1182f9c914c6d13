package sqlite

import (
	"context"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/mcp-events/mcpevents/shared/storage/store"
)

// cpu reports the process's CPU time per operation, which says more than the
// wall clock on a machine that is shared and waits for its disk.
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

func benchDB(b *testing.B) *DB {
	return open(b, filepath.Join(b.TempDir(), "events.db"), Options{})
}

var body = make([]byte, 500)

// record looks like a delivery record: one partition per subscription, in the order of time.
func record(i int64) store.Op {
	return store.Put(store.Item{
		Key: store.Key{
			Table: store.Deliveries, Partition: fmt.Sprintf("r#%016x", rand.IntN(1000)*7919), Sort: fmt.Sprintf("%016d", i),
		},
		Value: body,
	})
}

// BenchmarkPut measures durable puts, with one writer and with 64 concurrent writers that share commits.
func BenchmarkPut(b *testing.B) {
	b.Run("1_writer", func(b *testing.B) {
		db := benchDB(b)
		b.ReportAllocs()
		defer cpu(b)()
		b.ResetTimer()
		for i := range b.N {
			if err := db.Write(context.Background(), record(int64(i))); err != nil {
				b.Fatal(err)
			}
		}
	})
	for name, op := range map[string]func(i int64) store.Op{
		"scattered": record,
		"log": func(int64) store.Op {
			return store.Put(store.Item{Key: store.Key{Table: store.Log, Partition: "u#default#event://ci/build", Sort: store.AtCommit}, Value: body})
		},
		"same_item": func(i int64) store.Op {
			return store.Put(store.Item{Key: store.Key{Table: store.Sessions, Partition: "p", Sort: "s"}, Value: body, Version: i})
		},
		"count": func(int64) store.Op {
			return store.Add(store.Key{Table: store.Subscriptions, Partition: "p", Sort: "s"}, map[string]int64{"n": 1}, nil)
		},
	} {
		b.Run("64_writers/"+name, func(b *testing.B) {
			db := benchDB(b)
			var n atomic.Int64
			b.SetParallelism(32)
			b.ReportAllocs()
			defer cpu(b)()
			b.ResetTimer()
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					if err := db.Write(context.Background(), op(n.Add(1))); err != nil {
						b.Error(err)
					}
				}
			})
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "puts/s")
		})
	}
}

// BenchmarkWriteAll puts 25 records per call, like a page of deliveries. One operation is one record.
func BenchmarkWriteAll(b *testing.B) {
	db := benchDB(b)
	var n atomic.Int64
	b.SetParallelism(8)
	defer cpu(b)()
	b.ResetTimer()
	b.RunParallel(func(pb *testing.PB) {
		ops := make([]store.Op, 0, 25)
		flush := func() {
			if err := db.WriteAll(context.Background(), ops...); err != nil {
				b.Error(err)
			}
			ops = ops[:0]
		}
		for pb.Next() {
			if ops = append(ops, record(n.Add(1))); len(ops) == cap(ops) {
				flush()
			}
		}
		flush()
	})
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "puts/s")
}

func BenchmarkRead(b *testing.B) {
	db := benchDB(b)
	var ops []store.Op
	for i := range 10_000 {
		ops = append(ops, store.Put(store.Item{
			Key:   store.Key{Table: store.Subscriptions, Partition: "e#" + strconv.Itoa(i/25), Sort: fmt.Sprintf("%032x", i)},
			Value: body, Counts: map[string]int64{"n": 25},
		}))
	}
	if err := db.WriteAll(context.Background(), ops...); err != nil {
		b.Fatal(err)
	}
	for _, load := range []string{"quiet", "while_writing"} {
		b.Run(load, func(b *testing.B) {
			if load != "quiet" {
				ctx, cancel := context.WithCancel(context.Background())
				done := make(chan struct{})
				go func() {
					defer close(done)
					for i := int64(0); ctx.Err() == nil; i++ {
						_ = db.Write(context.Background(), record(i))
					}
				}()
				defer func() { cancel(); <-done }()
			}
			b.Run("get_1", func(b *testing.B) {
				b.ReportAllocs()
				for range b.N {
					if items, err := db.Get(context.Background(), ops[rand.IntN(len(ops))].Item.Key); err != nil || items[0] == nil {
						b.Fatal(err)
					}
				}
			})
			b.Run("get_4", func(b *testing.B) {
				b.ReportAllocs()
				for range b.N {
					k := rand.IntN(len(ops) - 4)
					if items, err := db.Get(context.Background(), ops[k].Item.Key, ops[k+1].Item.Key, ops[k+2].Item.Key, ops[k+3].Item.Key); err != nil || items[0] == nil {
						b.Fatal(err)
					}
				}
			})
			b.Run("query_25", func(b *testing.B) {
				b.ReportAllocs()
				for range b.N {
					page, err := db.Query(context.Background(), store.Query{Table: store.Subscriptions, Partition: "e#" + strconv.Itoa(rand.IntN(len(ops)/25)), Limit: 25})
					if err != nil || len(page.Items) != 25 {
						b.Fatal(len(page.Items), err)
					}
				}
			})
		})
	}
}
