package subscription

import (
	"context"
	"time"

	"github.com/mcp-events/mcpevents/shared/storage/store"
)

// SetPaused pauses or resumes the deliveries of a subscription, in one transaction with the other operations. It reports whether it
// changed the subscription.
func (s *Service) SetPaused(ctx context.Context, workspace, principal, id string, paused bool, also ...store.Op) (changed bool, err error) {
	err = s.Records.change(ctx, workspace, principal, id, func(sub *Subscription) error {
		if sub == nil || sub.State == Disabled {
			return noSubscription()
		}
		if changed = (sub.Paused != 0) != paused; !changed {
			return nil
		}
		if paused {
			sub.Paused = s.Records.now().UnixMicro()
		} else {
			sub.Paused, sub.Resumed = 0, s.Records.now().Unix()
		}
		return s.Records.update(ctx, sub, also...)
	})
	if err == nil && changed {
		s.notifyPrincipal(ctx, workspace, principal)
	}
	return changed, err
}

// PausedSince returns when a person paused the subscription, or the zero time.
func (s *Subscription) PausedSince() time.Time {
	if s.Paused == 0 {
		return time.Time{}
	}
	return time.UnixMicro(s.Paused).UTC()
}

// Suspend stops the deliveries of a subscription until a refresh, because nearly all of them failed since the time at which it
// was last resumed ([Subscription.Resumed]). It does nothing if the subscription was resumed again, for example while an
// attempt was under way that failed afterwards. The events that are published until the refresh are owed to the subscriber.
func (s *Service) Suspend(ctx context.Context, workspace, principal, id string, resumed int64) error {
	suspended := false
	err := s.Records.change(ctx, workspace, principal, id, func(sub *Subscription) error {
		if suspended = sub != nil && sub.State == Active && sub.Resumed == resumed; !suspended {
			return nil
		}
		for _, p := range sub.Patterns { // so that the log keeps all events from now on
			if _, err := sub.recordInterest(ctx, s.Records.DB, s.Log, p); err != nil {
				return err
			}
		}
		sub.State, sub.Reason = Suspended, "nearly all deliveries of an hour failed"
		sub.Suspended = s.Records.now().UnixMicro()
		if sub.Owed == 0 {
			sub.Owed = max(s.Log.Position(), 1) // 0 is nothing
		}
		return s.Records.update(ctx, sub)
	})
	if err == nil && suspended {
		s.notifySubscription(ctx, workspace, id, Suspended)
	}
	return err
}
