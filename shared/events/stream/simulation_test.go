//go:build !race

package stream_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mcp-events/mcpevents/shared/events/event"
	eventlog "github.com/mcp-events/mcpevents/shared/events/log"
	"github.com/mcp-events/mcpevents/shared/events/match"
	"github.com/mcp-events/mcpevents/shared/events/stream"
	"github.com/mcp-events/mcpevents/shared/storage/store"
	"github.com/mcp-events/mcpevents/shared/storage/store/storetest"
	"github.com/mcp-events/mcpevents/test/expect"
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
		db := dynamo{storetest.Unordered{DB: embedded(t)}, w.delay}
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
					expect.True(t, fmt.Sprintf("the reader %d has no gap, because nothing had expired", r), !f.Truncated)
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
	t.Parallel()
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
			expect.Equal(t, "skipped events", got.skipped, 0)
			if got.skewed != 0 || got.late != 0 && got.slow == 0 {
				t.Errorf("a metric reacted within the bounds: %+v", got)
			}
		})
	}
}

func TestLogMetricsReactOutsideOfTheBounds(t *testing.T) {
	t.Parallel()
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
			expect.AtLeast(t, "the metric", tc.reacted(got), 1)
		})
	}
}

// pollers is one run of concurrent publishers and of clients that poll with pages of any size at any instance, and sometimes open a
// stream with the same cursor.
type pollers struct {
	newDB   func(t *testing.T) store.DB
	skew    time.Duration // of the instances' clocks, either way
	pattern match.Pattern
	burst   int // the number of events that are sometimes published together
	streams bool
	length  time.Duration
}

type polledAll struct{ published, skipped, repeated, polls, full, streams int }

func (p pollers) run(t *testing.T) (res polledAll) {
	t.Helper()
	const instances, clients = 3, 4
	sealer := sealer(t)
	synctest.Test(t, func(t *testing.T) {
		db := p.newDB(t)
		var tails []*stream.Tails
		var logs []*eventlog.Log
		for i := range instances {
			skew := alternate(p.skew)(i)
			l := &eventlog.Log{DB: db, Now: func() time.Time { return time.Now().Add(skew) }}
			logs = append(logs, l)
			ts := stream.New(l, db, sealer)
			defer ts.Close()
			tails = append(tails, ts)
		}
		var mu sync.Mutex
		published := map[string]bool{}
		got := make([]map[string]int, clients)
		finished := make(chan struct{})

		var begun, reading sync.WaitGroup
		for c := range clients {
			got[c] = map[string]int{}
			begun.Add(1)
			reading.Go(func() {
				cursor, idle := "", 0
				for n := 0; idle < 3; n++ {
					ts := tails[rand.IntN(instances)]
					if n > 0 && p.streams && rand.IntN(4) == 0 {
						cursor = p.follow(t, ts, cursor, got[c])
						mu.Lock()
						res.streams++
						mu.Unlock()
						continue
					}
					page, err := ts.Poll(t.Context(), stream.PollRequest{
						Workspace: "default", Pattern: p.pattern, Cursor: cursor, Most: 1 + rand.IntN(40), Bytes: 1 << 20,
					})
					if err != nil || page.Truncated {
						t.Errorf("client %d: %v, %+v", c, err, page)
						break
					}
					if n == 0 {
						begun.Done()
					}
					for _, e := range page.Events {
						got[c][e.ID]++
					}
					cursor = page.Cursor
					mu.Lock()
					res.polls++
					if page.More {
						res.full++
					}
					mu.Unlock()
					if page.More {
						continue
					}
					time.Sleep(time.Duration(rand.IntN(1500)) * time.Millisecond)
					select {
					case <-finished:
						if idle++; idle == 1 {
							time.Sleep(2 * eventlog.Window)
						} else if len(page.Events) > 0 {
							idle = 1
						}
					default:
					}
				}
			})
		}
		begun.Wait()
		var writing sync.WaitGroup
		end := time.Now().Add(p.length)
		for i := range instances {
			if p.pattern.Kind == match.Concrete && !p.pattern.Unordered && i > 0 {
				break // it has one writer at a time
			}
			writing.Go(func() {
				for n := 0; time.Now().Before(end); n++ {
					many := 1
					if p.burst > 0 && n%20 == 10 {
						many = p.burst
					}
					var events []event.Event
					for k := range many {
						e := occurrence(fmt.Sprintf("%d-%d-%d", i, n, k), fmt.Sprintf("event://sim/%d", rand.IntN(30)))
						if p.pattern.Kind == match.Concrete {
							e.URI = p.pattern.Key
						}
						events = append(events, e)
					}
					if err := p.write(t.Context(), logs[i], events); err != nil {
						t.Error(err)
					}
					mu.Lock()
					for _, e := range events {
						published[e.ID] = true
					}
					mu.Unlock()
					time.Sleep(time.Duration(rand.IntN(400)) * time.Millisecond)
				}
			})
		}
		writing.Wait()
		close(finished)
		reading.Wait()
		res.published = len(published)
		for c := range got {
			for id := range published {
				switch n := got[c][id]; {
				case n == 0:
					res.skipped++
				default:
					res.repeated += n - 1
				}
			}
		}
	})
	return res
}

func (p pollers) write(ctx context.Context, l *eventlog.Log, events []event.Event) error {
	if p.pattern.Unordered {
		_, err := l.AppendUnordered(ctx, "default", p.pattern.Key, events, nil)
		return err
	}
	if p.pattern.Kind == match.Concrete {
		_, err := l.Append(ctx, "default", p.pattern.Key, events, nil)
		return err
	}
	for _, e := range events {
		if err := l.AppendPatterns(ctx, eventlog.Appended{}, []event.Event{e}, []string{p.pattern.Key}, false); err != nil {
			return err
		}
	}
	return nil
}

// follow reads a stream for a moment and returns where it left off: behind its last
// event, or where the heartbeat is.
func (p pollers) follow(t *testing.T, ts *stream.Tails, cursor string, got map[string]int) string {
	f, err := ts.Open(t.Context(), stream.Request{
		Workspace: "default", Patterns: []match.Pattern{p.pattern}, Topics: []string{stream.TopicCatalog}, Cursor: cursor, Sole: true,
	})
	if err != nil {
		t.Error(err)
		return cursor
	}
	defer f.Close()
	life, end := context.WithTimeout(t.Context(), time.Duration(rand.IntN(3000))*time.Millisecond)
	defer end()
	for {
		d, err := await(life, f)
		if err != nil {
			break
		}
		got[d.Event.ID]++
		cursor = d.Cursor
	}
	if rand.IntN(2) == 0 {
		return f.Cursor()
	}
	return cursor
}

func TestPollsSkipNothing(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name string
		pollers
		repeats bool // may occur
	}{
		{"EVX-05 EVX-07 a URI, SQLite", pollers{newDB: embedded, pattern: ownPattern, burst: 100}, false},
		{"EVX-05 EVX-07 a wildcard, SQLite", pollers{newDB: embedded, pattern: openPattern, burst: 100}, false},
		{"EVX-05 EVX-07 a URI, stamped by writers", pollers{newDB: slowest(20 * time.Millisecond), pattern: ownPattern, burst: 100, skew: eventlog.MaxSkew}, false},
		{"EVX-05 EVX-07 a wildcard, stamped by writers", pollers{newDB: slowest(20 * time.Millisecond), pattern: openPattern, burst: 40, skew: eventlog.MaxSkew}, false},
		{"EVX-05 EVX-07 a wildcard, slow appends", pollers{newDB: slowest(1900 * time.Millisecond), pattern: openPattern, skew: eventlog.MaxSkew}, false},
		{"an unordered URI, SQLite", pollers{newDB: embedded, pattern: unorderedPattern, burst: 100}, false},
		{"an unordered URI, stamped by writers", pollers{newDB: slowest(20 * time.Millisecond), pattern: unorderedPattern, burst: 40, skew: eventlog.MaxSkew}, false},
		{"an unordered URI, slow appends", pollers{newDB: slowest(1900 * time.Millisecond), pattern: unorderedPattern, skew: eventlog.MaxSkew}, false},
		{"an unordered URI, polls and streams, stamped by writers", pollers{newDB: slowest(50 * time.Millisecond), pattern: unorderedPattern, burst: 40, streams: true, skew: eventlog.MaxSkew}, true},
		{"EVX-07 a URI, polls and streams, SQLite", pollers{newDB: embedded, pattern: ownPattern, burst: 100, streams: true}, false},
		{"EVX-07 a wildcard, polls and streams, SQLite", pollers{newDB: embedded, pattern: openPattern, burst: 100, streams: true}, false},
		{"EVX-07 a wildcard, polls and streams, stamped by writers", pollers{newDB: slowest(50 * time.Millisecond), pattern: openPattern, burst: 40, streams: true, skew: eventlog.MaxSkew}, true},
		{"EVX-07 a URI, polls and streams, stamped by writers", pollers{newDB: slowest(50 * time.Millisecond), pattern: ownPattern, streams: true, skew: eventlog.MaxSkew}, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tc.length = 20 * time.Second
			got := tc.run(t)
			t.Logf("%+v", got)
			if got.published < 30 || got.polls < 50 || got.full == 0 && tc.burst > 0 || tc.streams && got.streams < 10 {
				t.Errorf("the run shows too little: %+v", got)
			}
			expect.Equal(t, "the skipped events", got.skipped, 0)
			if !tc.repeats {
				expect.Equal(t, "the repeated events", got.repeated, 0)
			}
		})
	}
}

// A filter may drop all events that a stream has to catch up on. Its reader must still have regular turns, because it sends
// heartbeats. The cursor must advance, because the client may be cut off.
func TestAFilteredFeedThatIsBehindGivesItsReaderTurns(t *testing.T) {
	t.Parallel()
	for name, open := range bothStores() {
		bubble(t, "EVX-06 "+name, func(t *testing.T) {
			r := over(t, open(t))
			cursor := r.start(ownPattern)
			const total = 10_000
			for i := range total / 100 {
				r.append(occurrences(fmt.Sprint(i), ownPattern.Key, 100))
			}
			time.Sleep(time.Minute)
			request, dropped, most, turns := from(cursor, ownPattern), 0, 0, 0
			request.Wants = func(*event.Event) bool { dropped++; return false }
			for dropped < total && turns < 1000 { // a new stream for each turn, as if it was cut off
				f := r.open(request)
				before := dropped
				if _, ok, err := f.Poll(t.Context()); ok || err != nil {
					t.Fatalf("Poll returned %v and %v, want no delivery", ok, err)
				}
				if most = max(most, dropped-before); dropped < total {
					select {
					case <-f.Ready():
					default:
						t.Fatalf("after %d of %d events Ready does not receive", dropped, total)
					}
				}
				expect.True(t, fmt.Sprintf("the cursor moved after %d of %d events", dropped, total), f.CursorMoved())
				request.Cursor = f.Cursor()
				f.Close()
				turns++
			}
			expect.AtMost(t, "the events that one call of Poll dropped", most, 1000)
			expect.Equal(t, fmt.Sprintf("the events that %d streams dropped", turns), dropped, total)
		})
	}
}

// The log holds what a slow reader has not read, so memory need not.
func TestAFeedEndsWhenItsReaderFallsFarBehind(t *testing.T) {
	t.Parallel()
	for name, open := range bothStores() {
		for kind, payload := range map[string]string{"many events": `{}`, "large events": `"` + strings.Repeat("x", 100_000) + `"`} {
			bubble(t, "EVX-06 "+name+", "+kind, func(t *testing.T) {
				r := over(t, open(t))
				f := r.open(from("", ownPattern))
				defer f.Close()
				_, _, err := f.Poll(t.Context()) // the feed has read its past
				expect.OK(t, err)
				published, taken, bytes := 0, 0, 0
				for published < 30_000 && bytes < 48<<20 {
					batch := occurrences(fmt.Sprint(published), ownPattern.Key, 100)
					if len(payload) > 100 {
						batch = batch[:10]
					}
					for i := range batch {
						batch[i].Data = []byte(payload)
					}
					r.append(batch)
					published, bytes = published+len(batch), bytes+len(batch)*len(payload)
					time.Sleep(300 * time.Millisecond) // the tail reads them
					_, ok, err := f.Poll(t.Context())
					if errors.Is(err, stream.ErrSlow) {
						if published < 10_000 && bytes < 16<<20 {
							t.Errorf("the feed ended after %d events of %d bytes, want 10,000 events or 16 MiB", published, bytes)
						}
						return
					}
					expect.OK(t, err)
					if ok {
						taken++
					}
				}
				t.Errorf("the reader took %d of %d events, and the feed has not ended", taken, published)
			})
		}
	}
}

// While a feed reads its past, its tails bring more than it may keep. A fast reader must not be taken for a slow one,
// and must get every event.
func TestAFastReaderThatCatchesUpIsNotTooSlow(t *testing.T) {
	t.Parallel()
	const past, live = 600, 400
	for name, open := range bothStores() {
		for kind, patterns := range map[string][]match.Pattern{
			"a URI": own(1), "a busy URI and a quiet one": own(2), "a parent": {parentPattern}, "both": append(own(2), parentPattern),
		} {
			bubble(t, "EVX-26 "+name+", "+kind, func(t *testing.T) {
				r := over(t, open(t))
				r.tails.LimitWaiting(40)
				writers := []*eventlog.Log{r.log, r.log}
				if !r.db.Local() {
					for _, skew := range []time.Duration{eventlog.MaxSkew, -eventlog.MaxSkew} {
						writers = append(writers, &eventlog.Log{DB: r.db, Now: func() time.Time { return time.Now().Add(skew) }})
					}
				}
				publish := func(log *eventlog.Log, uri string, n int) {
					e := occurrence(fmt.Sprintf("%s-%d", uri[len(uri)-1:], n), uri)
					expect.OK(t, expect.ErrOf(log.Append(t.Context(), "default", uri, []event.Event{e}, []string{parentPattern.Key})))
				}
				cursor := r.start(patterns...)
				for n := range past {
					publish(r.log, own(1)[0].Key, n)
					time.Sleep(10 * time.Millisecond)
				}
				time.Sleep(time.Minute)
				var writing sync.WaitGroup
				got, want := map[string]bool{}, past
				f := r.open(from(cursor, patterns...))
				defer f.Close()
				for i := range len(writers) { // each URI has one writer
					uri := own(len(writers))[i].Key
					read := slices.ContainsFunc(patterns, func(p match.Pattern) bool {
						return p.Key == uri || p.Key == parentPattern.Key
					})
					if read {
						want += live
					}
					writing.Go(func() {
						for n := range live {
							publish(writers[i], uri, past+n)
							time.Sleep(upTo(40 * time.Millisecond))
						}
					})
				}
				for len(got) < want {
					ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
					d, err := await(ctx, f)
					cancel()
					if err != nil {
						t.Errorf("the feed ended with %v after %d events, want %d", err, len(got), want)
						break
					}
					got[d.Event.ID] = true
					if len(got) < want*2/3 {
						time.Sleep(5 * time.Millisecond) // the way to the client
					}
				}
				writing.Wait()
			})
		}
	}
}
