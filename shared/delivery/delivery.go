package delivery

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"log/slog"
	"time"

	"github.com/mcp-events/mcpevents/shared/bounded"
	"github.com/mcp-events/mcpevents/shared/event"
	"github.com/mcp-events/mcpevents/shared/fault"
	"github.com/mcp-events/mcpevents/shared/queue"
	"github.com/mcp-events/mcpevents/shared/store"
	"github.com/mcp-events/mcpevents/shared/subscription"
	"github.com/mcp-events/mcpevents/shared/switches"
)

// A delivery that does not succeed at once is kept as one item per (subscription, event), with
// its attempts. The rules that keep it from being attempted twice at the same time:
//
//   - Its version is the number of attempts recorded plus one. An outcome is
//     written only over the version it follows, so of two workers that made
//     the same attempt one records it, and only that one schedules the next.
//   - The item and its due entry are written in one transaction, before the
//     message for the next attempt is sent. A worker that dies in between loses
//     the message, not the delivery: the due entry brings it back.
//   - A message whose attempt is not the delivery's next one is stale and dropped.

// delivery is the value of its item.
type delivery struct {
	V            int                 `json:"v"`
	Workspace    string              `json:"ws"`
	Principal    string              `json:"pr"`
	Subscription string              `json:"sub"`
	Origin       subscription.Origin `json:"o"`
	Event        string              `json:"ev"`
	Key          string              `json:"k,omitempty"` // as in [SingleTask]
	URI          string              `json:"uri"`
	Name         string              `json:"name"`
	Target       string              `json:"url"`
	State        string              `json:"st"` // one of the state constants
	First        time.Time           `json:"t1"`
	Published    time.Time           `json:"pub,omitzero"` // the event, for [Watermark]
	// Due is when the next attempt is to be made, DueAt when its due entry acts:
	// the same when the queue cannot delay a message that long, and else a while
	// later, as a backup of the message.
	Due      time.Time `json:"due,omitzero"`
	DueAt    time.Time `json:"dueat,omitzero"`
	Attempts []attempt `json:"a,omitempty"`
	// Base is how many of them were made before a person had a dead letter retried: the schedule
	// begins anew after them.
	Base int `json:"base,omitempty"`
	// Test is set for a test event, which is delivered whatever the subscription asks for.
	Test bool `json:"test,omitempty"`
	// Paused is where it waits for a switch, since PausedAt; see paused.go.
	Paused   pausedKey `json:"pk,omitzero"`
	PausedAt time.Time `json:"pkt,omitzero"`
	// Control is set for a message that carries no event; Event is then its own id.
	Control *control `json:"ctl,omitempty"`

	made time.Time // when the next attempt was scheduled

	version int64     // of the item, 0 before it is written
	waits   store.Key // its due entry, or where it waits for a switch; zero when there is neither
}

// attempt is one recorded attempt: a category, never what the endpoint said.
type attempt struct {
	At       time.Time `json:"at"`
	Category string    `json:"c"`
	Status   int       `json:"s,omitempty"`
	TookMS   int64     `json:"ms"`
}

const (
	statePending = "pending"
	stateDead    = "dead"
	// KeptFor is how long dead letters and records stay (design: 7 days).
	KeptFor = 7 * 24 * time.Hour
	// backup is how long after its time a due entry brings back a retry whose
	// message was lost.
	backup = 2 * time.Minute
	// dueShards spreads the entries of a minute.
	dueShards = 8
	// retriedFor is how long the event of a delivery is stored: for its retries, and then as a dead letter.
	retriedFor = 5*24*time.Hour + KeptFor
)

func (del *delivery) key() string { return cmp.Or(del.Key, del.Event) }

func deliveryKey(workspace, sub, eventKey string) store.Key {
	return store.Key{Table: store.Deliveries, Partition: "d#" + workspace + "#" + sub, Sort: eventKey}
}

func bodyKey(workspace, eventKey string) store.Key {
	return store.Key{Table: store.Deliveries, Partition: "b#" + workspace + "#" + eventKey, Sort: "-"}
}

func dueShard(sub, eventKey string) int {
	h := fnv.New32a()
	h.Write([]byte(sub + "#" + eventKey))
	return int(h.Sum32() % dueShards)
}

func duePartition(shard int, minute time.Time) string {
	return fmt.Sprintf("due#%d#%s", shard, minute.UTC().Format("200601021504"))
}

func dueKey(workspace, sub, eventKey string, at time.Time) store.Key {
	return store.Key{
		Table:     store.Deliveries,
		Partition: duePartition(dueShard(sub, eventKey), at.Truncate(time.Minute)),
		Sort:      sub + "#" + eventKey + "#" + workspace,
	}
}

func (del *delivery) item() store.Item {
	value, _ := json.Marshal(del) // times, strings and numbers
	expires := del.First.Add(retriedFor)
	if !del.PausedAt.IsZero() {
		expires = del.PausedAt.Add(switches.Kept + retriedFor)
	}
	return store.Item{
		Key:   deliveryKey(del.Workspace, del.Subscription, del.key()),
		Value: value, Version: int64(len(del.Attempts)) + 1,
		Expires: expires,
	}
}

// due is the next attempt.
func (del *delivery) due() dueEntry {
	return dueEntry{At: del.Due.UnixMilli(), Made: del.made.UnixMilli(), Task: SingleTask{
		V: taskVersion, Endpoint: endpointID(del.Target), Workspace: del.Workspace, Principal: del.Principal,
		Subscription: del.Subscription, Event: del.Event, Key: del.Key, Attempt: len(del.Attempts) + 1,
	}}
}

func (del *delivery) dueEntry() store.Item {
	value, _ := json.Marshal(del.due())
	return store.Item{
		Key: dueKey(del.Workspace, del.Subscription, del.key(), del.DueAt), Value: value, Expires: del.DueAt.Add(KeptFor),
	}
}

// dueEntry is the value of an entry in the due table.
type dueEntry struct {
	Task SingleTask `json:"t"`
	At   int64      `json:"at"` // milliseconds since 1970
	// Made is when the entry was written, in the same; the version before had none.
	Made int64 `json:"made,omitempty"`
}

func decodeDelivery(it *store.Item) (*delivery, error) {
	var del delivery
	if err := json.Unmarshal(it.Value, &del); err != nil {
		return nil, fault.Wrap(fault.Internal, err, "decode a delivery")
	}
	if del.State == statePending {
		del.version, del.waits = it.Version, del.place()
	}
	return &del, nil
}

// newDelivery is a delivery without attempts.
func newDelivery(sub *subscription.Subscriber, e *event.Event, now time.Time) *delivery {
	return &delivery{
		V: taskVersion, Workspace: e.Workspace, Principal: sub.Principal, Subscription: sub.ID, Origin: sub.Origin,
		Event: e.ID, Key: e.Key(), URI: e.URI, Name: e.Name, Target: sub.Target.URL, State: statePending, First: now,
		Published: e.Published,
	}
}

// forget deletes all that is stored of a delivery.
func (del *delivery) forget() []store.Op {
	if del.version == 0 {
		return nil
	}
	return []store.Op{store.Delete(deliveryKey(del.Workspace, del.Subscription, del.key())), store.Delete(del.waits)}
}

func (t dueEntry) outgoing(delay time.Duration) queue.Outgoing {
	// Whole seconds, rounded up: an attempt is never early.
	delay = (delay + time.Second - 1).Truncate(time.Second)
	return queue.Outgoing{Body: encode(t.Task), Group: t.Task.endpoint(), Delay: delay}
}

func continues(had int64) store.Condition {
	if had == 0 {
		return store.Absent()
	}
	return store.VersionIs(had)
}

// deliveries are those that did not succeed at once, as they are stored: each with its due entry, and their events.
type deliveries struct {
	db     store.DB
	queue  queue.Sender
	now    func() time.Time
	log    *slog.Logger
	bodies *bounded.Map[string, time.Time] // since when events are stored, by workspace and key
}

// maxBodies bounds the events of which a process knows that they are stored.
const maxBodies = 20_000

func newDeliveries(db store.DB, q queue.Sender, now func() time.Time, log *slog.Logger) *deliveries {
	return &deliveries{db, q, now, loggerOr(log), bounded.NewMap[string, time.Time](maxBodies)}
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
		ds.log.WarnContext(ctx, "retry postponed", "subscription", del.Subscription, "event", del.Event, "error", err)
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

func decodeEvent(it *store.Item) (*event.Event, error) {
	var e event.Event
	if err := json.Unmarshal(it.Value, &e); err != nil {
		return nil, fault.Wrap(fault.Internal, err, "decode a stored event")
	}
	return &e, nil
}
