package delivery

import (
	"context"
	"time"

	"mcpevents/shared/fault"
	"mcpevents/shared/subscription"
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
// stand on, and reports how many. One that is cut off begins again.
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
	for _, workspace := range workspaces {
		n, err := e.auditOne(ctx, workspace)
		if ended += n; err != nil {
			return ended, fault.Wrap(fault.Unavailable, err, "look at the subscriptions of workspace %s", workspace)
		}
	}
	return ended, nil
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
	for _, scope := range concerned(last.Terms, cat.Terms()) {
		n, err := e.auditScope(ctx, workspace, scope)
		if ended += n; err != nil {
			return ended, err
		}
	}
	return ended, e.Subscriptions.SetLooked(ctx, workspace, next)
}

// concerned lists the scopes whose subscriptions may have lost something.
func concerned(before, after map[string]string) (scopes []string) {
	for name, t := range before {
		if after[name] != t {
			scopes = append(scopes, subscription.Scope(name))
		}
	}
	if len(scopes) > 0 {
		scopes = append(scopes, subscription.Scope(""))
	}
	return scopes
}

func (e *Ender) auditScope(ctx context.Context, workspace, scope string) (ended int, err error) {
	for after := ""; ; {
		subs, next, err := e.Subscriptions.Listed(ctx, workspace, scope, after)
		if err != nil {
			return ended, err
		}
		for _, s := range subs {
			over, err := e.End(ctx, workspace, s.Principal, s.ID)
			if err != nil {
				return ended, err
			}
			if over {
				ended++
			}
		}
		if after = next; next == "" {
			return ended, nil
		}
	}
}
