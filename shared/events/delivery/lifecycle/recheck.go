package lifecycle

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/mcp-events/mcpevents/shared/events/match"
	"github.com/mcp-events/mcpevents/shared/events/subscription"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
)

// Each delivery checks whether its subscription may continue. A subscription without events has no deliveries. So once a
// minute, Recheck compares the catalog of every workspace that has subscriptions with the catalog of the last recheck, and
// checks all subscriptions to event types that were removed or have other terms.
//
// It rechecks each change twice, some time apart, because other processes may use the old catalog for [settings.MaxAge] and
// accept subscriptions to a removed event type.

// settleAfter is the age of a catalog at which the second recheck begins.
const settleAfter = 20 * time.Second

// Recheck terminates the subscriptions that may not continue after a change of the catalog, and returns their number. A
// recheck that is interrupted resumes where it stopped, and a workspace that fails does not stop the others. After an
// interruption the next recheck begins with the workspaces that had no turn, because there may be more workspaces than one
// recheck has time for.
func (t *Terminator) Recheck(ctx context.Context) (ended int, err error) {
	t.rechecking.Lock()
	defer t.rechecking.Unlock()
	workspaces, err := t.Lists.Workspaces(ctx)
	if err != nil {
		return 0, err
	}
	if t.rechecked == nil {
		t.rechecked = map[string]string{}
	}
	if i, found := slices.BinarySearch(workspaces, t.interrupted); found || i > 0 {
		if found {
			i++
		}
		workspaces = slices.Concat(workspaces[i:], workspaces[:i])
	}
	var errs []error
	for _, workspace := range workspaces {
		n, err := t.recheckWorkspace(ctx, workspace)
		ended += n
		if ctx.Err() != nil {
			t.interrupted = workspace
			return ended, ctx.Err()
		}
		errs = append(errs, fault.Wrap(fault.Unavailable, err, "recheck the subscriptions of workspace %s", workspace))
	}
	return ended, errors.Join(errs...)
}

func (t *Terminator) recheckWorkspace(ctx context.Context, workspace string) (ended int, err error) {
	cat, err := t.Review.Catalog.Catalog(ctx, workspace)
	if fault.Is(err, fault.NotFound) {
		return 0, nil // a workspace without a catalog has no events
	}
	if err != nil || t.rechecked[workspace] == cat.Fingerprint() {
		return 0, err
	}
	last, err := t.Lists.AuditState(ctx, workspace)
	if err != nil {
		return 0, err
	}
	next, now := last, t.now()
	switch {
	case last.Settled == cat.Fingerprint() && last.Seen == "":
		t.rechecked[workspace] = last.Settled
		return 0, nil
	case last.Seen != cat.Fingerprint():
		next.Seen, next.Since = cat.Fingerprint(), now.Unix()
	case now.Unix()-last.Since < int64(settleAfter/time.Second):
		return 0, nil
	default:
		next = subscription.AuditState{Settled: cat.Fingerprint(), Terms: cat.Terms()}
	}
	// The position of an interrupted recheck counts only for the same step.
	at := subscription.AuditPosition{Step: next.Settled + next.Seen}
	if last.At.Step == at.Step {
		at = last.At
	}
	for _, scope := range affectedScopes(last.Terms, cat.Terms()) {
		if scope < at.Scope {
			continue
		}
		if scope != at.Scope {
			at.Scope, at.After = scope, ""
		}
		n, err := t.recheckScope(ctx, workspace, last, &at)
		if ended += n; err != nil {
			return ended, err
		}
	}
	next.At = subscription.AuditPosition{}
	return ended, t.Lists.SetAuditState(ctx, workspace, next)
}

// affectedScopes returns the sorted scopes whose subscriptions may have lost access.
func affectedScopes(before, after map[string]string) (scopes []string) {
	for name, t := range before {
		if after[name] != t {
			scopes = append(scopes, match.Scope(name))
		}
	}
	if len(scopes) > 0 {
		scopes = append(scopes, match.Scope(""))
	}
	slices.Sort(scopes)
	return scopes
}

// recheckScope checks the subscriptions of a scope from a position on, and saves the position after each page.
func (t *Terminator) recheckScope(ctx context.Context, workspace string, last subscription.AuditState, at *subscription.AuditPosition) (ended int, err error) {
	var errs []error
	for {
		subs, next, err := t.Lists.Listed(ctx, workspace, at.Scope, at.After)
		if err != nil {
			return ended, err
		}
		for _, s := range subs {
			terminated, err := t.Terminate(ctx, workspace, s.Principal, s.ID)
			switch {
			case errors.Is(err, subscription.ErrUndecodable):
				t.log().ErrorContext(ctx, "subscription not rechecked", "workspace", workspace, "subscription", s.ID, "error", err)
			case err != nil:
				errs = append(errs, err)
			case terminated:
				ended++
			}
			if ctx.Err() != nil {
				return ended, ctx.Err()
			}
		}
		if err := errors.Join(errs...); err != nil || next == "" {
			return ended, err
		}
		at.After = next
		last.At = *at
		if err := t.Lists.SetAuditState(ctx, workspace, last); err != nil {
			return ended, err
		}
	}
}
