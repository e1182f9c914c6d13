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
			if got.skipped > 0 {
				t.Errorf("%d events were skipped", got.skipped)
			}
			if got.repeated > 0 && !tc.repeats {
				t.Errorf("%d events were repeated", got.repeated)
			}
		})
	}
}
