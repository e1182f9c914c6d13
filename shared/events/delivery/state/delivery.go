// Package state stores the deliveries whose first attempt did not succeed, and the events that their retries send. It changes the state
// of a delivery step by step, for example from pending to dead. A pending delivery also has an entry in the due table, from which a
// periodic job sends the message for the next attempt.
package state

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"log/slog"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/mcp-events/mcpevents/shared/events/delivery/task"
	"github.com/mcp-events/mcpevents/shared/events/event"
	"github.com/mcp-events/mcpevents/shared/events/subscription"
	"github.com/mcp-events/mcpevents/shared/events/switches"
	"github.com/mcp-events/mcpevents/shared/events/webhook"
	"github.com/mcp-events/mcpevents/shared/platform/bounded"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/platform/periodic"
	"github.com/mcp-events/mcpevents/shared/storage/queue"
	"github.com/mcp-events/mcpevents/shared/storage/store"
)

// A delivery that does not succeed with its first attempt is stored as one item per subscription and event, with its attempts. These
// rules keep two workers from continuing the delivery at the same time:
//
//   - Each write increments the item's version and requires the version that the worker read. Of two workers that made the same attempt,
//     one records it and schedules the next one. The write of the other worker fails, so that worker has nothing left to do.
//   - The item and its due entry are written in one transaction, before the queue message for the next attempt is sent. If the worker
//     dies in between, the due entry replaces the lost message. Only the delayed message of a new delivery may be sent at the same time;
//     see [Deliveries.Schedule].
//   - A message is stale, and dropped, if its attempt is not the delivery's next one.

// Delivery is the delivery of an event to a subscription, as it is stored. Its JSON is the value of the stored item.
type Delivery struct {
	V            int                 `json:"v"`
	Workspace    string              `json:"ws"`
	Principal    string              `json:"pr"`
	Subscription string              `json:"sub"`
	Origin       subscription.Origin `json:"o"`
	Event        string              `json:"ev"`
	Key          string              `json:"k,omitempty"` // see [task.Single.Key]
	URI          string              `json:"uri"`
	Name         string              `json:"name"`
	Target       string              `json:"url"`
	State        string              `json:"st"`           // one of the state constants
	First        time.Time           `json:"t1"`           // when the retry schedule begins; a switch or rate limit moves it
	Published    time.Time           `json:"pub,omitzero"` // of the event; the subscription's cursor stays before it until the delivery ends
	// Due is the time of the next attempt. DueAt is the time of the due entry, i.e. when the due table sends the attempt's message. If
	// the queue can delay a message until Due, the due entry is only a backup for that message, so DueAt is later than Due.
	Due      time.Time `json:"due,omitzero"`
	DueAt    time.Time `json:"dueat,omitzero"`
	Attempts []Result  `json:"a,omitempty"`
	Size     int       `json:"b,omitempty"` // the size of the event's data in bytes
	Waits    int       `json:"w,omitempty"` // how often the delivery waited in the due table without an attempt
	// Base is the number of attempts that were made before the delivery was given up and the event was requested again. They are the
	// first ones in Attempts, and do not count towards the retry schedule.
	Base int `json:"base,omitempty"`
	// Renewals is how often the event was requested again while the delivery was stored. It is part of the due entry's key, so that each
	// request gives the due entry another key. Otherwise the retry job, which deletes old due entries, could delete the new one.
	Renewals int `json:"rn,omitempty"`
	// Died is when the delivery was given up. The keys of its dead letter contain this time. Died is zero if an earlier version of the
	// server gave the delivery up.
	Died time.Time `json:"died,omitzero"`
	// Again is set if a person had the event delivered again. If this delivery is given up, the client is not notified that it missed the
	// event, because it usually was notified when the earlier delivery was given up.
	Again bool `json:"again,omitempty"`
	// Late is set if the delivery is late on purpose, because its event is replayed, because a switch paused the delivery, or because the
	// subscription was suspended. The metric of the delivery lag leaves out the first attempt of such a delivery.
	Late bool `json:"late,omitempty"`
	// Test is set for a test event, which is delivered even if the subscription does not select it.
	Test bool `json:"test,omitempty"`
	// Paused is set while a switch pauses the delivery, since the time PausedAt. It is the key of the item that keeps the delivery's
	// queue message until a person resumes the switch; see [Deliveries.Pause].
	Paused   PausedKey `json:"pk,omitzero"`
	PausedAt time.Time `json:"pkt,omitzero"`
	// Control is set for a control message, i.e. a message about the subscription itself. It carries no event, and the field Event is the
	// id of the message.
	Control *control `json:"ctl,omitempty"`

	Made  time.Time `json:"-"` // when the due entry for the next attempt was written
	Later bool      `json:"-"` // the delivery waits only in the due table, and the queue gets no message until it is due

	Version int64  `json:"-"` // the version of the stored item, 0 before the item is written
	Stored  string `json:"-"` // the state of the stored item; [Paused] for a paused delivery
	// recorded is the number of attempts in the stored item. The field Attempts may also have newer ones.
	recorded int       `json:"-"`
	Place    store.Key `json:"-"` // the key of the due entry or, while a switch pauses the delivery, of the waiting message; otherwise zero
	// replaced has the keys of a dead letter's items if this delivery replaces the dead letter. The next write of the delivery deletes
	// these items.
	replaced []store.Key
}

// Result is one recorded attempt of a delivery. It has the category of the outcome but never the body of the endpoint's response.
type Result struct {
	At       time.Time `json:"at"`
	Category string    `json:"c"`
	Status   int       `json:"s,omitempty"`
	TookMS   int64     `json:"ms"`
}

const (
	// KeptFor is how long the store keeps dead letters and the records of attempts.
	KeptFor = 7 * 24 * time.Hour
	// Backup is how much later than a retry its due entry is due, if the queue already has a message for the retry. The due entry then
	// sends a second message, in case the first one was lost.
	Backup = 2 * time.Minute
	// EarlyMessage is the minimum delay of a queue message that [Deliveries.Schedule] sends while it still writes the delivery to the
	// store. With a shorter delay, the message could arrive before the delivery is stored, and would be dropped.
	EarlyMessage = time.Second
	DueShards    = 8 // partitions for the due entries of one minute
	// RetriedFor is how long a delivery and its event are stored: five days for the retries, and then as a dead letter.
	RetriedFor = 5*24*time.Hour + KeptFor
)

// EventKey returns the key that identifies the delivery among the deliveries of its subscription.
func (del *Delivery) EventKey() string { return cmp.Or(del.Key, del.Event) }

// ownKey returns a value for Delivery.Key that includes the event's time of publication. Publishers may use the same id for two events.
// If the store still has the delivery or the body of the other event under the usual key, this delivery and its event are stored under
// ownKey.
func (del *Delivery) ownKey() string {
	return publicationKey(event.Event{ID: del.Event, URI: del.URI}.Key(), del.Published)
}

func publicationKey(eventKey string, published time.Time) string {
	return fmt.Sprintf("%s#%d", eventKey, published.UnixMicro())
}

// MaxFound is the maximum number of subscriptions for which [Find] looks up deliveries.
const MaxFound = store.MaxGet / 2

// Backlog counts the deliveries to a subscription that are stored and still to be sent: retries, and deliveries that wait for a
// switch or for the end of a suspension.
type Backlog struct {
	Count int
	// More is true if there are too many deliveries and dead letters to count all of them.
	More bool
	// Oldest is when the oldest of the counted events was published.
	Oldest time.Time
}

const maxBacklog = 1000 // the maximum number of items that [ReadBacklog] reads

// ReadBacklog counts the deliveries to a subscription that are stored and still to be sent.
func ReadBacklog(ctx context.Context, db store.DB, workspace, sub string) (b Backlog, err error) {
	q := store.Query{Table: store.Deliveries, Partition: Key(workspace, sub, "-").Partition, Limit: maxBacklog / 4, Eventual: true}
	b.More = true
	for read := 0; b.More && read < maxBacklog; {
		page, err := db.Query(ctx, q)
		if err != nil {
			return b, fault.Wrap(fault.Unavailable, err, "count the waiting deliveries")
		}
		for i := range page.Items {
			del, err := Decode(&page.Items[i])
			if err != nil || del.State == Dead || del.Control != nil {
				continue // the delivery cannot be decoded, is a dead letter, or carries no event
			}
			b.Count++
			if b.Oldest.IsZero() || del.Published.Before(b.Oldest) {
				b.Oldest = del.Published
			}
		}
		read += q.Limit
		b.More, q.After = page.More, page.Last
	}
	return b, nil
}

// Find returns the stored deliveries of an event to the given subscriptions, as a map by subscription. It leaves out the deliveries
// of another event with the same id that was published at another time.
func Find(ctx context.Context, db store.DB, e *event.Event, subs []string) (map[string]*Delivery, error) {
	keys := make([]store.Key, 0, 2*len(subs))
	for _, id := range subs {
		keys = append(keys, Key(e.Workspace, id, e.Key()), Key(e.Workspace, id, publicationKey(e.Key(), e.Published)))
	}
	if len(keys) == 0 {
		return nil, nil
	}
	items, err := db.Get(ctx, keys...)
	if err != nil {
		return nil, fault.Wrap(fault.Unavailable, err, "read deliveries")
	}
	found := map[string]*Delivery{}
	for _, it := range items {
		if it == nil {
			continue
		}
		del, err := Decode(it)
		if err != nil {
			return nil, err
		}
		if !otherPublication(e.Published, del.Published) {
			found[del.Subscription] = del
		}
	}
	return found, nil
}

// Key returns the key of the item of a delivery.
func Key(workspace, sub, eventKey string) store.Key {
	return store.Key{Table: store.Deliveries, Partition: "d#" + workspace + "#" + sub, Sort: eventKey}
}

// BodyKey returns the key of the item with an event's payload, which all deliveries of the event share.
func BodyKey(workspace, eventKey string) store.Key {
	return store.Key{Table: store.Deliveries, Partition: "b#" + workspace + "#" + eventKey, Sort: "-"}
}

// LetterKeys returns the keys of the dead letter of a delivery that was given up at the given time. Each letter is stored as four items, to
// list the letters of a subscription (x#), of an endpoint's origin (xo#), of an event type (xe#) or of the workspace (xa#) with one query.
func (del *Delivery) LetterKeys(at time.Time) []store.Key {
	key := func(partition string) store.Key {
		return store.Key{Table: store.Deliveries, Partition: partition, Sort: fmt.Sprintf("%016d#%s#%s", at.UnixMicro(), del.Subscription, del.EventKey())}
	}
	own := LettersOf(del.Workspace, del.Subscription)
	own.Sort = fmt.Sprintf("%016d#%s", at.UnixMicro(), del.EventKey())
	return []store.Key{
		own, key("xo#" + del.Workspace + "#" + subscription.OriginOf(del.Target)), key("xe#" + del.Workspace + "#" + del.Name), key("xa#" + del.Workspace),
	}
}

// LettersOf returns the key of the partition with a subscription's dead letters, without a sort key.
func LettersOf(workspace, sub string) store.Key {
	return store.Key{Table: store.Deliveries, Partition: "x#" + workspace + "#" + sub}
}

func dueShard(sub, eventKey string) int {
	h := fnv.New32a()
	h.Write([]byte(sub + "#" + eventKey))
	return int(h.Sum32() % DueShards)
}

// DuePartition returns a partition of the due table, which has the entries of one minute. The entries of each minute are spread over
// [DueShards] partitions.
func DuePartition(shard int, minute time.Time) string {
	return fmt.Sprintf("due#%d#%s", shard, minute.UTC().Format("200601021504"))
}

// DueKey returns the key of a delivery's due entry for the given time.
func DueKey(workspace, sub, eventKey string, at time.Time) store.Key {
	return store.Key{
		Table:     store.Deliveries,
		Partition: DuePartition(dueShard(sub, eventKey), at.Truncate(time.Minute)),
		Sort:      sub + "#" + eventKey + "#" + workspace,
	}
}

// Item returns the item that stores the delivery, with the next version number.
func (del *Delivery) Item() store.Item {
	value, _ := json.Marshal(del) // cannot fail for times, strings and numbers
	expires := del.First.Add(RetriedFor)
	if !del.PausedAt.IsZero() {
		expires = del.PausedAt.Add(switches.Kept + RetriedFor)
	}
	return store.Item{
		Key:   Key(del.Workspace, del.Subscription, del.EventKey()),
		Value: value, Version: del.Version + 1,
		Expires: expires,
	}
}

// NextTask returns the due entry for the delivery's next attempt. The entry contains the task that asks for this attempt.
func (del *Delivery) NextTask() DueEntry {
	return DueEntry{At: del.Due.UnixMilli(), Made: del.Made.UnixMilli(), Task: task.Single{
		V: task.Version, Endpoint: task.EndpointID(del.Target), Workspace: del.Workspace, Principal: del.Principal,
		Subscription: del.Subscription, Event: del.Event, Key: del.Key, Attempt: len(del.Attempts) + 1, Size: del.Size,
	}}
}

func (del *Delivery) dueKey() store.Key {
	key := DueKey(del.Workspace, del.Subscription, del.EventKey(), del.DueAt)
	if del.Renewals > 0 {
		key.Sort += fmt.Sprintf("#%d", del.Renewals)
	}
	return key
}

// DueItem returns the item of the delivery's due entry.
func (del *Delivery) DueItem() store.Item {
	value, _ := json.Marshal(del.NextTask())
	return store.Item{
		Key: del.dueKey(), Value: value, Expires: del.DueAt.Add(KeptFor),
	}
}

// DueEntry is the value of an item in the due table. At the time At, its task is sent to the slow queue.
type DueEntry struct {
	Task task.Single `json:"t"`
	At   int64       `json:"at"`             // when to send the message, in milliseconds since 1970
	Made int64       `json:"made,omitempty"` // when the entry was written, in milliseconds since 1970
}

// ErrNewer is the error for a delivery that a newer program stored and will handle.
var ErrNewer = errors.New("its version is newer than this program's")

// Decode returns the delivery that an item stores. If a newer program stored it, the error is [ErrNewer].
func Decode(it *store.Item) (*Delivery, error) {
	var del Delivery
	// Decode the version first, because a newer version may have changed the types of other members.
	var version struct {
		V int `json:"v"`
	}
	if err := json.Unmarshal(it.Value, &version); err == nil && version.V > task.Version {
		return nil, fault.Wrap(fault.Unavailable, ErrNewer, "decode a delivery of version %d", version.V)
	}
	if err := json.Unmarshal(it.Value, &del); err != nil {
		return nil, fault.Wrap(fault.Internal, err, "decode a delivery")
	}
	del.Version, del.Stored, del.recorded = it.Version, del.State, len(del.Attempts)
	if del.State == Pending {
		if del.Place = del.placeKey(); !del.PausedAt.IsZero() {
			del.Stored = Paused
		}
	}
	return &del, nil
}

// New returns the delivery of an event to a subscriber, without attempts. The delivery is not stored yet.
func New(sub *subscription.Subscriber, e *event.Event, now time.Time) *Delivery {
	return &Delivery{
		V: task.Version, Workspace: e.Workspace, Principal: sub.Principal, Subscription: sub.ID, Origin: sub.Origin,
		Event: e.ID, Key: e.Key(), URI: e.URI, Name: e.Name, Target: sub.Target.URL, State: Pending, First: now,
		Published: e.Published, Size: len(e.Data),
	}
}

const maxForgets = 16 // the maximum number of deliveries that WriteNotes deletes concurrently

// WriteNotes writes store operations that several attempts have collected: the records of the attempts, and the deletions that
// [Delivery.DeletionNotes] returns. It keeps a delivery that has changed since the attempt's worker read it, for example because its
// event was requested again.
func WriteNotes(ctx context.Context, db store.DB, notes []store.Op) error {
	if !slices.ContainsFunc(notes, isConditional) { // the usual case, which needs no copies
		return db.WriteAll(ctx, notes...)
	}
	var plain []store.Op
	var forgets [][]store.Op
	for len(notes) > 0 {
		n := 1
		if !isConditional(notes[0]) {
			plain = append(plain, notes[0])
		} else {
			n = 2 // two operations: delete the delivery, and delete its due entry or waiting message; see Delivery.DeletionNotes
			forgets = append(forgets, notes[:n])
		}
		notes = notes[n:]
	}
	if len(plain) > 0 {
		if err := db.WriteAll(ctx, plain...); err != nil {
			return err
		}
	}
	writes, ctx := errgroup.WithContext(ctx)
	writes.SetLimit(maxForgets)
	for _, ops := range forgets {
		writes.Go(func() (err error) {
			defer fault.Recovered(&err)
			if err := db.Write(ctx, ops...); !errors.Is(err, store.ErrConflict) {
				return err
			}
			return nil
		})
	}
	return writes.Wait()
}

func isConditional(op store.Op) bool { return op.Cond != (store.Condition{}) }

// Outgoing returns the entry's message for the slow queue, with a delay of whole seconds.
func (t DueEntry) Outgoing(delay time.Duration) queue.Outgoing {
	// Delay by whole seconds, rounded up, so that an attempt is never early.
	delay = (delay + time.Second - 1).Truncate(time.Second)
	return queue.Outgoing{Body: task.Encode(t.Task), Group: t.Task.Endpoint, Owner: t.Task.Owner(), Delay: delay}
}

// UnchangedSince returns the condition that an item still has the version that the caller has read. The parameter had is that version, or
// 0 if the item did not exist.
func UnchangedSince(had int64) store.Condition {
	if had == 0 {
		return store.Absent()
	}
	return store.VersionIs(had)
}

// PausedKey is the key of the item that keeps the queue message of a paused delivery until a person resumes the deliveries (see package
// switches).
type PausedKey struct {
	Partition string `json:"p"`
	Sort      string `json:"s"`
}

// placeKey returns the key of the item from which the delivery's next message is sent. This is the due entry or, while a switch pauses
// the delivery, the item that waits for the switch.
func (del *Delivery) placeKey() store.Key {
	if del.PausedAt.IsZero() {
		return del.dueKey()
	}
	return store.Key{Table: store.Deliveries, Partition: del.Paused.Partition, Sort: del.Paused.Sort}
}

// resume ends the pause of a delivery that a switch has paused. The pause does not count towards the delivery's age.
func (del *Delivery) resume(now time.Time) {
	if !del.PausedAt.IsZero() {
		del.First = del.First.Add(max(0, now.Sub(del.PausedAt)))
		del.Paused, del.PausedAt, del.Late = PausedKey{}, time.Time{}, true
	}
}

// control is a message about the subscription itself, without an event (SEP-3415, Non-event webhook bodies). It has a copy of the target,
// because the subscription may no longer exist when the message is sent.
type control struct {
	Body   json.RawMessage     `json:"b,omitempty"`
	Target subscription.Target `json:"t"`
	// Gap is set for a gap notice, i.e. a message that tells the client that it missed events. Package lifecycle makes these notices.
	Gap gap `json:"g,omitempty"`
}

// NewNotice returns the delivery of a control message, still without its body. The parameter kind is the type of the message, for example
// gap, and name is the subscription's event type. The retry schedule begins at the time first.
func NewNotice(workspace string, sub *subscription.Subscriber, name, kind string, first time.Time) *Delivery {
	return &Delivery{
		V: task.Version, Workspace: workspace, Principal: sub.Principal, Subscription: sub.ID, Origin: sub.Origin,
		Event: webhook.NewMessageID(kind), Name: name, Target: sub.Target.URL, State: Pending, First: first,
		Control: &control{Target: sub.Target},
	}
}

// gap says why the client missed the events that a control message announces.
type gap string

const (
	GapAbandoned gap = "abandoned"
	GapSuspended gap = "suspended" // its body is made only when the message is sent
)

// GapKey returns the key of the item that describes the last gap notice of a subscription, i.e. the last message about missed events.
func GapKey(workspace, sub string) store.Key {
	return store.Key{Table: store.Deliveries, Partition: "g#" + workspace + "#" + sub, Sort: "-"}
}

// Deliveries stores the deliveries whose first attempt did not succeed: their items, due entries and events.
type Deliveries struct {
	DB     store.DB
	Queue  queue.Sender
	Now    func() time.Time
	Log    *slog.Logger
	bodies *bounded.Map[string, storedBody] // events that this process knows to be in the store, by workspace and key

	mu      sync.Mutex
	storing map[string]*newBody // events that this process is storing now, by workspace and key
}

const maxBodies = 20_000 // the maximum number of entries in [Deliveries.bodies], which do not contain the events

// NewDeliveries returns a Deliveries that uses the given store. The clock and the log may be nil.
func NewDeliveries(db store.DB, q queue.Sender, now func() time.Time, log *slog.Logger) *Deliveries {
	now = periodic.Clock(now)
	return &Deliveries{
		DB: db, Queue: q, Now: now, Log: cmp.Or(log, slog.Default()),
		bodies: bounded.NewMap[string, storedBody](maxBodies), storing: map[string]*newBody{},
	}
}

// RememberStored is how long a process remembers that an event is stored. The time is short because the event may be deleted meanwhile.
// This happens if the only subscription with a failed delivery of the event is erased.
const RememberStored = time.Minute

// expiryTolerance is how much too early a stored event may expire for a delivery's retries. Without the tolerance, each failure of an
// event would write the event again, to store it a little longer. Usually all first failures of an event happen within this time, so the
// event is written only once.
const expiryTolerance = time.Hour

// storedBody describes an event in the store, so that the process need not read the store again. It does not contain the event.
type storedBody struct {
	published int64 // when the event was published, in microseconds since 1970
	expires   time.Time
	seen      time.Time
}

// StoreBody stores the event of a delivery for its retries, for at least as long as keep. All subscribers share one item, which is
// written at the first failure and again when it would expire too early.
//
// If another event with the same id is stored already, StoreBody gives the delivery a key that includes the time of publication, so that
// both events are delivered.
func (ds *Deliveries) StoreBody(ctx context.Context, del *Delivery, e *event.Event, keep time.Duration) error {
	for range maxContests {
		body, err := ds.claimBody(ctx, del, e, keep)
		if body == nil || err != nil {
			return err
		}
		if err := ds.storeClaimed(ctx, body); err != nil {
			return fault.Wrap(fault.Unavailable, err, "store the event for its retries")
		}
	}
	return fault.New(fault.Unavailable, "store the event for its retries: its item changes too often")
}

// storeClaimed writes an event that [Deliveries.claimBody] has returned. Then other deliveries, which wait until the same event is
// stored, can continue.
func (ds *Deliveries) storeClaimed(ctx context.Context, body *newBody) (err error) {
	written := false
	defer func() { body.release(written, err) }()
	body.stored, err = ds.putBody(ctx, body.item, body.stored.published)
	written = err == nil
	return err
}

// newBody is an event that this process is about to store. Other deliveries of the same event wait until release is called.
type newBody struct {
	item   store.Item
	stored storedBody // describes the event in the store after a successful write
	// release lets the other deliveries of the event continue. If the event could not be written because of an error, the other
	// deliveries fail with the same error. After a conflict, they check again whether the event is stored.
	release func(written bool, err error)
	done    chan struct{}
	err     error // may be read when done is closed
}

// claimBody returns the event for the caller to store, or nil if this process knows that the event is stored already. It waits while
// another delivery stores the same event. It may change the delivery's key; see [Deliveries.StoreBody].
func (ds *Deliveries) claimBody(ctx context.Context, del *Delivery, e *event.Event, keep time.Duration) (*newBody, error) {
	now, published := ds.Now(), e.Published.UnixMicro()
	expires := now.Add(keep)
	for ctx.Err() == nil {
		id := e.Workspace + "#" + del.EventKey()
		ds.mu.Lock()
		known, ok := ds.bodies.Get(id)
		ok = ok && now.Sub(known.seen) < RememberStored
		storing := ds.storing[id]
		switch {
		case ok && known.published != published:
			ds.mu.Unlock()
			del.Key = del.ownKey()
			continue
		case ok && !known.expires.Before(expires.Add(-expiryTolerance)):
			ds.mu.Unlock()
			return nil, nil
		case storing != nil:
			ds.mu.Unlock()
			select {
			case <-storing.done:
				if storing.err != nil {
					return nil, storing.err
				}
			case <-ctx.Done():
			}
			continue
		}
		body := &newBody{done: make(chan struct{}), stored: storedBody{published: published, expires: expires}}
		ds.storing[id] = body
		ds.mu.Unlock()
		body.release = func(written bool, err error) {
			ds.mu.Lock()
			defer ds.mu.Unlock()
			switch {
			case written && body.stored != (storedBody{}):
				body.stored.seen = now
				ds.bodies.Put(id, body.stored)
			case err != nil && !errors.Is(err, store.ErrConflict) && !errors.Is(err, context.Canceled):
				body.err = fault.Wrap(fault.Unavailable, err, "store the event for its retries")
			}
			delete(ds.storing, id)
			close(body.done)
		}
		value, err := json.Marshal(e)
		if err != nil {
			body.release(false, nil)
			return nil, fault.Wrap(fault.Internal, err, "encode the event")
		}
		// The version is the time of expiry. If two processes write the item at the same time, one gets a conflict. That process writes
		// again only if the stored item expires too early for its delivery by more than expiryTolerance.
		body.item = store.Item{Key: BodyKey(e.Workspace, del.EventKey()), Value: value, Version: expires.Unix(), Expires: expires}
		return body, nil
	}
	return nil, fault.Wrap(fault.Unavailable, ctx.Err(), "wait for the event to be stored")
}

// putBody writes the item of an event, and returns a description of the stored event. It writes nothing if the stored item expires late
// enough, or if it has another event with the same id. If another process changed the item meanwhile, the result is the zero storedBody.
func (ds *Deliveries) putBody(ctx context.Context, it store.Item, published int64) (storedBody, error) {
	written := storedBody{published: published, expires: it.Expires}
	items, err := ds.DB.Get(ctx, it.Key) // read before writing, because the event is usually stored already
	if err != nil {
		return storedBody{}, err
	}
	unchanged := store.Absent()
	if items[0] != nil {
		if had, err := DecodeEvent(items[0]); err == nil {
			stored := storedBody{published: had.Published.UnixMicro(), expires: items[0].Expires}
			if stored.published != published || !stored.expires.Before(it.Expires.Add(-expiryTolerance)) {
				return stored, nil
			}
		}
		unchanged = store.VersionIs(items[0].Version)
	}
	err = ds.DB.Write(ctx, store.Put(it, unchanged))
	if errors.Is(err, store.ErrConflict) {
		return storedBody{}, nil
	}
	return written, err
}

// EventIn decodes the stored event of a delivery. It returns nil if the event is not stored, or if the stored event has the same
// id but another time of publication.
func (del *Delivery) EventIn(it *store.Item) (*event.Event, error) {
	if it == nil {
		return nil, nil
	}
	e, err := DecodeEvent(it)
	if err != nil || otherPublication(e.Published, del.Published) {
		return nil, err
	}
	return e, nil
}

// DecodeEvent returns the event of an item with a [BodyKey].
func DecodeEvent(it *store.Item) (*event.Event, error) {
	var e event.Event
	if err := json.Unmarshal(it.Value, &e); err != nil {
		return nil, fault.Wrap(fault.Internal, err, "decode a stored event")
	}
	return &e, nil
}
