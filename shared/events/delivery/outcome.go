package delivery

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"sync"
	"time"

	"github.com/mcp-events/mcpevents/shared/events/event"
	"github.com/mcp-events/mcpevents/shared/events/subscription"
	"github.com/mcp-events/mcpevents/shared/events/webhook"
	"github.com/mcp-events/mcpevents/shared/platform/bounded"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/platform/metric"
	"github.com/mcp-events/mcpevents/shared/storage/store"

	"github.com/mcp-events/mcpevents/shared/events/delivery/deadletter"
	"github.com/mcp-events/mcpevents/shared/events/delivery/records"
	"github.com/mcp-events/mcpevents/shared/events/delivery/state"
)

// outcomes records attempts, and what follows from them for the delivery and its subscription.
type outcomes struct {
	deliveries    *state.Deliveries
	notices       *notices
	subscriptions Subscriptions
	terminator    *Terminator // whose catalog may want the event of a subscription that is disabled
	options       *Options
	log           *slog.Logger
	metrics       *metric.Set

	status  statuses
	rates   rates
	records records.Log
}

// record records an attempt. The writes of a success are returned, to be made with the
// rest of the page; a failure is written at once, with what follows from it.
func (o *outcomes) record(ctx context.Context, del *state.Delivery, sub *subscription.Subscriber, e *event.Event, out webhook.Outcome) (notes []store.Op, err error) {
	if out.Internal() {
		return nil, internalError(out)
	}
	now, workspace := o.deliveries.Now(), del.Workspace
	made := state.Result{At: now, Category: string(out.Category), Status: out.Status, TookMS: out.Took.Milliseconds()}
	del.Attempts = append(del.Attempts, made)
	if out.Category == "" {
		notes = o.records.Add(notes, del, made)
		st, due := o.status.delivered(workspace, sub.ID, del.Version != 0, now)
		if due {
			notes = append(notes, store.Put(st.Encode(workspace, sub.ID)))
		}
		if sub.Origin == subscription.MCPEvents {
			notes = append(notes, o.rates.count(workspace, sub.ID, false, due, now)...)
		}
		return append(notes, del.Forget()...), nil
	}

	gone := out.Status == http.StatusGone
	final := gone || out.Status == http.StatusRequestEntityTooLarge
	wait, again := o.options.schedule(sub.Origin).Next(len(del.Attempts)-del.Base, out.RetryAfter)
	var whose state.Claim
	switch {
	case final: // the endpoint knows of it
		whose, err = o.deadLetter(ctx, del, e)
	case again:
		whose, err = o.deliveries.ScheduleNext(ctx, del, e, now.Add(wait))
	default:
		whose, err = o.abandon(ctx, del, e)
	}
	if err != nil || whose != state.Mine {
		return notes, err // another worker has recorded this attempt, or the delivery is over
	}
	notes = o.records.Add(notes, del, made)
	st, err := o.status.failed(ctx, o.deliveries.DB, workspace, sub, out, now)
	if err != nil {
		return notes, err
	}
	notes = append(notes, store.Put(st.Encode(workspace, sub.ID)))
	if sub.Origin == subscription.MCPEvents && !final {
		notes = append(notes, o.rates.count(workspace, sub.ID, true, true, now)...)
		failing, err := o.rates.failing(ctx, o.deliveries.DB, workspace, sub.ID, sub.Resumed, now)
		if err == nil && failing {
			err = o.notices.foreseeGap(ctx, workspace, sub, e.Name)
		}
		if err == nil && failing {
			err = o.subscriptions.Suspend(ctx, workspace, sub.Principal, sub.ID, sub.Resumed)
		}
		if err != nil { // the next failure will see it
			o.log.WarnContext(ctx, "subscription not suspended", "subscription", sub.ID, "error", err)
		}
	}
	switch {
	case gone && sub.Origin == subscription.SEP1803:
		// 410 Gone: the endpoint wants no further webhooks (Standard Webhooks).
		err = o.disable(ctx, workspace, sub, subscription.ReasonGone, st)
	case onlyFails(sub, st, now):
		err = o.disable(ctx, workspace, sub, "all deliveries of five days failed", st)
	}
	return notes, err
}

// abandon gives up a delivery and announces the gap to the subscriber, because the endpoint did not refuse the event.
func (o *outcomes) abandon(ctx context.Context, del *state.Delivery, e *event.Event) (state.Claim, error) {
	if err := o.notices.announceGap(ctx, del); err != nil {
		return 0, err
	}
	return o.deadLetter(ctx, del, e)
}

// deadLetter gives up a delivery and keeps it as a dead letter for a week.
func (o *outcomes) deadLetter(ctx context.Context, del *state.Delivery, e *event.Event) (state.Claim, error) {
	if del.Version != 0 {
		e = nil // stored already
	}
	now := o.deliveries.Now()
	del.Due = time.Time{}
	whose, err := o.deliveries.Write(ctx, del, state.Change{
		Step: state.StepGiveUp, What: "record a dead letter", Event: e, Keep: state.RetriedFor,
		Also: func() (letters []store.Op) {
			value := del.Item().Value
			for _, key := range deadletter.Keys(del, now) {
				letters = append(letters, store.Put(store.Item{Key: key, Value: value, Version: now.UnixMicro(), Expires: now.Add(state.KeptFor)}))
			}
			return letters
		},
	})
	if err == nil && whose == state.Mine {
		o.metrics.DeadLettered(metric.Webhook, 1)
	}
	return whose, err
}

// statuses decides when a subscription's status is worth a write: after a
// failure, on the first success after one, and else once a minute. One event to very many
// would be a write for each: of more than [statusBudget] in a minute, one in [statusShare] is written. So
// after such an event the time of the last delivery, and the end of a failure that another
// dispatcher saw, may show only after some more events.
type statuses struct {
	seen *bounded.Map[string, seenStatus]

	mu     sync.Mutex
	minute int64 // since 1970, in which
	spent  int   // so many were written that could have waited
}

type seenStatus struct {
	written time.Time
	failing bool
}

const (
	statusEvery  = time.Minute
	statusBudget = 60
	statusShare  = 16
	maxStatuses  = 100_000
)

// delivered reports whether a success is to be written. That of a retry always is.
func (s *statuses) delivered(workspace, id string, retried bool, now time.Time) (subscription.Status, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	key := workspace + "#" + id
	v, _ := s.seen.Get(key)
	if changed := retried || v.failing; !changed && (now.Sub(v.written) < statusEvery || !s.afford(now)) {
		return subscription.Status{}, false
	}
	s.seen.Put(key, seenStatus{written: now})
	return subscription.Status{LastDelivery: now.UTC()}, true
}

// afford reports whether another write that could wait fits into this minute.
func (s *statuses) afford(now time.Time) bool {
	if minute := now.Unix() / 60; minute != s.minute {
		s.minute, s.spent = minute, 0
	}
	if s.spent < statusBudget {
		s.spent++
		return true
	}
	return rand.N(statusShare) == 0
}

func (s *statuses) failed(ctx context.Context, db store.DB, workspace string, sub *subscription.Subscriber, out webhook.Outcome, now time.Time) (subscription.Status, error) {
	items, err := db.Get(ctx, subscription.StatusKey(workspace, sub.ID))
	if err != nil {
		return subscription.Status{}, fault.Wrap(fault.Unavailable, err, "read the status of a subscription")
	}
	st, err := subscription.DecodeStatus(items[0])
	if err != nil {
		return st, err
	}
	if st.LastError == "" {
		st.FailedSince, st.Failures = now.UTC(), 0
	}
	st.Failures++
	st.LastError = string(out.Category)
	if sub.Origin == subscription.MCPEvents { // knows six categories only
		st.LastError = string(out.Category.Published())
	}
	if out.RetryAfter > 0 {
		st.ThrottledUntil = now.Add(out.RetryAfter).UTC()
	}
	s.seen.Put(workspace+"#"+sub.ID, seenStatus{written: now, failing: true})
	return st, nil
}
