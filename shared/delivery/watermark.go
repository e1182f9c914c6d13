package delivery

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/mcp-events/mcpevents/shared/eventlog"
	"github.com/mcp-events/mcpevents/shared/fault"
	"github.com/mcp-events/mcpevents/shared/queue"
	"github.com/mcp-events/mcpevents/shared/store"
	"github.com/mcp-events/mcpevents/shared/subscription"
)

// Watermark tells up to where the deliveries of a subscription are settled: acknowledged, or
// abandoned as a dead letter. Two things are not:
//
//   - what no first attempt was made of yet. A success leaves no item that could be asked, so
//     this is a bound: of what was sent to dispatch dwell before dispatch was last seen at
//     work, all has been attempted, or dispatch met it late and wrote that down first.
//   - what waits for a retry, or is held while the subscription is suspended. These are items.
//
// Positions are in the log's measure: an event's key is at least the time at which it was published,
// less what two clocks may be apart.
type Watermark struct {
	DB store.DB
}

const (
	// dwell is how long dispatch may leave a page alone although it is at work: the time until
	// it is late, three steps of the tree, and a visibility timeout after each.
	dwell = 30 * time.Minute
	// lateAfter is the age of a page from which dispatch writes down that it met it.
	lateAfter = 5 * time.Minute
	// paceEvery is how often a process writes down that it is at work, if it is.
	paceEvery = time.Minute

	latePartition = "w#late"
	countAt       = "at"
	// maxOpen bounds how many deliveries are looked through.
	maxOpen = 1000
)

var paceKey = store.Key{Table: store.Deliveries, Partition: "w#pace", Sort: "-"}

// position is before the key of what was published at a time.
func position(published time.Time) int64 {
	return published.Add(-2*eventlog.MaxSkew).UnixMicro() - 1
}

// Settled implements [subscription.Watermark]: all that was sent to dispatch by then has been
// attempted, and of the subscription nothing up to there is open. open reports whether anything is.
func (w *Watermark) Settled(ctx context.Context, workspace, id string) (at int64, open bool, err error) {
	if at, err = w.attempted(ctx, workspace, id); err != nil {
		return 0, false, err
	}
	// After that, so that what failed in between is seen here.
	q := store.Query{Table: store.Deliveries, Partition: chainKey(workspace, id, "").Partition}
	for seen := 0; ; {
		page, err := w.DB.Query(ctx, q)
		if err != nil {
			return 0, false, fault.Wrap(fault.Unavailable, err, "list the open deliveries of a subscription")
		}
		for i := range page.Items {
			c, err := decodeChain(&page.Items[i])
			if err != nil {
				return 0, true, nil // it may be any
			}
			if c.State == stateDead || c.Control != nil {
				continue
			}
			published := c.Published
			if published.IsZero() { // of an earlier release
				published = c.First.Add(-dwell)
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
// to the subscription also shows that dispatch was at work, the first attempt or a retry of it: half an
// hour earlier at most.
func (w *Watermark) attempted(ctx context.Context, workspace, id string) (at int64, err error) {
	items, err := w.DB.Get(ctx, paceKey, subscription.StatusKey(workspace, id))
	if err != nil {
		return 0, fault.Wrap(fault.Unavailable, err, "read when dispatch was at work")
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
	q := store.Query{Table: store.Deliveries, Partition: latePartition, Limit: 100}
	for { // past items that have expired
		late, err := w.DB.Query(ctx, q)
		if err != nil {
			return 0, fault.Wrap(fault.Unavailable, err, "read which pages are late")
		}
		if len(late.Items) > 0 { // the first is the earliest
			first := late.Items[0].Sort
			held, err := strconv.ParseInt(first[:min(16, len(first))], 10, 64)
			if err != nil {
				return 0, nil
			}
			return min(at, held), nil
		}
		if !late.More {
			return at, nil
		}
		q.After = late.Last
	}
}

// pace is what a process knows of what it wrote for [Watermark].
type pace struct {
	mu      sync.Mutex
	written time.Time
}

// late writes down which pages of a batch are late, before anything is attempted of them.
func (p *pace) late(ctx context.Context, db store.DB, batch []queue.Message, now time.Time) error {
	for _, m := range batch {
		if m.Sent.IsZero() || now.Sub(m.Sent) <= lateAfter {
			continue
		}
		first := position(m.Sent)
		var t PageTask
		if json.Unmarshal(m.Body, &t) == nil {
			for _, e := range t.Events {
				first = min(first, position(e.Published))
			}
		}
		err := db.Write(ctx, store.Put(store.Item{
			Key: store.Key{
				Table: store.Deliveries, Partition: latePartition, Sort: fmt.Sprintf("%016d#%s", max(first, 0), m.ID),
			},
			Expires: now.Add(dwell),
		}))
		if err != nil {
			return fault.Wrap(fault.Unavailable, err, "record a late page")
		}
	}
	return nil
}

// atWork writes down, once a minute and not in the first one, that young pages are attempted. It is
// of no harm when that fails: the watermark waits.
func (p *pace) atWork(ctx context.Context, db store.DB, batch []queue.Message, now time.Time) {
	for _, m := range batch {
		if now.Sub(m.Sent) > lateAfter {
			return
		}
	}
	p.mu.Lock()
	due := !p.written.IsZero() && now.Sub(p.written) >= paceEvery
	if due || p.written.IsZero() || now.Before(p.written) {
		p.written = now
	}
	p.mu.Unlock()
	if due {
		_ = db.Write(ctx, store.Raise(paceKey, countAt, now.UnixMicro()))
	}
}
