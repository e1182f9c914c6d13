package retry

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/mcp-events/mcpevents/shared/events/delivery/state"
	eventlog "github.com/mcp-events/mcpevents/shared/events/log"
	"github.com/mcp-events/mcpevents/shared/events/subscription"
	"github.com/mcp-events/mcpevents/shared/events/webhook"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/platform/periodic"
	"github.com/mcp-events/mcpevents/shared/storage/minutes"
	"github.com/mcp-events/mcpevents/shared/storage/queue"
	"github.com/mcp-events/mcpevents/shared/storage/store"
)

// Job moves due deliveries from the due table to the slow queue. It runs every minute.
type Job struct {
	DB    store.DB
	Queue queue.Sender
	// EventLog is the event log. [Job.DeadLetterLogItems] dead-letters its items that cannot be decoded.
	EventLog *eventlog.Log
	// SaveEvery is how old the job's stored position may become before the job saves it again; see [minutes.Position].
	SaveEvery time.Duration
	Now       func() time.Time
	// Log logs items that cannot be decoded. Nil means [slog.Default].
	Log *slog.Logger

	latest time.Time // when Run was called last
	// search and searchUntil are the minutes that [Job.continueSearch] still has to search after the clock was set back.
	search, searchUntil time.Time
}

// readUntilKey is the key of the item with the job's position: the minute up to which it has read the due table.
var readUntilKey = store.Key{Table: store.Deliveries, Partition: "due#watermark", Sort: "-"}

// The partitions of the due table are the ones whose names sort between FirstDuePartition and AfterDue, because in these names a shard
// number follows after "due#". In other names, for example due#watermark, a letter follows.
const (
	DueTable                    = store.Deliveries
	FirstDuePartition, AfterDue = "due#0", "due#:"
)

// maxDelay is the longest time from the writing of a due entry until the entry is due.
const maxDelay = webhook.MaxRetryAfter*(100+Jitter*100)/100 + state.Backup

func (r *Job) now() time.Time { return periodic.Clock(r.Now)() }

// Run moves the deliveries that are due before its next call, and returns their number. It deletes a due entry after it has sent the
// entry's message. After a crash in between, the message is sent twice, and dispatch drops the second one as stale.
func (r *Job) Run(ctx context.Context) (moved int, err error) {
	now := r.now().Round(0)                    // Round removes the monotonic clock, which would hide that the clock was set back
	if r.latest.Sub(now) > minutes.Tolerance { // the stored position may be too old to show that the clock was set back
		r.beginSearch(now, r.latest)
	}
	r.latest = now
	due := minutes.Position{
		DB: r.DB, Key: readUntilKey, SaveEvery: r.SaveEvery, CatchUp: state.KeptFor, // older due entries have expired in the store
		Ahead: func(_ context.Context, was time.Time) error { r.beginSearch(now, was); return nil },
	}
	err = due.Walk(ctx, now, func(ctx context.Context, minute time.Time) error {
		n, err := r.moveMinute(ctx, minute, now, nil)
		moved += n
		return err
	})
	n, aheadErr := r.continueSearch(ctx, now)
	return moved + n, errors.Join(err, aheadErr)
}

// moveMinute moves a minute's due entries to the slow queue. If pick is not nil, it moves only the entries for which pick returns true.
func (r *Job) moveMinute(ctx context.Context, minute, now time.Time, pick func(state.DueEntry) bool) (moved int, err error) {
	var errs []error
	for shard := range state.DueShards {
		n, err := r.move(ctx, state.DuePartition(shard, minute), now, pick)
		moved += n
		errs = append(errs, err)
	}
	return moved, errors.Join(errs...)
}

// move moves a partition's due entries like [Job.moveMinute], with a delay for entries that are not due yet.
func (r *Job) move(ctx context.Context, partition string, now time.Time, pick func(state.DueEntry) bool) (moved int, err error) {
	q := store.Query{Table: store.Deliveries, Partition: partition, Limit: 100}
	for {
		page, err := r.DB.Query(ctx, q)
		if err != nil {
			return moved, fault.Wrap(fault.Unavailable, err, "read the due table")
		}
		var out []queue.Outgoing
		var del []store.Op
		for i := range page.Items {
			it := &page.Items[i]
			var e state.DueEntry
			if err := json.Unmarshal(it.Value, &e); err != nil {
				if err := r.deadLetter(ctx, it, fault.Wrap(fault.Invalid, err, "the due entry cannot be decoded")); err != nil {
					return moved, err
				}
				continue
			}
			if pick != nil && !pick(e) {
				continue
			}
			out = append(out, e.Outgoing(max(0, min(time.UnixMilli(e.At).Sub(now), time.Minute))))
			del = append(del, store.Delete(it.Key))
		}
		if len(out) > 0 {
			if err := r.Queue.Send(ctx, queue.Slow, out...); err != nil {
				return moved, fault.Wrap(fault.Unavailable, err, "queue due deliveries")
			}
			if err := r.DB.WriteAll(ctx, del...); err != nil {
				return moved, fault.Wrap(fault.Unavailable, err, "remove due entries")
			}
			moved += len(out)
		}
		if !page.More {
			return moved, nil
		}
		q.After = page.Last
	}
}

func (r *Job) deadLetter(ctx context.Context, it *store.Item, reason error) error {
	return queue.DeadLetterItem(ctx, r.Queue, r.DB, it, reason, r.now(), cmp.Or(r.Log, slog.Default()))
}

// DeadLetterLogItems dead-letters items of the event log that readers could not decode, and returns their number. The items stay
// in the log, so that every reader that passes them learns of the gap.
func (r *Job) DeadLetterLogItems(ctx context.Context) (n int, err error) {
	err = r.EventLog.VisitBroken(ctx, func(item *store.Item) error {
		n++
		return queue.SendItemLetter(ctx, r.Queue, item, "the item of the event log cannot be decoded", r.now())
	})
	return n, err
}

// Due entries are stored in the minute in which they are due. After the clock was set back, the entries that were written before
// are in minutes too far ahead. For example, if the clock was set back by an hour, a retry that was due in five seconds would wait
// for an hour. So after such a change, Run searches once through all minutes that may have such entries.

// beginSearch makes [Job.continueSearch] search the due table, because the clock was set back from the time old to the time now.
func (r *Job) beginSearch(now, old time.Time) {
	r.search = now.Truncate(time.Minute).Add(time.Minute)
	r.searchUntil = periodic.Later(r.searchUntil, old.Add(maxDelay)) // an earlier search may not have ended yet
}

// continueSearch continues a search for the entries that were written while the clock was ahead.
func (r *Job) continueSearch(ctx context.Context, now time.Time) (moved int, err error) {
	for r.search.Before(r.searchUntil) {
		n, err := r.moveMinute(ctx, r.search, now, func(e state.DueEntry) bool { return time.UnixMilli(e.Made).Sub(now) > minutes.Tolerance })
		if moved += n; err != nil {
			return moved, err
		}
		r.search = r.search.Add(time.Minute)
	}
	return moved, nil
}

// Schedule has the delay before each attempt of a delivery. The first delay is 0, because the first attempt does not wait.
type Schedule []time.Duration

// The default schedules.
var (
	// StandardSchedule is the schedule of Standard Webhooks: ten attempts over about three days. SEP-1803 subscriptions have
	// no other way to recover an event.
	StandardSchedule = Schedule{
		0, 5 * time.Second, 5 * time.Minute, 30 * time.Minute, 2 * time.Hour, 5 * time.Hour,
		10 * time.Hour, 14 * time.Hour, 20 * time.Hour, 24 * time.Hour,
	}
	// EventsSchedule follows the guidance of SEP-3415: 3 to 5 attempts within 10 to 15 minutes, including jitter. After that,
	// the client recovers with its cursor.
	EventsSchedule = Schedule{0, 5 * time.Second, 40 * time.Second, 150 * time.Second, 480 * time.Second}
)

// Jitter is the share by which a delay may be shorter or longer, for example 4 to 6 seconds instead of 5.
const Jitter = 0.2

// Next returns the delay before the next attempt after the given number of attempts, or false if there is no further attempt.
// retryAfter is the delay that the endpoint asked for, or 0.
func (s Schedule) Next(attempts int, retryAfter time.Duration) (time.Duration, bool) {
	if attempts >= len(s) {
		return 0, false
	}
	d := time.Duration(float64(s[attempts]) * (1 - Jitter + 2*Jitter*rand.Float64()))
	return max(d, min(retryAfter, webhook.MaxRetryAfter)), true
}

// Total returns the longest time from the first attempt to the last, unless the endpoint asks for longer delays.
func (s Schedule) Total() (sum time.Duration) {
	for _, d := range s {
		sum += d
	}
	return time.Duration(float64(sum) * (1 + Jitter))
}

// Schedules has the schedules for SEP-1803 subscriptions (Standard) and for MCP Events subscriptions (Events).
type Schedules struct{ Standard, Events Schedule }

// ScheduleFor returns the schedule for subscriptions of the given origin.
func (s Schedules) ScheduleFor(origin subscription.Origin) Schedule {
	if origin == subscription.MCPEvents {
		return s.Events
	}
	return s.Standard
}
