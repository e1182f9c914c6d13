// Package lifecycle has what deliveries do to their subscription, and the other way around: gap notices, suspension with its
// backlog, disabling, termination, and the watermark up to which a subscription's deliveries are settled.
//
// It does not make attempts. Package delivery makes them, and package retry calls the [Manager] after a failed one.
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
	"github.com/mcp-events/mcpevents/shared/events/catalog"
	"github.com/mcp-events/mcpevents/shared/events/delivery/deadletter"
	"github.com/mcp-events/mcpevents/shared/events/delivery/state"
	"github.com/mcp-events/mcpevents/shared/events/delivery/task"
	"github.com/mcp-events/mcpevents/shared/events/event"
	eventlog "github.com/mcp-events/mcpevents/shared/events/log"
	"github.com/mcp-events/mcpevents/shared/events/publish"
	"github.com/mcp-events/mcpevents/shared/events/subscription"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/platform/metric"
	"github.com/mcp-events/mcpevents/shared/storage/store"
)

// Subscriptions are the operations on subscriptions that deliveries need. [subscription.Service] implements it.
type Subscriptions interface {
	deadletter.Finder
	Disable(ctx context.Context, workspace, principal, id, reason string, resumed int64) (ended bool, err error)
	Suspend(ctx context.Context, workspace, principal, id string, resumed int64) error
}

// Manager announces gaps to subscriptions, and suspends, reactivates and disables them.
type Manager struct {
	Deliveries    *state.Deliveries
	Subscriptions Subscriptions
	Terminator    *Terminator // knows the catalog, and which endpoints get no notices
	Gaps          *Gaps       // nil sends no gap notices
	Log           *slog.Logger
	Metrics       *metric.Set // may be nil
}

// Gaps has what gap notices need beyond other deliveries.
type Gaps struct {
	Log *eventlog.Log
	// Sealer makes cursors, and the ids of messages.
	Sealer func(context.Context) (*eventlog.Sealer, error)
}

// The deliveries of a suspended subscription form a backlog and use up none of their retries (SEP-3415, webhook event
// delivery). A delivery that becomes due is suspended: it keeps its item but has no due entry. An event that was published
// before the suspension and dispatched after it joins the backlog, too. Later events are in the log.
//
// A refresh first makes the subscription active, then reactivates the backlog and replays the log. A worker that suspends a
// delivery reads the subscription again afterwards, so either the worker or the refresh sees the other.

// Replays reports whether an event was published after the suspension of its subscriber. The refresh then replays it from the
// log, so it does not join the backlog.
func Replays(sub *subscription.Subscriber, e *event.Event) bool {
	return e.Published.After(time.UnixMicro(sub.Suspended).Add(2 * eventlog.MaxSkew))
}

// SuspendDelivery puts a delivery into the backlog. The event is stored with a new delivery, and nil for a stored one.
func (m *Manager) SuspendDelivery(ctx context.Context, del *state.Delivery, e *event.Event) error {
	whose, err := m.Deliveries.Suspend(ctx, del, e)
	if err != nil || whose != state.Mine {
		return err // another worker continues it, or it is over
	}
	record, err := m.Subscriptions.Lookup(ctx, del.Workspace, del.Principal, del.Subscription)
	if err != nil || record == nil || record.State == subscription.Suspended {
		return err
	}
	return m.reactivate(ctx, del)
}

// reactivate schedules the next attempt of a suspended delivery.
func (m *Manager) reactivate(ctx context.Context, del *state.Delivery) error {
	_, err := m.Deliveries.Schedule(ctx, del, nil, m.Deliveries.Now()) // another worker may have reactivated it
	return err
}

// ReactivateAll reactivates all suspended deliveries of a subscription.
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

// A subscription whose endpoint only fails for [DisableAfter] is disabled. Its owner sees that in the subscription's resource,
// operators see it in a metric, and both receive an event if the catalog has a type for it.

const (
	// DisableAfter is the time for which every attempt must have failed.
	DisableAfter = 5 * 24 * time.Hour
	// disableFailures is the number of attempts that must have failed. Otherwise one failure followed by five days without
	// events would be enough, and so would a failure before a success that was not written.
	disableFailures = 10
	// DisabledURI is the URI of the event for a subscription that was disabled.
	DisabledURI = "event://mcpevents/subscription-disabled"
)

// OnlyFails reports whether every attempt failed for long enough.
func OnlyFails(sub *subscription.Subscriber, st subscription.Status, now time.Time) bool {
	since := max(st.FailedSince.Unix(), sub.Resumed)
	return st.Failures >= disableFailures && now.Unix()-since >= int64(DisableAfter/time.Second)
}

// Disable disables the subscription of an endpoint and announces it, once.
func (m *Manager) Disable(ctx context.Context, workspace string, sub *subscription.Subscriber, reason string, st subscription.Status) error {
	ended, err := m.Subscriptions.Disable(ctx, workspace, sub.Principal, sub.ID, reason, sub.Resumed)
	if err != nil || !ended {
		return err
	}
	m.Metrics.Disabled()
	m.Log.WarnContext(ctx, "subscription disabled", "workspace", workspace, "subscription", sub.ID, "reason", reason, "category", st.LastError)
	if err := m.publishDisabled(ctx, workspace, sub, reason, st); err != nil {
		m.Log.WarnContext(ctx, "operational event not published", "subscription", sub.ID, "error", err)
	}
	return nil
}

// publishDisabled publishes the event, unless the catalog lacks its type or an access rule for it. The rule is required
// because the event names principals.
func (m *Manager) publishDisabled(ctx context.Context, workspace string, sub *subscription.Subscriber, reason string, st subscription.Status) error {
	cat, err := m.Terminator.Review.Catalog.Catalog(ctx, workspace)
	if err != nil {
		return fault.Wrap(fault.Unavailable, err, "read the catalog")
	}
	if entry, _, ok := cat.Match(DisabledURI); !ok || !ruled(entry) {
		return nil
	}
	data, _ := json.Marshal(struct { // strings and a time always encode
		Subscription string    `json:"subscription"`
		Principal    string    `json:"principal"`
		Origin       string    `json:"origin"`
		Reason       string    `json:"reason"`
		LastError    string    `json:"lastError"`
		FailingSince time.Time `json:"failingSince"`
	}{subscription.URI(sub.ID), sub.Principal, subscription.OriginOf(sub.Target.URL), reason, st.LastError, st.FailedSince})
	h := sha256.Sum256(fmt.Appendf(nil, "%s#%s#%d", workspace, sub.ID, m.Deliveries.Now().UnixMicro()))
	return publish.ByInbox{Queue: m.Deliveries.Queue}.Publish(ctx, auth.Principal{Workspace: workspace}, publish.Input{
		URI: DisabledURI, ID: "disabled_" + base64.RawURLEncoding.EncodeToString(h[:12]), Data: data,
	})
}

func ruled(e *catalog.Entry) bool {
	return e.Access != nil && len(e.Access.Scopes)+len(e.Access.Claims) > 0
}
