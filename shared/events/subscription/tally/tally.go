// Package tally counts the subscriptions of each principal and each workspace, and refuses more than their limits allow.
//
// The count of a principal is part of the transaction that writes or ends a subscription. The sum of a workspace is not, because all
// registrations of the workspace would conflict there. A process that dies in between leaves the sum wrong, in the end so high that the
// workspace gets no more subscriptions. [Counts.Recount] corrects it, because the counts of the principals add up to the true sum.
package tally

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/mcp-events/mcpevents/shared/auth/quota"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/storage/store"
)

// DefaultLimit is how many subscriptions a principal may have.
const DefaultLimit = 1000

// Member is the name of the count in the items.
const Member = "n"

// Key returns the key of a principal's count. With an empty principal, which no caller has, it is the key of the workspace's sum.
func Key(workspace, principal string) store.Key {
	return store.Key{Table: store.Subscriptions, Partition: "q#" + workspace + "#" + principal, Sort: "-"}
}

// Counts counts subscriptions in a store.
type Counts struct {
	DB store.DB
	// LimitOf returns how many subscriptions a principal may have. Nil means [DefaultLimit] for all.
	LimitOf func(ctx context.Context, workspace, principal string) int64
	// SumOf returns how many subscriptions all principals of a workspace may have together. Nil and 0 mean no limit.
	SumOf func(ctx context.Context, workspace string) int64
	// Now is the clock of [Counts.Recount].
	Now func() time.Time
}

// Op returns the operation that adds n to a principal's count. With n above zero, the write conflicts if the limit is reached.
func (c Counts) Op(ctx context.Context, workspace, principal string, n int64) store.Op {
	var limits map[string]int64
	if n > 0 {
		limits = map[string]int64{Member: c.limit(ctx, workspace, principal)}
	}
	return store.Add(Key(workspace, principal), map[string]int64{Member: n}, limits)
}

// AddToSum adds n to the number of subscriptions in a workspace. It returns Exhausted if the workspace's limit is reached.
func (c Counts) AddToSum(ctx context.Context, workspace string, n int64) error {
	op := store.Add(Key(workspace, ""), map[string]int64{Member: n}, nil)
	var most int64
	if n > 0 && c.SumOf != nil {
		most = c.SumOf(ctx, workspace)
	}
	if most > 0 {
		op.Limits = map[string]int64{Member: most}
	}
	err := c.DB.Write(ctx, op)
	if errors.Is(err, store.ErrConflict) {
		return fault.New(fault.Exhausted, "the limit of %d subscriptions of the workspace is reached", most).AtLimit(quota.WorkspaceSubscriptions, float64(most))
	}
	return fault.Wrap(fault.Unavailable, err, "count the subscriptions of the workspace")
}

// LowerSum subtracts one from the sum of a workspace, even if the caller has disconnected.
func (c Counts) LowerSum(ctx context.Context, workspace string) {
	undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	if err := c.AddToSum(undo, workspace, -1); err != nil {
		slog.WarnContext(ctx, "subscription counters too high", "error", err)
	}
}

// Check returns an error of kind Exhausted if the principal has as many subscriptions as it may have.
func (c Counts) Check(ctx context.Context, workspace, principal string) error {
	used, err := Used(ctx, c.DB, workspace, principal)
	if most := c.limit(ctx, workspace, principal); err == nil && used >= most {
		err = fault.New(fault.Exhausted, "the limit of %d subscriptions is reached", most).AtLimit(quota.Subscriptions, float64(most))
	}
	return err
}

func (c Counts) limit(ctx context.Context, workspace, principal string) int64 {
	if c.LimitOf == nil {
		return DefaultLimit
	}
	return c.LimitOf(ctx, workspace, principal)
}

// Used returns how many subscriptions count towards a principal's limit or, if principal is empty, towards the workspace's.
func Used(ctx context.Context, db store.DB, workspace, principal string) (int64, error) {
	it, err := store.One(ctx, db, Key(workspace, principal), "read a quota")
	if err != nil || it == nil {
		return 0, err
	}
	return max(0, it.Counts[Member]), nil
}
