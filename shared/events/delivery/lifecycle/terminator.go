package lifecycle

import (
	"cmp"
	"context"
	"encoding/json"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/mcp-events/mcpevents/shared/events/delivery/state"
	"github.com/mcp-events/mcpevents/shared/events/subscription"
	"github.com/mcp-events/mcpevents/shared/events/subscription/review"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
	"github.com/mcp-events/mcpevents/shared/storage/queue"
	"github.com/mcp-events/mcpevents/shared/storage/store"
)

// Terminator ends subscriptions that may not continue, for example because their principal lost access. It sends the
// endpoint of an MCP Events subscription a signed termination notice (SEP-3415, Subscription Termination) and deletes the
// subscription. It disables a SEP-1803 subscription, whose owner sees the reason.
type Terminator struct {
	Queue         queue.Sender
	Subscriptions Terminable
	Lists         *subscription.Lists
	Review        *review.Review
	// ErrorObject returns the error member of a termination notice: code, message and data.
	ErrorObject func(profile spec.Profile, reason error) json.RawMessage
	// Profile is the default for subscriptions without a profile.
	Profile spec.Profile
	// Plain are prefixes of target URLs that get no notices.
	Plain []string
	Now   func() time.Time
	Log   *slog.Logger

	rechecking  sync.Mutex
	rechecked   map[string]string // fingerprints of catalogs, by workspace
	interrupted string            // the workspace at which the last recheck ran out of time
}

// Terminable are the operations on subscriptions that a terminator needs. [subscription.Service] implements it.
type Terminable interface {
	Lookup(ctx context.Context, workspace, principal, id string) (*subscription.Subscription, error)
	Terminate(ctx context.Context, workspace, principal, id string,
		judge func(*subscription.Subscription) error, also func(*subscription.Subscription, error) []store.Op) (*subscription.Subscription, error)
}

func (t *Terminator) now() time.Time {
	if t.Now != nil {
		return t.Now()
	}
	return time.Now()
}

func (t *Terminator) log() *slog.Logger { return cmp.Or(t.Log, slog.Default()) }

// Terminate checks a subscription against the latest catalog and keys, and ends it if it may not continue. It deletes the
// subscription and writes the due entry of its termination notice in one transaction, so that a crash cannot separate them.
func (t *Terminator) Terminate(ctx context.Context, workspace, principal, id string) (ended bool, err error) {
	var (
		notice *state.Delivery
		reason error
	)
	judge := func(sub *subscription.Subscription) error {
		_, reason = t.Review.Subscription(ctx, sub, true)
		return reason
	}
	sub, err := t.Subscriptions.Terminate(ctx, workspace, principal, id, judge, func(sub *subscription.Subscription, why error) []store.Op {
		if notice = nil; sub.Plain || t.plain(sub.Target.URL) {
			return nil
		}
		notice = t.notice(sub, why)
		return []store.Op{store.Put(notice.Item(), store.Absent()), store.Put(notice.DueItem())}
	})
	if err != nil || sub == nil {
		return false, err
	}
	t.log().InfoContext(ctx, "subscription terminated", "workspace", workspace, "subscription", id, "reason", reason, "notice", notice != nil)
	if notice == nil {
		return true, nil
	}
	if err := t.Queue.Send(ctx, queue.Slow, notice.NextTask().Outgoing(0)); err != nil {
		// The due entry brings the notice back.
		t.log().WarnContext(ctx, "termination notice postponed", "subscription", id, "error", err)
	}
	return true, nil
}

func (t *Terminator) plain(url string) bool {
	return slices.ContainsFunc(t.Plain, func(prefix string) bool { return strings.HasPrefix(url, prefix) })
}

// notice returns the delivery of a termination notice.
func (t *Terminator) notice(sub *subscription.Subscription, reason error) *state.Delivery {
	body, _ := json.Marshal(struct { // its error member is JSON already
		Type  string          `json:"type"`
		Error json.RawMessage `json:"error"`
	}{"terminated", t.ErrorObject(cmp.Or(sub.Profile, t.Profile), reason)})
	now, subscriber := t.now(), sub.Subscriber()
	del := state.NewNotice(sub.Workspace, &subscriber, sub.Name, "terminated", now)
	del.Due, del.DueAt, del.Made, del.Control.Body = now, now.Add(state.Backup), now, body
	return del
}
