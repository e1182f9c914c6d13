package lifecycle

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/mcp-events/mcpevents/shared/events/delivery/state"
	"github.com/mcp-events/mcpevents/shared/events/delivery/task"
	"github.com/mcp-events/mcpevents/shared/events/event"
	eventlog "github.com/mcp-events/mcpevents/shared/events/log"
	"github.com/mcp-events/mcpevents/shared/events/subscription"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/storage/queue"
	"github.com/mcp-events/mcpevents/shared/storage/store"
)

// Watermark finds the watermark of a subscription: the position in the event log up to which all deliveries to the subscriber are
// settled, i.e. acknowledged or dead-lettered. It becomes the cursor that the client gets, because a client that resumes from there
// misses no event. Two kinds of deliveries are not settled:
//
//   - Deliveries without a first attempt. The store has no items for them, because they are part of a page task, which asks to send
//     events to a range of subscribers. So Watermark estimates which page tasks were attempted. Package delivery regularly records that
//     it makes progress (see [Progress]). Watermark assumes that all page tasks that were queued at least [dwell] before the last such
//     record have been attempted. There are two exceptions, which have items in the store: page tasks that were received late, and page
//     tasks that wait because a person has paused their events (see [PausedPages]).
//   - Deliveries that wait for a retry, or are suspended with their subscription. Watermark reads their items.
//
// Positions are keys of the event log. An event's key is at least its publication time minus the tolerated clock skew.
type Watermark struct {
	DB store.DB
}

const (
	// dwell is the longest time that a page task can be queued while package delivery makes progress. A task counts as late after
	// [lateAfter] (5 min). It may then be split into smaller tasks up to three times, and each split can take one visibility timeout of
	// the queue (7 min on AWS). That is 26 min, and the rest is a margin.
	dwell = 30 * time.Minute
	// lateAfter is how long a page task may have waited in its queue before it is recorded as late.
	lateAfter = 5 * time.Minute
	// progressEvery is the minimum time between two progress records of a process; see [Progress].
	progressEvery = time.Minute

	latePartition = "w#late"
	countAt       = "at"
	// maxOpen is the maximum number of stored deliveries that SettledPosition reads. If a subscription has more, its position is unknown.
	maxOpen = 1000
)

var progressKey = store.Key{Table: store.Deliveries, Partition: "w#pace", Sort: "-"}

// positionBefore returns a position in the event log before the keys of all events that were published at or after the given time. A key
// may be earlier than its event's publication time, because the clocks of two processes may each be wrong by [eventlog.MaxSkew].
func positionBefore(published time.Time) int64 {
	return published.Add(-2*eventlog.MaxSkew).UnixMicro() - 1
}

// PausedPages returns the store partition that lists the page tasks of a workspace whose events a person has paused with a switch. Its
// sort keys begin with [EarliestKey]. These events have not been attempted, so the watermark of each subscription in the workspace must
// be before them.
func PausedPages(workspace string) string { return "w#paused#" + workspace }

// EarliestKey returns the beginning of the sort key for the item of a late or paused page task. It is a position of the event log before
// all events of the task, and before the time at which the task was sent.
func EarliestKey(sent time.Time, events []event.Event) string {
	first := positionBefore(sent)
	for _, e := range events {
		first = min(first, positionBefore(e.Published))
	}
	return fmt.Sprintf("%016d#", max(first, 0))
}

// SettledPosition implements [subscription.Watermark]. All of the subscription's events up to the returned position in the event log were
// acknowledged by the subscriber or became dead letters. The position is 0 if it is unknown. The result open reports whether the store has
// deliveries to the subscriber that are still to be sent.
func (w *Watermark) SettledPosition(ctx context.Context, workspace, id string) (at int64, open bool, err error) {
	if at, err = w.attemptedUntil(ctx, workspace, id); err != nil {
		return 0, false, err
	}
	// Read the stored deliveries after the call of attemptedUntil. If a first attempt fails in between, its delivery is stored by now, so this
	// query finds the delivery.
	q := store.Query{Table: store.Deliveries, Partition: state.Key(workspace, id, "").Partition}
	for seen := 0; ; {
		page, err := w.DB.Query(ctx, q)
		if err != nil {
			return 0, false, fault.Wrap(fault.Unavailable, err, "list the open deliveries of a subscription")
		}
		for i := range page.Items {
			del, err := state.Decode(&page.Items[i])
			if err != nil {
				return 0, true, nil // the delivery cannot be decoded, so it may be for any event, however old
			}
			if del.State == state.Dead || del.Control != nil {
				continue
			}
			at, open = min(at, positionBefore(del.Published)), true
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

// attemptedUntil returns a position of the event log up to which all page tasks have been attempted, or 0 if it is unknown. It is [dwell]
// before the last progress record, or twice [dwell] before the subscription's last successful delivery, if that is later. It is twice as
// far before a delivery, because the delivery may have been the retry of an event that was already up to [dwell] old.
//
// The position is before the events of all page tasks that are late or paused.
func (w *Watermark) attemptedUntil(ctx context.Context, workspace, id string) (at int64, err error) {
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
	if at, err = w.beforePages(ctx, latePartition, at); err != nil || at == 0 {
		return 0, err
	}
	return w.beforePages(ctx, PausedPages(workspace), at)
}

// beforePages returns the earlier of two positions: the parameter at, and the position of the earliest late or paused page task in the
// partition. The result is 0 if the page task's position cannot be decoded.
func (w *Watermark) beforePages(ctx context.Context, partition string, at int64) (int64, error) {
	q := store.Query{Table: store.Deliveries, Partition: partition, Limit: 100}
	for { // one query may return only expired items
		late, err := w.DB.Query(ctx, q)
		if err != nil {
			return 0, fault.Wrap(fault.Unavailable, err, "read which pages are late")
		}
		if len(late.Items) > 0 { // the first item has the earliest position
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

// Progress records, at most once a minute, that this process has attempted the page tasks that it received. [Watermark] needs these
// records, because a first attempt leaves no trace in the store before it ends. The zero value is ready to use.
type Progress struct {
	mu      sync.Mutex
	written time.Time
}

// RecordLate writes an item for each page task that waited in its queue for longer than [lateAfter], so that no subscription's watermark
// passes the task's events before they are attempted. It must be called before the attempts.
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

// RecordWork records that the process has attempted a batch of page tasks, unless one of them was late. It writes at most once a minute,
// and ignores errors, because a missing record only makes watermarks advance later.
func (p *Progress) RecordWork(ctx context.Context, db store.DB, batch []queue.Message, now time.Time) {
	if slices.ContainsFunc(batch, func(m queue.Message) bool { return now.Sub(m.Sent) > lateAfter }) {
		return
	}
	p.mu.Lock()
	due := !p.written.IsZero() && now.Sub(p.written) >= progressEvery
	if due || p.written.IsZero() || now.Before(p.written) {
		p.written = now
	}
	p.mu.Unlock()
	if due {
		_ = db.Write(ctx, store.Put(store.Item{Key: progressKey, Counts: map[string]int64{countAt: now.UnixMicro()}}))
	}
}
