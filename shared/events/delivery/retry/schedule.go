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
	"github.com/mcp-events/mcpevents/shared/events/delivery/task"
	eventlog "github.com/mcp-events/mcpevents/shared/events/log"
	"github.com/mcp-events/mcpevents/shared/events/subscription"
	"github.com/mcp-events/mcpevents/shared/events/webhook"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/platform/periodic"
	"github.com/mcp-events/mcpevents/shared/storage/minutes"
	"github.com/mcp-events/mcpevents/shared/storage/queue"
	"github.com/mcp-events/mcpevents/shared/storage/store"
)

// Job moves deliveries whose next attempt is due from the due table to the slow queue, whose handler makes the attempts. It runs every
// minute.
type Job struct {
	DB    store.DB
	Queue queue.Sender
	// EventLog is the event log. [Job.DeadLetterLogItems] dead-letters its items that cannot be decoded.
	EventLog *eventlog.Log
	// SaveEvery is how old the job's stored position may become before the job saves it again; see [minutes.Position].
	SaveEvery time.Duration
	Now       func() time.Time
	// Log receives a message if the stored entry for a delivery that is due cannot be decoded. Nil means [slog.Default].
	Log *slog.Logger

	latest time.Time // when Run was called last
}

var (
	// readUntilKey is the key of the item with the job's position: the minute up to which it has read the due table.
	readUntilKey = store.Key{Table: store.Deliveries, Partition: "due#watermark", Sort: "-"}
	// aheadKey is the key of the item with the position of [Job.continueSearch], which searches the due table after the clock was set back.
	aheadKey = store.Key{Table: store.Deliveries, Partition: "due#ahead", Sort: "-"}
)

// DueTable is the store table with the due entries. The name of a partition with due entries is "due#" and then a shard number, so it
// sorts between FirstDuePartition and AfterDue. The other partitions whose names begin with "due#" have a letter there, so they sort
// after AfterDue.
const (
	DueTable                    = store.Deliveries
	FirstDuePartition, AfterDue = "due#0", "due#:"
)

// maxDelay is the longest time between the write of a due entry and the time at which the entry is due.
const maxDelay = webhook.MaxRetryAfter*(100+Jitter*100)/100 + state.Backup

func (r *Job) now() time.Time { return periodic.Clock(r.Now)() }

// Run moves the deliveries that are due before its next call, and returns their number. It deletes a due entry only after it has sent the
// entry's message. After a crash in between, the message is sent twice, and package delivery drops the second one as stale.
func (r *Job) Run(ctx context.Context) (moved int, err error) {
	now := r.now().Round(0)                    // without the monotonic clock, which does not show that the clock was set back
	if r.latest.Sub(now) > minutes.Tolerance { // the stored position may be too old to show it
		if err := r.beginSearch(ctx, now, r.latest.Truncate(time.Minute)); err != nil {
			return 0, err
		}
	}
	r.latest = now
	due := minutes.Position{
		DB: r.DB, Key: readUntilKey, SaveEvery: r.SaveEvery, CatchUp: state.KeptFor, // the store keeps due entries no longer than that
		Ahead: func(ctx context.Context, was time.Time) error { return r.beginSearch(ctx, now, was) },
	}
	err = due.Walk(ctx, now, func(ctx context.Context, minute time.Time) error {
		n, err := r.moveMinute(ctx, minute, now, nil)
		moved += n
		return err
	})
	n, aheadErr := r.continueSearch(ctx, now)
	return moved + n, errors.Join(err, aheadErr)
}

// moveMinute moves a minute's due entries to the slow queue. If pick is not nil, entries for which it returns false stay.
func (r *Job) moveMinute(ctx context.Context, minute, now time.Time, pick func(state.DueEntry) bool) (moved int, err error) {
	var errs []error
	for shard := range state.DueShards {
		n, err := r.move(ctx, state.DuePartition(shard, minute), now, pick)
		moved += n
		errs = append(errs, err)
	}
	return moved, errors.Join(errs...)
}

// move moves the due entries of one partition to the slow queue, like [Job.moveMinute]. The messages of entries that are not due yet are
// delayed.
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

// DeadLetterLogItems dead-letters items of the event log that readers could not decode, and returns their number. The items stay in the
// log, so that every reader that passes them learns that it misses an event.
func (r *Job) DeadLetterLogItems(ctx context.Context) (n int, err error) {
	err = r.EventLog.VisitBroken(ctx, func(item *store.Item) error {
		n++
		return queue.SendItemLetter(ctx, r.Queue, item, "the item of the event log cannot be decoded", r.now())
	})
	return n, err
}

// Due entries are stored in the minute in which they are due. If the clock is set back, the entries that were written before are in
// minutes too far ahead. For example, after the clock was set back by an hour, a retry that was due in five seconds would wait for an
// hour. So Run then searches once through all minutes that may have such entries.

// search describes a search of the due table after the clock was set back. It is the value of the item at [aheadKey], and the item's
// version is the minute at which the search continues. Entries that were written before the change can be in minutes up to Until, where
// the search ends.
type search struct {
	V     int   `json:"v"`
	Was   int64 `json:"was"` // the minute that the job had reached when the clock was set back, in seconds since 1970
	Until int64 `json:"until"`
}

// beginSearch stores that the due table must be searched, because the clock was set back. The parameter "was" is the minute up to which
// the job had read the due table. This minute is later than now.
func (r *Job) beginSearch(ctx context.Context, now, was time.Time) error {
	it, err := store.One(ctx, r.DB, aheadKey, "read the position of the search after a clock change")
	if err != nil {
		return err
	}
	next := search{V: task.Version, Was: was.Unix(), Until: was.Add(maxDelay).Unix()}
	if it != nil {
		var before search
		if err := json.Unmarshal(it.Value, &before); err == nil {
			if before.Was == next.Was {
				return nil // the last call of Run began this search, and then could not save the job's position
			}
			next.Until = max(next.Until, before.Until) // the clock was set back twice
		}
	}
	value, _ := json.Marshal(next)
	err = r.DB.Write(ctx, store.Put(store.Item{
		Key: aheadKey, Version: now.Truncate(time.Minute).Add(time.Minute).Unix(), Value: value,
	}))
	return fault.Wrap(fault.Unavailable, err, "note that the clock was set back")
}

// continueSearch continues a search for the entries that were written before the clock was set back. It moves them to the slow queue, and
// returns their number.
func (r *Job) continueSearch(ctx context.Context, now time.Time) (moved int, err error) {
	it, err := store.One(ctx, r.DB, aheadKey, "read the position of the search after a clock change")
	if err != nil || it == nil {
		return 0, err
	}
	var s search
	if err := json.Unmarshal(it.Value, &s); err != nil {
		return 0, r.deadLetter(ctx, it, fault.Wrap(fault.Invalid, err, "the position of the search after a clock change cannot be decoded"))
	}
	had := it.Version
	for from, until := time.Unix(had, 0), time.Unix(s.Until, 0); !from.After(until); {
		for range 60 {
			n, err := r.moveMinute(ctx, from, now, func(e state.DueEntry) bool { return time.UnixMilli(e.Made).Sub(now) > minutes.Tolerance })
			moved += n
			if err != nil {
				return moved, err
			}
			from = from.Add(time.Minute)
		}
		err := r.DB.Write(ctx, store.Put(store.Item{Key: aheadKey, Version: from.Unix(), Value: it.Value}, store.VersionIs(had)))
		if errors.Is(err, store.ErrConflict) {
			return moved, nil // another call of Run searches, too, or the clock was set back again
		}
		if err != nil {
			return moved, fault.Wrap(fault.Unavailable, err, "save the position of the search after a clock change")
		}
		had = from.Unix()
	}
	err = r.DB.Write(ctx, store.Delete(aheadKey, store.VersionIs(had)))
	if errors.Is(err, store.ErrConflict) {
		err = nil
	}
	return moved, fault.Wrap(fault.Unavailable, err, "end the search after a clock change")
}

// Schedule has the delay before each attempt of a delivery. The first delay is 0, because the first attempt does not wait.
type Schedule []time.Duration

// The default schedules.
var (
	// StandardSchedule is the schedule of Standard Webhooks: ten attempts over about three days. It is that long because SEP-1803
	// subscriptions have no other way to recover an event.
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

// Next returns the delay before the next attempt after the given number of attempts, or false if there is no further attempt. The
// parameter retryAfter is the delay that the endpoint asked for, or 0.
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
