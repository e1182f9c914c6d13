package delivery

import (
	"context"
	"encoding/json"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/mcp-events/mcpevents/shared/queue"
	"github.com/mcp-events/mcpevents/shared/store"
	"github.com/mcp-events/mcpevents/shared/subscription"
	"github.com/mcp-events/mcpevents/shared/webhook"
)

// Ender ends subscriptions that may not go on, and tells their endpoints: one of the MCP
// Events extension by a signed envelope (SEP-3415, Subscription Termination), after which it
// is gone. One of SEP-1803 is disabled, and its owner sees why.
type Ender struct {
	Queue         queue.Sender
	Subscriptions Endings
	Review        *subscription.Review
	// ErrorObject is the error member of an envelope: code, message and data.
	ErrorObject func(reason error) json.RawMessage
	// Plain are prefixes of target URLs that get no envelopes.
	Plain []string
	Now   func() time.Time
	Log   *slog.Logger

	auditing sync.Mutex
	audited  map[string]string // fingerprints of catalogs, by workspace
}

// Endings is what an ender asks of subscriptions. [subscription.Service] implements it.
type Endings interface {
	End(ctx context.Context, workspace, principal, id string,
		judge func(*subscription.Subscription) error, also func(*subscription.Subscription, error) []store.Op) (*subscription.Subscription, error)
	Listed(ctx context.Context, workspace, scope, after string) (subs []subscription.Owned, next string, err error)
	Workspaces(ctx context.Context) ([]string, error)
	Looked(ctx context.Context, workspace string) (subscription.Looked, error)
	SetLooked(ctx context.Context, workspace string, l subscription.Looked) error
}

func (e *Ender) now() time.Time {
	if e.Now != nil {
		return e.Now()
	}
	return time.Now()
}

func (e *Ender) log() *slog.Logger {
	if e.Log != nil {
		return e.Log
	}
	return slog.Default()
}

// End looks at a subscription by the latest catalog and keys, and ends it if it may not
// go on. That it is gone and that its endpoint is to be told is one write: whoever
// dies after it leaves a due entry.
func (e *Ender) End(ctx context.Context, workspace, principal, id string) (ended bool, err error) {
	var farewell *chain
	var why error
	judge := func(sub *subscription.Subscription) error {
		_, why = e.Review.Subscription(ctx, sub, true)
		return why
	}
	over, err := e.Subscriptions.End(ctx, workspace, principal, id, judge, func(sub *subscription.Subscription, reason error) []store.Op {
		if farewell = nil; sub.Plain || e.plain(sub.Target.URL) {
			return nil
		}
		farewell = e.terminated(sub, reason)
		return []store.Op{store.Put(farewell.item(), store.Absent()), store.Put(farewell.dueEntry())}
	})
	if err != nil || over == nil {
		return false, err
	}
	e.log().InfoContext(ctx, "a subscription may not go on and has ended", "workspace", workspace, "subscription", id, "told", farewell != nil, "reason", why)
	if farewell == nil {
		return true, nil
	}
	if err := e.Queue.Send(ctx, queue.Slow, farewell.due().outgoing(0)); err != nil {
		// The due entry will bring it.
		e.log().WarnContext(ctx, "the end of a subscription will be told later", "subscription", id, "error", err)
	}
	return true, nil
}

func (e *Ender) plain(url string) bool {
	for _, prefix := range e.Plain {
		if strings.HasPrefix(url, prefix) {
			return true
		}
	}
	return false
}

// terminated is the chain of attempts to tell that the subscription has ended.
func (e *Ender) terminated(sub *subscription.Subscription, reason error) *chain {
	body, _ := json.Marshal(struct { // of what was encoded before
		Type  string          `json:"type"`
		Error json.RawMessage `json:"error"`
	}{"terminated", e.ErrorObject(reason)})
	now := e.now()
	return &chain{
		V: taskVersion, Workspace: sub.Workspace, Principal: sub.Principal, Subscription: sub.ID, Origin: sub.Origin,
		Event: webhook.NewMessageID("terminated"), Name: sub.Name, Target: sub.Target.URL, State: statePending, First: now,
		Due: now, DueAt: now.Add(backup), made: now, Control: &control{Body: body, Target: sub.Target},
	}
}
