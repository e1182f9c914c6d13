package judge

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/mcp-events/mcpevents/shared/events/catalog"
	"github.com/mcp-events/mcpevents/shared/events/delivery/records"
	"github.com/mcp-events/mcpevents/shared/events/delivery/state"
	"github.com/mcp-events/mcpevents/shared/events/event"
	"github.com/mcp-events/mcpevents/shared/events/subscription"
	"github.com/mcp-events/mcpevents/shared/events/subscription/review"
	"github.com/mcp-events/mcpevents/shared/events/switches"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/storage/store"
)

// Kind says whether a subscription got an event, or why not.
type Kind string

// The values of [Kind].
const (
	kindDelivered    Kind = "delivered"
	kindWaiting      Kind = "waiting"  // another attempt follows
	kindDead         Kind = "dead"     // given up, and a dead letter
	kindFiltered     Kind = "filtered" // the subscription asks for other events
	kindPaused       Kind = "paused"
	kindSuspended    Kind = "suspended"
	kindLater        Kind = "subscribedLater" // the subscription was created after the event was published
	kindEnded        Kind = "ended"
	kindNotPermitted Kind = "notPermitted"
	kindUnrecorded   Kind = "unrecorded" // unknown, because the delivery log does not keep all attempts
)

// Outcome tells whether one subscription got an event, and why or why not.
type Outcome struct {
	Kind Kind
	// ID is the subscription's id. Subscription is nil if the subscription no longer exists.
	ID           string
	Subscription *subscription.Subscription
	Origin       string // the origin of the endpoint, e.g. https://example.com
	Why          string // a sentence for people
	// At depends on Kind. For example, it is the time of the last attempt, of the pause or of the suspension.
	At       time.Time
	Attempts int
	// Status and Category describe the last attempt.
	Status   int
	Category string
	// Next is when the next attempt of a waiting delivery is due.
	Next time.Time
	// Argument, Wanted and Got are set for kindFiltered. Argument is the subscription's argument that rejects the event. Wanted is the
	// argument's value, and Got the event's value, or nil if the payload lacks it.
	Argument    string
	Wanted, Got json.RawMessage
	// Switch is the switch that pauses the delivery if Kind is kindPaused.
	Switch *switches.Switch
}

// Explainer finds out which subscriptions got an event, and why others did not.
type Explainer struct {
	DB            store.DB
	Lists         *subscription.Lists
	Subscriptions *subscription.Service
	Catalogs      catalog.Source
	Review        *review.Review
	Switches      *switches.Set
	Kept          records.Keep
}

// Event is an event for which an [Explainer] finds the outcomes.
type Event struct {
	*event.Event
	// Lost is true if the event is only known from the delivery log, so that its payload and publication time are unknown.
	Lost bool
	// Test is true for a test event, which is sent to one subscription even if the subscription asks for other events.
	Test bool
}

// subject is the event to explain, with its event type and its records in the delivery log.
type subject struct {
	Event
	entry *catalog.Entry // nil if the catalog no longer has the type
	// records are the event's records by subscription, newest first.
	records map[string][]records.Record
}

const (
	// settling is the time after which an event normally had its first attempt. By then, all processes also know a change of a switch or
	// a suspension.
	settling = 5 * time.Minute
	// An explanation reads at most recordPages pages, each with up to maxRecords records, from the delivery log.
	maxRecords  = 200
	recordPages = 3
)

// ExplainPage returns a page of the outcomes of an event, one per subscription. The result next is the position for the next page, or ""
// on the last page.
//
// The list first has the subscriptions whose patterns match the event. After these, it has other subscriptions with attempts in the
// delivery log, most of which have ended. For a test event, it has only the second part.
func (x *Explainer) ExplainPage(ctx context.Context, e Event, after string, limit int) (list []Outcome, next string, err error) {
	s, err := x.readSubject(ctx, e)
	if err != nil {
		return nil, "", err
	}
	limit = min(limit, state.MaxFound)
	ended, isEnded := strings.CutPrefix(after, endedAfter)
	if !isEnded {
		ended = ""
	}
	if !isEnded && !e.Test {
		subs, next, err := x.Lists.SelectCovering(ctx, e.Workspace, e.Name, e.URI, after, limit)
		if err != nil {
			return nil, "", err
		}
		if list, err = x.explainAll(ctx, s, subs); err != nil || next != "" {
			return list, next, err
		}
	}
	for _, id := range slices.Sorted(maps.Keys(s.records)) {
		if id <= ended {
			continue
		}
		sub, err := x.Subscriptions.Find(ctx, e.Workspace, id)
		if err != nil {
			return nil, "", err
		}
		if sub != nil && sub.Covers(e.URI) && !e.Test {
			continue // the first part of the list has the outcome for this subscription
		}
		if len(list) == limit {
			return list, endedAfter + ended, nil
		}
		o, err := x.explainOne(ctx, s, id, sub)
		if err != nil {
			return nil, "", err
		}
		list, ended = append(list, o), id
	}
	return list, "", nil
}

// endedAfter is the prefix of positions in the second part of the list of [Explainer.ExplainPage]. This part has the subscriptions whose
// patterns do not match the event, most of which have ended.
const endedAfter = "!"

// ExplainOne returns the outcome of an event for one subscription, even if the subscription's patterns do not match it. It returns nil if
// the subscription does not exist and the delivery log has no attempts to deliver the event to it.
func (x *Explainer) ExplainOne(ctx context.Context, e Event, id string) (*Outcome, error) {
	s, err := x.readSubject(ctx, e)
	if err != nil {
		return nil, err
	}
	sub, err := x.Subscriptions.Find(ctx, e.Workspace, id)
	if err != nil || sub == nil && len(s.records[id]) == 0 {
		return nil, err
	}
	o, err := x.explainOne(ctx, s, id, sub)
	return &o, err
}

func (x *Explainer) explainOne(ctx context.Context, s *subject, id string, sub *subscription.Selected) (Outcome, error) {
	stored, err := state.Find(ctx, x.DB, s.Event.Event, []string{id})
	if err != nil {
		return Outcome{}, err
	}
	return x.explain(ctx, s, id, sub, stored[id])
}

func (x *Explainer) readSubject(ctx context.Context, e Event) (*subject, error) {
	s := &subject{Event: e, records: map[string][]records.Record{}}
	cat, err := x.Catalogs.Catalog(ctx, e.Workspace)
	if err != nil {
		return nil, fault.Wrap(fault.Unavailable, err, "read the catalog")
	}
	s.entry = cat.ByName(e.Name)
	query := records.Query{Event: e.ID}
	if !e.Lost {
		query.Since = e.Published.Add(-settling)
	}
	before := ""
	for range recordPages {
		list, next, err := records.List(ctx, x.DB, e.Workspace, query, before, maxRecords)
		if err != nil {
			return nil, err
		}
		for _, r := range list {
			if r.URI == e.URI {
				s.records[r.Subscription] = append(s.records[r.Subscription], r)
			}
		}
		if before = next; next == "" {
			break
		}
	}
	return s, nil
}

func (x *Explainer) explainAll(ctx context.Context, s *subject, subs []subscription.Selected) ([]Outcome, error) {
	ids := make([]string, len(subs))
	for i, sub := range subs {
		ids[i] = sub.ID
	}
	stored, err := state.Find(ctx, x.DB, s.Event.Event, ids)
	if err != nil {
		return nil, err
	}
	list := make([]Outcome, len(subs))
	for i, sub := range subs {
		if list[i], err = x.explain(ctx, s, sub.ID, &sub, stored[sub.ID]); err != nil {
			return nil, err
		}
	}
	return list, nil
}

// explain finds the outcome of the event for one subscription from the most certain source. The first source is the stored delivery, then
// follows the delivery log, and then [Decide], which is called as if the event arrived now. The parameter sub is nil if the subscription
// no longer exists, and del is nil if no delivery is stored.
func (x *Explainer) explain(ctx context.Context, s *subject, id string, sub *subscription.Selected, del *state.Delivery) (Outcome, error) {
	o := Outcome{ID: id}
	if sub != nil {
		o.Subscription, o.Origin = sub.Subscription, subscription.OriginOf(sub.Target.URL)
	}
	tries := s.records[id]
	if len(tries) > 0 {
		o.Origin = cmp.Or(o.Origin, tries[0].Origin)
	}
	switch {
	case del != nil && !arrivedSince(del, tries):
		err := x.explainStored(ctx, s, &o, del)
		return o, err
	case len(tries) > 0:
		err := x.explainRecords(ctx, s, &o, tries)
		return o, err
	}
	if err := x.explainJudged(ctx, s, &o); err != nil || o.Kind != "" {
		return o, err
	}
	if x.Kept != records.None && !s.Lost { // the subscription's list may have records that the event's list lacks
		tries, err := records.OfEvent(ctx, x.DB, s.Workspace, id, s.ID, s.Published)
		if err != nil {
			return o, err
		}
		if len(tries) > 0 {
			err = x.explainRecords(ctx, s, &o, tries)
			return o, err
		}
	}
	x.explainMissing(s, &o)
	return o, nil
}

// arrivedSince reports whether an attempt in tries succeeded after the stored delivery del was given up. For example, a client may have
// resumed from an older cursor. If the first attempt then succeeds, the stored delivery does not change.
func arrivedSince(del *state.Delivery, tries []records.Record) bool {
	if del.State != state.Dead {
		return false
	}
	end := del.Died
	if n := len(del.Attempts); n > 0 {
		end = del.Attempts[n-1].At
	}
	return slices.ContainsFunc(tries, func(r records.Record) bool { return r.Outcome() == records.Delivered && r.At.After(end) })
}

func (o *Outcome) isEnded() bool {
	return o.Subscription == nil || o.Subscription.State == subscription.Disabled
}

func (o *Outcome) setEnded() {
	o.Kind, o.Why = kindEnded, "the subscription has ended"
	if o.Subscription != nil && o.Subscription.Reason != "" {
		o.Why += ": " + o.Subscription.Reason
	}
}

// explainStored sets the outcome of an event whose delivery is stored. A delivery is stored if its first attempt failed or did not take
// place.
func (x *Explainer) explainStored(ctx context.Context, s *subject, o *Outcome, del *state.Delivery) error {
	o.Attempts = len(del.Attempts)
	if o.Attempts > 0 {
		last := del.Attempts[o.Attempts-1]
		o.At, o.Status, o.Category = last.At, last.Status, last.Category
	}
	switch {
	case del.State == state.Dead:
		o.giveUp()
		return nil
	case o.isEnded():
		o.setEnded()
		return nil
	case !del.PausedAt.IsZero():
		o.At = del.PausedAt
		return x.explainPause(ctx, s, o, switches.SwitchOf(del.Workspace, del.Paused.Partition))
	case del.State == state.Suspended:
		o.setSuspended()
		return nil
	}
	if !s.Lost && !del.Test {
		// Do not check whether the subscription asks for the event, because a stored delivery is attempted even if the subscription does
		// not ask for it. For example, a person may have requested the delivery.
		ruling, err := x.judgeEvent(ctx, s, o)
		if err != nil || o.Kind != "" {
			return err
		}
		switch ruling.Decision {
		case Paused:
			return x.explainPause(ctx, s, o, ruling.Switch)
		case Suspended, Replayed:
			o.setSuspended()
			return nil
		}
	}
	o.setWaiting(del.Due)
	return nil
}

func (o *Outcome) giveUp() {
	o.Kind, o.Why = kindDead, "given up without an attempt"
	if o.Attempts > 0 {
		o.Why = fmt.Sprintf("given up after %s; %s", formatAttempts(o.Attempts), describeFailure(o.Category, o.Status))
	}
}

func (o *Outcome) setSuspended() {
	o.Kind = kindSuspended
	o.Why = "the subscription is suspended: " + o.Subscription.Reason + "; its next refresh brings the event"
	if o.Subscription.Suspended != 0 {
		o.At = o.Subscription.Suspended.Time()
	}
}

func (o *Outcome) setWaiting(due time.Time) {
	o.Kind, o.Next, o.Why = kindWaiting, due, "the first attempt is due"
	if o.Attempts > 0 {
		o.Why = fmt.Sprintf("%s; attempt %d follows", describeFailure(o.Category, o.Status), o.Attempts+1)
	}
}

func (x *Explainer) explainPause(ctx context.Context, s *subject, o *Outcome, name switches.Name) error {
	sw, err := x.Switches.Get(ctx, s.Workspace, name)
	if err != nil {
		return err
	}
	if sw == nil { // a person has resumed the switch, and the delivery's message returns to its queue within minutes
		o.Kind, o.Why = kindWaiting, "a pause has ended, and the delivery continues within minutes"
		return nil
	}
	o.Kind, o.Switch, o.Why = kindPaused, sw, describePause(sw)
	if o.At.IsZero() {
		o.At = sw.At
	}
	if sw.Reason != "" {
		o.Why += ": " + sw.Reason
	}
	return nil
}

func describePause(sw *switches.Switch) string {
	kind, of, _ := strings.Cut(string(sw.Name), "/")
	switch kind {
	case "event":
		return fmt.Sprintf("the event type %s is paused by %s", of, sw.By)
	case "origin":
		return fmt.Sprintf("the origin %s is paused by %s", of, sw.By)
	case "subscription":
		return "the subscription is paused by " + sw.By
	}
	return "all deliveries are paused by " + sw.By
}

// explainRecords sets the outcome of an event from its attempts in the delivery log (tries), which are sorted newest first. It is called
// if no delivery is stored, or if an attempt succeeded after the stored delivery was given up.
func (x *Explainer) explainRecords(ctx context.Context, s *subject, o *Outcome, tries []records.Record) error {
	last := tries[0]
	if i := slices.IndexFunc(tries, func(r records.Record) bool { return r.Outcome() == records.Delivered }); i >= 0 {
		last = tries[i]
	}
	o.At, o.Attempts, o.Status, o.Category = last.At, last.Attempt, last.Status, last.Category
	switch {
	case last.Outcome() == records.Delivered:
		o.Kind, o.Why = kindDelivered, fmt.Sprintf("the endpoint answered %d to attempt %d", last.Status, last.Attempt)
	case last.Outcome() == records.Dead:
		o.giveUp()
	case o.isEnded():
		o.setEnded()
	default:
		return x.explainUnstored(ctx, s, o, last.Next)
	}
	return nil
}

// explainUnstored sets the outcome of an event whose last recorded attempt failed, but whose delivery is no longer stored. The parameter
// due is the time of the next attempt according to that record. The delivery may have been deleted for a reason that explainJudged finds,
// for example a removed event type. Otherwise a later attempt must have succeeded.
//
// If the delivery log keeps successes, the record of the later attempt is about to be written, so the outcome is "waiting" until then. If
// the log keeps no successes, the outcome is "delivered".
func (x *Explainer) explainUnstored(ctx context.Context, s *subject, o *Outcome, due time.Time) error {
	if err := x.explainJudged(ctx, s, o); err != nil || o.Kind != "" {
		return err
	}
	if x.Kept == records.All {
		o.setWaiting(due)
		return nil
	}
	o.Kind, o.Why = kindDelivered, fmt.Sprintf("a later attempt than %d succeeded, of which the delivery log keeps no record", o.Attempts)
	o.At, o.Status, o.Category = time.Time{}, 0, ""
	return nil
}
