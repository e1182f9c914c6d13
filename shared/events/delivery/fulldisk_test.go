package delivery

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/shared/events/webhook"
	"github.com/mcp-events/mcpevents/shared/storage/store/sqlite/engine"
)

// statement is a job of one statement.
type statement string

func (s statement) Apply(tx *engine.Tx) error { return tx.Exec(string(s)) }
func (statement) Done(error)                  {}

// pageCount asks for the size of the file.
type pageCount struct{ pages int64 }

func (p *pageCount) Apply(tx *engine.Tx) error {
	s, err := tx.Stmt("PRAGMA page_count")
	if err != nil {
		return err
	}
	defer s.Reset()
	_, err = s.Step()
	p.pages = s.ColumnInt(0)
	return err
}
func (*pageCount) Done(error) {}

// limit limits the file to its current size and some more pages.
func (w *world) limit(more int64) {
	w.t.Helper()
	var p pageCount
	w.do(&p)
	w.do(statement(fmt.Sprintf("PRAGMA max_page_count=%d", p.pages+more)))
}

// do does a job, again if it was committed together with something for which there was no room.
func (w *world) do(job engine.Job) {
	w.t.Helper()
	for tries := 1; ; tries++ {
		err := w.db.Engine().Do(context.Background(), job)
		if err == nil {
			return
		}
		if tries == 100 {
			w.t.Fatal(err)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func TestAFullDisk(t *testing.T) {
	t.Run("WHK-19 healthy endpoints get each event a few times at most while the disk is full for ten minutes, and all when there is room", func(t *testing.T) {
		inWorld(t, embedded(), func(w *world) {
			urls := oneOrigin(6)
			w.to(urls...)
			var down atomic.Bool
			down.Store(true)
			w.answer = func(r webhook.Request) webhook.Outcome {
				if r.URL == urls[0] && down.Load() { // its deliveries need space
					return webhook.Outcome{Status: 500, Category: webhook.HTTP5xx, Took: 10 * time.Millisecond}
				}
				return webhook.Outcome{Status: 200, Took: 10 * time.Millisecond}
			}
			w.full.Store(true)
			w.limit(20)
			at := map[string]time.Time{}
			refused := 0
			for i := range 100 {
				id := fmt.Sprintf("e%d", i)
				if w.enqueue(id, fmt.Sprintf(`{"ok":"%04000d"}`, i)) != nil {
					refused++ // its publisher knows
				} else {
					at[id] = time.Now()
				}
				time.Sleep(100 * time.Millisecond)
			}
			time.Sleep(10 * time.Minute)
			full, posts := 0, 0
			w.mu.Lock()
			for _, url := range urls[1:] {
				for id := range at {
					n := len(w.attempts[id+" "+url])
					posts, full = posts+n, max(full, n)
				}
			}
			w.mu.Unlock()
			t.Logf("%d events accepted, %d refused; healthy endpoints: %d posts, at most %d of one event", len(at), refused, posts, full)
			if refused == 0 || len(at) == 0 {
				t.Errorf("%d events were accepted and %d refused: the disk filled at the wrong time", len(at), refused)
			}
			if full > 3 {
				t.Errorf("a healthy endpoint was sent the same event %d times while the disk was full", full)
			}
			w.limit(100_000)
			w.full.Store(false)
			down.Store(false)
			time.Sleep(time.Hour)
			for _, url := range urls {
				_, missing := w.lags(url, at)
				if missing > 0 {
					t.Errorf("%s misses %d of %d events after there was room again", url, missing, len(at))
				}
				for id := range at {
					w.mu.Lock()
					n := len(w.attempts[id+" "+url])
					w.mu.Unlock()
					if url != urls[0] && n > 3 {
						t.Errorf("%s was sent %s %d times", url, id, n)
					}
				}
			}
			fresh := w.send("fresh", 5, 5*time.Second)
			time.Sleep(time.Minute)
			for _, url := range urls {
				if _, missing := w.lags(url, fresh); missing > 0 {
					t.Errorf("%s misses %d of the events after that", url, missing)
				}
			}
		})
	})
}
