package subscription

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/events/match"
	"github.com/mcp-events/mcpevents/shared/events/subscription/challenge"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/storage/store"
)

// Deregister ends a subscription of the caller. It returns the same NotFound error for unknown URIs, malformed URIs, and URIs of other
// principals.
func (s *Service) Deregister(ctx context.Context, p auth.Principal, uri string) error {
	if _, err := s.permit(ctx, p); err != nil {
		return err
	}
	id, ok := ParseURI(uri)
	if !ok {
		return noSubscription()
	}
	return s.End(ctx, p.Workspace, p.ID, id)
}

// Unsubscribe ends the subscription with this identity, or returns NotFound if it does not exist. It does not check the arguments against
// the catalog, because the event type may have been removed or changed since.
func (s *Service) Unsubscribe(ctx context.Context, p auth.Principal, name string, arguments json.RawMessage, url string) error {
	if _, err := s.permitEvents(ctx, p); err != nil {
		return err
	}
	if len(url) > maxTargetURL {
		return fault.New(fault.Invalid, "delivery.url is longer than %d bytes", maxTargetURL).AtLimit("targetURL", maxTargetURL)
	}
	canonical, err := match.CanonicalArguments(arguments)
	if err != nil {
		return err
	}
	return s.End(ctx, p.Workspace, p.ID, derivedID(p, url, name, canonical))
}

// End ends a subscription, or returns NotFound if it does not exist. The caller has checked the right to end it.
func (s *Service) End(ctx context.Context, workspace, principal, id string) error {
	err := s.Records.change(ctx, workspace, principal, id, func(sub *Subscription) error {
		if sub == nil {
			return noSubscription()
		}
		return s.Records.remove(ctx, sub, false)
	})
	if err == nil {
		s.notifyPrincipal(ctx, workspace, principal)
	}
	return err
}

func noSubscription() error {
	return fault.New(fault.NotFound, "there is no such subscription").With(map[string]any{"kind": "subscription"})
}

// Disable ends a subscription because of its endpoint's answers since the time at which it was last resumed
// ([Subscription.Resumed]). Its record stays readable for a week. Disable reports false if the subscription had ended
// already, or was resumed again, for example while an attempt was under way that failed afterwards.
func (s *Service) Disable(ctx context.Context, workspace, principal, id, reason string, resumed int64) (ended bool, err error) {
	err = s.Records.change(ctx, workspace, principal, id, func(sub *Subscription) error {
		if ended = sub != nil && sub.State != Disabled && sub.Resumed == resumed; !ended {
			return nil
		}
		sub.State, sub.Reason = Disabled, reason
		if reason == ReasonGone { // where a registration has to be verified, the next one sends a new challenge
			return s.Records.remove(ctx, sub, true, store.Delete(challenge.RecordKey(workspace, principal, sub.Target.URL)))
		}
		return s.Records.remove(ctx, sub, true)
	})
	if err != nil || !ended {
		return false, err
	}
	s.notifySubscription(ctx, workspace, id, Disabled)
	s.notifyPrincipal(ctx, workspace, principal)
	return true, nil
}

// ReasonGone is the reason for disabling a subscription whose endpoint wants no further webhooks.
const ReasonGone = "the endpoint answered 410 Gone"

// Enable reactivates a disabled subscription. It does not deliver the events that were published in between, but the log has them. A
// paused subscription stays paused, so that resuming it makes the waiting deliveries.
func (s *Service) Enable(ctx context.Context, workspace, principal, id string) (enabled bool, err error) {
	cat, err := s.Catalog.Catalog(ctx, workspace)
	if err != nil {
		return false, fault.Wrap(fault.Unavailable, err, "read the catalog")
	}
	err = s.Records.change(ctx, workspace, principal, id, func(sub *Subscription) error {
		if sub == nil || sub.lapsed(s.Records.now()) {
			return noSubscription()
		}
		if enabled = sub.State == Disabled; !enabled {
			return nil
		}
		sub.State, sub.Reason, sub.Suspended, sub.Owed, sub.Resumed = Active, "", 0, 0, s.Records.now().Unix()
		return s.Records.insert(ctx, cat, sub, sub.expiryOps()...)
	})
	if err != nil || !enabled {
		return false, err
	}
	s.notifySubscription(ctx, workspace, id, Active)
	s.notifyPrincipal(ctx, workspace, principal)
	return true, nil
}

// Terminate ends a subscription if judge returns a [*Terminated] for its current record. It returns the ended subscription, or nil if
// judge let the subscription continue, and any other error of judge. A subscription of SEP-1803 is disabled. A subscription of MCP
// Events is deleted, in one transaction with the operations that also returns.
func (s *Service) Terminate(ctx context.Context, workspace, principal, id string,
	judge func(*Subscription) error, also func(*Subscription, error) []store.Op,
) (ended *Subscription, err error) {
	err = s.Records.change(ctx, workspace, principal, id, func(sub *Subscription) error {
		ended = nil
		if sub == nil || sub.State == Disabled || sub.lapsed(s.Records.now()) {
			return nil
		}
		err := judge(sub)
		end, found := errors.AsType[*Terminated](err)
		if !found {
			return err
		}
		ended = sub
		if sub.Origin == MCPEvents {
			return s.Records.remove(ctx, sub, false, also(sub, end.Reason)...)
		}
		sub.State, sub.Reason = Disabled, fault.Public(end.Reason)
		return s.Records.remove(ctx, sub, true)
	})
	if err != nil || ended == nil {
		return nil, err
	}
	s.notifySubscription(ctx, workspace, id, Disabled)
	s.notifyPrincipal(ctx, workspace, principal)
	return ended, nil
}

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
