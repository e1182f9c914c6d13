package delivery

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	eventlog "github.com/mcp-events/mcpevents/shared/events/log"
	"github.com/mcp-events/mcpevents/shared/events/webhook"
	"github.com/mcp-events/mcpevents/shared/storage/queue"
	"github.com/mcp-events/mcpevents/shared/storage/store/sqlite"
	"github.com/mcp-events/mcpevents/shared/storage/store/sqlite/engine"

	"github.com/mcp-events/mcpevents/shared/events/fanout"

	"github.com/mcp-events/mcpevents/shared/events/delivery/retry"
)

// history is a rig whose store has the clock of the test, and what happened in it.
type history struct {
	*rig
	clock  atomic.Int64
	id     string
	random *rand.Rand
	fails  int // of a hundred
	acked  map[string]bool
	body   string               // the cursor of the last body
	seen   map[string]time.Time // when a message was last received
	procs  []handlers
	all    bool // the next batch receives all waiting messages
}

type handlers struct {
	fanout   *fanout.Fanout
	dispatch *Dispatcher
	retry    *retry.Job
}

func newHistory(t *testing.T, seed uint64) *history {
	h := &history{rig: newRig(t), random: rand.New(rand.NewPCG(seed, 1)), acked: map[string]bool{}, seen: map[string]time.Time{}}
	now := func() time.Time { return time.UnixMicro(h.clock.Load()) }
	h.clock.Store(h.now.UnixMicro())
	db, err := sqlite.Open(sqlite.Memory, sqlite.Options{SweepEvery: -1, Engine: engine.Options{Now: now}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	h.db, h.log = db, &eventlog.Log{DB: db, Now: now}
	h.services = h.service(db, h.log)
	h.script = func(n int) webhook.Outcome {
		var body struct{ Cursor string }
		_ = json.Unmarshal(h.posts[n-1].Body, &body)
		h.body = body.Cursor
		if h.random.IntN(100) < h.fails {
			return webhook.Outcome{Status: 503, Category: webhook.HTTP5xx}
		}
		h.acked[h.posts[n-1].ID] = true
		return webhook.Outcome{Status: 200}
	}
	for range 3 {
		h.procs = append(h.procs, h.start())
	}
	if _, err := h.procs[0].retry.Run(t.Context()); err != nil { // it has run every minute before
		t.Fatal(err)
	}
	h.id = h.subscribe().ID
	return h
}

func (h *history) start() (p handlers) {
	p.fanout, p.dispatch, p.retry = h.process()
	return p
}

func (h *history) wait(d time.Duration) {
	h.now = h.now.Add(d)
	h.clock.Store(h.now.UnixMicro())
}

// batch receives random messages of a queue, and all messages that were last received or sent more than 7 minutes ago.
func (h *history) batch(q queue.Name) (batch []queue.Message) {
	var rest []queue.Message
	for _, m := range h.queues[q] {
		last, received := h.seen[m.ID]
		if !received {
			last = m.Sent
		}
		if h.all || h.now.Sub(last) > 7*time.Minute || h.random.IntN(2) == 0 {
			h.seen[m.ID] = h.now
			batch = append(batch, m)
		} else {
			rest = append(rest, m)
		}
	}
	h.queues[q] = rest
	return batch
}

// handleSome has one of the processes handle some of a queue; it may die over it.
func (h *history) handleSome(q queue.Name, budget int) {
	n := h.random.IntN(len(h.procs))
	p := h.procs[n]
	batch := h.batch(q)
	if len(batch) == 0 {
		return
	}
	h.budget, h.late = budget, h.random.IntN(2) == 0
	handle := map[queue.Name]queue.Handler{
		queue.Events: p.fanout.Handle, queue.Deliveries: p.dispatch.Pages, queue.Slow: p.dispatch.Singles,
	}[q]
	failed, err := handle(h.t.Context(), batch)
	died := h.dead
	h.dead, h.budget = false, 0
	if died {
		h.procs[n] = h.start()
	}
	for _, m := range batch {
		if died || err != nil || slices.Contains(failed, m.ID) {
			h.queues[q] = append(h.queues[q], m)
		}
	}
}

func (h *history) retryDue(budget int) {
	n := h.random.IntN(len(h.procs))
	h.budget = budget
	_, _ = h.procs[n].retry.Run(h.t.Context())
	if h.dead {
		h.procs[n] = h.start()
	}
	h.dead, h.budget = false, 0
}

// skipped returns an event that a client would skip if it resumed from the cursor, although the event is still open.
func (h *history) skipped(cursor string) string {
	c, err := h.sealer.Open("default", cursor)
	if err != nil {
		return err.Error()
	}
	entries, _, _, err := h.log.Read(h.t.Context(), eventlog.Own("default", "event://ci/build-finished"), 0, 1000)
	if err != nil {
		return err.Error()
	}
	for _, e := range entries {
		if id := e.Event.ID; e.Key <= c.At && !h.acked[id] && h.deliveryState(h.id, id) != "dead" {
			return fmt.Sprintf("%s at %d, cursor at %d, its delivery is %s", id, e.Key, c.At, h.deliveryState(h.id, id))
		}
	}
	return ""
}

// EVX-11: a client that was away for hours after days of events resumes without a gap from the
// cursor of the last webhook that it got.
func TestAResumeAfterDaysIsNoGap(t *testing.T) {
	for name, every := range map[string]int{"hourly": 1, "once": 1000} {
		t.Run("EVX-11 "+name, func(t *testing.T) {
			h := newHistory(t, 1)
			var cursor string
			for hour := range 72 {
				if hour%every == 0 {
					h.publish(fmt.Sprint("e-", hour))
					for range 10 {
						for _, q := range []queue.Name{queue.Events, queue.Deliveries, queue.Slow} {
							h.handleSome(q, 0)
						}
					}
				}
				h.wait(time.Hour)
				if hour%12 == 11 {
					cursor = h.subscribe().Cursor
				}
			}
			if every == 1 {
				cursor = h.body
			}
			h.wait(8 * time.Hour)
			c, err := h.sealer.Open("default", cursor)
			if err != nil {
				t.Fatal(err)
			}
			if _, gap := h.log.Reach(c, c.At, h.log.Oldest()); gap {
				t.Errorf("the cursor is at %v, given %v, the log reaches back to %v",
					time.UnixMicro(c.At), time.UnixMicro(c.Given), time.UnixMicro(h.log.Oldest()))
			}
			if what := h.skipped(cursor); what != "" {
				t.Errorf("the cursor skips %s", what)
			}
		})
	}
}
