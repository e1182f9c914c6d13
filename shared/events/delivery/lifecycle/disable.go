package lifecycle

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"time"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/events/catalog"
	"github.com/mcp-events/mcpevents/shared/events/publish"
	"github.com/mcp-events/mcpevents/shared/events/subscription"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
)

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
