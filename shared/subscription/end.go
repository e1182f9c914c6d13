package subscription

import (
	"context"
	"errors"

	"github.com/mcp-events/mcpevents/shared/fault"
	"github.com/mcp-events/mcpevents/shared/store"
)

// Disable ends a subscription on the server's own account (a 410, a revoked
// right). Its record stays readable for a week. It reports false if it had ended already.
func (s *Service) Disable(ctx context.Context, workspace, principal, id, reason string) (ended bool, err error) {
	err = s.change(ctx, workspace, principal, id, func(sub *Subscription) error {
		if ended = sub != nil && sub.State != Disabled; !ended {
			return nil
		}
		sub.State, sub.Reason = Disabled, reason
		return s.remove(ctx, sub, true)
	})
	if err != nil || !ended {
		return false, err
	}
	s.notifySubscription(ctx, workspace, id, Disabled)
	s.notifyPrincipal(ctx, workspace, principal)
	return true, nil
}

// Enable brings a subscription back that was disabled. What was published in between is in the log, and not
// delivered.
func (s *Service) Enable(ctx context.Context, workspace, principal, id string) (enabled bool, err error) {
	cat, err := s.Catalog.Catalog(ctx, workspace)
	if err != nil {
		return false, fault.Wrap(fault.Unavailable, err, "read the catalog")
	}
	err = s.change(ctx, workspace, principal, id, func(sub *Subscription) error {
		if sub == nil || s.lapsed(sub) {
			return noSubscription()
		}
		if enabled = sub.State == Disabled; !enabled {
			return nil
		}
		sub.State, sub.Reason, sub.Paused, sub.Suspended, sub.Owed, sub.Resumed = Active, "", 0, 0, 0, s.now().Unix()
		return s.insert(ctx, cat, sub, s.expiryOps(sub)...)
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
	err = s.change(ctx, workspace, principal, id, func(sub *Subscription) error {
		ended = nil
		if sub == nil || sub.State == Disabled || s.lapsed(sub) {
			return nil
		}
		err := judge(sub)
		end, found := errors.AsType[*Terminated](err)
		if !found {
			return err
		}
		ended = sub
		if sub.Origin == MCPEvents {
			return s.remove(ctx, sub, false, also(sub, end.Reason)...)
		}
		sub.State, sub.Reason = Disabled, fault.Public(end.Reason)
		return s.remove(ctx, sub, true)
	})
	if err != nil || ended == nil {
		return nil, err
	}
	s.notifySubscription(ctx, workspace, id, Disabled)
	s.notifyPrincipal(ctx, workspace, principal)
	return ended, nil
}

// Suspend stops the deliveries of a subscription that fail nearly all, until a
// refresh. What is published meanwhile is owed to it.
func (s *Service) Suspend(ctx context.Context, workspace, principal, id string) error {
	suspended := false
	err := s.change(ctx, workspace, principal, id, func(sub *Subscription) error {
		if suspended = sub != nil && sub.State == Active; !suspended {
			return nil
		}
		for _, p := range sub.Patterns { // so that the log has what is published from now on
			if _, err := Interested(ctx, s.DB, s.Log, workspace, p); err != nil {
				return err
			}
		}
		sub.State, sub.Reason = Suspended, "nearly all deliveries of an hour failed"
		sub.Suspended = s.now().UnixMicro()
		if sub.Owed == 0 {
			sub.Owed = max(s.Log.Position(), 1) // 0 is nothing
		}
		return s.update(ctx, sub)
	})
	if err == nil && suspended {
		s.notifySubscription(ctx, workspace, id, Suspended)
	}
	return err
}
