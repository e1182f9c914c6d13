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

// insert writes a subscription that begins, over the record at its revision if there is one, with the
// extra operations given, in one transaction. It is listed before. The counters are raised before, too, and lowered again
// when it is certain that it was not written.
func (s *Service) insert(ctx context.Context, cat *catalog.Catalog, sub *Subscription, extra ...store.Op) error {
	if err := s.list(ctx, cat, sub); err != nil {
		return err
	}
	if err := s.count(ctx, sub.Workspace, sub.Patterns, 1); err != nil {
		return err
	}
	cond := store.Absent()
	if sub.Revision > 0 {
		cond = store.VersionIs(sub.Revision)
	}
	sub.Revision++
	if s.Started != nil {
		s.Started(sub.ID)
	}
	ops := append(sub.mark(false, time.Time{}),
		store.Put(sub.encode(), cond),
		store.Add(quotaKey(sub.Workspace, sub.Principal), map[string]int64{quotaCount: 1},
			map[string]int64{quotaCount: s.options().Quota}),
	)
	for _, it := range sub.subscribers() {
		ops = append(ops, store.Put(it))
	}
	err := s.DB.Write(ctx, append(ops, extra...)...)
	if err == nil {
		return nil
	}
	if kind := fault.KindOf(err); !errors.Is(err, store.ErrConflict) && (kind == fault.Unavailable || kind == fault.Internal) {
		// It may have been written all the same: then the counters are right, and
		// lowering them would hide the subscription from fanout.
		slog.WarnContext(ctx, "subscription counters uncertain", "error", err)
		return fault.Wrap(fault.Unavailable, err, "write the subscription")
	}
	// The caller may be gone; the counters must not stay raised because of that.
	undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	if uerr := s.count(undo, sub.Workspace, sub.Patterns, -1); uerr != nil {
		slog.WarnContext(ctx, "subscription counters too high", "error", uerr)
	}
	if !errors.Is(err, store.ErrConflict) {
		return fault.Wrap(fault.Unavailable, err, "write the subscription")
	}
	used, qerr := s.DB.Get(ctx, quotaKey(sub.Workspace, sub.Principal))
	if qerr == nil && used[0] != nil && used[0].Counts[quotaCount] >= s.options().Quota {
		return fault.New(fault.Exhausted, "the limit of %d subscriptions is reached", s.options().Quota).
			With(map[string]any{"limit": "subscriptions", "max": s.options().Quota})
	}
	return err
}

// update writes a changed subscription over the revision it was read at.
func (s *Service) update(ctx context.Context, sub *Subscription) error {
	return s.updateWith(ctx, sub)
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
		return err
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
	s.unlist(ctx, sub, keep)
	return nil
}

// disabledKept is how long the record of a subscription that was disabled can be read.
const disabledKept = 7 * 24 * time.Hour

// load reads a principal's subscription; nil when there is none.
func (s *Service) load(ctx context.Context, workspace, principal, id string) (*Subscription, error) {
	items, err := s.DB.Get(ctx, recordKey(workspace, principal, id))
	if err != nil {
		return nil, fault.Wrap(fault.Unavailable, err, "read the subscription")
	}
	if items[0] == nil {
		return nil, nil
	}
	return decodeRecord(items[0])
}

// change applies f to a subscription until no one else wrote in between. f
// returns false to leave it as it is.
func (s *Service) change(ctx context.Context, workspace, principal, id string,
	f func(*Subscription) (write func(context.Context, *Subscription) error, err error),
) error {
	for {
		sub, err := s.load(ctx, workspace, principal, id)
		if err != nil {
			return err
		}
		write, err := f(sub)
		if err != nil || write == nil {
			return err
		}
		err = write(ctx, sub)
		if !errors.Is(err, store.ErrConflict) {
			return fault.Wrap(fault.Unavailable, err, "write the subscription")
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
}
