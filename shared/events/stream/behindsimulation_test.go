//go:build !race

package stream_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/shared/events/event"
	eventlog "github.com/mcp-events/mcpevents/shared/events/log"
	"github.com/mcp-events/mcpevents/shared/events/match"
	"github.com/mcp-events/mcpevents/shared/events/stream"
	"github.com/mcp-events/mcpevents/test/expect"
)

// A filter may drop all events that a stream has to catch up on. Its reader must still have regular turns, because it sends
// heartbeats. The cursor must advance, because the client may be cut off.
func TestAFilteredFeedThatIsBehindGivesItsReaderTurns(t *testing.T) {
	t.Parallel()
	for name, open := range bothStores() {
		bubble(t, "EVX-06 "+name, func(t *testing.T) {
			r := over(t, open(t))
			f := r.open(from("", ownPattern))
			cursor := f.Cursor()
			f.Close()
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
				if !f.CursorMoved() {
					t.Errorf("after %d of %d events CursorMoved is false", dropped, total)
				}
				request.Cursor = f.Cursor()
				f.Close()
				turns++
			}
			if most > 1000 {
				t.Errorf("one call of Poll dropped %d events, want at most 1,000", most)
			}
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
				if !r.db.Stamps() {
					for _, skew := range []time.Duration{eventlog.MaxSkew, -eventlog.MaxSkew} {
						writers = append(writers, &eventlog.Log{DB: r.db, Now: func() time.Time { return time.Now().Add(skew) }})
					}
				}
				publish := func(log *eventlog.Log, uri string, n int) {
					e := occurrence(fmt.Sprintf("%s-%d", uri[len(uri)-1:], n), uri)
					_, err := log.Append(t.Context(), "default", uri, []event.Event{e}, []string{parentPattern.Key})
					expect.OK(t, err)
				}
				f := r.open(from("", patterns...))
				cursor := f.Cursor()
				f.Close()
				for n := range past {
					publish(r.log, own(1)[0].Key, n)
					time.Sleep(10 * time.Millisecond)
				}
				time.Sleep(time.Minute)
				var writing sync.WaitGroup
				got, want := map[string]bool{}, past
				f = r.open(from(cursor, patterns...))
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
