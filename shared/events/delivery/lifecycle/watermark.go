package lifecycle

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/mcp-events/mcpevents/shared/events/event"
	eventlog "github.com/mcp-events/mcpevents/shared/events/log"
	"github.com/mcp-events/mcpevents/shared/events/subscription"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/storage/queue"
	"github.com/mcp-events/mcpevents/shared/storage/store"

	"github.com/mcp-events/mcpevents/shared/events/delivery/state"
	"github.com/mcp-events/mcpevents/shared/events/delivery/task"
)

// Watermark finds the position up to which the deliveries of a subscription are settled:
// acknowledged, or dead letters. Two kinds are not:
//
//   - those without a first attempt. A success leaves no item that could be asked, so
//     this is a bound: everything that was sent to dispatch [dwell] before dispatch last recorded
//     progress has been attempted, or dispatch received it late and recorded that first.
//   - those that wait for a retry, or are suspended with their subscription. These are items.
//
// Positions are in the log's measure: an event's key is at least the time at which it was published,
// less what two clocks may be apart.
type Watermark struct {
	DB store.DB
}

const (
	// dwell is how long a page may stay queued although dispatch makes progress: the time until
	// it is late, three steps of the tree, and a visibility timeout after each.
	dwell = 30 * time.Minute
	// lateAfter is the age of a page from which dispatch records it as late.
	lateAfter = 5 * time.Minute
	// progressEvery is how often a process records progress, if it makes any.
	progressEvery = time.Minute

	latePartition = "w#late"
	countAt       = "at"
	// maxOpen bounds how many deliveries are read.
	maxOpen = 1000
)

var progressKey = store.Key{Table: store.Deliveries, Partition: "w#pace", Sort: "-"}

// position lies before the key of an event that was published at that time.
func position(published time.Time) int64 {
	return published.Add(-2*eventlog.MaxSkew).UnixMicro() - 1
}

// PausedPages is the partition of the marks of paused pages.
func PausedPages(workspace string) string { return "w#paused#" + workspace }

// EarliestKey begins the key of a page with a position before it was sent and before all its events, for [Watermark.before].
func EarliestKey(sent time.Time, events []event.Event) string {
	first := position(sent)
	for _, e := range events {
		first = min(first, position(e.Published))
	}
	return fmt.Sprintf("%016d#", max(first, 0))
}

// Settled implements [subscription.Watermark]: all that was sent to dispatch by then has been
// attempted, and of the subscription nothing up to there is open. open reports whether anything is.
func (w *Watermark) Settled(ctx context.Context, workspace, id string) (at int64, open bool, err error) {
	if at, err = w.attempted(ctx, workspace, id); err != nil {
		return 0, false, err
	}
	// After that, so that what failed in between is seen here.
	q := store.Query{Table: store.Deliveries, Partition: state.Key(workspace, id, "").Partition}
	for seen := 0; ; {
		page, err := w.DB.Query(ctx, q)
		if err != nil {
			return 0, false, fault.Wrap(fault.Unavailable, err, "list the open deliveries of a subscription")
		}
		for i := range page.Items {
			del, err := state.Decode(&page.Items[i])
			if err != nil {
				return 0, true, nil // it may be any
			}
			if del.State == state.Dead || del.Control != nil {
				continue
			}
			published := del.Published
			if published.IsZero() { // of an earlier release
				published = del.First.Add(-dwell)
			}
			at, open = min(at, position(published)), true
		}
		if seen += len(page.Items); !page.More {
			return at, open, nil
		}
		if seen >= maxOpen {
			return 0, true, nil
		}
		q.After = page.Last
	}
}

// attempted is a position up to which every page has had its attempts; 0 is not known. A delivery
// to the subscription also shows progress of dispatch, by its first attempt or a retry: half an
// hour earlier at most.
func (w *Watermark) attempted(ctx context.Context, workspace, id string) (at int64, err error) {
	items, err := w.DB.Get(ctx, progressKey, subscription.StatusKey(workspace, id))
	if err != nil {
		return 0, fault.Wrap(fault.Unavailable, err, "read the progress of dispatch")
	}
	if items[0] != nil {
		at = items[0].Counts[countAt] - dwell.Microseconds()
	}
	st, err := subscription.DecodeStatus(items[1])
	if err == nil && !st.LastDelivery.IsZero() {
		at = max(at, st.LastDelivery.Add(-2*dwell).UnixMicro())
	}
	if at <= 0 {
		return 0, nil
	}
	if at, err = w.before(ctx, latePartition, at); err != nil || at == 0 {
		return 0, err
	}
	return w.before(ctx, PausedPages(workspace), at)
}

// before is a position that lies before all pages of a partition, too; 0 is not known.
func (w *Watermark) before(ctx context.Context, partition string, at int64) (int64, error) {
	q := store.Query{Table: store.Deliveries, Partition: partition, Limit: 100}
	for { // past items that have expired
		late, err := w.DB.Query(ctx, q)
		if err != nil {
			return 0, fault.Wrap(fault.Unavailable, err, "read which pages are late")
		}
		if len(late.Items) > 0 { // the first is the earliest
			first := late.Items[0].Sort
			key, err := strconv.ParseInt(first[:min(16, len(first))], 10, 64)
			if err != nil {
				return 0, nil
			}
			return min(at, key), nil
		}
		if !late.More {
			return at, nil
		}
		q.After = late.Last
	}
}

// Progress is when this process last wrote for [Watermark].
type Progress struct {
	mu      sync.Mutex
	written time.Time
}

// RecordLate records which pages of a batch are late, before their attempts.
func (p *Progress) RecordLate(ctx context.Context, db store.DB, batch []queue.Message, now time.Time) error {
	for _, m := range batch {
		if m.Sent.IsZero() || now.Sub(m.Sent) <= lateAfter {
			continue
		}
		var t task.Page
		if json.Unmarshal(m.Body, &t) != nil {
			t.Events = nil
		}
		err := db.Write(ctx, store.Put(store.Item{
			Key:     store.Key{Table: store.Deliveries, Partition: latePartition, Sort: EarliestKey(m.Sent, t.Events) + m.ID},
			Expires: now.Add(dwell),
		}))
		if err != nil {
			return fault.Wrap(fault.Unavailable, err, "record a late page")
		}
	}
	return nil
}

// RecordWork records, once a minute and not in the first one, that young pages are attempted. A
// failure is harmless: the watermark waits.
func (p *Progress) RecordWork(ctx context.Context, db store.DB, batch []queue.Message, now time.Time) {
	for _, m := range batch {
		if now.Sub(m.Sent) > lateAfter {
			return
		}
	}
	p.mu.Lock()
	due := !p.written.IsZero() && now.Sub(p.written) >= progressEvery
	if due || p.written.IsZero() || now.Before(p.written) {
		p.written = now
	}
	p.mu.Unlock()
	if due {
		_ = db.Write(ctx, store.Raise(progressKey, countAt, now.UnixMicro()))
	}
}
