package subscription

import (
	"context"
	"encoding/json"
	"errors"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/events/match"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/storage/store"
)

// Deregister ends a subscription of the caller. Unknown, malformed and other
// principals' URIs are the same fault of kind NotFound.
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

// Unsubscribe ends the subscription with this identity, or returns NotFound if it does not exist. The event type may be gone from the
// catalog, or may refuse the subscription's arguments by now.
func (s *Service) Unsubscribe(ctx context.Context, p auth.Principal, name string, arguments json.RawMessage, url string) error {
	if _, err := s.permitEvents(ctx, p); err != nil {
		return err
	}
	if len(url) > MaxTargetURL {
		return fault.New(fault.Invalid, "delivery.url is longer than %d bytes", MaxTargetURL).AtLimit("targetURL", MaxTargetURL)
	}
	canonical, err := match.CanonicalArguments(arguments)
	if err != nil {
		return err
	}
	return s.End(ctx, p.Workspace, p.ID, derivedID(p, url, name, canonical))
}

// End ends a subscription as [Service.Deregister] does, for whoever may; NotFound if there is none.
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
			return s.Records.remove(ctx, sub, true, store.Delete(verificationKey(workspace, principal, hash(sub.Target.URL))))
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

// ReasonGone is the reason of a subscription that was disabled because its endpoint wants no further webhooks.
const ReasonGone = "the endpoint answered 410 Gone"

// Enable brings a subscription back that was disabled. Events that were published in between are in the log, and not
// delivered. A subscription that was paused stays paused, so that resuming it brings back the deliveries that wait.
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

// Terminate ends a subscription if judge returns a [*Terminated] for its present record; any
// other error is returned. A subscription of SEP-1803 is
// disabled, one of MCP Events is gone, in one write with what also adds. The result is
// the subscription that ended, or nil.
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
