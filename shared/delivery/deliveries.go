package delivery

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"time"

	"github.com/mcp-events/mcpevents/shared/bounded"
	"github.com/mcp-events/mcpevents/shared/event"
	"github.com/mcp-events/mcpevents/shared/fault"
	"github.com/mcp-events/mcpevents/shared/queue"
	"github.com/mcp-events/mcpevents/shared/store"
	"github.com/mcp-events/mcpevents/shared/switches"
)

// deliveries are those that did not succeed at once, as they are stored: each with its due entry, and their events.
type deliveries struct {
	db     store.DB
	queue  queue.Sender
	now    func() time.Time
	log    *slog.Logger                    // may be nil
	bodies *bounded.Map[string, time.Time] // since when events are stored, by workspace and key
}

// maxBodies bounds the events of which a process knows that they are stored.
const maxBodies = 20_000

func newDeliveries(db store.DB, q queue.Sender, now func() time.Time, log *slog.Logger) *deliveries {
	return &deliveries{db, q, now, log, bounded.NewMap[string, time.Time](maxBodies)}
}

// write puts the delivery in the place of what is stored of it, and entry, if there is one, in that of its due entry, in
// one write with what also does. It reports false when another worker wrote first.
func (ds *deliveries) write(ctx context.Context, del *delivery, entry *store.Item, what string, also ...store.Op) (bool, error) {
	it := del.item()
	ops := append([]store.Op{store.Put(it, continues(del.version))}, also...)
	var waits store.Key
	if entry != nil {
		ops, waits = append(ops, store.Put(*entry)), entry.Key
	}
	if del.waits != (store.Key{}) && del.waits != waits {
		ops = append(ops, store.Delete(del.waits))
	}
	err := ds.db.Write(ctx, ops...)
	if errors.Is(err, store.ErrConflict) {
		return false, nil
	}
	if err != nil {
		return false, fault.Wrap(fault.Unavailable, err, "%s", what)
	}
	del.version, del.waits = it.Version, waits
	return true, nil
}

// scheduleNext writes the delivery with its next attempt due at the given time, and sends the message for it if the queue
// can delay it that long. It reports false when another worker had recorded this attempt already.
func (ds *deliveries) scheduleNext(ctx context.Context, del *delivery, e *event.Event, due time.Time) (bool, error) {
	if del.version == 0 {
		if err := ds.storeBody(ctx, e, del.key()); err != nil {
			return false, err
		}
	}
	return ds.writeNext(ctx, del, due)
}

// writeNext is scheduleNext for an event that is stored already, in one write with what also does.
func (ds *deliveries) writeNext(ctx context.Context, del *delivery, due time.Time, also ...store.Op) (bool, error) {
	now := ds.now()
	del.Due, del.DueAt, del.made = due, due, now
	direct := due.Sub(now) <= queue.MaxDelay-backup
	if direct {
		del.DueAt = due.Add(backup)
	}
	entry := del.dueEntry()
	mine, err := ds.write(ctx, del, &entry, "record an attempt", also...)
	if err != nil || !mine || !direct {
		return mine, err
	}
	err = ds.queue.Send(ctx, queue.Slow, del.due().outgoing(max(0, due.Sub(now))))
	if err != nil {
		// The due entry brings it back: the delivery is late, not lost.
		loggerOr(ds.log).WarnContext(ctx, "retry postponed", "subscription", del.Subscription, "event", del.Event, "error", err)
	}
	return true, nil
}

// rememberStored is how long a process remembers that an event is stored. It may be deleted meanwhile, because the only
// subscriber that failed was erased.
const rememberStored = time.Minute

// storeBody stores the event for its retries: once, at its first failure, for all
// subscribers.
func (ds *deliveries) storeBody(ctx context.Context, e *event.Event, key string) error {
	return ds.writeBody(ctx, e, key, "", retriedFor, store.Absent())
}

// keepBody is storeBody for an event that waits for a switch, and is kept for longer.
func (ds *deliveries) keepBody(ctx context.Context, e *event.Event, key string) error {
	return ds.writeBody(ctx, e, key, "kept#", switches.Kept+retriedFor)
}

// writeBody writes an event unless this process did lately; kind tells its two expiries apart.
func (ds *deliveries) writeBody(ctx context.Context, e *event.Event, key, kind string, keep time.Duration, cond ...store.Condition) error {
	id := e.Workspace + "#" + key
	if at, stored := ds.bodies.Get(kind + id); stored && ds.now().Sub(at) < rememberStored {
		return nil
	}
	value, err := json.Marshal(e)
	if err != nil {
		return fault.Wrap(fault.Internal, err, "encode the event")
	}
	err = ds.db.Write(ctx, store.Put(store.Item{Key: bodyKey(e.Workspace, key), Value: value, Expires: ds.now().Add(keep)}, cond...))
	if err != nil && !errors.Is(err, store.ErrConflict) {
		return fault.Wrap(fault.Unavailable, err, "store the event for its retries")
	}
	ds.bodies.Put(kind+id, ds.now())
	ds.bodies.Put(id, ds.now())
	return nil
}
