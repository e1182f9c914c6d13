package delivery

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/mcp-events/mcpevents/shared/fault"
	"github.com/mcp-events/mcpevents/shared/subscription"
)

// A subscription to an event type of which nothing is published any more would wait
// for its end for ever: dispatch never comes by. So, once a minute, the catalog of
// every workspace with subscriptions is compared with the one that was last looked at, and
// where an event type is gone or has other terms, all its subscriptions are looked at.
//
// A change is looked at twice, some time apart: others may go by the old catalog for
// [versioned.MaxAge], and subscribe somebody to what is gone.

// settleAfter is how long a catalog must have been seen before it is the one to compare
// with.
const settleAfter = 20 * time.Second

// Audit ends the subscriptions that changes of catalogs have left without what they
// stand on, and reports how many. One that is cut off goes on where it stood, and a
// workspace that fails keeps no other from its turn.
func (e *Ender) Audit(ctx context.Context) (ended int, err error) {
	e.auditing.Lock()
	defer e.auditing.Unlock()
	workspaces, err := e.Subscriptions.Workspaces(ctx)
	if err != nil {
		return 0, err
	}
	if e.audited == nil {
		e.audited = map[string]string{}
	}
	var errs []error
	for _, workspace := range workspaces {
		n, err := e.auditOne(ctx, workspace)
		ended += n
		if ctx.Err() != nil {
			return ended, ctx.Err()
		}
		errs = append(errs, fault.Wrap(fault.Unavailable, err, "look at the subscriptions of workspace %s", workspace))
	}
	return ended, errors.Join(errs...)
}

func (e *Ender) auditOne(ctx context.Context, workspace string) (ended int, err error) {
	cat, err := e.Review.Catalog.Catalog(ctx, workspace)
	if fault.Is(err, fault.NotFound) {
		return 0, nil // it can neither publish nor deliver
	}
	if err != nil || e.audited[workspace] == cat.Fingerprint() {
		return 0, err
	}
	last, err := e.Subscriptions.Looked(ctx, workspace)
	if err != nil {
		return 0, err
	}
	next, now := last, e.now()
	switch {
	case last.Settled == cat.Fingerprint() && last.Seen == "":
		e.audited[workspace] = last.Settled
		return 0, nil
	case last.Seen != cat.Fingerprint():
		next.Seen, next.Since = cat.Fingerprint(), now.Unix()
	case now.Unix()-last.Since < int64(settleAfter/time.Second):
		return 0, nil
	default:
		next = subscription.Looked{Settled: cat.Fingerprint(), Terms: cat.Terms()}
	}
	// Where an audit was cut off counts only for one of the same step.
	at := subscription.Place{Step: next.Settled + next.Seen}
	if last.At.Step == at.Step {
		at = last.At
	}
	for _, scope := range concerned(last.Terms, cat.Terms()) {
		if scope < at.Scope {
			continue
		}
		if scope != at.Scope {
			at.Scope, at.After = scope, ""
		}
		n, err := e.auditScope(ctx, workspace, last, &at)
		if ended += n; err != nil {
			return ended, err
		}
	}
	next.At = subscription.Place{}
	return ended, e.Subscriptions.SetLooked(ctx, workspace, next)
}

// concerned lists the scopes whose subscriptions may have lost something, in order.
func concerned(before, after map[string]string) (scopes []string) {
	for name, t := range before {
		if after[name] != t {
			scopes = append(scopes, subscription.Scope(name))
		}
	}
	if len(scopes) > 0 {
		scopes = append(scopes, subscription.Scope(""))
	}
	slices.Sort(scopes)
	return scopes
}

// auditScope looks at the subscriptions of a scope from a place on, and notes after each
// page how far it came.
func (e *Ender) auditScope(ctx context.Context, workspace string, last subscription.Looked, at *subscription.Place) (ended int, err error) {
	var errs []error
	for {
		subs, next, err := e.Subscriptions.Listed(ctx, workspace, at.Scope, at.After)
		if err != nil {
			return ended, err
		}
		for _, s := range subs {
			over, err := e.End(ctx, workspace, s.Principal, s.ID)
			switch {
			case errors.Is(err, subscription.ErrUndecodable):
				e.log().ErrorContext(ctx, "subscription not audited", "workspace", workspace, "subscription", s.ID, "error", err)
			case err != nil:
				errs = append(errs, err)
			case over:
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
		if err := e.Subscriptions.SetLooked(ctx, workspace, last); err != nil {
			return ended, err
		}
	}
}
