package subscription

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"slices"
	"time"

	"github.com/mcp-events/mcpevents/shared/auth"
	eventlog "github.com/mcp-events/mcpevents/shared/events/log"
	"github.com/mcp-events/mcpevents/shared/events/match"
	"github.com/mcp-events/mcpevents/shared/events/subscription/challenge"
	"github.com/mcp-events/mcpevents/shared/events/switches"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/storage/minutes"
	"github.com/mcp-events/mcpevents/shared/storage/store"
)

// Deregister ends the caller's subscription with the given subscription URI (see [URI]). It returns the same NotFound error for an unknown
// URI and for the URI of another principal's subscription, so that a caller cannot find out other principals' URIs.
func (s *Service) Deregister(ctx context.Context, p auth.Principal, uri string) error {
	if _, err := s.authorize(ctx, p); err != nil {
		return err
	}
	id, ok := ParseURI(uri)
	if !ok {
		return noSubscription()
	}
	return s.End(ctx, p.Workspace, p.ID, id)
}

// Unsubscribe ends the principal's subscription that has this event type (the parameter name), these arguments and this endpoint URL, or
// returns NotFound if it does not exist. It does not check the arguments against the event type, because the type may have been removed
// or changed since the client subscribed.
func (s *Service) Unsubscribe(ctx context.Context, p auth.Principal, name string, arguments json.RawMessage, url string) error {
	if _, err := s.permitEvents(ctx, p); err != nil {
		return err
	}
	if len(url) > maxTargetURL {
		return fault.New(fault.Invalid, "delivery.url is longer than %d bytes", maxTargetURL).AtLimit("targetURL", maxTargetURL)
	}
	canonical, err := match.CanonicalArguments(arguments)
	if err != nil {
		return err
	}
	return s.End(ctx, p.Workspace, p.ID, derivedID(p, url, name, canonical))
}

// End ends a subscription, or returns NotFound if it does not exist. The caller must have checked that the request is allowed to end it.
func (s *Service) End(ctx context.Context, workspace, principal, id string) error {
	err := s.Store.change(ctx, workspace, principal, id, func(sub *Subscription) error {
		if sub == nil {
			return noSubscription()
		}
		return s.Store.remove(ctx, sub, false)
	})
	if err == nil {
		s.notifyPrincipal(ctx, workspace, principal)
	}
	return err
}

func noSubscription() error {
	return fault.New(fault.NotFound, "there is no such subscription").With(map[string]any{"kind": "subscription"})
}

// Disable ends a subscription whose endpoint keeps failing or wants no webhooks, and keeps its record readable for a week. The parameter
// resumed is the [Subscription.Resumed] that the caller read before it decided to disable the subscription. If deliveries were resumed
// again since then, or the subscription has already ended, Disable does nothing and returns false.
func (s *Service) Disable(ctx context.Context, workspace, principal, id, reason string, resumed Seconds) (ended bool, err error) {
	err = s.Store.change(ctx, workspace, principal, id, func(sub *Subscription) error {
		if ended = sub != nil && sub.State != Disabled && sub.Resumed == resumed; !ended {
			return nil
		}
		sub.State, sub.Reason = Disabled, reason
		if reason == ReasonGone { // forget the verification, so that a new subscription must verify the endpoint again
			return s.Store.remove(ctx, sub, true, store.Delete(challenge.RecordKey(workspace, principal, sub.Target.URL)))
		}
		return s.Store.remove(ctx, sub, true)
	})
	if err != nil || !ended {
		return false, err
	}
	s.notifySubscription(ctx, workspace, id, Disabled)
	s.notifyPrincipal(ctx, workspace, principal)
	return true, nil
}

// ReasonGone is the reason for disabling a subscription whose endpoint wants no further webhooks.
const ReasonGone = "the endpoint answered 410 Gone"

// Enable reactivates a disabled subscription, which stays paused if it was paused. It does not deliver the events that were published
// while the subscription was disabled, but clients can read them from the event log. The result enabled is false if the subscription was
// not disabled.
func (s *Service) Enable(ctx context.Context, workspace, principal, id string) (enabled bool, err error) {
	cat, err := s.Catalog.Catalog(ctx, workspace)
	if err != nil {
		return false, fault.Wrap(fault.Unavailable, err, "read the catalog")
	}
	var state State
	err = s.Store.change(ctx, workspace, principal, id, func(sub *Subscription) error {
		if sub == nil || sub.isExpired(s.Store.now()) {
			return noSubscription()
		}
		if enabled = sub.State == Disabled; !enabled {
			return nil
		}
		now := s.Store.now()
		sub.State, sub.Reason, sub.Suspended, sub.Owed, sub.Resumed, sub.Enabled = Active, "", 0, 0, SecondsOf(now), MicrosOf(now)
		state = sub.EffectiveState()
		return s.Store.insert(ctx, cat, sub, sub.expiryOps()...)
	})
	if err != nil || !enabled {
		return false, err
	}
	s.notifySubscription(ctx, workspace, id, state)
	s.notifyPrincipal(ctx, workspace, principal)
	return true, nil
}

// Terminate calls judge with the current subscription, and ends the subscription if judge returns a [*Terminated] error. If judge returns
// nil or another error, the subscription continues.
//
// A subscription of SEP-1803 is disabled and gets a new State and Reason. A subscription of MCP Events is deleted, in one transaction
// with the writes that extraOps returns for the subscription and the reason of its end.
//
// Terminate returns the ended subscription, or nil if it did not end in this call, for example because it had expired before.
func (s *Service) Terminate(ctx context.Context, workspace, principal, id string,
	judge func(*Subscription) error, extraOps func(*Subscription, error) []store.Op,
) (ended *Subscription, err error) {
	err = s.Store.change(ctx, workspace, principal, id, func(sub *Subscription) error {
		ended = nil
		if sub == nil || sub.State == Disabled || sub.isExpired(s.Store.now()) {
			return nil
		}
		err := judge(sub)
		end, found := errors.AsType[*Terminated](err)
		if !found {
			return err
		}
		ended = sub
		if sub.Origin == MCPEvents {
			return s.Store.remove(ctx, sub, false, extraOps(sub, end.Reason)...)
		}
		sub.State, sub.Reason = Disabled, fault.Public(end.Reason)
		return s.Store.remove(ctx, sub, true)
	})
	if err != nil || ended == nil {
		return nil, err
	}
	s.notifySubscription(ctx, workspace, id, Disabled)
	s.notifyPrincipal(ctx, workspace, principal)
	return ended, nil
}

// SetPaused pauses or resumes the deliveries of a subscription, in one transaction with the writes in the parameter extra. The result
// changed is false if the deliveries were already paused or already running.
func (s *Service) SetPaused(ctx context.Context, workspace, principal, id string, paused bool, extra ...store.Op) (changed bool, err error) {
	var before, after State
	err = s.Store.change(ctx, workspace, principal, id, func(sub *Subscription) error {
		if sub == nil || sub.State == Disabled {
			return noSubscription()
		}
		if changed = (sub.Paused != 0) != paused; !changed {
			return nil
		}
		before = sub.EffectiveState()
		if paused {
			sub.Paused = MicrosOf(s.Store.now())
		} else {
			sub.Paused, sub.Resumed = 0, SecondsOf(s.Store.now())
		}
		after = sub.EffectiveState()
		return s.Store.update(ctx, sub, extra...)
	})
	if err == nil && changed && before != after {
		s.notifySubscription(ctx, workspace, id, after)
		s.notifyPrincipal(ctx, workspace, principal)
	}
	return changed, err
}

// PausedSince returns when the subscription was paused, or the zero time if it is not paused.
func (s *Subscription) PausedSince() time.Time { return s.Paused.Time().UTC() }

// Suspend stops the deliveries of a subscription because nearly all of its recent deliveries have failed. The deliveries resume when the
// client refreshes the subscription. The refresh then replays the events that were published since the suspension.
//
// The parameter resumed is the [Subscription.Resumed] that the caller read before it decided to suspend the subscription. If deliveries
// were resumed again since then, Suspend does nothing.
func (s *Service) Suspend(ctx context.Context, workspace, principal, id string, resumed Seconds) error {
	suspended := false
	err := s.Store.change(ctx, workspace, principal, id, func(sub *Subscription) error {
		if suspended = sub != nil && sub.State == Active && sub.Resumed == resumed; !suspended {
			return nil
		}
		for _, p := range sub.Patterns { // the log must keep all events of p from now on, for the replay
			if _, err := sub.recordInterest(ctx, s.Store.DB, s.Log, p); err != nil {
				return err
			}
		}
		sub.State, sub.Reason = Suspended, "nearly all deliveries of an hour failed"
		// If the clock was set back, the log may already have events with times after the current time. The replay begins at the log's
		// end, so it leaves these events out, and dispatch must deliver them. But dispatch skips events that are later than the field
		// Suspended. So Suspended must not be earlier than the log's end.
		//
		// Call GivenAt before Position, because all events after the position must also be later than given.
		given := s.Log.GivenAt(s.Log.Time().UnixMicro())
		end := s.Log.Position()
		sub.Suspended = max(MicrosOf(s.Store.now()), Micros(end))
		if sub.Owed == 0 {
			sub.owe(eventlog.Cursor{At: end, Given: given})
		}
		return s.Store.update(ctx, sub)
	})
	if err == nil && suspended {
		s.notifySubscription(ctx, workspace, id, Suspended)
	}
	return err
}

// Dispatch, which delivers events, compares a subscription's expiry with the clock. So an expired subscription receives no more
// deliveries. Later, [Sweeper.Sweep] deletes the expired subscription and subtracts it from the stored numbers of subscriptions.
//
// Each subscription has an expiry entry, which is stored by the minute of the expiry. So Sweep finds the expired subscriptions without
// reading all subscriptions. The entries of a minute are distributed over several partitions (shards).

const sweepShards = 4

type expiry struct {
	Workspace string `json:"ws"`
	Principal string `json:"pr"`
}

func expiryPartition(shard int, minute time.Time) string {
	return fmt.Sprintf("x#%d#%s", shard, minute.UTC().Format("200601021504"))
}

func (s *Subscription) expiryKey() store.Key {
	h := fnv.New32a()
	h.Write([]byte(s.ID))
	return store.Key{Table: store.Subscriptions, Partition: expiryPartition(int(h.Sum32()%sweepShards), s.Until), Sort: s.ID}
}

// expiryOps returns the operation that writes the subscription's expiry entry, or nil if the subscription never expires.
func (s *Subscription) expiryOps() []store.Op {
	if s.Until.IsZero() {
		return nil
	}
	value, _ := json.Marshal(expiry{s.Workspace, s.Principal})
	return []store.Op{store.Put(store.Item{
		Key:     s.expiryKey(),
		Value:   value,
		Expires: s.Until.Add(expiryKept),
	})}
}

// sweepKey is the key of the item in which [Sweeper.Sweep] stores the last minute whose expired subscriptions it has removed.
var sweepKey = store.Key{Table: store.Subscriptions, Partition: "x#watermark", Sort: "-"}

// expiryKept is how long the store keeps an expiry entry after the subscription's expiry, in case no sweep runs for some days.
const expiryKept = 7 * 24 * time.Hour

// Sweeper removes expired subscriptions.
type Sweeper struct {
	Service *Service
	// DeadLetter stores an expiry entry with the dead letters, which operators inspect, if the entry or its subscription cannot be
	// decoded. It must be set.
	DeadLetter func(ctx context.Context, it *store.Item, reason error) error
	// SaveEvery is the minimum time between two saves of the progress of [Sweeper.Sweep]; 0 saves the progress in each call.
	SaveEvery time.Duration
	Switches  *switches.Set
}

// Sweep removes the subscriptions that have expired since the previous sweep, and returns their number. It resumes an interrupted sweep.
func (s *Sweeper) Sweep(ctx context.Context) (removed int, err error) {
	position := minutes.Position{DB: s.Service.Store.DB, Key: sweepKey, CatchUp: expiryKept, SaveEvery: s.SaveEvery}
	err = position.Walk(ctx, s.Service.Store.now(), func(ctx context.Context, minute time.Time) error {
		var errs []error
		for shard := range sweepShards {
			n, err := s.sweepPartition(ctx, expiryPartition(shard, minute))
			removed += n
			errs = append(errs, err)
		}
		return errors.Join(errs...)
	})
	return removed, err
}

func (s *Sweeper) sweepPartition(ctx context.Context, part string) (removed int, err error) {
	partition := store.Key{Table: store.Subscriptions, Partition: part}
	err = store.Each(ctx, s.Service.Store.DB, partition, "list expired subscriptions", func(it *store.Item) error {
		gone, err := s.sweepOne(ctx, it)
		if err == nil && gone {
			removed++
		}
		return err
	})
	return removed, err
}

// sweepOne removes the subscription of an expiry entry if it has expired. If the entry or the subscription cannot be decoded, sweepOne
// dead-letters the entry.
func (s *Sweeper) sweepOne(ctx context.Context, it *store.Item) (gone bool, err error) {
	var e expiry
	if err := json.Unmarshal(it.Value, &e); err != nil {
		return false, s.DeadLetter(ctx, it, fault.Wrap(fault.Invalid, err, "the expiry entry cannot be decoded"))
	}
	gone, later, err := s.expire(ctx, e, it.Sort, it.Partition)
	switch {
	case errors.Is(err, ErrUndecodable):
		return false, s.DeadLetter(ctx, it, err)
	case err != nil || later:
		return gone, err
	}
	return gone, fault.Wrap(fault.Unavailable, s.Service.Store.DB.Write(ctx, store.Delete(it.Key)), "remove an expiry entry")
}

// expire removes a subscription if it has expired. The parameter part is the partition in which the sweep found the subscription's expiry
// entry. The result later is true if the sweep must keep the entry for the next sweep, because the subscription expires later in the same
// minute or another process has changed it meanwhile.
func (s *Sweeper) expire(ctx context.Context, e expiry, id, part string) (gone, later bool, err error) {
	sub, err := s.Service.Store.load(ctx, e.Workspace, e.Principal, id)
	if err != nil || sub == nil {
		return false, false, err
	}
	if !sub.isExpired(s.Service.Store.now()) {
		return false, !sub.Until.IsZero() && sub.expiryKey().Partition == part, nil
	}
	err = s.Service.Store.remove(ctx, sub, false)
	if errors.Is(err, store.ErrConflict) {
		return false, true, nil
	}
	if err != nil {
		return false, false, err
	}
	s.Service.notifyPrincipal(ctx, e.Workspace, e.Principal)
	return true, false, nil
}

// Recount corrects the stored number of subscriptions of each workspace, and returns how many of these numbers were wrong; see
// [tally.Counts.Recount].
func (s *Sweeper) Recount(ctx context.Context) (corrected int, err error) {
	db := s.Service.Store.DB
	workspaces, err := (&Lists{DB: db}).Workspaces(ctx)
	if err != nil {
		return 0, err
	}
	return s.Service.Store.tally().Recount(ctx, workspaces, func(ctx context.Context, workspace string) ([]string, error) {
		principals := map[string]bool{}
		err := store.Each(ctx, db, indexKey(workspace, "-"), "list the subscriptions of a workspace", func(it *store.Item) error {
			principals[string(it.Value)] = true
			return nil
		})
		return slices.Collect(maps.Keys(principals)), err
	})
}

// SweepSwitches removes the stored pause switches that no longer pause a subscription, and returns the number of removed items. A switch
// that an operator set stays for [EndedKept] after the subscription's end, so that the subscription is paused again if its owner
// subscribes with the same parameters.
//
// SweepSwitches also removes operators' notes ([switches.Note]) about endpoint origins that are healthy again. It does its work only in
// the first minute of each hour, because reading all switches every minute would cost too much.
func (s *Sweeper) SweepSwitches(ctx context.Context) (removed int, err error) {
	if s.Switches == nil || s.Service.Store.now().Minute() != 0 {
		return 0, nil
	}
	lists := &Lists{DB: s.Service.Store.DB}
	workspaces, err := lists.Workspaces(ctx)
	if err != nil {
		return 0, err
	}
	var errs []error
	for _, workspace := range workspaces {
		n, err := s.Switches.RemoveUnused(ctx, workspace, func(id string, sw switches.Switch) (bool, error) {
			return s.mustKeepSwitch(ctx, workspace, id, sw)
		})
		notes, err2 := s.Switches.RemoveNotes(ctx, workspace, func(origin string) (bool, error) {
			failing, err := lists.isFailing(ctx, workspace, origin)
			return !failing, err
		})
		removed += n + notes
		errs = append(errs, err, err2)
	}
	return removed, errors.Join(errs...)
}

func (l *Lists) isFailing(ctx context.Context, workspace, origin string) (bool, error) {
	for after := ""; ; {
		subs, next, err := l.Select(ctx, workspace, Choice{Origin: origin}, after, maxSelected)
		if err != nil {
			return false, err
		}
		for _, s := range subs {
			if !s.Status.FailedSince.IsZero() {
				return true, nil
			}
		}
		if after = next; after == "" {
			return false, nil
		}
	}
}

// mustKeepSwitch reports whether a stored pause switch must stay. It must stay if it still pauses its subscription. If the subscription
// has ended, an operator's switch stays too, because the owner may subscribe again with the same parameters.
func (s *Sweeper) mustKeepSwitch(ctx context.Context, workspace, id string, sw switches.Switch) (bool, error) {
	r := &s.Service.Store
	record := recordKey(workspace, sw.Owner, id)
	if sw.Owner == "" { // the previous release did not store the owner
		record = indexKey(workspace, id)
	}
	items, err := r.DB.Get(ctx, record, endedKey(workspace, sw.Owner, id))
	switch {
	case err != nil:
		return false, fault.Wrap(fault.Unavailable, err, "read a paused subscription")
	case items[0] == nil && sw.Owner == "":
		return sw.Operator && r.now().Sub(sw.At) < EndedKept, nil
	case items[0] == nil:
		return sw.Operator && items[1] != nil, nil
	case sw.Owner == "":
		return true, nil
	}
	sub, err := decodeRecord(items[0])
	return err != nil || sub.Paused != 0, nil // an undecodable record keeps its switch until the sweep dead-letters it
}
