// Package retry records the outcome of each attempt to send a webhook, schedules the next attempt of a failed delivery, and moves
// deliveries to the slow queue when they are due. Package delivery makes the attempts.
//
// [Outcomes] gives a failed delivery the next attempt of its [Schedule] or makes it a dead letter. It also suspends or disables a
// subscription whose attempts fail too often. [Job] runs every minute and moves the due deliveries.
package retry

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"log/slog"
	mathrand "math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/mcp-events/mcpevents/shared/events/delivery/lifecycle"
	"github.com/mcp-events/mcpevents/shared/events/delivery/records"
	"github.com/mcp-events/mcpevents/shared/events/delivery/state"
	"github.com/mcp-events/mcpevents/shared/events/event"
	"github.com/mcp-events/mcpevents/shared/events/subscription"
	"github.com/mcp-events/mcpevents/shared/events/webhook"
	"github.com/mcp-events/mcpevents/shared/platform/bounded"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/platform/metric"
	"github.com/mcp-events/mcpevents/shared/platform/periodic"
	"github.com/mcp-events/mcpevents/shared/storage/store"
)

// Options are the dependencies and settings of [Outcomes]. All but Metrics must be set.
type Options struct {
	Deliveries *state.Deliveries
	Manager    *lifecycle.Manager
	Schedules  Schedules
	Records    records.Keep
	Log        *slog.Logger
	Metrics    *metric.Set
}

// Outcomes records attempts to send webhooks. It then retries or ends the delivery, and suspends or disables the subscription if its
// attempts fail too often.
type Outcomes struct {
	Options
	status  statuses
	rates   rates
	records records.Log
}

// NewOutcomes returns Outcomes without any counted attempts.
func NewOutcomes(o Options) *Outcomes {
	return &Outcomes{
		Options: o, status: statuses{seen: bounded.NewMap[string, seenStatus](maxStatuses)}, records: records.NewLog(o.Deliveries.DB, o.Records),
	}
}

// consequence says what happens to a delivery after an attempt to send its webhook, for example that it will be retried.
type consequence int

const (
	delivered consequence = iota
	retried               // the schedule has another attempt
	refused               // the endpoint has refused the event, so the delivery becomes a dead letter without a gap notice
	exhausted             // the schedule is over, so the delivery becomes a dead letter, and the client gets a gap notice
)

// findConsequence returns how a delivery continues after its latest attempt, whose outcome is out. If it is retried, the duration is the
// time until the next attempt. A gap notice, i.e. a message about missed events, is retried even after the end of its schedule.
func (o *Outcomes) findConsequence(del *state.Delivery, out webhook.Outcome) (consequence, time.Duration) {
	switch {
	case out.Category == "":
		return delivered, 0
	case out.Status == http.StatusGone, out.Status == http.StatusRequestEntityTooLarge:
		return refused, 0
	}
	schedule, made := o.Schedules.ScheduleFor(del.Origin), len(del.Attempts)-del.Base
	wait, more := schedule.Next(made, out.RetryAfter)
	if !more && del.Control != nil && del.Control.Gap != "" {
		wait, more = o.Manager.NextGap(del, schedule[len(schedule)-1], made-len(schedule)+1, out.RetryAfter)
	}
	if !more {
		return exhausted, 0
	}
	return retried, wait
}

// Record records an attempt whose outcome is out. After a failure, it immediately writes the consequence, for example the next attempt or
// a dead letter. It returns other writes (notes), which the caller makes together with the writes of other attempts.
func (o *Outcomes) Record(ctx context.Context, del *state.Delivery, sub *subscription.Subscriber, e *event.Event, out webhook.Outcome) (notes []store.Op, err error) {
	if out.Internal() { // a failure of this program does not count as an attempt
		return nil, &fault.Error{Kind: fault.Unavailable, Message: "the attempt failed internally", Err: out.Err}
	}
	now := o.Deliveries.Now()
	made := state.Result{At: now, Category: string(out.Category), Status: out.Status, TookMS: out.Took.Milliseconds()}
	del.Attempts = append(del.Attempts, made)
	next, wait := o.findConsequence(del, out)
	if del.Control != nil {
		return o.recordNotice(ctx, del, out, next, wait)
	}
	written := false
	switch next {
	case delivered:
		return o.recordSuccess(del, sub, made), nil
	case retried:
		written, err = o.Deliveries.Schedule(ctx, del, e, now.Add(wait))
	case refused:
		written, err = o.DeadLetter(ctx, del, e)
	case exhausted:
		written, err = o.Abandon(ctx, del, e)
	}
	if err != nil || !written {
		return nil, err // another worker has recorded this attempt, or the delivery is over
	}
	return o.recordFailure(ctx, del, sub, e, out, next)
}

// recordNotice records an attempt to send a control message, i.e. a message about the subscription itself. A message that is given up
// leaves no dead letter, because its subscription has usually ended and has no owner who could retry it.
func (o *Outcomes) recordNotice(ctx context.Context, del *state.Delivery, out webhook.Outcome, next consequence, wait time.Duration) ([]store.Op, error) {
	switch next {
	case retried:
		_, err := o.Deliveries.Schedule(ctx, del, nil, o.Deliveries.Now().Add(wait))
		return nil, err
	case refused, exhausted:
		o.Log.WarnContext(ctx, "control message undeliverable", "subscription", del.Subscription, "message", del.Event, "category", out.Category)
	}
	return del.DeletionNotes(), nil
}

func (o *Outcomes) recordSuccess(del *state.Delivery, sub *subscription.Subscriber, made state.Result) []store.Op {
	notes := o.records.Add(nil, del, made, "")
	st, due := o.status.afterSuccess(del.Workspace, sub.ID, del.Version != 0, made.At)
	if due {
		notes = append(notes, store.Put(st.Encode(del.Workspace, sub.ID)))
	}
	if sub.Origin == subscription.MCPEvents {
		notes = append(notes, o.rates.count(del.Workspace, sub.ID, false, due, made.At)...)
	}
	return append(notes, del.DeletionNotes()...)
}

// recordFailure records a failed attempt in the status of its subscription, and suspends or disables the subscription if its
// attempts fail too often. If the endpoint refused only this event, the attempt does not count for the failure rate.
func (o *Outcomes) recordFailure(ctx context.Context, del *state.Delivery, sub *subscription.Subscriber, e *event.Event, out webhook.Outcome, next consequence) (notes []store.Op, err error) {
	made, workspace := del.Attempts[len(del.Attempts)-1], del.Workspace
	notes = o.records.Add(nil, del, made, out.Response)
	st, err := o.status.afterFailure(ctx, o.Deliveries.DB, workspace, sub, out, made.At)
	if err != nil {
		return notes, err
	}
	notes = append(notes, store.Put(st.Encode(workspace, sub.ID)))
	if sub.Origin == subscription.MCPEvents && next != refused {
		notes = append(notes, o.rates.count(workspace, sub.ID, true, true, made.At)...)
		if err := o.suspendFailing(ctx, workspace, sub, e.Name, made.At); err != nil { // only logged, because the next failure tries again
			o.Log.WarnContext(ctx, "subscription not suspended", "subscription", sub.ID, "error", err)
		}
	}
	switch {
	case out.Status == http.StatusGone && sub.Origin == subscription.SEP1803:
		// 410 Gone: the endpoint wants no further webhooks (Standard Webhooks).
		err = o.Manager.Disable(ctx, workspace, sub, subscription.ReasonGone, st)
	case lifecycle.OnlyFails(sub, st, made.At):
		err = o.Manager.Disable(ctx, workspace, sub, "all deliveries of five days failed", st)
	}
	return notes, err
}

func (o *Outcomes) suspendFailing(ctx context.Context, workspace string, sub *subscription.Subscriber, name string, now time.Time) error {
	failing, err := o.rates.isFailing(ctx, o.Deliveries.DB, workspace, sub.ID, sub.Resumed, now)
	if err != nil || !failing {
		return err
	}
	if err := o.Manager.ForeseeGap(ctx, workspace, sub, name); err != nil {
		return err
	}
	return o.Manager.Subscriptions.Suspend(ctx, workspace, sub.Principal, sub.ID, sub.Resumed)
}

// Abandon gives up a delivery like [Outcomes.DeadLetter], and sends the subscriber a gap notice, i.e. a message that it missed an event.
// The endpoint has not refused the event, so the client may not know that the event exists.
func (o *Outcomes) Abandon(ctx context.Context, del *state.Delivery, e *event.Event) (written bool, err error) {
	if err := o.Manager.AnnounceGap(ctx, del); err != nil {
		return false, err
	}
	return o.DeadLetter(ctx, del, e)
}

// DeadLetter ends the attempts of a delivery and keeps it as a dead letter for a week.
func (o *Outcomes) DeadLetter(ctx context.Context, del *state.Delivery, e *event.Event) (written bool, err error) {
	written, err = o.Deliveries.GiveUp(ctx, del, e)
	if err == nil && written {
		o.Metrics.DeadLettered(metric.Webhook, 1)
	}
	return written, err
}

// statuses decides when to write a subscription's status, for example the time of its last successful delivery: after each failure, after
// the first success that follows a failure, and otherwise at most once a minute.
//
// An event with very many subscribers would still cause a write for each of them. So in each minute, a process makes only the first
// [statusBudget] of the once-a-minute writes, and then one in [statusShare] of them, chosen at random. A status may therefore stay
// outdated until a few more events are delivered.
type statuses struct {
	seen *bounded.Map[string, seenStatus]

	mu     sync.Mutex
	minute int64 // the current minute since 1970, in which spent counts
	spent  int   // the once-a-minute writes that were made in this minute, up to statusBudget
}

type seenStatus struct {
	written time.Time
	failing bool
	// delivered is the time of the last success whose status was written, or will be written at the end of the task that made the
	// attempt.
	delivered time.Time
}

const (
	statusEvery  = time.Minute
	statusBudget = 60
	statusShare  = 16
	maxStatuses  = 100_000
)

// afterSuccess returns a subscription's status after a successful attempt, and reports whether to write it. The parameter retried says
// that the attempt was a retry. The status is then always written.
func (s *statuses) afterSuccess(workspace, id string, retried bool, now time.Time) (subscription.Status, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	key := workspace + "#" + id
	v, _ := s.seen.Get(key)
	if changed := retried || v.failing; !changed && (now.Sub(v.written) < statusEvery || !s.spendBudget(now)) {
		return subscription.Status{}, false
	}
	s.seen.Put(key, seenStatus{written: now, delivered: now})
	return subscription.Status{LastDelivery: now.UTC()}, true
}

// spendBudget reports whether to make another once-a-minute write of a status now; see [statuses].
func (s *statuses) spendBudget(now time.Time) bool {
	if minute := now.Unix() / 60; minute != s.minute {
		s.minute, s.spent = minute, 0
	}
	if s.spent < statusBudget {
		s.spent++
		return true
	}
	return mathrand.N(statusShare) == 0
}

// afterFailure returns a subscription's status after a failed attempt. The caller always writes it.
//
// The status counts consecutive failures. The stored status may lack the last success, because a task writes the statuses only at its
// end. So if this process knows of a success after the first counted failure, afterFailure starts counting again. Otherwise, an endpoint
// that accepts some events and refuses others would be disabled like an endpoint that only fails.
func (s *statuses) afterFailure(ctx context.Context, db store.DB, workspace string, sub *subscription.Subscriber, out webhook.Outcome, now time.Time) (subscription.Status, error) {
	it, err := store.One(ctx, db, subscription.StatusKey(workspace, sub.ID), "read the status of a subscription")
	if err != nil {
		return subscription.Status{}, err
	}
	st, err := subscription.DecodeStatus(it)
	if err != nil {
		return st, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	key := workspace + "#" + sub.ID
	v, _ := s.seen.Get(key)
	if st.LastError == "" || v.delivered.After(st.FailedSince) {
		st.FailedSince, st.Failures = now.UTC(), 0
	}
	st.LastDelivery = periodic.Later(st.LastDelivery, v.delivered.UTC())
	st.Failures++
	st.LastError, st.LastCode = string(out.Category), out.Status
	if sub.Origin == subscription.MCPEvents { // MCP Events (SEP-3415) has only six categories of failures
		st.LastError = string(out.Category.ToPublished())
	}
	if out.RetryAfter > 0 {
		st.ThrottledUntil = now.Add(out.RetryAfter).UTC()
	}
	s.seen.Put(key, seenStatus{written: now, failing: true, delivered: v.delivered})
	return st, nil
}

// An MCP Events subscription is suspended if more than 95 % of its attempts in the last hour failed (SEP-3415, webhook event delivery).
// Several processes make these attempts, and each process counts only its own. So each process stores its counts next to the
// subscription's status, in one item per minute. A process that records a failure adds up the items of all processes.
//
// A process writes its counts with each failure and with each write of the status. A write per success would be too expensive, so other
// successes wait until there are [rateUnwritten] of them, and later until their number has doubled. The sum may therefore lack the first
// few successes of each other process, and later about half of them. For example, if two processes with many attempts appear to fail at
// 95 %, the real rate is usually at least 90 %.

const (
	rateWindow  = time.Hour
	rateMinimum = 100 // a subscription with fewer attempts in rateWindow is not suspended
	// ratePercent is the failure rate in percent above which a subscription is suspended.
	ratePercent = 95
	// rateUnwritten is how many successes a process counts before it writes them for the first time. Each later write waits until the
	// number of successes has doubled.
	rateUnwritten = 4
	// rateAsk is how long a process waits before it adds up a subscription's attempts again. It does not wait that long if it has made
	// rateMinimum attempts since.
	rateAsk   = 5 * time.Second
	maxTallys = 100_000
)

// tally counts this process's attempts to send webhooks to one subscription.
type tally struct {
	minutes []minuteTally // the minutes with attempts that are not written yet, and the current minute; oldest first
	began   time.Time     // when the field written began to count; it restarts from 0 after rateWindow
	written int           // successes that were written to the store
	dirty   int           // successes that are not written yet
	asked   time.Time     // when this process last added up the attempts of all processes
	since   int           // attempts of this process since the time in the field asked
}

// minuteTally counts a process's attempts for one subscription in one minute. It is stored as one item.
type minuteTally struct {
	Minute int64 `json:"-"` // the number of the minute since 1970
	OK     int   `json:"ok,omitempty"`
	Failed int   `json:"f,omitempty"`
}

// rates counts a process's attempts, in one tally per subscription. The zero value is ready to use.
type rates struct {
	mu   sync.Mutex
	self string // a random name of this process, in the keys of the items that it writes
	subs map[string]*tally
}

const ratePrefix = "rate#"

func rateKey(workspace, id string, minute int64, self string) store.Key {
	k := subscription.StatusKey(workspace, id)
	k.Sort = fmt.Sprintf("%s%010d#%s", ratePrefix, minute, self)
	return k
}

func (r *rates) get(workspace, id string, now time.Time) *tally {
	if r.self == "" || len(r.subs) >= maxTallys {
		r.self, r.subs = rand.Text()[:10], map[string]*tally{} // the new name keeps this process from overwriting its earlier items
	}
	key := workspace + "#" + id
	t := r.subs[key]
	if t == nil {
		t = &tally{began: now}
		r.subs[key] = t
	}
	return t
}

// count counts an attempt and returns the writes of the counts that are due. A write per success would be too expensive. So after a
// success, writes are due only if the number of successes has doubled since the last write, or if flush is true.
func (r *rates) count(workspace, id string, failed, flush bool, now time.Time) (due []store.Op) {
	r.mu.Lock()
	defer r.mu.Unlock()
	t := r.get(workspace, id, now)
	minute := now.Unix() / 60
	if n := len(t.minutes); n == 0 || t.minutes[n-1].Minute != minute {
		t.minutes = append(t.minutes, minuteTally{Minute: minute})
	}
	m := &t.minutes[len(t.minutes)-1]
	t.since++
	if failed {
		m.Failed++
	} else {
		m.OK++
		t.dirty++
	}
	if now.Sub(t.began) > rateWindow {
		t.began, t.written = now, 0
	}
	if !failed && !flush && t.dirty < max(rateUnwritten, t.written) {
		return nil
	}
	for _, m := range t.minutes {
		value, _ := json.Marshal(m) // cannot fail for numbers
		due = append(due, store.Put(store.Item{
			Key: rateKey(workspace, id, m.Minute, r.self), Value: value,
			Expires: time.Unix(m.Minute*60, 0).Add(rateWindow + 2*time.Minute),
		}))
	}
	t.minutes = append(t.minutes[:0], *m)
	t.written, t.dirty = t.written+t.dirty, 0
	return due
}

// isFailing reports whether more than [ratePercent] percent of the subscription's webhook attempts in the last hour failed. It counts the
// attempts of all processes, but only attempts since the subscription was last resumed (the parameter resumed). The result is false if
// there were fewer than [rateMinimum] attempts.
//
// To save reads from the store, isFailing counts again only after [rateAsk] or after [rateMinimum] further attempts, whichever is
// earlier. Until then it returns false.
func (r *rates) isFailing(ctx context.Context, db store.DB, workspace, id string, resumed subscription.Seconds, now time.Time) (bool, error) {
	r.mu.Lock()
	t := r.get(workspace, id, now)
	if now.Sub(t.asked) < rateAsk && !now.Before(t.asked) && t.since < rateMinimum {
		r.mu.Unlock()
		return false, nil
	}
	t.asked, t.since = now, 0
	first := max(now.Add(-rateWindow).Unix(), int64(resumed))/60 + 1
	own := map[string]bool{}
	ok, failed := 0, 0
	for _, m := range t.minutes { // count these minutes from memory, because their stored items may lack the latest attempts
		if own[rateKey(workspace, id, m.Minute, r.self).Sort] = true; m.Minute >= first {
			ok, failed = ok+m.OK, failed+m.Failed
		}
	}
	r.mu.Unlock()

	q := store.Query{Table: store.Deliveries, Limit: 500}
	from := rateKey(workspace, id, first, "")
	q.Partition, q.After, q.Until = from.Partition, strings.TrimSuffix(from.Sort, "#"), ratePrefix+"~"
	for {
		page, err := db.Query(ctx, q)
		if err != nil {
			return false, fault.Wrap(fault.Unavailable, err, "read the rate of a subscription's failures")
		}
		for _, it := range page.Items {
			if own[it.Sort] {
				continue
			}
			var m minuteTally
			if err := json.Unmarshal(it.Value, &m); err != nil {
				continue // skip an item that cannot be decoded: it expires soon, and one minute of one process changes the rate little
			}
			ok, failed = ok+m.OK, failed+m.Failed
		}
		if !page.More {
			return ok+failed >= rateMinimum && 100*failed > ratePercent*(ok+failed), nil
		}
		q.After = page.Last
	}
}
