package subscription

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/mcp-events/mcpevents/shared/auth/quota"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/storage/store"
)

// DefaultQuota is how many subscriptions a principal may have.
const DefaultQuota = 1000

const quotaCount = "n"

func quotaKey(workspace, principal string) store.Key {
	return store.Key{Table: store.Subscriptions, Partition: "q#" + workspace + "#" + principal, Sort: "-"}
}

// sumKey returns the key of the number of subscriptions in a workspace. It cannot be the key of a principal, because their names are
// not empty.
func sumKey(workspace string) store.Key { return quotaKey(workspace, "") }

// countSum adds n to the number of subscriptions in a workspace. It returns Exhausted if the workspace's limit is reached.
func (r *Records) countSum(ctx context.Context, workspace string, n int64) error {
	op := store.Add(sumKey(workspace), map[string]int64{quotaCount: n}, nil)
	var most int64
	if n > 0 && r.SumOf != nil {
		most = r.SumOf(ctx, workspace)
	}
	if most > 0 {
		op.Limits = map[string]int64{quotaCount: most}
	}
	err := r.DB.Write(ctx, op)
	if errors.Is(err, store.ErrConflict) {
		return fault.New(fault.Exhausted, "the limit of %d subscriptions of the workspace is reached", most).AtLimit(quota.WorkspaceSubscriptions, float64(most))
	}
	return fault.Wrap(fault.Unavailable, err, "count the subscriptions of the workspace")
}

// lowerSum subtracts one from the sum of a workspace, even if the caller has disconnected.
func (r *Records) lowerSum(ctx context.Context, workspace string) {
	undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	if err := r.countSum(undo, workspace, -1); err != nil {
		slog.WarnContext(ctx, "subscription counters too high", "error", err)
	}
}

// checkQuota returns an error of kind Exhausted if the principal has as many subscriptions as it may have.
func (r *Records) checkQuota(ctx context.Context, sub *Subscription) error {
	used, err := Used(ctx, r.DB, sub.Workspace, sub.Principal)
	if most := r.quota(ctx, sub.Workspace, sub.Principal); err == nil && used >= most {
		err = fault.New(fault.Exhausted, "the limit of %d subscriptions is reached", most).AtLimit(quota.Subscriptions, float64(most))
	}
	return err
}

// quota returns how many subscriptions a principal may have.
func (r *Records) quota(ctx context.Context, workspace, principal string) int64 {
	if r.QuotaOf == nil {
		return DefaultQuota
	}
	return r.QuotaOf(ctx, workspace, principal)
}

// Used returns how many subscriptions count towards a principal's quota or, if principal is empty, towards the workspace's.
func Used(ctx context.Context, db store.DB, workspace, principal string) (int64, error) {
	it, err := store.One(ctx, db, quotaKey(workspace, principal), "read a quota")
	if err != nil || it == nil {
		return 0, err
	}
	return max(0, it.Counts[quotaCount]), nil
}
