package switches

import (
	"context"
	"time"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/storage/store"
)

// Imposed returns when an operator paused a subscription, or the zero time. Such a pause outlives the subscription, because
// the same events/subscribe gives a new subscription the same id. Otherwise an owner could end the pause by ending the
// subscription and subscribing again.
func (s *Set) Imposed(ctx context.Context, workspace, id string) (time.Time, error) {
	sw, err := s.Get(ctx, workspace, Subscription(id))
	if err != nil || sw == nil || !sw.Operator {
		return time.Time{}, err
	}
	return sw.At, nil
}

// RemoveUnused removes the switches of subscriptions for which isUsed returns false, and returns their number.
func (s *Set) RemoveUnused(ctx context.Context, workspace string, isUsed func(id string, sw Switch) (bool, error)) (removed int, err error) {
	partition := key(workspace, All).Partition
	q := store.Query{Table: store.Settings, Partition: partition, After: subscriptionOf}
	err = store.EachOf(ctx, s.DB, q, "read the switches of subscriptions", func(it *store.Item) error {
		sw, err := decode(it)
		if err != nil {
			return err
		}
		id, ok := sw.Name.SubscriptionID()
		if !ok {
			return nil
		}
		used, err := isUsed(id, sw)
		if err != nil || used {
			return err
		}
		removed++
		return fault.Wrap(fault.Unavailable, s.DB.Write(ctx, store.Delete(it.Key)), "remove a switch")
	})
	return removed, err
}
