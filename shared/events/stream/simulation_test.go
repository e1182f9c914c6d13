//go:build !race

package stream_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mcp-events/mcpevents/shared/events/event"
	eventlog "github.com/mcp-events/mcpevents/shared/events/log"
	"github.com/mcp-events/mcpevents/shared/events/match"
	"github.com/mcp-events/mcpevents/shared/events/stream"
	"github.com/mcp-events/mcpevents/shared/storage/store"
)

// world is one run of the simulation.
type world struct {
	writerSkew func(i int) time.Duration
	readerSkew func(i int) time.Duration
	delay      func(partition string) time.Duration
	writers    int
	readers    int
	length     time.Duration
}

type outcome struct {
	published, skipped, repeated, resumes int
	slow, skewed, late                    int64
}

// run publishes events under one URI (its own partition, with one writer at a time, which sometimes changes) and under a parent
// (several writers). Readers follow both, break off, and resume at another instance with another clock.
func (w world) run(t *testing.T) outcome {
	t.Helper()
	var res outcome
	synctest.Test(t, func(t *testing.T) {
		db := &memory{items: map[string][]store.Item{}, delay: w.delay}
		sealer := sealer(t)
		clock := func(skew time.Duration) func() time.Time {
			return func() time.Time { return time.Now().Add(skew) }
		}
		ctx, stop := context.WithCancel(t.Context())
		defer stop()

		var logs []*eventlog.Log
		var tails []*stream.Tails
		for i := range max(w.writers, w.readers) {
			l := &eventlog.Log{DB: db, Now: clock(w.readerSkew(i))}
			logs = append(logs, l)
			tails = append(tails, stream.New(l, db, sealer))
		}

		var mu sync.Mutex
		published := map[string]bool{}
		got := make([]map[string]int, w.readers)

		var opened, readers sync.WaitGroup
		readCtx, stopReaders := context.WithCancel(ctx)
		for r := range w.readers {
			got[r] = map[string]int{}
			opened.Add(1)
			readers.Go(func() {
				cursor, first := "", true
				for inst := r; ; inst++ {
					f, err := tails[inst%len(tails)].Open(readCtx, stream.Request{
						Workspace: "default", Patterns: []match.Pattern{ownPattern, parentPattern}, Cursor: cursor,
					})
					if first {
						opened.Done()
						first = false
					}
					if err != nil {
						return
					}
					if f.Truncated {
						t.Errorf("reader %d was notified of a gap although nothing had expired", r)
					}
					life, end := context.WithTimeout(readCtx, time.Duration(1+rand.IntN(9))*time.Second)
					for {
						d, err := await(life, f)
						if err != nil {
							break
						}
						mu.Lock()
						got[r][d.Event.ID]++
						mu.Unlock()
						cursor = d.Cursor
					}
					end()
					f.Close()
					if readCtx.Err() != nil {
						return
					}
					mu.Lock()
					res.resumes++
					mu.Unlock()
				}
			})
		}
		opened.Wait()

		writerLogs := make([]*eventlog.Log, w.writers)
		for i := range writerLogs {
			writerLogs[i] = &eventlog.Log{DB: db, Now: clock(w.writerSkew(i))}
		}
		end := time.Now().Add(w.length)
		var writers sync.WaitGroup
		publish := func(id string) {
			mu.Lock()
			published[id] = true
			mu.Unlock()
		}
		writers.Go(func() { // the own partition: one writer at a time, now this, now that instance
			for n := 0; time.Now().Before(end); n++ {
				e := occurrence(fmt.Sprintf("own-%d", n), ownPattern.Key)
				l := writerLogs[n/7%w.writers]
				if _, err := l.Append(ctx, "default", ownPattern.Key, []event.Event{e}, nil); err != nil {
					t.Error(err)
				}
				if n%11 == 0 { // died before it said so; the batch comes again elsewhere
					if _, err := writerLogs[(n+1)%w.writers].Append(ctx, "default", ownPattern.Key, []event.Event{e}, nil); err != nil {
						t.Error(err)
					}
				}
				publish(e.ID)
				time.Sleep(time.Duration(rand.IntN(400)) * time.Millisecond)
			}
		})
		for i := range w.writers {
			writers.Go(func() {
				for n := 0; time.Now().Before(end); n++ {
					e := occurrence(fmt.Sprintf("w%d-%d", i, n), "event://sim/p/x")
					if err := writerLogs[i].AppendPatterns(ctx, eventlog.Appended{}, []event.Event{e}, []string{parentPattern.Key}, false); err != nil {
						t.Error(err)
					}
					publish(e.ID)
					time.Sleep(time.Duration(rand.IntN(300)) * time.Millisecond)
				}
			})
		}
		writers.Wait()
		time.Sleep(4 * eventlog.Window) // everybody reads on
		stopReaders()
		readers.Wait()
		for _, ts := range tails {
			ts.Close()
		}
		res.published = len(published)
		for r := range got {
			for id := range published {
				switch n := got[r][id]; {
				case n == 0:
					res.skipped++
				case n > 1:
					res.repeated += n - 1
				}
			}
		}
		for _, l := range append(logs, writerLogs...) {
			res.slow += l.Slow.Load()
			res.skewed += l.Skewed.Load()
			res.late += l.Late.Load()
		}
	})
	return res
}

func alternate(d time.Duration) func(int) time.Duration {
	return func(i int) time.Duration {
		if i%2 == 0 {
			return d
		}
		return -d
	}
}

func TestLogSkipsNothingWithinItsBounds(t *testing.T) {
	for _, tc := range []struct {
		name  string
		world world
	}{
		{"SUB-08 SES-03 clocks a second apart either way, quick appends", world{
			writerSkew: alternate(eventlog.MaxSkew), readerSkew: alternate(-eventlog.MaxSkew),
			delay: func(string) time.Duration { return upTo(20 * time.Millisecond) },
		}},
		{"SUB-08 SES-03 appends up to the bound, some beyond, which are appended again", world{
			writerSkew: alternate(-eventlog.MaxSkew), readerSkew: alternate(eventlog.MaxSkew),
			delay: func(p string) time.Duration {
				switch rand.IntN(20) {
				case 0:
					return 1900 * time.Millisecond
				case 1:
					return 3500 * time.Millisecond
				}
				return upTo(50 * time.Millisecond)
			},
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := tc.world
			w.writers, w.readers, w.length = 4, 4, time.Minute
			got := w.run(t)
			t.Logf("%+v", got)
			if got.published < 400 || got.resumes < 15 {
				t.Fatalf("the simulation did too little: %+v", got)
			}
			if got.skipped != 0 {
				t.Errorf("%d events were skipped", got.skipped)
			}
			if got.skewed != 0 || got.late != 0 && got.slow == 0 {
				t.Errorf("a metric reacted within the bounds: %+v", got)
			}
		})
	}
}

func TestLogMetricsReactOutsideOfTheBounds(t *testing.T) {
	quick := func(string) time.Duration { return upTo(20 * time.Millisecond) }
	for name, tc := range map[string]struct {
		writerSkew func(int) time.Duration
		delay      func(string) time.Duration
		reacted    func(outcome) int64
	}{
		"a writer's clock runs far ahead": {func(i int) time.Duration { return time.Duration(i/3) * 8 * time.Second }, quick, func(o outcome) int64 { return o.skewed }},
		"a writer's clock runs behind by more than the bounds": {
			func(i int) time.Duration { return -time.Duration(i/3) * 4900 * time.Millisecond }, quick, func(o outcome) int64 { return o.late },
		},
		"appends take long": {alternate(0), func(string) time.Duration { return upTo(3 * time.Second) }, func(o outcome) int64 { return o.slow }},
	} {
		t.Run(name, func(t *testing.T) {
			w := world{writers: 4, readers: 4, length: 15 * time.Second, delay: tc.delay, readerSkew: alternate(0), writerSkew: tc.writerSkew}
			got := w.run(t)
			t.Logf("%+v", got)
			if tc.reacted(got) == 0 {
				t.Error("no metric reacted")
			}
		})
	}
}
