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
	"github.com/mcp-events/mcpevents/shared/storage/queue"
	"github.com/mcp-events/mcpevents/shared/storage/store"
)

// The states of a delivery. A stored delivery has one of the others; [Delivery.State] is the same, except that the item
// of a paused delivery says "pending" and has [Delivery.PausedAt].
const (
	None      = "" // not stored: not attempted yet, delivered, or ended with its subscription
	Pending   = "pending"
	Paused    = "paused"
	Suspended = "held"
	Dead      = "dead"
)

// Step is a change to a delivery. Each step has one method, for example [Deliveries.Schedule].
type Step string

const (
	StepSchedule Step = "schedule"
	StepPause    Step = "pause"
	StepSuspend  Step = "suspend"
	StepGiveUp   Step = "give up"
	StepForget   Step = "forget"
)

// next is the result of a step.
type next struct {
	State  string
	Due    bool // it has a due entry, which brings back a lost message
	Letter bool // a dead letter is written with it
}

// Lifecycle has the next state of a delivery by state and step, and tells what is stored with it. A missing step cannot
// happen. For example, a suspended delivery is scheduled before it is attempted, so it cannot be given up.
//
// A dead delivery can be scheduled because people deliver events again, by a replay, from a dead letter, or by
// subscribing with an older cursor. A page that is repeated does so, too. The dead letter is then deleted, so that an event
// never has two letters of one subscription. Only a page whose first attempt succeeds leaves the letter, because it reads no
// stored delivery.
var Lifecycle = map[string]map[Step]next{
	None: {
		StepSchedule: {State: Pending, Due: true},
		StepPause:    {State: Paused},
		StepSuspend:  {State: Suspended},
		StepGiveUp:   {State: Dead, Letter: true},
		StepForget:   {State: None},
	},
	Pending: {
		StepSchedule: {State: Pending, Due: true},
		StepPause:    {State: Paused},
		StepSuspend:  {State: Suspended},
		StepGiveUp:   {State: Dead, Letter: true},
		StepForget:   {State: None},
	},
	Paused: {
		StepSchedule: {State: Pending, Due: true},
		StepPause:    {State: Paused},
		StepSuspend:  {State: Suspended},
		StepGiveUp:   {State: Dead, Letter: true},
		StepForget:   {State: None},
	},
	Suspended: {
		StepSchedule: {State: Pending, Due: true},
	},
	Dead: {
		StepSchedule: {State: Pending, Due: true},
		StepPause:    {State: Paused},
		StepSuspend:  {State: Suspended},
		StepGiveUp:   {State: Dead, Letter: true},
	},
}

// Claim says who continues a delivery after a worker tried to write it.
type Claim int

const (
	// Mine means that this worker's write succeeded, so it continues the delivery.
	Mine Claim = iota + 1
	// Others means that another worker wrote the delivery first, and its attempts continue.
	Others
	// over means that the delivery was acknowledged, given up, or ended with its subscription while the worker had it.
	over
)

// Meets returns the claim on a new delivery if the same event already has a delivery to the same subscription in this state.
// A dead delivery has no attempts left, so the new delivery takes its place and continues its history.
func Meets(state string) Claim {
	switch state {
	case Pending, Paused, Suspended:
		return Others
	}
	return Mine
}

// Lost returns the claim on a stored delivery that another worker has brought into this state.
func Lost(state string) Claim {
	switch state {
	case Pending, Paused, Suspended:
		return Others
	}
	return over
}

// Schedule sets the time of a delivery's next attempt, in one transaction with the writes in also. If the queue can delay a
// message that long, Schedule also sends the message for the attempt. It stores the event of a new delivery. For a stored
// delivery, e may be nil.
//
// A page waits while it hands a first attempt over to the slow lane. So the message of a delivery without attempts is sent while
// the delivery is written, if the message is delayed by at least [EarlyMessage]. If the message arrives first, it is dropped as
// stale. So after a write that takes longer than the delay, Schedule sends another one.
func (ds *Deliveries) Schedule(ctx context.Context, del *Delivery, e *event.Event, due time.Time, also ...store.Op) (Claim, error) {
	if del.Version != 0 {
		e = nil // stored already
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
	whose, err := ds.write(ctx, del, change{
		step: StepSchedule, what: "record an attempt", event: e, keep: RetriedFor, entry: del.DueItem,
		also: func() []store.Op { return also },
	})
	var sendErr error
	if sent != nil {
		sendErr = <-sent
	}
	if err != nil || whose != Mine || !direct {
		return whose, err
	}
	// The early message does not fit if the delivery got another key, or the attempts of a dead one, while it was written.
	if m := message(); sent == nil || ds.Now().Sub(now) >= early.Delay || !bytes.Equal(m.Body, early.Body) {
		sendErr = ds.Queue.Send(ctx, queue.Slow, m)
	}
	if err := sendErr; err != nil {
		// The due entry brings it back: the delivery is late, not lost.
		ds.Log.WarnContext(ctx, "retry postponed", "subscription", del.Subscription, "event", del.Event, "error", err)
	}
	return Mine, nil
}

// Pause lets a delivery wait for a switch, which gets the message for the next attempt. A notice has no event.
func (ds *Deliveries) Pause(ctx context.Context, del *Delivery, e *event.Event, set *switches.Set, which switches.Name) (Claim, error) {
	return ds.write(ctx, del, change{
		step: StepPause, what: "pause a delivery", event: e, keep: switches.Kept + RetriedFor,
		entry: func() store.Item {
			next := del.NextTask().Task
			entry := set.Item(del.Workspace, which, switches.Message{Queue: queue.Slow, Body: task.Encode(next), Group: next.Endpoint})
			del.Paused, del.PausedAt = PausedKey{Partition: entry.Partition, Sort: entry.Sort}, ds.Now()
			del.Due, del.DueAt = time.Time{}, time.Time{}
			return entry
		},
	})
}

// Suspend lets a delivery wait until its subscriber refreshes the suspended subscription. It stores the event of a new
// delivery. For a stored delivery, e may be nil.
func (ds *Deliveries) Suspend(ctx context.Context, del *Delivery, e *event.Event) (Claim, error) {
	del.Due, del.DueAt = time.Time{}, time.Time{}
	return ds.write(ctx, del, change{step: StepSuspend, what: "suspend a delivery", event: e, keep: RetriedFor})
}

// GiveUp ends the attempts of a delivery and keeps it as a dead letter. It stores the event of a new delivery. For a stored
// delivery, e may be nil.
func (ds *Deliveries) GiveUp(ctx context.Context, del *Delivery, e *event.Event) (Claim, error) {
	if del.Version != 0 {
		e = nil // stored already
	}
	now := ds.Now()
	del.Due, del.Died = time.Time{}, now
	return ds.write(ctx, del, change{
		step: StepGiveUp, what: "record a dead letter", event: e, keep: RetriedFor,
		also: func() (letters []store.Op) {
			value := del.Item().Value
			for _, key := range del.LetterKeys(now) {
				letters = append(letters, store.Put(store.Item{Key: key, Value: value, Version: now.UnixMicro(), Expires: now.Add(KeptFor)}))
			}
			return letters
		},
	})
}

// Forget returns the notes that delete a delivery because it succeeded or has no receiver anymore. They keep the delivery if
// it has changed since it was read; see [WriteNotes].
func (del *Delivery) Forget() []store.Op {
	if del.Version == 0 {
		return nil
	}
	return []store.Op{
		store.Delete(Key(del.Workspace, del.Subscription, del.EventKey()), store.VersionIs(del.Version)),
		store.Delete(del.Place),
	}
}

// change is one step of a delivery, with the writes that belong to it. The functions are called for each try, because a
// new delivery that takes the place of a dead one has other attempts.
type change struct {
	step Step
	what string // the attempted operation, for errors
	// event, if not nil, is stored for at least keep.
	event *event.Event
	keep  time.Duration
	entry func() store.Item // the due entry, or the message that waits for a switch
	also  func() []store.Op // further writes of the transaction
}

// maxContests limits the tries to write a delivery that other workers change meanwhile.
const maxContests = 5

// write makes one step of a delivery, in one transaction with the other writes of the change.
func (ds *Deliveries) write(ctx context.Context, del *Delivery, c change) (Claim, error) {
	fresh := del.Stored == None && del.Version == 0
	for try := range maxContests {
		to, ok := Lifecycle[del.Stored][c.step]
		if !ok {
			return 0, fault.New(fault.Internal, "cannot %s a delivery that is %q", c.step, del.Stored)
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
			return 0, err
		}
		conditional, err := ds.put(ctx, del, to, c, body)
		switch {
		case err == nil:
			return Mine, nil
		case !errors.Is(err, store.ErrConflict):
			return 0, fault.Wrap(fault.Unavailable, err, "%s", c.what)
		case body != nil:
			continue // the conflict may be about the event only, which another process has stored
		}
		whose, err := ds.contest(ctx, del, c.step, fresh)
		if err != nil || whose != Mine {
			return whose, err
		}
		if conditional {
			return Others, nil // one of its own conditions failed
		}
	}
	return 0, fault.New(fault.Unavailable, "%s: the delivery changes too often", c.what)
}

// put writes the transaction of a step, together with the event if body is not nil. It reports whether the change brought
// conditions of its own.
func (ds *Deliveries) put(ctx context.Context, del *Delivery, to next, c change, body *newBody) (conditional bool, err error) {
	written := false
	if body != nil {
		defer func() { body.release(written, err) }()
	}
	before := del.State
	if del.State = to.State; to.State == Paused {
		del.State = Pending
	}
	var ops []store.Op
	var waits store.Key
	if c.entry != nil {
		entry := c.entry()
		ops, waits = append(ops, store.Put(entry)), entry.Key
	}
	it := del.Item()
	ops = append(ops, store.Put(it, Continues(del.Version)))
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
	written, del.replaced = true, nil
	del.Version, del.Place, del.Stored, del.recorded = it.Version, waits, to.State, len(del.Attempts)
	return conditional, nil
}

// contest finds out why a delivery could not be written. The claim is mine if the worker may try again.
func (ds *Deliveries) contest(ctx context.Context, del *Delivery, s Step, fresh bool) (Claim, error) {
	items, err := ds.DB.Get(ctx, Key(del.Workspace, del.Subscription, del.EventKey()))
	if err != nil {
		return 0, fault.Wrap(fault.Unavailable, err, "read a delivery")
	}
	state, current := None, (*Delivery)(nil)
	if items[0] != nil {
		if current, err = Decode(items[0]); err != nil {
			return Mine, ds.SetAside(ctx, items[0], err)
		}
		state = current.Stored
	}
	switch {
	case !fresh && s != StepGiveUp && del.sameAttempt(current):
		del.Version, del.Stored, del.Place, del.Renewals = current.Version, current.Stored, current.Place, current.Renewals
		return Mine, nil
	case !fresh:
		return Lost(state), nil
	case current != nil && del.Control == nil && otherPublication(current.Published, del.Published):
		del.Key = del.ownKey()
		return Mine, nil
	case Meets(state) != Mine && del.Again:
		return Others, nil // the person who asked for it gets a conflict
	case Meets(state) != Mine:
		return ds.renew(ctx, current, s)
	case current == nil:
		del.Version, del.Stored, del.replaced = 0, None, nil
	default:
		del.TakePlaceOf(current)
	}
	return Mine, nil
}

// sameAttempt reports whether a stored delivery has changed without another attempt since the worker read it, for example
// because its event was requested again. The worker then writes its step all the same: its message was perhaps the last one,
// so the delivery would wait for its due entry. A notice may have another content by then, so it is never the same.
func (del *Delivery) sameAttempt(current *Delivery) bool {
	return (del.Stored == Pending || del.Stored == Paused) && current != nil && current.Stored == Pending &&
		len(current.Attempts) == del.recorded && del.Control == nil && !otherPublication(current.Published, del.Published)
}

// renew lets a stored delivery stand for a new one of the same event, whose event was requested again, for example by a
// client that subscribed from an older cursor. An attempt of the stored delivery may be under way, or its subscription may
// have been missing a moment ago. So renew changes the item's version. Then the worker that has read the item before does
// not delete it or give it up. The message of that worker may have been the last trace of the delivery, because the due table
// and switches delete their entries when they send a message. So renew also writes a due entry, by which the event is
// delivered once more. An entry that is due later keeps its time, so that frequent requests do not postpone the delivery.
//
// Retry may be sending the old due entry's message at that moment, and delete the entry afterwards. So the new entry has a
// different key, in a minute that retry still visits. For example, an entry that is already due moves to the current minute.
//
// A suspended delivery waits for the subscriber's refresh, unless the new one is to be attempted. Then it is scheduled
// immediately, because it has no message. A paused delivery waits for its switch, if the new one would be paused, too. Its
// message also gets another key, because the switch may be sending it.
//
// The claim is mine if the delivery has changed and the worker may try again.
func (ds *Deliveries) renew(ctx context.Context, current *Delivery, s Step) (Claim, error) {
	now := ds.Now()
	switch {
	case current.Stored == Suspended && s != StepSchedule:
		return Others, nil
	case current.Stored == Suspended:
		whose, err := ds.Schedule(ctx, current, nil, now)
		if whose == over {
			return Mine, err
		}
		return Others, err
	}
	items, err := ds.DB.Get(ctx, current.Place)
	if err != nil {
		return Others, fault.Wrap(fault.Unavailable, err, "read the delivery's due entry or message")
	}
	waiting, replaced := items[0], store.Delete(current.Place)
	if waiting != nil {
		replaced.Cond = store.Exists()
	}
	var entry store.Item
	if current.Stored == Paused && s == StepPause && waiting != nil {
		entry = *waiting
		since, _, _ := strings.Cut(entry.Sort, "#")
		entry.Sort = since + "#" + rand.Text()
		current.Paused = PausedKey{Partition: entry.Partition, Sort: entry.Sort}
	} else {
		switch {
		case current.Stored == Paused:
			current.DueAt = now
		case waiting == nil: // a message is under way, so the entry is due after it
			current.DueAt = later(current.DueAt, now).Add(Backup)
		default:
			current.DueAt = later(current.DueAt, now)
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
		return Mine, nil
	}
	return Others, fault.Wrap(fault.Unavailable, err, "renew a delivery")
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// TakePlaceOf lets a new delivery continue the history of a dead one. Its schedule starts from the beginning.
func (del *Delivery) TakePlaceOf(dead *Delivery) {
	made := del.Attempts[del.Base:]
	del.Base = len(dead.Attempts)
	del.Attempts = append(append(make([]Result, 0, len(dead.Attempts)+len(made)), dead.Attempts...), made...)
	del.Version, del.Stored = dead.Version, Dead
	if del.replaced = nil; !dead.Died.IsZero() {
		del.replaced = dead.LetterKeys(dead.Died)
	}
}

// otherPublication reports whether two deliveries of one event id are of events that were published at different times.
func otherPublication(a, b time.Time) bool { return a.UnixMicro() != b.UnixMicro() }

// SetAside dead-letters an item that cannot be decoded, so that it does not block anything else. It leaves the
// item of a newer program where it is, and returns [ErrNewer].
func (ds *Deliveries) SetAside(ctx context.Context, it *store.Item, reason error) error {
	if errors.Is(reason, ErrNewer) {
		return reason
	}
	return queue.DeadLetterItem(ctx, ds.Queue, ds.DB, it, reason, ds.Now(), ds.Log)
}

// Current returns the delivery that a task is for, and other items. It returns nil if the task is stale.
func (ds *Deliveries) Current(ctx context.Context, t task.Single, others ...store.Key) (*Delivery, []*store.Item, error) {
	keys := append(make([]store.Key, 0, 2), Key(t.Workspace, t.Subscription, t.EventKey()))
	items, err := ds.DB.Get(ctx, append(keys, others...)...)
	if err != nil {
		return nil, nil, fault.Wrap(fault.Unavailable, err, "read a delivery")
	}
	if items[0] == nil {
		return nil, nil, nil // delivered, ended with its subscription, or not written yet
	}
	del, err := Decode(items[0])
	if err != nil || del.State != Pending || len(del.Attempts)+1 != t.Attempt || del.Control != nil && del.Event != t.Event {
		return nil, nil, err
	}
	del.resume(ds.Now())
	return del, items[1:], nil
}
