package delivery

import (
	"context"
	"errors"
	"time"

	"github.com/mcp-events/mcpevents/shared/events/event"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/storage/queue"
	"github.com/mcp-events/mcpevents/shared/storage/store"
)

// The states of a delivery. A stored delivery has one of the others; [delivery.State] is the same, except that the item
// of a paused delivery says "pending" and has [delivery.PausedAt].
const (
	stateNone      = "" // not stored: not attempted yet, delivered, or ended with its subscription
	statePending   = "pending"
	statePaused    = "paused"
	stateSuspended = "held"
	stateDead      = "dead"
)

// step is a change to a delivery.
type step string

const (
	stepSchedule step = "schedule" // set the time of its next attempt
	stepPause    step = "pause"    // let it wait for a switch
	stepSuspend  step = "suspend"  // let it wait for the subscriber's refresh
	stepGiveUp   step = "give up"  // keep it as a dead letter
	stepForget   step = "forget"   // it was delivered, or its subscription ended
)

// next is the result of a step.
type next struct {
	state  string
	due    bool // it has a due entry, which brings back a lost message
	letter bool // a dead letter is written with it
}

// lifecycle is the life of a delivery: by state and step, the next state and what is stored with it. A step that is
// missing cannot happen. For example, a suspended delivery is scheduled before it is attempted, so it cannot be given up.
//
// A dead delivery can be scheduled because people deliver events again, by a replay, from a dead letter, or by
// subscribing with an older cursor. Its dead letter stays where it is, unless that is what they retried.
var lifecycle = map[string]map[step]next{
	stateNone: {
		stepSchedule: {state: statePending, due: true},
		stepPause:    {state: statePaused},
		stepSuspend:  {state: stateSuspended},
		stepGiveUp:   {state: stateDead, letter: true},
		stepForget:   {state: stateNone},
	},
	statePending: {
		stepSchedule: {state: statePending, due: true},
		stepPause:    {state: statePaused},
		stepSuspend:  {state: stateSuspended},
		stepGiveUp:   {state: stateDead, letter: true},
		stepForget:   {state: stateNone},
	},
	statePaused: {
		stepSchedule: {state: statePending, due: true},
		stepPause:    {state: statePaused},
		stepSuspend:  {state: stateSuspended},
		stepGiveUp:   {state: stateDead, letter: true},
		stepForget:   {state: stateNone},
	},
	stateSuspended: {
		stepSchedule: {state: statePending, due: true},
	},
	stateDead: {
		stepSchedule: {state: statePending, due: true},
		stepPause:    {state: statePaused},
		stepSuspend:  {state: stateSuspended},
		stepGiveUp:   {state: stateDead, letter: true},
	},
}

// claim says who continues a delivery after a worker tried to write it.
type claim int

const (
	// mine: the worker wrote it.
	mine claim = iota + 1
	// others: another worker wrote it first, and its attempts continue.
	others
	// over: it was delivered, given up, or ended with its subscription while the worker had it.
	over
)

// meets says what becomes of a new delivery if the same event has a delivery to the same subscription in this state.
// A dead delivery has no attempts left, so the new delivery takes its place and continues its history.
func meets(state string) claim {
	switch state {
	case statePending, statePaused, stateSuspended:
		return others
	}
	return mine
}

// lost says what has become of a stored delivery that another worker brought into this state.
func lost(state string) claim {
	switch state {
	case statePending, statePaused, stateSuspended:
		return others
	}
	return over
}

// change is one step of a delivery, with the writes that belong to it. The functions are called for each try, because a
// new delivery that takes the place of a dead one has other attempts.
type change struct {
	step step
	what string // for errors
	// event, if not nil, is stored for at least keep.
	event *event.Event
	keep  time.Duration
	entry func() store.Item // where it is found again: its due entry, or the item of its switch
	also  func() []store.Op
}

// maxContests bounds how often a new delivery is written because what it met has changed.
const maxContests = 5

// write makes one step of a delivery, in one transaction with the other writes of the change.
func (ds *deliveries) write(ctx context.Context, del *delivery, c change) (claim, error) {
	fresh := del.stored == stateNone && del.version == 0
	for range maxContests {
		to, ok := lifecycle[del.stored][c.step]
		if !ok {
			return 0, fault.New(fault.Internal, "cannot %s a delivery that is %q", c.step, del.stored)
		}
		if c.event != nil {
			if err := ds.storeBody(ctx, del, c.event, c.keep); err != nil {
				return 0, err
			}
		}
		conditional, err := ds.put(ctx, del, to, c)
		if err == nil {
			return mine, nil
		}
		if !errors.Is(err, store.ErrConflict) {
			return 0, fault.Wrap(fault.Unavailable, err, "%s", c.what)
		}
		whose, err := ds.contest(ctx, del, c.step, fresh)
		if err != nil || whose != mine {
			return whose, err
		}
		if conditional {
			return others, nil // one of its own conditions failed
		}
	}
	return 0, fault.New(fault.Unavailable, "%s: the delivery changes too often", c.what)
}

// put writes the transaction of a step. It reports whether the change brought conditions of its own.
func (ds *deliveries) put(ctx context.Context, del *delivery, to next, c change) (conditional bool, err error) {
	before := del.State
	if del.State = to.state; to.state == statePaused {
		del.State = statePending
	}
	var ops []store.Op
	var waits store.Key
	if c.entry != nil {
		entry := c.entry()
		ops, waits = append(ops, store.Put(entry)), entry.Key
	}
	it := del.item()
	ops = append(ops, store.Put(it, continues(del.version)))
	if del.waits != (store.Key{}) && del.waits != waits {
		ops = append(ops, store.Delete(del.waits))
	}
	if c.also != nil {
		for _, op := range c.also() {
			conditional = conditional || op.Cond != (store.Condition{})
			ops = append(ops, op)
		}
	}
	if err := ds.db.Write(ctx, ops...); err != nil {
		del.State = before
		return conditional, err
	}
	del.version, del.waits, del.stored, del.recorded = it.Version, waits, to.state, len(del.Attempts)
	return conditional, nil
}

// contest finds out why a delivery could not be written. The claim is mine if the worker may try again.
func (ds *deliveries) contest(ctx context.Context, del *delivery, s step, fresh bool) (claim, error) {
	items, err := ds.db.Get(ctx, deliveryKey(del.Workspace, del.Subscription, del.key()))
	if err != nil {
		return 0, fault.Wrap(fault.Unavailable, err, "read a delivery")
	}
	state, current := stateNone, (*delivery)(nil)
	if items[0] != nil {
		if current, err = decodeDelivery(items[0]); err != nil {
			return mine, ds.setAside(ctx, items[0], err)
		}
		state = current.stored
	}
	switch {
	case !fresh && s != stepGiveUp && del.sameAttempt(current):
		del.version, del.stored, del.waits = current.version, current.stored, current.waits
		return mine, nil
	case !fresh:
		return lost(state), nil
	case current != nil && del.Control == nil && otherPublication(current.Published, del.Published):
		del.Key = del.ownKey()
		return mine, nil
	case meets(state) != mine && del.Again:
		return others, nil // the person who asked for it gets a conflict
	case meets(state) != mine:
		return ds.renew(ctx, current, s)
	case current == nil:
		del.version, del.stored = 0, stateNone
	default:
		del.takePlaceOf(current)
	}
	return mine, nil
}

// sameAttempt reports whether a stored delivery has changed without another attempt since the worker read it, for example
// because its event was requested again. The worker then writes its step all the same: its message was perhaps the last one,
// so the delivery would wait for its due entry. A notice may have another content by then, so it is never the same.
func (del *delivery) sameAttempt(current *delivery) bool {
	return (del.stored == statePending || del.stored == statePaused) && current != nil && current.stored == statePending &&
		len(current.Attempts) == del.recorded && del.Control == nil && !otherPublication(current.Published, del.Published)
}

// renew lets a stored delivery stand for a new one of the same event, whose event was requested again, for example by a
// client that subscribed from an older cursor. An attempt of the stored delivery may be under way, or its subscription may
// have been missing a moment ago. So renew changes the item's version. Then the worker that has read the item before does
// not delete it or give it up. The message of that worker may have been the last trace of the delivery, because the due table
// and switches delete their entries when they send a message. So renew also writes a due entry, by which the event is
// delivered once more. An entry that is due later keeps its time, so that frequent requests do not postpone the delivery.
//
// A suspended delivery waits for the subscriber's refresh, unless the new one is to be attempted. Then it is scheduled
// immediately, because it has no message. A paused delivery waits for its switch, if the new one would be paused, too.
//
// The claim is mine if the delivery has changed and the worker may try again.
func (ds *deliveries) renew(ctx context.Context, current *delivery, s step) (claim, error) {
	switch {
	case current.stored == stateSuspended && s != stepSchedule:
		return others, nil
	case current.stored == stateSuspended:
		whose, err := ds.writeNext(ctx, current, ds.now())
		if whose == over {
			return mine, err
		}
		return others, err
	}
	if current.stored == statePaused && s == stepPause {
		items, err := ds.db.Get(ctx, current.waits)
		if err != nil || items[0] != nil {
			return others, fault.Wrap(fault.Unavailable, err, "read a paused message")
		}
	}
	now := ds.now()
	current.resume(now)
	if current.State, current.made = statePending, now; current.Due.IsZero() {
		current.Due = now
	}
	switch {
	case current.stored != statePending:
		current.DueAt = now
	case !current.DueAt.After(now):
		items, err := ds.db.Get(ctx, current.dueEntry().Key)
		if err != nil {
			return others, fault.Wrap(fault.Unavailable, err, "read a due entry")
		}
		if items[0] == nil { // a message is under way, so the entry is due after it
			current.DueAt = now.Add(backup)
		}
	}
	entry := current.dueEntry()
	ops := []store.Op{store.Put(entry), store.Put(current.item(), store.VersionIs(current.version))}
	if current.waits != (store.Key{}) && current.waits != entry.Key {
		ops = append(ops, store.Delete(current.waits))
	}
	err := ds.db.Write(ctx, ops...)
	if errors.Is(err, store.ErrConflict) {
		return mine, nil
	}
	return others, fault.Wrap(fault.Unavailable, err, "renew a delivery")
}

// takePlaceOf lets a new delivery continue the history of a dead one. Its schedule starts from the beginning.
func (del *delivery) takePlaceOf(dead *delivery) {
	made := del.Attempts[del.Base:]
	del.Base = len(dead.Attempts)
	del.Attempts = append(append(make([]attempt, 0, len(dead.Attempts)+len(made)), dead.Attempts...), made...)
	del.version, del.stored = dead.version, stateDead
}

// otherPublication reports whether two deliveries of one event id are of events that were published at different times.
// Deliveries of an earlier version may have no time.
func otherPublication(a, b time.Time) bool {
	return !a.IsZero() && !b.IsZero() && a.UnixMicro() != b.UnixMicro()
}

// scheduleNext sets the next attempt of a new delivery and stores its event.
func (ds *deliveries) scheduleNext(ctx context.Context, del *delivery, e *event.Event, due time.Time) (claim, error) {
	if del.version != 0 {
		e = nil // stored already
	}
	return ds.writeNextOf(ctx, del, e, due, nil)
}

// writeNext sets the next attempt of a delivery whose event is stored already, in one transaction with the writes in also.
func (ds *deliveries) writeNext(ctx context.Context, del *delivery, due time.Time, also ...store.Op) (claim, error) {
	return ds.writeNextOf(ctx, del, nil, due, also)
}

// writeNextOf schedules a delivery and, if the queue can delay a message that long, sends the message for the attempt.
func (ds *deliveries) writeNextOf(ctx context.Context, del *delivery, e *event.Event, due time.Time, also []store.Op) (claim, error) {
	now := ds.now()
	del.Due, del.DueAt, del.made = due, due, now
	direct := !del.later && due.Sub(now) <= queue.MaxDelay-backup
	if direct {
		del.DueAt = due.Add(backup)
	}
	whose, err := ds.write(ctx, del, change{
		step: stepSchedule, what: "record an attempt", event: e, keep: retriedFor, entry: del.dueEntry,
		also: func() []store.Op { return also },
	})
	if err != nil || whose != mine || !direct {
		return whose, err
	}
	err = ds.queue.Send(ctx, queue.Slow, del.due().outgoing(max(0, due.Sub(now))))
	if err != nil {
		// The due entry brings it back: the delivery is late, not lost.
		ds.log.WarnContext(ctx, "retry postponed", "subscription", del.Subscription, "event", del.Event, "error", err)
	}
	return mine, nil
}

// setAside dead-letters an item that cannot be decoded, so that it does not block anything else.
func (ds *deliveries) setAside(ctx context.Context, it *store.Item, reason error) error {
	return DeadLetterItem(ds.db, ds.queue, ds.now, ds.log)(ctx, it, reason)
}
