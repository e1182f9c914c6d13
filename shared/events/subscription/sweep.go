package subscription

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"time"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/storage/minutes"
	"github.com/mcp-events/mcpevents/shared/storage/store"
)

// An expired subscription gets nothing from the second of its expiry on, because
// readers compare the time. The sweep deletes its items and counts down. It
// finds them by entries in the minute of their expiry, spread over shards.

const sweepShards = 4

type expiry struct {
	Workspace string `json:"ws"`
	Principal string `json:"pr"`
}

func expiryPartition(shard int, minute time.Time) string {
	return fmt.Sprintf("x#%d#%s", shard, minute.UTC().Format("200601021504"))
}

// expiryKey is the entry by which the sweep finds a subscription that expires.
func (s *Subscription) expiryKey() store.Key {
	h := fnv.New32a()
	h.Write([]byte(s.ID))
	return store.Key{Table: store.Subscriptions, Partition: expiryPartition(int(h.Sum32()%sweepShards), s.Until), Sort: s.ID}
}

// expiryOps are the entries that let the sweep find the subscription.
func (s *Subscription) expiryOps() []store.Op {
	if s.Until.IsZero() {
		return nil
	}
	value, _ := json.Marshal(expiry{s.Workspace, s.Principal})
	return []store.Op{store.Put(store.Item{
		Key:     s.expiryKey(),
		Value:   value,
		Expires: s.Until.Add(expiryKept),
	})}
}

// sweepKey is where the sweep's position is kept; the version before had none of its own.
var (
	sweepKey       = store.Key{Table: store.Subscriptions, Partition: "x#watermark", Sort: "-"}
	sweepKeyBefore = store.Key{Table: store.Deliveries, Partition: "due#watermark", Sort: "-"}
)

// expiryKept is for how long after its minute an entry waits for the sweep.
const expiryKept = 7 * 24 * time.Hour

// Sweeper removes subscriptions whose time is over.
type Sweeper struct {
	Service *Service
	// DeadLetter dead-letters an item that cannot be decoded. It must be set.
	DeadLetter func(ctx context.Context, it *store.Item, reason error) error
	// SaveEvery is the SaveEvery of [minutes.Position].
	SaveEvery time.Duration
}

// Sweep removes subscriptions that expired since the last one, and reports how many. It
// goes on where it was interrupted.
func (s *Sweeper) Sweep(ctx context.Context) (removed int, err error) {
	position := minutes.Position{DB: s.Service.Records.DB, Key: sweepKey, Before: sweepKeyBefore, CatchUp: expiryKept, SaveEvery: s.SaveEvery}
	err = position.Walk(ctx, s.Service.Records.now(), func(ctx context.Context, minute time.Time) error {
		var errs []error
		for shard := range sweepShards {
			n, err := s.sweepPartition(ctx, expiryPartition(shard, minute))
			removed += n
			errs = append(errs, err)
		}
		return errors.Join(errs...)
	})
	return removed, err
}

func (s *Sweeper) sweepPartition(ctx context.Context, part string) (removed int, err error) {
	partition := store.Key{Table: store.Subscriptions, Partition: part}
	err = store.Each(ctx, s.Service.Records.DB, partition, "list expired subscriptions", func(it *store.Item) error {
		gone, err := s.sweepOne(ctx, it)
		if err == nil && gone {
			removed++
		}
		return err
	})
	return removed, err
}

// sweepOne handles one entry. What cannot be decoded, itself or its subscription, is
// dead-lettered.
func (s *Sweeper) sweepOne(ctx context.Context, it *store.Item) (gone bool, err error) {
	var e expiry
	if err := json.Unmarshal(it.Value, &e); err != nil {
		return false, s.DeadLetter(ctx, it, fault.Wrap(fault.Invalid, err, "the expiry entry cannot be decoded"))
	}
	gone, later, err := s.expire(ctx, e, it.Sort, it.Partition)
	switch {
	case errors.Is(err, ErrUndecodable):
		return false, s.DeadLetter(ctx, it, err)
	case err != nil || later:
		return gone, err
	}
	return gone, fault.Wrap(fault.Unavailable, s.Service.Records.DB.Write(ctx, store.Delete(it.Key)), "remove an expiry entry")
}

// expire removes a subscription whose time is over. One that ends later in the
// minute of its entry, or was written meanwhile, is left for another sweep.
func (s *Sweeper) expire(ctx context.Context, e expiry, id, part string) (gone, later bool, err error) {
	sub, err := s.Service.Records.load(ctx, e.Workspace, e.Principal, id)
	if err != nil || sub == nil {
		return false, false, err
	}
	if !sub.lapsed(s.Service.Records.now()) {
		return false, !sub.Until.IsZero() && sub.expiryKey().Partition == part, nil
	}
	err = s.Service.Records.remove(ctx, sub, false)
	if errors.Is(err, store.ErrConflict) {
		return false, true, nil
	}
	if err != nil {
		return false, false, err
	}
	s.Service.notifyPrincipal(ctx, e.Workspace, e.Principal)
	return true, false, nil
}
