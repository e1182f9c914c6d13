// Package lifecycle has what deliveries do to their subscription, and the other way around: gap notices, suspension with its
// backlog, disabling, termination, and the watermark up to which a subscription's deliveries are settled.
//
// It does not make attempts. Package delivery makes them, and package retry calls the [Manager] after a failed one.
package lifecycle

import (
	"context"
	"log/slog"

	eventlog "github.com/mcp-events/mcpevents/shared/events/log"
	"github.com/mcp-events/mcpevents/shared/platform/metric"

	"github.com/mcp-events/mcpevents/shared/events/delivery/deadletter"
	"github.com/mcp-events/mcpevents/shared/events/delivery/state"
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
