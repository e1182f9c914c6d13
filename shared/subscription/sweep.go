package subscription

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"time"

	"mcpevents/shared/fault"
	"mcpevents/shared/store"
)

// An expired subscription gets nothing from the second it expires, because
// readers look at the time. The sweep takes its items away and counts down. It
// finds them by entries in the minute of their expiry, spread over shards.

const sweepShards = 4

type expiry struct {
	Workspace string `json:"ws"`
	Principal string `json:"pr"`
}

func expiryPartition(shard int, minute time.Time) string {
	return fmt.Sprintf("x#%d#%s", shard, minute.UTC().Format("200601021504"))
}

// expiryPartition is where the entry of a subscription that expires lies.
func (s *Service) expiryPartition(sub *Subscription) string {
	h := fnv.New32a()
	h.Write([]byte(sub.ID))
	return expiryPartition(int(h.Sum32()%sweepShards), sub.Until)
}

// expiryOps are the entries that let the sweep find the subscription.
func (s *Service) expiryOps(sub *Subscription) []store.Op {
	if sub.Until.IsZero() {
		return nil
	}
	value, _ := json.Marshal(expiry{sub.Workspace, sub.Principal})
	return []store.Op{store.Put(store.Item{
		Key:     store.Key{Table: store.Subscriptions, Sort: sub.ID, Partition: s.expiryPartition(sub)},
		Value:   value,
		Expires: sub.Until.Add(7 * 24 * time.Hour),
	})}
}

// Sweep removes subscriptions that expired in the minute given or up to back
// minutes before it, and reports how many.
func (s *Service) Sweep(ctx context.Context, minute time.Time, back int) (removed int, err error) {
	for i := 0; i <= back; i++ {
		for shard := range sweepShards {
			part := expiryPartition(shard, minute.Add(-time.Duration(i)*time.Minute))
			n, err := s.sweepPartition(ctx, part)
			removed += n
			if err != nil {
				return removed, err
			}
		}
	}
	return removed, nil
}

func (s *Service) sweepPartition(ctx context.Context, part string) (removed int, err error) {
	q := store.Query{Table: store.Subscriptions, Partition: part, Limit: 100}
	for {
		page, err := s.DB.Query(ctx, q)
		if err != nil {
			return removed, fault.Wrap(fault.Unavailable, err, "list expired subscriptions")
		}
		for _, it := range page.Items {
			var e expiry
			if err := json.Unmarshal(it.Value, &e); err != nil {
				return removed, fault.Wrap(fault.Internal, err, "decode an expiry entry")
			}
			gone, later, err := s.expire(ctx, e, it.Sort, part)
			if err != nil {
				return removed, err
			}
			if gone {
				removed++
			}
			if later {
				continue
			}
			if err := s.DB.Write(ctx, store.Delete(it.Key)); err != nil {
				return removed, fault.Wrap(fault.Unavailable, err, "remove an expiry entry")
			}
		}
		if !page.More {
			return removed, nil
		}
		q.After = page.Last
	}
}

// expire removes a subscription whose time is over. One that ends later in the
// minute of its entry, or was written meanwhile, is left for another sweep.
func (s *Service) expire(ctx context.Context, e expiry, id, part string) (gone, later bool, err error) {
	sub, err := s.load(ctx, e.Workspace, e.Principal, id)
	if err != nil || sub == nil {
		return false, false, err
	}
	if !s.lapsed(sub) {
		return false, !sub.Until.IsZero() && s.expiryPartition(sub) == part, nil
	}
	err = s.remove(ctx, sub, false)
	if errors.Is(err, store.ErrConflict) {
		return false, true, nil
	}
	if err != nil {
		return false, false, fault.Wrap(fault.Unavailable, err, "remove the expired subscription")
	}
	s.notifyPrincipal(ctx, e.Workspace, e.Principal)
	return true, false, nil
}
