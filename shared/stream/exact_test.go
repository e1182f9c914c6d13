package stream_test

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mcp-events/mcpevents/shared/event"
	"github.com/mcp-events/mcpevents/shared/eventlog"
	"github.com/mcp-events/mcpevents/shared/store"
	"github.com/mcp-events/mcpevents/shared/store/sqlite"
	"github.com/mcp-events/mcpevents/shared/store/sqlite/engine"
	"github.com/mcp-events/mcpevents/shared/stream"
	"github.com/mcp-events/mcpevents/shared/subscription"
)

// own are the patterns of n single URIs below the parent of [parentPattern].
func own(n int) (patterns []subscription.Pattern) {
	for i := range n {
		patterns = append(patterns, subscription.Pattern{Kind: subscription.Concrete, Key: fmt.Sprintf("event://sim/p/%d", i)})
	}
	return patterns
}

// SUB-08, SES-03: where positions can be exact, a stream that is cut off after any event and resumed
// brings every event once, however many there are: over an ordered store any patterns, also such
// as match the same events; where writers stamp up to sixteen URIs.
func TestAResumeRepeatsNothingWherePositionsAreExact(t *testing.T) {
	dynamo := func(*testing.T) store.DB {
		return &memory{items: map[string][]store.Item{}, delay: func(string) time.Duration { return upTo(20 * time.Millisecond) }}
	}
	for _, tc := range []struct {
		name     string
		open     func(*testing.T) store.DB
		patterns []subscription.Pattern
		topics   []string
	}{
		{"SES-03 one URI and topics, embedded", sqliteStore, own(1), []string{"a", "b"}},
		{"SUB-08 forty URIs and their parent, embedded", sqliteStore, append(own(40), parentPattern), []string{"a"}},
		{"SUB-08 a parent, embedded", sqliteStore, []subscription.Pattern{parentPattern}, nil},
		{"SES-03 one URI and topics, stamped by writers", dynamo, own(1), []string{"a", "b"}},
		{"SUB-08 sixteen URIs, stamped by writers", dynamo, own(16), []string{"a"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				db := tc.open(t)
				_, sealer := embedded(t)
				log := &eventlog.Log{DB: db}
				tails := stream.New(log, db, sealer)
				defer tails.Close()
				request := stream.Request{Workspace: "default", Patterns: tc.patterns, Topics: tc.topics}
				f, err := tails.Open(t.Context(), request)
				if err != nil {
					t.Fatal(err)
				}
				const total = 600
				published := make(chan struct{})
				var writing sync.WaitGroup
				uris := max(1, len(tc.patterns)/4*4)
				writing.Go(func() {
					for n := 0; n < total; {
						uri := fmt.Sprintf("event://sim/p/%d", n%uris)
						var batch []event.Event
						for range min(1+rand.IntN(90), total-n) {
							batch = append(batch, occurrence(fmt.Sprint("e-", n), uri))
							n++
						}
						if _, err := log.Append(t.Context(), "default", uri, batch, []string{parentPattern.Key}); err != nil {
							t.Error(err)
						}
						if len(tc.topics) > 0 && rand.IntN(3) == 0 {
							if err := log.Notify(t.Context(), "default", tc.topics[0], json.RawMessage(`{}`)); err != nil {
								t.Error(err)
							}
						}
						time.Sleep(upTo(100 * time.Millisecond))
					}
					close(published)
				})
				got, resumes := map[string]int{}, 0
				for done := false; ; resumes++ {
					ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
					for range 1 + rand.IntN(150) {
						d, err := await(ctx, f)
						if err != nil {
							done = true
							break
						}
						if d.Event != nil {
							got[d.Event.ID]++
						}
						request.Cursor = d.Cursor
					}
					cancel()
					f.Close()
					if done {
						break
					}
					if f, err = tails.Open(t.Context(), request); err != nil || f.Truncated {
						t.Fatal(f.Truncated, err)
					}
				}
				<-published
				writing.Wait()
				repeated := 0
				for _, n := range got {
					repeated += n - 1
				}
				if len(got) != total || repeated > 0 || resumes < 4 {
					t.Errorf("%d of %d events, %d repeated, after %d resumes", len(got), total, repeated, resumes)
				}
			})
		})
	}
}

// clock is a clock that a test sets back.
type clock struct{ behind atomic.Int64 }

func (c *clock) now() time.Time { return time.Now().Add(-time.Duration(c.behind.Load())) }

// Positions do not depend on a clock that never goes back: what is opened after it was set back
// by a day begins at the end of the log.
func TestWhatIsOpenedAfterTheClockWentBackBeginsAtTheEnd(t *testing.T) {
	stores := map[string]func(*testing.T, *clock) store.DB{
		"embedded": func(t *testing.T, c *clock) store.DB {
			db, err := sqlite.Open(sqlite.Memory, sqlite.Options{SweepEvery: -1, Engine: engine.Options{Now: c.now}})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = db.Close() })
			return db
		},
		"stamped by writers": func(*testing.T, *clock) store.DB {
			return &memory{items: map[string][]store.Item{}, delay: func(string) time.Duration { return 0 }}
		},
	}
	for name, open := range stores {
		for kind, pattern := range map[string]subscription.Pattern{"a URI": own(1)[0], "a wildcard": openPattern} {
			t.Run("EVX-07 SUB-08 "+kind+", "+name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					var c clock
					db := open(t, &c)
					_, sealer := embedded(t)
					log := &eventlog.Log{DB: db, Now: c.now}
					tails := stream.New(log, db, sealer)
					defer tails.Close()
					publish := func(from, n int) {
						t.Helper()
						for i := range n {
							e := occurrence(fmt.Sprint(from+i), own(1)[0].Key)
							if _, err := log.Append(t.Context(), "default", e.URI, []event.Event{e}, []string{openPattern.Key}); err != nil {
								t.Fatal(err)
							}
							time.Sleep(10 * time.Millisecond)
						}
					}
					interested, err := tails.Open(t.Context(), stream.Request{Workspace: "default", Patterns: []subscription.Pattern{pattern}})
					if err != nil {
						t.Fatal(err)
					}
					interested.Close()
					publish(0, 40)
					c.behind.Store(int64(24 * time.Hour))
					poll := stream.PollRequest{Workspace: "default", Pattern: pattern, Most: 100, Bytes: 1 << 20}
					page, err := tails.Poll(t.Context(), poll)
					if err != nil {
						t.Fatal(err)
					}
					f, err := tails.Open(t.Context(), stream.Request{Workspace: "default", Patterns: []subscription.Pattern{pattern}})
					if err != nil {
						t.Fatal(err)
					}
					publish(100, 5)
					var streamed []string
					for range 5 {
						streamed = append(streamed, next(t, f, 10*time.Second))
					}
					if id := next(t, f, 10*time.Second); id != "" {
						t.Errorf("the stream brings %q beyond %v", id, streamed)
					}
					cursor := f.Cursor()
					f.Close()
					time.Sleep(time.Minute)
					poll.Cursor = page.Cursor
					if page, err = tails.Poll(t.Context(), poll); err != nil {
						t.Fatal(err)
					}
					var polled []string
					for _, e := range page.Events {
						polled = append(polled, e.ID)
					}
					if want := "[100 101 102 103 104]"; fmt.Sprint(streamed) != want || fmt.Sprint(polled) != want || page.Truncated {
						t.Errorf("streamed %v, polled %v, truncated %v, want %s of both", streamed, polled, page.Truncated, want)
					}
					again, err := tails.Open(t.Context(), stream.Request{Workspace: "default", Patterns: []subscription.Pattern{pattern}, Cursor: cursor})
					if err != nil {
						t.Fatal(err)
					}
					defer again.Close()
					if id := next(t, again, 10*time.Second); id != "" || again.Truncated {
						t.Errorf("the resumed stream brings %q again, truncated %v", id, again.Truncated)
					}
				})
			})
		}
	}
}

// One item that cannot be decoded stops neither streams nor polls. It is counted once.
func TestReadersSkipABrokenItem(t *testing.T) {
	for name, value := range map[string]string{
		"no JSON": "{", "an unknown version": `{"v":0}`, "an event that is none": `{"v":1,"e":[{"v":0}]}`,
	} {
		t.Run(name, func(t *testing.T) {
			db, sealer := embedded(t)
			log := &eventlog.Log{DB: db}
			tails := stream.New(log, db, sealer)
			defer tails.Close()
			poll := stream.PollRequest{Workspace: "default", Pattern: ownPattern, Most: 10, Bytes: 1 << 20}
			page, err := tails.Poll(t.Context(), poll)
			if err != nil {
				t.Fatal(err)
			}
			f, err := tails.Open(t.Context(), stream.Request{Workspace: "default", Patterns: []subscription.Pattern{ownPattern}})
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			appendOne := func(id string) {
				t.Helper()
				if _, err := log.Append(t.Context(), "default", ownPattern.Key, []event.Event{occurrence(id, ownPattern.Key)}, nil); err != nil {
					t.Fatal(err)
				}
			}
			appendOne("before")
			broken := store.Item{Key: store.Key{Table: store.Log, Partition: eventlog.Own("default", ownPattern.Key).Name(), Sort: store.AtCommit}, Value: []byte(value)}
			if err := db.Write(t.Context(), store.Put(broken)); err != nil {
				t.Fatal(err)
			}
			appendOne("after")
			for _, want := range []string{"before", "after"} {
				if id := next(t, f, 10*time.Second); id != want {
					t.Errorf("got %q, want %s", id, want)
				}
			}
			poll.Cursor = page.Cursor
			if page, err = tails.Poll(t.Context(), poll); err != nil || len(page.Events) != 2 {
				t.Errorf("%+v, %v", page, err)
			}
			latest, err := log.Latest(t.Context(), "default", ownPattern.Key, false, 5)
			if err != nil || len(latest) != 2 {
				t.Errorf("%v, %v", latest, err)
			}
			if n := log.Broken.Load(); n != 1 {
				t.Errorf("%d broken items were counted", n)
			}
		})
	}
}
