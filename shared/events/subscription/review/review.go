// Package review checks whether existing subscriptions may continue: whether their principals still have the right to the events, and
// whether the event types are still compatible with the subscriptions. It only decides. shared/events/delivery ends the subscriptions.
package review

import (
	"context"
	"errors"
	"maps"
	"slices"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/events/catalog"
	"github.com/mcp-events/mcpevents/shared/events/event"
	"github.com/mcp-events/mcpevents/shared/events/match"
	"github.com/mcp-events/mcpevents/shared/events/subscription"
	"github.com/mcp-events/mcpevents/shared/platform/bounded"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/platform/refresh"
	"github.com/mcp-events/mcpevents/shared/storage/store"
)

// Review checks subscriptions. It caches catalogs and the principals' rights, so that a check before every delivery is cheap.
//
// The cached data may be some seconds old, and thus older than the subscription. Callers therefore terminate a subscription only after a
// second check against the latest data.
type Review struct {
	DB      store.DB
	Catalog catalog.Source
	// Directory knows the current rights of principals. If it is nil, principals have the rights that were stored with their subscription
	// ([subscription.Grant]).
	Directory auth.Directory

	verdicts bounded.Map[[2]string, string] // maps the ids of an old and a new contract to the feature that the new one breaks, or ""
}

// part is one URI pattern of a subscription: the pattern's key, the name of its event type, and the id of the event type's contract. The
// contract is the event type's definition at the time when the client subscribed, for example its schemas; see [catalog.Entry.ContractID].
type part struct{ key, entry, contract string }

// Right decides which events a subscriber may receive. The zero value permits no events.
type Right struct {
	review     *Review
	workspace  string
	catalog    *catalog.Catalog
	principals []auth.Principal // one for each valid credential of the principal, with its scopes and claims
	all        bool             // MayReceive returns true for every event
}

// All returns the right to receive all events.
func All() Right { return Right{all: true} }

// CheckSubscriber checks one pattern of a subscription with the cached data. It returns a [*subscription.Terminated] if the
// subscription must end, and any other error if the check itself failed.
func (r *Review) CheckSubscriber(ctx context.Context, workspace, patternKey string, s *subscription.Subscriber) (Right, error) {
	right, err := r.rightOf(ctx, workspace, s.Principal, s.Grant, refresh.Cached)
	if err != nil {
		return right, err
	}
	err = r.checkPattern(ctx, right, part{patternKey, s.Entry, s.Contract})
	_, parent := match.CutParent(patternKey)
	right.all = err == nil && !parent
	return right, err
}

// CheckSubscription checks all patterns of a subscription. If one pattern is no longer permitted, the whole subscription must end,
// because a client registers all its URIs with one request, which fails if any URI is refused.
func (r *Review) CheckSubscription(ctx context.Context, s *subscription.Subscription, f refresh.Freshness) (Right, error) {
	right, err := r.rightOf(ctx, s.Workspace, s.Principal, s.Grant, f)
	if err != nil {
		return right, err
	}
	for _, p := range s.Patterns {
		if err := r.checkPattern(ctx, right, part{p.Key, p.Entry, s.Contracts[p.Entry]}); err != nil {
			return right, err
		}
	}
	return right, nil
}

func (r *Review) rightOf(ctx context.Context, workspace, principal string, g subscription.Grant, f refresh.Freshness) (Right, error) {
	right := Right{review: r, workspace: workspace}
	var err error
	if f == refresh.Latest {
		right.catalog, err = catalog.Latest(ctx, r.Catalog, workspace)
	} else {
		right.catalog, err = r.Catalog.Catalog(ctx, workspace)
	}
	if err != nil {
		return right, fault.Wrap(fault.Unavailable, err, "read the catalog")
	}
	if r.Directory == nil {
		right.principals = []auth.Principal{{ID: principal, Workspace: workspace, Scopes: g.Scopes, Claims: g.Claims}}
		return right, nil
	}
	right.principals, err = r.Directory.Principals(ctx, workspace, principal, f)
	if err != nil {
		return right, fault.Wrap(fault.Unavailable, err, "look up the principal")
	}
	right.principals = slices.DeleteFunc(right.principals, func(p auth.Principal) bool { return !p.Has(auth.ScopeSubscribe) })
	if len(right.principals) == 0 {
		return right, &subscription.Terminated{Reason: subscription.AccessRevoked()}
	}
	return right, nil
}

// checkPattern returns a [*subscription.Terminated] error if the subscription must end because of the pattern p.
func (r *Review) checkPattern(ctx context.Context, right Right, p part) error {
	if uri, parent := match.CutParent(p.key); parent {
		return right.checkBelow(uri)
	}
	entry := right.catalog.ByName(p.entry)
	if entry == nil {
		return &subscription.Terminated{Reason: subscription.TypeRemoved(p.entry)}
	}
	feature, err := r.findBreakingFeature(ctx, p.contract, entry)
	switch {
	case err != nil:
		return err
	case feature != "":
		return &subscription.Terminated{Reason: subscription.SchemaChanged(entry.Name, feature)}
	case !entry.WebhookAllowed():
		return &subscription.Terminated{Reason: subscription.NoWebhooks(entry.Name)}
	case entry.Access == nil:
		return nil
	}
	found, vars, ok := right.catalog.MatchPattern(p.key)
	if !ok || found != entry {
		return &subscription.Terminated{Reason: subscription.SchemaChanged(entry.Name, catalog.FeatureInput)}
	}
	if !right.permits(entry.Access, vars) {
		return &subscription.Terminated{Reason: subscription.AccessRevoked()}
	}
	return nil
}

// checkBelow checks a subscription to a parent URI such as event://orders, which matches all URIs below it. The subscription
// continues as long as the catalog has an event type below the parent that the principal may receive by webhook.
func (r Right) checkBelow(uri string) error {
	entries := r.catalog.ListUnder(uri)
	if len(entries) == 0 {
		return &subscription.Terminated{Reason: subscription.TypeRemoved(uri)}
	}
	webhooks := false
	for _, e := range entries {
		if !e.WebhookAllowed() {
			continue
		}
		webhooks = true
		if e.Access == nil {
			return nil
		}
		// The parent URI may leave a variable open, so that the subscription matches events with all values of the variable. If the
		// access rule compares the variable with a claim, ignore this claim, because the principal may receive the events with some of
		// the values.
		vars := e.BindParent(uri)
		bound := catalog.Access{Scopes: e.Access.Scopes, Claims: maps.Clone(e.Access.Claims)}
		maps.DeleteFunc(bound.Claims, func(name, _ string) bool { return vars[name] == "" })
		for _, p := range r.principals {
			if e.Access.VisibleTo(p) && bound.Check(p, vars) == nil {
				return nil
			}
		}
	}
	if !webhooks {
		return &subscription.Terminated{Reason: subscription.NoWebhooks(uri)}
	}
	return &subscription.Terminated{Reason: subscription.AccessRevoked()}
}

func (r Right) permits(rule *catalog.Access, vars map[string]string) bool {
	return rule == nil || slices.ContainsFunc(r.principals, func(p auth.Principal) bool { return rule.Check(p, vars) == nil })
}

// ErrTypeRemoved is the error for an event whose type is no longer in the catalog. Without the type's access rule, it is unknown whether
// the subscriber may receive the event.
var ErrTypeRemoved = errors.New("subscription: the event's type was removed from the catalog")

// MayReceive reports whether the subscriber may receive an event that matches its pattern. After [Review.CheckSubscriber] has permitted a
// pattern of one event type, the result is always true. For a parent URI, which matches many event types, MayReceive checks the access
// rule of the event's own type. It returns [ErrTypeRemoved] if that type is gone.
func (r Right) MayReceive(ctx context.Context, e *event.Event) (bool, error) {
	if r.all || r.catalog == nil {
		return r.all, nil
	}
	entry, vars, ok := r.catalog.Match(e.URI)
	if !ok || entry.Name != e.Name { // the type may be newer than the cached catalog, so read the latest one
		cat, err := catalog.Latest(ctx, r.review.Catalog, r.workspace)
		if err != nil {
			return false, fault.Wrap(fault.Unavailable, err, "read the catalog")
		}
		if entry, vars, ok = cat.Match(e.URI); !ok || entry.Name != e.Name {
			return false, ErrTypeRemoved
		}
	}
	return entry.WebhookAllowed() && r.permits(entry.Access, vars), nil
}

// findBreakingFeature compares an event type, the parameter now, with the earlier contract that has the given id. It returns the part of
// the event type that has changed incompatibly (see [catalog.FindBreakingFeature]). The result is "" if there is no such part, or if the
// contract is not in the store.
func (r *Review) findBreakingFeature(ctx context.Context, id string, now *catalog.Entry) (feature string, err error) {
	current := now.ContractID()
	if id == "" || id == current {
		return "", nil
	}
	if feature, known := r.verdicts.Get([2]string{id, current}); known {
		return feature, nil
	}
	before, err := subscription.ReadContract(ctx, r.DB, id)
	if err != nil {
		return "", err
	}
	if before != nil {
		feature = catalog.FindBreakingFeature(before, now)
	}
	r.verdicts.Put([2]string{id, current}, feature)
	return feature, nil
}
