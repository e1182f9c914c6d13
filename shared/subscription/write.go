package subscription

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/mcp-events/mcpevents/shared/catalog"
	"github.com/mcp-events/mcpevents/shared/fault"
	"github.com/mcp-events/mcpevents/shared/store"
)

const quotaCount = "n"

func quotaKey(workspace, principal string) store.Key {
	return store.Key{Table: store.Subscriptions, Partition: "q#" + workspace + "#" + principal, Sort: "-"}
}

// sumKey has how many subscriptions all principals of a workspace have. No principal is without a name.
func sumKey(workspace string) store.Key { return quotaKey(workspace, "") }

// insert writes a subscription that begins, if its principal and the workspace may have one more. Like the other
// counters, the sum of the workspace is raised before, and lowered again when it is certain that nothing was written.
// That of the principal is in the transaction; it is looked at before as well, so that one that is refused is not listed.
func (s *Service) insert(ctx context.Context, cat *catalog.Catalog, sub *Subscription, extra ...store.Op) error {
	if err := s.full(ctx, sub); err != nil {
		return err
	}
	if err := s.countSum(ctx, sub.Workspace, 1); err != nil {
		return err
	}
	certain, err := s.write(ctx, cat, sub, extra...)
	if err != nil && certain {
		s.lowerSum(ctx, sub.Workspace)
	}
	return err
}

// countSum adds to the sum of a workspace, up to its quota.
func (s *Service) countSum(ctx context.Context, workspace string, n int64) error {
	op := store.Add(sumKey(workspace), map[string]int64{quotaCount: n}, nil)
	var most int64
	if n > 0 && s.Options.SumOf != nil {
		most = s.Options.SumOf(ctx, workspace)
	}
	if most > 0 {
		op.Limits = map[string]int64{quotaCount: most}
	}
	err := s.DB.Write(ctx, op)
	if errors.Is(err, store.ErrConflict) {
		return fault.New(fault.Exhausted, "the limit of %d subscriptions of the workspace is reached", most).AtLimit("workspaceSubscriptions", float64(most))
	}
	return fault.Wrap(fault.Unavailable, err, "count the subscriptions of the workspace")
}

// lowerSum takes one off, also if the caller is gone.
func (s *Service) lowerSum(ctx context.Context, workspace string) {
	undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	if err := s.countSum(undo, workspace, -1); err != nil {
		slog.WarnContext(ctx, "subscription counters too high", "error", err)
	}
}

// write writes a subscription that begins, over the record at its revision if there is one, with the extra operations
// given, in one transaction. It is listed before. The counters are raised before, too, and lowered again when it is
// certain that it was not written.
func (s *Service) write(ctx context.Context, cat *catalog.Catalog, sub *Subscription, extra ...store.Op) (certain bool, err error) {
	if err := s.list(ctx, cat, sub); err != nil {
		return true, err
	}
	if err := s.count(ctx, sub.Workspace, sub.Patterns, 1); err != nil {
		return true, err
	}
	cond := store.Absent()
	if sub.Revision > 0 {
		cond = store.VersionIs(sub.Revision)
	}
	sub.Revision++
	if s.Started != nil {
		s.Started(sub.ID)
	}
	quota := s.quota(ctx, sub.Workspace, sub.Principal)
	ops := append(sub.mark(false, time.Time{}),
		store.Put(sub.encode(), cond),
		store.Add(quotaKey(sub.Workspace, sub.Principal), map[string]int64{quotaCount: 1},
			map[string]int64{quotaCount: quota}),
	)
	for _, it := range sub.subscribers() {
		ops = append(ops, store.Put(it))
	}
	err = s.DB.Write(ctx, append(ops, extra...)...)
	if err == nil {
		return true, nil
	}
	if kind := fault.KindOf(err); !errors.Is(err, store.ErrConflict) && (kind == fault.Unavailable || kind == fault.Internal) {
		// It may have been written all the same: then the counters are right, and
		// lowering them would hide the subscription from fanout.
		slog.WarnContext(ctx, "subscription counters uncertain", "error", err)
		return false, fault.Wrap(fault.Unavailable, err, "write the subscription")
	}
	// The caller may be gone; the counters must not stay raised because of that.
	undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	if uerr := s.count(undo, sub.Workspace, sub.Patterns, -1); uerr != nil {
		slog.WarnContext(ctx, "subscription counters too high", "error", uerr)
	}
	if !errors.Is(err, store.ErrConflict) {
		return true, fault.Wrap(fault.Unavailable, err, "write the subscription")
	}
	if full := s.full(ctx, sub); fault.Is(full, fault.Exhausted) {
		return true, full
	}
	return true, err
}

// full is an error of kind Exhausted if the principal has as many subscriptions as it may.
func (s *Service) full(ctx context.Context, sub *Subscription) error {
	used, err := s.Used(ctx, sub.Workspace, sub.Principal)
	if quota := s.quota(ctx, sub.Workspace, sub.Principal); err == nil && used >= quota {
		err = fault.New(fault.Exhausted, "the limit of %d subscriptions is reached", quota).AtLimit("subscriptions", float64(quota))
	}
	return err
}

// quota is how many subscriptions a principal may have.
func (s *Service) quota(ctx context.Context, workspace, principal string) int64 {
	if s.Options.QuotaOf == nil {
		return DefaultQuota
	}
	return s.Options.QuotaOf(ctx, workspace, principal)
}

// Used is how many subscriptions count towards the quota of a principal; with "", towards that of the workspace.
func (s *Service) Used(ctx context.Context, workspace, principal string) (int64, error) {
	it, err := store.One(ctx, s.DB, quotaKey(workspace, principal), "read a quota")
	if err != nil || it == nil {
		return 0, err
	}
	return max(0, it.Counts[quotaCount]), nil
}

// remove takes a subscription's items away, with the extra operations given. With
// keep, the record stays with its state, so that the owner can see why it ended.
func (s *Service) remove(ctx context.Context, sub *Subscription, keep bool, extra ...store.Op) error {
	was := sub.Revision
	now := s.now()
	until := now.Add(disabledKept)
	ops := append(extra, sub.mark(!keep, until)...)
	ops = append(ops, store.Put(store.Item{Key: endedKey(sub.Workspace, sub.Principal, sub.ID), Expires: now.Add(endedKept)}))
	if !sub.Until.IsZero() {
		ops = append(ops, store.Delete(s.expiryKey(sub)))
	}
	if keep {
		sub.Revision++
		it := sub.encode()
		it.Expires = until
		entry := sub.entry(indexKey(sub.Workspace, sub.ID))
		entry.Expires = until
		ops = append(ops, store.Put(it, store.VersionIs(was)), store.Put(entry))
	} else {
		ops = append(ops, store.Delete(recordKey(sub.Workspace, sub.Principal, sub.ID), store.VersionIs(was)))
	}
	served := sub.State != Disabled || keep
	if served {
		ops = append(ops, store.Add(quotaKey(sub.Workspace, sub.Principal), map[string]int64{quotaCount: -1}, nil))
		for _, p := range sub.Patterns {
			ops = append(ops, store.Delete(subscriberKey(sub.Workspace, p.Key, sub.ID)))
		}
	}
	if err := s.DB.Write(ctx, ops...); err != nil {
		return fault.Wrap(fault.Unavailable, err, "end the subscription")
	}
	if s.Ended != nil {
		s.Ended(sub.ID)
	}
	if !served {
		s.unlist(ctx, sub, false)
		return nil
	}
	if err := s.count(ctx, sub.Workspace, sub.Patterns, -1); err != nil {
		slog.WarnContext(ctx, "subscription counters too high", "error", err)
	}
	s.lowerSum(ctx, sub.Workspace)
	s.unlist(ctx, sub, keep)
	return nil
}

// disabledKept is how long the record of a subscription that was disabled can be read.
const disabledKept = 7 * 24 * time.Hour

// load reads a principal's subscription; nil when there is none.
func (s *Service) load(ctx context.Context, workspace, principal, id string) (*Subscription, error) {
	it, err := store.One(ctx, s.DB, recordKey(workspace, principal, id), "read the subscription")
	if err != nil || it == nil {
		return nil, err
	}
	return decodeRecord(it)
}

// change has apply change and write a subscription, nil if there is none; again as long as another writer was first.
func (s *Service) change(ctx context.Context, workspace, principal, id string, apply func(*Subscription) error) error {
	for {
		sub, err := s.load(ctx, workspace, principal, id)
		if err != nil {
			return err
		}
		if err = apply(sub); !errors.Is(err, store.ErrConflict) {
			return err
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
}
