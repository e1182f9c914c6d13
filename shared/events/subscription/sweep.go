package subscription

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"slices"
	"time"

	"github.com/mcp-events/mcpevents/shared/events/switches"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/storage/minutes"
	"github.com/mcp-events/mcpevents/shared/storage/store"
)

// Readers compare a subscription's expiry with the time, so deliveries stop to the second. The sweep later deletes the items and lowers the
// counters. It finds expired subscriptions by entries that are stored by the minute of their expiry, spread over shards.

const sweepShards = 4

type expiry struct {
	Workspace string `json:"ws"`
	Principal string `json:"pr"`
}

func expiryPartition(shard int, minute time.Time) string {
	return fmt.Sprintf("x#%d#%s", shard, minute.UTC().Format("200601021504"))
}

// expiryKey returns the key of the entry by which the sweep finds the subscription.
func (s *Subscription) expiryKey() store.Key {
	h := fnv.New32a()
	h.Write([]byte(s.ID))
	return store.Key{Table: store.Subscriptions, Partition: expiryPartition(int(h.Sum32()%sweepShards), s.Until), Sort: s.ID}
}

// expiryOps returns the operation that writes the entry by which the sweep finds the subscription, or nil if it never expires.
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

// sweepKey is the key of the sweep's position.
var sweepKey = store.Key{Table: store.Subscriptions, Partition: "x#watermark", Sort: "-"}

// expiryKept is how long an entry waits for the sweep after its minute.
const expiryKept = 7 * 24 * time.Hour

// Sweeper removes expired subscriptions.
type Sweeper struct {
	Service *Service
	// DeadLetter dead-letters an item that cannot be decoded. It must be set.
	DeadLetter func(ctx context.Context, it *store.Item, reason error) error
	// SaveEvery is the SaveEvery of [minutes.Position].
	SaveEvery time.Duration
	// Switches are the switches that [Sweeper.SweepSwitches] looks through.
	Switches *switches.Set
}

// Sweep removes the subscriptions that have expired since the previous sweep, and returns their number. It resumes an interrupted sweep.
func (s *Sweeper) Sweep(ctx context.Context) (removed int, err error) {
	position := minutes.Position{DB: s.Service.Records.DB, Key: sweepKey, CatchUp: expiryKept, SaveEvery: s.SaveEvery}
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

// sweepOne handles one entry. It dead-letters the entry if the entry or its subscription cannot be decoded.
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

// expire removes a subscription if it has expired. later reports that another sweep must look at the entry again, because the subscription
// expires later in this minute or was written concurrently.
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

// Recount corrects the number of subscriptions that the store has for each workspace, and reports how many were wrong, see
// [tally.Counts.Recount].
func (s *Sweeper) Recount(ctx context.Context) (corrected int, err error) {
	db := s.Service.Records.DB
	workspaces, err := (&Lists{DB: db}).Workspaces(ctx)
	if err != nil {
		return 0, err
	}
	return s.Service.Records.counts().Recount(ctx, workspaces, func(ctx context.Context, workspace string) ([]string, error) {
		principals := map[string]bool{}
		err := store.Each(ctx, db, indexKey(workspace, "-"), "list the subscriptions of a workspace", func(it *store.Item) error {
			principals[string(it.Value)] = true
			return nil
		})
		return slices.Collect(maps.Keys(principals)), err
	})
}
