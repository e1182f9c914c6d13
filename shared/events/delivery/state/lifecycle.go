package state

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/mcp-events/mcpevents/shared/events/delivery/task"
	"github.com/mcp-events/mcpevents/shared/events/event"
	"github.com/mcp-events/mcpevents/shared/events/switches"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/platform/periodic"
	"github.com/mcp-events/mcpevents/shared/storage/queue"
	"github.com/mcp-events/mcpevents/shared/storage/store"
)

// The states of a delivery. The state Paused is never stored: a paused delivery is stored with the state Pending and the time
// [Delivery.PausedAt].
const (
	None      = "" // not stored, because it is not attempted yet, was delivered, or ended with its subscription
	Pending   = "pending"
	Paused    = "paused"
	Suspended = "held"
	Dead      = "dead"
)

// A delivery that was given up (dead) can be scheduled again. People can have its event delivered again: with a replay, from the dead
// letter, or by subscribing with an older cursor. The delivery is also scheduled if a page task, which makes first attempts, is
// redelivered and its attempt fails.
//
// The dead letter is then deleted, so that an event never has two dead letters for one subscription. But if the attempt of the page task
// succeeds, the dead letter stays, because page tasks do not read stored deliveries.

// IsUnderWay reports whether a stored delivery in this state still has to be sent. A dead delivery does not, but a new delivery of the same
// event can replace it.
func IsUnderWay(state string) bool { return state == Pending || state == Paused || state == Suspended }

// Schedule stores a delivery with the time of its next attempt, in one transaction with the writes in the parameter also. If the queue
// can delay a message that long, Schedule also sends the message for the attempt. It stores the event of a new delivery. For a stored
// delivery, e may be nil.
//
// To save time, Schedule sends the message of a delivery without attempts while it still writes the delivery, if the message is delayed
// by at least [EarlyMessage]. A message that arrives before the delivery is stored is dropped. So if the write takes longer than the
// delay, Schedule sends another message.
//
// Schedule and the methods for the other steps return false if another worker continues the delivery, or if it has ended.
func (ds *Deliveries) Schedule(ctx context.Context, del *Delivery, e *event.Event, due time.Time, also ...store.Op) (bool, error) {
	if del.Version != 0 {
		e = nil // the event is stored already
	}
	now := ds.Now()
	del.Due, del.DueAt, del.Made = due, due, now
	direct := !del.Later && due.Sub(now) <= queue.MaxDelay-Backup
	if direct {
		del.DueAt = due.Add(Backup)
	}
	message := func() queue.Outgoing { return del.NextTask().Outgoing(max(0, due.Sub(now))) }
	var early queue.Outgoing
	var sent chan error // the result of sending the early message
	if direct && del.Version == 0 && len(del.Attempts) == 0 {
		early = message()
	}
	if early.Delay >= EarlyMessage {
		sent = make(chan error, 1)
		go func() {
			var err error
			defer func() { sent <- err }()
			defer fault.Recovered(&err)
			err = ds.Queue.Send(ctx, queue.Slow, early)
		}()
	}
	written, err := ds.write(ctx, del, change{
		to: Pending, what: "record an attempt", event: e, keep: RetriedFor, entry: del.DueItem,
		also: func() []store.Op { return also },
	})
	var sendErr error
	if sent != nil {
		sendErr = <-sent
	}
	if err != nil || !written || !direct {
		return written, err
	}
	// Send a message now, unless an early message was sent and is valid. The early message is not valid if it may have arrived before the
	// write, or if the write has changed the delivery's task. For example, the delivery may have replaced a dead one and got its
	// attempts.
	if m := message(); sent == nil || ds.Now().Sub(now) >= early.Delay || !bytes.Equal(m.Body, early.Body) {
		sendErr = ds.Queue.Send(ctx, queue.Slow, m)
	}
	if err := sendErr; err != nil {
		// The due entry sends the message later, so the delivery is late but not lost.
		ds.Log.WarnContext(ctx, "retry postponed", "subscription", del.Subscription, "event", del.Event, "error", err)
	}
	return true, nil
}

// Pause stores a delivery that a switch pauses, together with the queue message for its next attempt. When a person resumes the switch,
// the message goes back to its queue. The event e is nil for a control message.
func (ds *Deliveries) Pause(ctx context.Context, del *Delivery, e *event.Event, set *switches.Set, which switches.Name) (bool, error) {
	return ds.write(ctx, del, change{
		to: Paused, what: "pause a delivery", event: e, keep: switches.Kept + RetriedFor,
		entry: func() store.Item {
			next := del.NextTask().Task
			entry := set.Item(del.Workspace, which, switches.Message{Queue: queue.Slow, Body: task.Encode(next), Group: next.Endpoint, Owner: next.Owner()})
			del.Paused, del.PausedAt = PausedKey{Partition: entry.Partition, Sort: entry.Sort}, ds.Now()
			del.Due, del.DueAt = time.Time{}, time.Time{}
			return entry
		},
	})
}

// Suspend stores a delivery that waits until the client refreshes its suspended subscription. For a stored delivery, e may be nil.
// Suspend returns false if another worker continues the delivery or it has ended.
func (ds *Deliveries) Suspend(ctx context.Context, del *Delivery, e *event.Event) (bool, error) {
	del.Due, del.DueAt, del.Late = time.Time{}, time.Time{}, true
	return ds.write(ctx, del, change{to: Suspended, what: "suspend a delivery", event: e, keep: RetriedFor})
}

// GiveUp ends the attempts of a delivery and keeps it as a dead letter. It stores the event of a new delivery. For a stored
// delivery, e may be nil.
func (ds *Deliveries) GiveUp(ctx context.Context, del *Delivery, e *event.Event) (bool, error) {
	if del.Version != 0 {
		e = nil // the event is stored already
	}
	now := ds.Now()
	del.Due, del.Died = time.Time{}, now
	return ds.write(ctx, del, change{
		to: Dead, what: "record a dead letter", event: e, keep: RetriedFor,
		also: func() (letters []store.Op) {
			value := del.Item().Value
			for _, key := range del.LetterKeys(now) {
				letters = append(letters, store.Put(store.Item{Key: key, Value: value, Version: now.UnixMicro(), Expires: now.Add(KeptFor)}))
			}
			return letters
		},
	})
}

// DeletionNotes returns the store operations that delete a delivery, because it succeeded or its subscriber no longer gets it. The caller
// passes them to [WriteNotes], which keeps the delivery if it has changed since it was read.
func (del *Delivery) DeletionNotes() []store.Op {
	if del.Version == 0 {
		return nil
	}
	return []store.Op{
		store.Delete(Key(del.Workspace, del.Subscription, del.EventKey()), store.VersionIs(del.Version)),
		store.Delete(del.Place),
	}
}

// change is one step of a delivery to another state or attempt, with the writes that belong to the step. [Deliveries.write] may try
// several times to write them. Each try calls both functions of the change, because the delivery may have got the attempts of a dead
// delivery since the previous try.
type change struct {
	to   string // the state after the step
	what string // names the operation in error messages
	// event, if not nil, is stored for at least the time keep, so that retries can send it.
	event *event.Event
	keep  time.Duration
	entry func() store.Item // the due entry, or the message that waits for a switch
	also  func() []store.Op // further writes of the transaction
}

const maxContests = 5 // how often to try to write a delivery that other workers keep changing

// write stores a delivery after the step c, in one transaction with the step's other writes. It returns false if another worker continues
// the delivery, or if it has ended.
func (ds *Deliveries) write(ctx context.Context, del *Delivery, c change) (written bool, err error) {
	fresh := del.Stored == None && del.Version == 0
	for try := range maxContests {
		if del.Stored == Suspended && c.to != Pending { // a defect in the caller, which must schedule the delivery first
			return false, fault.New(fault.Internal, "%s: a suspended delivery can only be scheduled", c.what)
		}
		var body *newBody
		var err error
		switch {
		case c.event == nil:
		case fresh && try == 0:
			body, err = ds.claimBody(ctx, del, c.event, c.keep)
		default:
			err = ds.StoreBody(ctx, del, c.event, c.keep)
		}
		if err != nil {
			return false, err
		}
		conditional, err := ds.put(ctx, del, c, body)
		switch {
		case err == nil:
			return true, nil
		case !errors.Is(err, store.ErrConflict):
			return false, fault.Wrap(fault.Unavailable, err, "%s", c.what)
		case body != nil:
			continue // another process may have stored the event, which is also a conflict
		}
		again, err := ds.resolveConflict(ctx, del, c.to, fresh)
		if err != nil || !again || conditional { // conditional: a condition of c.also may have failed, and would fail again
			return false, err
		}
	}
	return false, fault.New(fault.Unavailable, "%s: the delivery changes too often", c.what)
}

// put writes the step c of a delivery in one transaction, together with the event if body is not nil. The result conditional says that
// some writes of c.also have conditions, which may be the cause of a conflict.
func (ds *Deliveries) put(ctx context.Context, del *Delivery, c change, body *newBody) (conditional bool, err error) {
	stored := false
	if body != nil {
		defer func() { body.release(stored, err) }()
	}
	before := del.State
	if del.State = c.to; c.to == Paused {
		del.State = Pending
	}
	var ops []store.Op
	var waits store.Key
	if c.entry != nil {
		entry := c.entry()
		ops, waits = append(ops, store.Put(entry)), entry.Key
	}
	it := del.Item()
	ops = append(ops, store.Put(it, UnchangedSince(del.Version)))
	if body != nil {
		ops = append(ops, store.Put(body.item, store.Absent()))
	}
	if del.Place != (store.Key{}) && del.Place != waits {
		ops = append(ops, store.Delete(del.Place))
	}
	if c.also != nil {
		for _, op := range c.also() {
			conditional = conditional || op.Cond != (store.Condition{})
			ops = append(ops, op)
		}
	}
	for _, key := range del.replaced {
		if !slices.ContainsFunc(ops, func(op store.Op) bool { return op.Item.Key == key }) {
			ops = append(ops, store.Delete(key))
		}
	}
	if err := ds.DB.Write(ctx, ops...); err != nil {
		del.State = before
		return conditional, err
	}
	stored, del.replaced = true, nil
	del.Version, del.Place, del.Stored, del.recorded = it.Version, waits, c.to, len(del.Attempts)
	return conditional, nil
}

// resolveConflict finds out why a step of a delivery could not be written, and reports whether the worker may try again. If not, another
// worker continues the delivery, or it has ended. The parameter to is the state after the step. The parameter fresh says that the worker
// created the delivery and did not read it from the store.
func (ds *Deliveries) resolveConflict(ctx context.Context, del *Delivery, to string, fresh bool) (again bool, err error) {
	items, err := ds.DB.Get(ctx, Key(del.Workspace, del.Subscription, del.EventKey()))
	if err != nil {
		return false, fault.Wrap(fault.Unavailable, err, "read a delivery")
	}
	state, current := None, (*Delivery)(nil)
	if items[0] != nil {
		if current, err = Decode(items[0]); err != nil {
			return true, ds.SetAside(ctx, items[0], err)
		}
		state = current.Stored
	}
	switch {
	case !fresh && to != Dead && del.sameAttempt(current):
		del.Version, del.Stored, del.Place, del.Renewals = current.Version, current.Stored, current.Place, current.Renewals
		return true, nil
	case !fresh:
		return false, nil
	case current != nil && del.Control == nil && otherPublication(current.Published, del.Published):
		del.Key = del.ownKey()
		return true, nil
	case IsUnderWay(state) && del.Again:
		return false, nil // a person's request does not renew a delivery that still has to be sent
	case IsUnderWay(state):
		return ds.renew(ctx, current, to)
	case current == nil:
		del.Version, del.Stored, del.replaced = 0, None, nil
	default:
		del.TakePlaceOf(current)
	}
	return true, nil
}

// sameAttempt reports whether the stored delivery, current, still has the attempts that the worker has read. If so, the worker tries its
// step again, even if the delivery has changed in another way, because the worker's queue message may be the delivery's only message. For
// a control message, the result is false, because its content may have changed.
func (del *Delivery) sameAttempt(current *Delivery) bool {
	return (del.Stored == Pending || del.Stored == Paused) && current != nil && current.Stored == Pending &&
		len(current.Attempts) == del.recorded && del.Control == nil && !otherPublication(current.Published, del.Published)
}

// renew makes sure that a stored delivery is sent if its event is requested again, for example by a client that subscribed from an older
// cursor. The request then needs no new delivery. The parameter to is the state that a new delivery would have had. If the stored
// delivery changes meanwhile, renew returns true, so that the caller tries again.
//
// A worker may be about to delete the stored delivery, for example because an attempt has succeeded. So renew changes the item's version,
// and the worker can no longer delete it. But the worker's message may have been the delivery's only one. Therefore renew also writes a
// due entry, which delivers the event once more. If the delivery already has a due entry with a later time, the new entry gets the same
// time, so that frequent requests do not postpone the delivery.
//
// The retry job may be sending the old due entry's message at this moment, and delete the entry afterwards. So the new entry has a
// different key, in a minute that the job has not yet handled. The waiting message of a paused delivery gets another key for the same
// reason.
//
// A suspended delivery has no message. If a new delivery would be attempted, renew schedules the suspended one immediately.
func (ds *Deliveries) renew(ctx context.Context, current *Delivery, to string) (again bool, err error) {
	now := ds.Now()
	switch {
	case current.Stored == Suspended && to != Pending:
		return false, nil
	case current.Stored == Suspended:
		written, err := ds.Schedule(ctx, current, nil, now)
		return !written, err
	}
	items, err := ds.DB.Get(ctx, current.Place)
	if err != nil {
		return false, fault.Wrap(fault.Unavailable, err, "read the delivery's due entry or message")
	}
	waiting, replaced := items[0], store.Delete(current.Place)
	if waiting != nil {
		replaced.Cond = store.Exists()
	}
	var entry store.Item
	if current.Stored == Paused && to == Paused && waiting != nil {
		entry = *waiting
		since, _, _ := strings.Cut(entry.Sort, "#")
		entry.Sort = since + "#" + rand.Text()
		current.Paused = PausedKey{Partition: entry.Partition, Sort: entry.Sort}
	} else {
		switch {
		case current.Stored == Paused:
			current.DueAt = now
		case waiting == nil: // the entry's message was sent already, so the new entry is due after it
			current.DueAt = periodic.Later(current.DueAt, now).Add(Backup)
		default:
			current.DueAt = periodic.Later(current.DueAt, now)
		}
		current.resume(now)
		if current.Made = now; current.Due.IsZero() {
			current.Due = now
		}
		current.Renewals++
		entry = current.DueItem()
	}
	err = ds.DB.Write(ctx, store.Put(entry), store.Put(current.Item(), store.VersionIs(current.Version)), replaced)
	if errors.Is(err, store.ErrConflict) {
		return true, nil
	}
	return false, fault.Wrap(fault.Unavailable, err, "renew a delivery")
}

// TakePlaceOf makes this new delivery replace a dead delivery of the same event, as soon as the new one is written. The new one gets the
// attempts of both, but its retry schedule starts from the beginning.
func (del *Delivery) TakePlaceOf(dead *Delivery) {
	made := del.Attempts[del.Base:]
	del.Base = len(dead.Attempts)
	del.Attempts = append(append(make([]Result, 0, len(dead.Attempts)+len(made)), dead.Attempts...), made...)
	del.Version, del.Stored = dead.Version, Dead
	if del.replaced = nil; !dead.Died.IsZero() {
		del.replaced = dead.LetterKeys(dead.Died)
	}
}

// otherPublication reports whether a and b are the publication times of two different events. Such events may have the same id.
func otherPublication(a, b time.Time) bool { return a.UnixMicro() != b.UnixMicro() }

// SetAside dead-letters an item that cannot be decoded, so that it does not block other deliveries. If a newer program wrote the item,
// SetAside leaves it and returns [ErrNewer].
func (ds *Deliveries) SetAside(ctx context.Context, it *store.Item, reason error) error {
	if errors.Is(reason, ErrNewer) {
		return reason
	}
	return queue.DeadLetterItem(ctx, ds.Queue, ds.DB, it, reason, ds.Now(), ds.Log)
}

// LoadCurrent returns the stored delivery for a task, and the items with the keys in others. The delivery is nil if the task is stale,
// i.e. if its attempt is not the delivery's next one. LoadCurrent also returns a suspended delivery, because the worker that suspended it
// may have failed before it had finished.
func (ds *Deliveries) LoadCurrent(ctx context.Context, t task.Single, others ...store.Key) (*Delivery, []*store.Item, error) {
	keys := append(make([]store.Key, 0, 2), Key(t.Workspace, t.Subscription, t.EventKey()))
	items, err := ds.DB.Get(ctx, append(keys, others...)...)
	if err != nil {
		return nil, nil, fault.Wrap(fault.Unavailable, err, "read a delivery")
	}
	if items[0] == nil {
		return nil, nil, nil // delivered, ended with its subscription, or not written yet
	}
	del, err := Decode(items[0])
	if err != nil || del.State != Pending && del.State != Suspended || len(del.Attempts)+1 != t.Attempt ||
		del.Control != nil && del.Event != t.Event {
		return nil, nil, err
	}
	del.resume(ds.Now())
	return del, items[1:], nil
}
