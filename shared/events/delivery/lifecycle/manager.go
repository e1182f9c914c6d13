// Package lifecycle ends, disables and suspends subscriptions because of their deliveries. It stores the deliveries of suspended
// subscriptions, and reactivates them later. It also sends gap notices, i.e. messages about missed events, and finds the watermark of a
// subscription: the position in the event log up to which all of the subscription's deliveries were acknowledged or became dead letters.
//
// Package delivery makes the attempts, and package retry calls the [Manager] after a failed attempt.
package lifecycle

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"log/slog"
	"time"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/events/delivery/deadletter"
	"github.com/mcp-events/mcpevents/shared/events/delivery/state"
	"github.com/mcp-events/mcpevents/shared/events/delivery/task"
	"github.com/mcp-events/mcpevents/shared/events/event"
	eventlog "github.com/mcp-events/mcpevents/shared/events/log"
	"github.com/mcp-events/mcpevents/shared/events/publish"
	"github.com/mcp-events/mcpevents/shared/events/subscription"
	"github.com/mcp-events/mcpevents/shared/events/webhook"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/platform/metric"
	"github.com/mcp-events/mcpevents/shared/platform/periodic"
	"github.com/mcp-events/mcpevents/shared/storage/store"
)

// Subscriptions are the operations on subscriptions that the [Manager] needs. [subscription.Service] implements it.
type Subscriptions interface {
	deadletter.Finder
	Disable(ctx context.Context, workspace, principal, id, reason string, resumed subscription.Seconds) (ended bool, err error)
	Suspend(ctx context.Context, workspace, principal, id string, resumed subscription.Seconds) error
}

// Manager suspends, reactivates and disables subscriptions, and tells their clients about missed events (gaps).
type Manager struct {
	Deliveries    *state.Deliveries
	Subscriptions Subscriptions
	Terminator    *Terminator // has the catalog, and the list of endpoints that get no notices
	Gaps          *Gaps       // if nil, no gap notices are sent
	Log           *slog.Logger
	Metrics       *metric.Set // may be nil
}

// Gaps has the event log and the sealer, from which gap notices are made. A gap notice tells a client that it missed events.
type Gaps struct {
	Log *eventlog.Log
	// Sealer returns the sealer that encrypts cursors and makes the ids of messages.
	Sealer func(context.Context) (*eventlog.Sealer, error)
}

// While a subscription is suspended, its deliveries form a backlog, and do not use up their retries (SEP-3415, webhook event delivery). A
// delivery that becomes due stays in the store, but has no time for a next attempt. An event that was published before the suspension but
// dispatched after it also joins the backlog. Later events need not join it, because the subscription resumes when the client refreshes
// it, and the refresh replays these events from the log.
//
// The refresh first makes the subscription active, and then reactivates the backlog and replays the log. A worker first suspends a
// delivery, and then reads the subscription again. So either the refresh finds the suspended delivery, or the worker finds the
// subscription active and reactivates the delivery itself.

// WillBeReplayed reports whether an event was published after its subscriber was suspended. Such an event need not be stored until the
// suspension ends, because the client's next refresh replays it from the log.
func WillBeReplayed(sub *subscription.Subscriber, e *event.Event) bool {
	return e.Published.After(sub.Suspended.Time().Add(2 * eventlog.MaxSkew))
}

// SuspendDelivery puts a delivery into the backlog of its suspended subscription. If the subscription has become active meanwhile, it
// reactivates the delivery. The event e is nil for a delivery that is stored already.
func (m *Manager) SuspendDelivery(ctx context.Context, del *state.Delivery, e *event.Event) error {
	if del.State != state.Suspended { // if it is suspended already, an earlier worker failed right after it suspended the delivery
		written, err := m.Deliveries.Suspend(ctx, del, e)
		if err != nil || !written {
			return err // another worker continues the delivery, or the delivery has ended
		}
	}
	record, err := m.Subscriptions.Lookup(ctx, del.Workspace, del.Principal, del.Subscription)
	if err != nil || record == nil || record.State == subscription.Suspended {
		return err
	}
	return m.reactivate(ctx, del)
}

func (m *Manager) reactivate(ctx context.Context, del *state.Delivery) error {
	_, err := m.Deliveries.Schedule(ctx, del, nil, m.Deliveries.Now()) // the result is false if another worker has reactivated the delivery
	return err
}

// ReactivateAll schedules the next attempts of all suspended deliveries of a subscription, unless the subscription is still suspended.
func (m *Manager) ReactivateAll(ctx context.Context, workspace string, r task.Reactivation) error {
	record, err := m.Subscriptions.Lookup(ctx, workspace, r.Principal, r.Subscription)
	if err != nil || record == nil || record.State == subscription.Suspended {
		return err
	}
	return store.Each(ctx, m.Deliveries.DB, state.Key(workspace, r.Subscription, ""), "list the suspended deliveries", func(it *store.Item) error {
		del, err := state.Decode(it)
		if err != nil {
			return m.Deliveries.SetAside(ctx, it, err)
		}
		if del.State != state.Suspended {
			return nil
		}
		return m.reactivate(ctx, del)
	})
}

// A subscription is disabled if all its attempts have failed for [DisableAfter]. Its owner sees that in the subscription's
// resource, operators see it in a metric, and both receive an event if the catalog has a type for it.

const (
	// DisableAfter is how long all attempts of a subscription must have failed before the subscription is disabled.
	DisableAfter = 5 * 24 * time.Hour
	// disableFailures is the number of consecutive attempts that must have failed, too. Without it, a subscription with few events could be
	// disabled because of one failure, or because a success between failures was not recorded.
	disableFailures = 10
	// DisabledURI is the URI of the event that announces a disabled subscription.
	DisabledURI = "event://mcpevents/subscription-disabled"
)

// OnlyFails reports whether to disable a subscription because all its recent attempts failed. These must be at least [disableFailures]
// attempts, over at least [DisableAfter].
func OnlyFails(sub *subscription.Subscriber, st subscription.Status, now time.Time) bool {
	since := max(st.FailedSince.Unix(), int64(sub.Resumed))
	return st.Failures >= disableFailures && now.Unix()-since >= int64(DisableAfter/time.Second)
}

// Disable disables a subscription. If the subscription was not disabled before, Disable also publishes an event about it ([DisabledURI]).
func (m *Manager) Disable(ctx context.Context, workspace string, sub *subscription.Subscriber, reason string, st subscription.Status) error {
	ended, err := m.Subscriptions.Disable(ctx, workspace, sub.Principal, sub.ID, reason, sub.Resumed)
	if err != nil || !ended {
		return err
	}
	m.Metrics.SubscriptionDisabled()
	m.Log.WarnContext(ctx, "subscription disabled", "workspace", workspace, "subscription", sub.ID, "reason", reason, "category", st.LastError)
	if err := m.publishDisabled(ctx, workspace, sub, reason, st); err != nil {
		m.Log.WarnContext(ctx, "operational event not published", "subscription", sub.ID, "error", err)
	}
	return nil
}

// publishDisabled publishes the event that announces a disabled subscription, if the catalog has a type with an access rule for this
// event. Without a rule, everybody could read the principal's name in the event.
func (m *Manager) publishDisabled(ctx context.Context, workspace string, sub *subscription.Subscriber, reason string, st subscription.Status) error {
	cat, err := m.Terminator.Review.Catalog.Catalog(ctx, workspace)
	if err != nil {
		return fault.Wrap(fault.Unavailable, err, "read the catalog")
	}
	if entry, _, ok := cat.Match(DisabledURI); !ok || entry.Access == nil || len(entry.Access.Scopes)+len(entry.Access.Claims) == 0 {
		return nil
	}
	data, _ := json.Marshal(struct { // cannot fail for strings and times
		Subscription string    `json:"subscription"`
		Principal    string    `json:"principal"`
		Origin       string    `json:"origin"`
		Reason       string    `json:"reason"`
		LastError    string    `json:"lastError"`
		FailingSince time.Time `json:"failingSince"`
	}{subscription.URI(sub.ID), sub.Principal, subscription.OriginOf(sub.Target.URL), reason, st.LastError, st.FailedSince})
	h := sha256.Sum256(fmt.Appendf(nil, "%s#%s#%d", workspace, sub.ID, m.Deliveries.Now().UnixMicro()))
	return publish.InboxPublisher{Queue: m.Deliveries.Queue}.Publish(ctx, auth.Principal{Workspace: workspace}, publish.Input{
		URI: DisabledURI, ID: "disabled_" + base64.RawURLEncoding.EncodeToString(h[:12]), Data: data,
	})
}

// A gap notice tells the client of an MCP Events subscription that it missed events, and from which cursor it can resume (SEP-3415,
// Non-event webhook bodies and Cursor Lifecycle). Without the notice, the client would learn of the gap only with its next refresh. There
// are two causes:
//
//   - A delivery is given up. The notice's cursor is before the lost event and before all deliveries that are still to be sent, so one
//     notice also covers deliveries that are given up later in the same outage. The notice is written before the dead letter. After a
//     crash in between, the notice comes too early, but no gap stays hidden.
//   - A suspension lasts longer than the event log keeps events. The notice is written before the suspension, and is due when the log no
//     longer has the first events of the suspension. The notice is dropped if the subscription is active again by then.
//
// A notice is sent as a delivery of its own.

const (
	// gapEvery is the minimum time between two gap notices to the same subscription.
	gapEvery = time.Minute
	// gapFor is how long a gap notice is retried, even after its retry schedule is over. A subscription whose attempts all fail for that
	// long is disabled.
	gapFor = DisableAfter
	// gapRetry is the longest time between two retries of a gap notice after its retry schedule.
	gapRetry = time.Hour
	// suspensionGap is the key of the delivery that sends a suspension's gap notice. It differs from the keys of events, because these
	// are hashes.
	suspensionGap = "~gap"
)

// announcedGap is the stored value that describes the last gap notice of a subscription.
type announcedGap struct {
	V    int    `json:"v"`
	ID   string `json:"id"`   // the id of the notice, with which its delivery is stored
	From int64  `json:"from"` // the position of the cursor in the notice
	At   int64  `json:"at"`   // when the notice was written, in microseconds since 1970
}

// AnnounceGap sends a gap notice for a delivery that is about to be given up, unless an earlier notice already tells the client about the
// delivery's event.
func (m *Manager) AnnounceGap(ctx context.Context, del *state.Delivery) error {
	if m.Gaps == nil || del.Origin != subscription.MCPEvents || del.Test || del.Again || m.Terminator.isPlain(del.Target) {
		return nil
	}
	const tries = 5
	for range tries {
		done, err := m.tryGap(ctx, del)
		if done || err != nil {
			return err
		}
	}
	return fault.New(fault.Unavailable, "the gap of a subscription changes too often")
}

// tryGap writes a gap notice unless the subscription's last notice also covers the lost event (see [Manager.lastGap]). The result done is
// false if another process has written a notice at the same time, so that the caller tries again.
func (m *Manager) tryGap(ctx context.Context, del *state.Delivery) (done bool, err error) {
	last, version, covers, err := m.lastGap(ctx, del)
	if err != nil || covers {
		return covers, err
	}
	record, err := m.Subscriptions.Lookup(ctx, del.Workspace, del.Principal, del.Subscription)
	if err != nil || record == nil || record.Plain {
		return true, err
	}
	now := m.Deliveries.Now()
	body, from, err := m.gapBody(ctx, record, del.Published)
	if err != nil {
		return false, err
	}
	sub := record.Subscriber()
	notice := state.NewNotice(del.Workspace, &sub, record.Name, "gap", now)
	notice.Control.Gap, notice.Control.Body = state.GapAbandoned, body
	due := now
	if next := time.UnixMicro(last.At).Add(gapEvery); version != 0 && next.After(now) {
		due = periodic.Earlier(next, now.Add(gapEvery)) // not later, because the last notice is in the future if the clock was set back
	}
	value, _ := json.Marshal(announcedGap{V: task.Version, ID: notice.Event, From: from, At: now.UnixMicro()}) // cannot fail
	done, err = m.Deliveries.Schedule(ctx, notice, nil, due, store.Put(store.Item{
		Key: state.GapKey(del.Workspace, del.Subscription), Value: value, Version: version + 1, Expires: now.Add(gapFor + state.KeptFor),
	}, state.UnchangedSince(version)))
	if done && err == nil {
		m.Log.InfoContext(ctx, "gap announced", "workspace", del.Workspace, "subscription", del.Subscription, "event", del.Event)
	}
	return done, err
}

// lastGap returns the last gap notice of a subscription, and the version of its item. The result covers says that the notice also covers
// the lost event of the delivery del, i.e. that a client that resumes from the notice's cursor gets the event. This requires two things:
//
//   - The cursor is not after the event.
//   - The event was in the log when the notice was written, or the notice is still waiting to be sent.
//
// An event that was published before the notice was written may have been missing in the log, because it waited in the events queue. But
// if the event's first attempt was at least [eventlog.Window] before the notice, the event was in the log: on AWS, fanout appends an
// event to the log before it queues the page tasks. A stand-alone server does both concurrently, and an append takes far less time than
// the window.
func (m *Manager) lastGap(ctx context.Context, del *state.Delivery) (last announcedGap, version int64, covers bool, err error) {
	it, err := store.One(ctx, m.Deliveries.DB, state.GapKey(del.Workspace, del.Subscription), "read the last gap of a subscription")
	if err != nil || it == nil {
		return last, 0, false, err
	}
	version = it.Version
	if json.Unmarshal(it.Value, &last) != nil || last.From > positionBefore(del.Published) {
		return last, version, false, nil
	}
	// If the clock was set back, a new event can seem to be older than the notice. The end of the log is then ahead of the clock.
	setBack := m.Gaps.Log.TotalOrder() && m.Gaps.Log.Position() > m.Deliveries.Now().Add(2*eventlog.MaxSkew).UnixMicro()
	if !setBack && !del.First.After(time.UnixMicro(last.At).Add(-eventlog.Window)) {
		return last, version, true, nil
	}
	notice, err := store.One(ctx, m.Deliveries.DB, state.Key(del.Workspace, del.Subscription, last.ID), "read a gap notice")
	if err != nil {
		return last, 0, false, err
	}
	return last, version, notice != nil, nil
}

// gapBody returns the body of a gap notice, and the position of the cursor in the body. The position is before all deliveries that are
// still to be sent and, unless lostSince is zero, before all events since lostSince. But it is not before the beginning of the log.
func (m *Manager) gapBody(ctx context.Context, record *subscription.Subscription, lostSince time.Time) (body json.RawMessage, from int64, err error) {
	sealer, err := m.Gaps.Sealer(ctx)
	if err != nil {
		return nil, 0, err
	}
	if had, err := sealer.Open(record.Workspace, record.Cursor); err == nil {
		from = had.At
	}
	settled, _, err := (&Watermark{DB: m.Deliveries.DB}).SettledPosition(ctx, record.Workspace, record.ID)
	if err != nil {
		return nil, 0, err
	}
	if int64(record.Replayed) <= settled {
		from = max(from, settled)
	}
	if !lostSince.IsZero() {
		from = min(from, positionBefore(lostSince))
	}
	from, _ = m.Gaps.Log.StartPosition(eventlog.Cursor{}, from, m.Gaps.Log.Oldest())
	return encodeGap(sealer.Seal(record.Workspace, eventlog.Cursor{At: from})), from, nil
}

func encodeGap(cursor string) json.RawMessage {
	body, _ := json.Marshal(struct { // cannot fail for strings
		Type   string `json:"type"`
		Cursor string `json:"cursor"`
	}{"gap", cursor})
	return body
}

// ForeseeGap stores the gap notice for a suspension that is about to begin. The notice is due when the event log no longer has the first
// events of the suspension. Then [Manager.PrepareGap] decides whether the notice is sent.
func (m *Manager) ForeseeGap(ctx context.Context, workspace string, sub *subscription.Subscriber, name string) error {
	if m.Gaps == nil || m.Terminator.isPlain(sub.Target.URL) {
		return nil
	}
	due := m.Deliveries.Now().Add(m.Gaps.Log.MinRetention())
	notice := state.NewNotice(workspace, sub, name, "gap", due)
	notice.Key, notice.Control.Gap = suspensionGap, state.GapSuspended
	_, err := m.Deliveries.Schedule(ctx, notice, nil, due) // the result is false if an earlier suspension has written the notice already
	return err
}

// PrepareGap decides what to do with a gap notice that is due. If the result send is true, the caller sends the notice now. Otherwise the
// result later is the time to which the caller postpones the notice. If that time is zero, the caller drops the notice.
func (m *Manager) PrepareGap(ctx context.Context, del *state.Delivery, record *subscription.Subscription) (send bool, later time.Time, err error) {
	if record == nil || record.Plain || m.Gaps == nil {
		return false, later, nil
	}
	del.Control.Target = record.Target // the target's secret may have been rotated
	if del.Control.Gap == state.GapAbandoned || len(del.Control.Body) > 0 {
		return true, later, nil
	}
	if record.State != subscription.Suspended {
		return false, later, nil // the subscription is active again, and the refresh reported the gap
	}
	if end := record.Suspended.Time().Add(m.Gaps.Log.MinRetention()); m.Deliveries.Now().Before(end) {
		return false, end, nil // the notice was written for an earlier suspension
	}
	del.Control.Body, _, err = m.gapBody(ctx, record, record.Suspended.Time())
	return err == nil, later, err
}

// NextGap returns the delay before the next attempt of a gap notice whose retry schedule is over, or false if the notice is given up. A
// notice is retried longer than an event, because otherwise the client learns of the gap only with its next refresh.
//
// The delay doubles with each attempt, up to [gapRetry]. The parameter last is the schedule's last delay, and further is the number of
// the attempt after the schedule, counted from 1.
func (m *Manager) NextGap(del *state.Delivery, last time.Duration, further int, retryAfter time.Duration) (time.Duration, bool) {
	wait := min(max(last, time.Second)<<min(further, 12), gapRetry)
	return max(wait, min(retryAfter, webhook.MaxRetryAfter)), m.Deliveries.Now().Sub(del.First) < gapFor
}
