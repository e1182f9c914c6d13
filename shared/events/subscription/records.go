package subscription

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"time"

	"github.com/mcp-events/mcpevents/shared/events/catalog"
	"github.com/mcp-events/mcpevents/shared/events/match"
	"github.com/mcp-events/mcpevents/shared/platform/bounded"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/storage/store"
)

// Records are the subscriptions in the store. They are written together with what counts and lists them.
type Records struct {
	DB store.DB
	// QuotaOf is how many subscriptions a principal may have; nil is [DefaultQuota] for all.
	QuotaOf func(ctx context.Context, workspace, principal string) int64
	// SumOf is how many subscriptions all principals of a workspace may have together; 0 is any number, and so is nil.
	SumOf func(ctx context.Context, workspace string) int64
	// Ended is called for every subscription that ended or was disabled, before the
	// caller is answered; embedded, the dispatcher starts no attempt after that. May be nil.
	Ended func(id string)
	// Started is called for every subscription before it is written. May be nil.
	Started func(id string)
	Now     func() time.Time

	written bounded.Map[store.Key, bool] // items that stay as they are, by [Records.once]; what is forgotten is written once more
}

func (r *Records) now() time.Time { return timeBy(r.Now) }

func timeBy(now func() time.Time) time.Time {
	if now != nil {
		return now()
	}
	return time.Now()
}

// insert writes a subscription that begins, if its principal and the workspace may have one more. Like the other
// counters, the sum of the workspace is raised before, and lowered again when it is certain that nothing was written.
// [Sweeper.Recount] corrects it after a crash. The count of the principal is in the transaction. insert also checks it
// before, so that a subscription that is refused is not listed.
func (r *Records) insert(ctx context.Context, cat *catalog.Catalog, sub *Subscription, extra ...store.Op) error {
	if err := r.full(ctx, sub); err != nil {
		return err
	}
	if err := r.countSum(ctx, sub.Workspace, 1); err != nil {
		return err
	}
	certain, err := r.write(ctx, cat, sub, extra...)
	if err != nil && certain {
		r.lowerSum(ctx, sub.Workspace)
	}
	return err
}

// write writes a subscription that begins, over the record at its revision if there is one, with the extra operations
// given, in one transaction. It is listed before. The counters are raised before, too, and lowered again when it is
// certain that it was not written.
func (r *Records) write(ctx context.Context, cat *catalog.Catalog, sub *Subscription, extra ...store.Op) (certain bool, err error) {
	if err := r.addEntries(ctx, cat, sub); err != nil {
		return true, err
	}
	if err := r.count(ctx, sub.Workspace, sub.Patterns, 1); err != nil {
		return true, err
	}
	cond := store.Absent()
	if sub.Revision > 0 {
		cond = store.VersionIs(sub.Revision)
	}
	sub.Revision++
	if r.Started != nil {
		r.Started(sub.ID)
	}
	quota := r.quota(ctx, sub.Workspace, sub.Principal)
	ops := append(sub.mark(false, time.Time{}),
		store.Put(sub.encode(), cond),
		store.Add(quotaKey(sub.Workspace, sub.Principal), map[string]int64{quotaCount: 1},
			map[string]int64{quotaCount: quota}),
	)
	for _, it := range sub.subscribers() {
		ops = append(ops, store.Put(it))
	}
	err = r.DB.Write(ctx, append(ops, extra...)...)
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
	if uerr := r.count(undo, sub.Workspace, sub.Patterns, -1); uerr != nil {
		slog.WarnContext(ctx, "subscription counters too high", "error", uerr)
	}
	if !errors.Is(err, store.ErrConflict) {
		return true, fault.Wrap(fault.Unavailable, err, "write the subscription")
	}
	if full := r.full(ctx, sub); fault.Is(full, fault.Exhausted) {
		return true, full
	}
	return true, err
}

// update writes a changed subscription over the revision it was read at, in one write with what extra does.
func (r *Records) update(ctx context.Context, sub *Subscription, extra ...store.Op) error {
	was := sub.Revision
	sub.Revision++
	ops := append(sub.mark(false, time.Time{}), store.Put(sub.encode(), store.VersionIs(was)))
	for _, it := range sub.subscribers() {
		ops = append(ops, store.Put(it))
	}
	return fault.Wrap(fault.Unavailable, r.DB.Write(ctx, append(ops, extra...)...), "write the subscription")
}

// move writes a changed subscription as update does, under other patterns than the old ones. The counters are raised before and
// lowered after the write, as for a subscription that begins or ends.
func (r *Records) move(ctx context.Context, sub *Subscription, old []match.Pattern, extra ...store.Op) error {
	if err := r.count(ctx, sub.Workspace, sub.Patterns, 1); err != nil {
		return err
	}
	for _, p := range old {
		if !slices.ContainsFunc(sub.Patterns, func(now match.Pattern) bool { return now.Key == p.Key }) {
			extra = append(extra, store.Delete(subscriberKey(sub.Workspace, p.Key, sub.ID)))
		}
	}
	err := r.update(ctx, sub, extra...)
	unused := old
	switch {
	case errors.Is(err, store.ErrConflict):
		unused = sub.Patterns
	case err != nil: // it may have been written; counters that are too high hide no subscription
		slog.WarnContext(ctx, "subscription counters uncertain", "error", err)
		return err
	}
	undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	if uerr := r.count(undo, sub.Workspace, unused, -1); uerr != nil {
		slog.WarnContext(ctx, "subscription counters too high", "error", uerr)
	}
	return err
}

// remove takes a subscription's items away, with the extra operations given. With
// keep, the record stays with its state, so that the owner can see why it ended.
func (r *Records) remove(ctx context.Context, sub *Subscription, keep bool, extra ...store.Op) error {
	was := sub.Revision
	now := r.now()
	until := now.Add(disabledKept)
	ops := append(extra, sub.mark(!keep, until)...)
	ops = append(ops, store.Put(store.Item{Key: endedKey(sub.Workspace, sub.Principal, sub.ID), Expires: now.Add(EndedKept)}))
	if !sub.Until.IsZero() {
		ops = append(ops, store.Delete(sub.expiryKey()))
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
	if err := r.DB.Write(ctx, ops...); err != nil {
		return fault.Wrap(fault.Unavailable, err, "end the subscription")
	}
	if r.Ended != nil {
		r.Ended(sub.ID)
	}
	if !served {
		r.removeEntries(ctx, sub, false)
		return nil
	}
	if err := r.count(ctx, sub.Workspace, sub.Patterns, -1); err != nil {
		slog.WarnContext(ctx, "subscription counters too high", "error", err)
	}
	r.lowerSum(ctx, sub.Workspace)
	r.removeEntries(ctx, sub, keep)
	return nil
}

// disabledKept is how long the record of a subscription that was disabled can be read.
const disabledKept = 7 * 24 * time.Hour

// load reads a principal's subscription; nil when there is none.
func (r *Records) load(ctx context.Context, workspace, principal, id string) (*Subscription, error) {
	it, err := store.One(ctx, r.DB, recordKey(workspace, principal, id), "read the subscription")
	if err != nil || it == nil {
		return nil, err
	}
	return decodeRecord(it)
}

// change has apply change and write a subscription, nil if there is none; again as long as another writer was first.
func (r *Records) change(ctx context.Context, workspace, principal, id string, apply func(*Subscription) error) error {
	for {
		sub, err := r.load(ctx, workspace, principal, id)
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
