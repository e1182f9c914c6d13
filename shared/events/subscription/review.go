package subscription

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/events/catalog"
	"github.com/mcp-events/mcpevents/shared/events/event"
	"github.com/mcp-events/mcpevents/shared/events/match"
	"github.com/mcp-events/mcpevents/shared/platform/bounded"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/storage/store"
)

// Review checks whether webhook subscriptions that were granted may go on: whether
// their principals still have the right, and their event types are what they were. It
// caches what it reads, so that it can be asked before every delivery.
//
// The cached catalog and keys may be seconds old, older than the subscription. So a
// subscription is terminated only after a second check against the latest.
type Review struct {
	DB      store.DB
	Catalog catalog.Source
	// Directory knows the present rights of principals. Without one, what they were granted stands.
	Directory auth.Directory

	verdicts bounded.Map[[2]string, string] // of two contracts: the feature that the second breaks
}

// Terminated says that a subscription may not go on; a fault of [Revoked], [SchemaChanged] and the like is the reason.
type Terminated struct{ Reason error }

func (e *Terminated) Error() string { return "subscription terminated: " + e.Reason.Error() }

// part is one pattern of a subscription, as its record and its item there have it.
type part struct{ key, entry, contract string }

// Right is what a subscriber may have of the events under a pattern.
type Right struct {
	review    *Review
	workspace string
	catalog   *catalog.Catalog
	who       []auth.Principal
	each      bool // event by event
}

// Subscriber checks the item under a pattern. An error is an [*Terminated], or
// says that the check failed.
func (r *Review) Subscriber(ctx context.Context, workspace, patternKey string, s *Subscriber, latest bool) (Right, error) {
	right, err := r.right(ctx, workspace, s.Principal, s.Grant, latest)
	if err != nil {
		return right, err
	}
	_, right.each = match.CutParent(patternKey)
	return right, r.pattern(ctx, right, part{patternKey, s.Entry, s.Contract})
}

// Subscription looks at all of a record. It may go on only if each of its URIs may, as
// it was registered for all or none.
func (r *Review) Subscription(ctx context.Context, s *Subscription, latest bool) (Right, error) {
	right, err := r.right(ctx, s.Workspace, s.Principal, s.Grant, latest)
	if err != nil {
		return right, err
	}
	for _, p := range s.Patterns {
		if err := r.pattern(ctx, right, part{p.Key, p.Entry, s.Contracts[p.Entry]}); err != nil {
			return right, err
		}
	}
	right.each = true
	return right, nil
}

func (r *Review) right(ctx context.Context, workspace, principal string, g Grant, latest bool) (Right, error) {
	right := Right{review: r, workspace: workspace}
	var err error
	if latest {
		right.catalog, err = catalog.Latest(ctx, r.Catalog, workspace)
	} else {
		right.catalog, err = r.Catalog.Catalog(ctx, workspace)
	}
	if err != nil {
		return right, fault.Wrap(fault.Unavailable, err, "read the catalog")
	}
	if r.Directory == nil {
		right.who = []auth.Principal{{ID: principal, Workspace: workspace, Scopes: g.Scopes, Claims: g.Claims}}
		return right, nil
	}
	right.who, err = r.Directory.Principals(ctx, workspace, principal, latest)
	if err != nil {
		return right, fault.Wrap(fault.Unavailable, err, "look up the principal")
	}
	right.who = slices.DeleteFunc(right.who, func(p auth.Principal) bool { return !p.Has(auth.ScopeSubscribe) })
	if len(right.who) == 0 {
		return right, &Terminated{Revoked()}
	}
	return right, nil
}

// pattern looks at one pattern.
func (r *Review) pattern(ctx context.Context, right Right, p part) error {
	if uri, parent := match.CutParent(p.key); parent {
		return right.below(uri)
	}
	entry := right.catalog.ByName(p.entry)
	if p.entry == "" { // an item of the version before
		entry, _, _ = right.catalog.MatchPattern(p.key)
	}
	if entry == nil {
		return &Terminated{removed(cmp.Or(p.entry, p.key))}
	}
	feature, err := r.broken(ctx, p.contract, entry)
	switch {
	case err != nil:
		return err
	case feature != "":
		return &Terminated{SchemaChanged(entry.Name, feature)}
	case !entry.WebhookAllowed():
		return &Terminated{noWebhooks(entry.Name)}
	case entry.Access == nil:
		return nil
	}
	found, vars, ok := right.catalog.MatchPattern(p.key)
	if !ok || found != entry {
		return &Terminated{SchemaChanged(entry.Name, catalog.FeatureInput)}
	}
	if !right.permits(entry.Access, vars) {
		return &Terminated{Revoked()}
	}
	return nil
}

// below checks a parent: it goes on as long as there can be any event for it.
func (r Right) below(uri string) error {
	entries := r.catalog.Under(uri)
	if len(entries) == 0 {
		return &Terminated{removed(uri)}
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
		// Of the variables that the parent leaves open, a claim says which values there can be.
		vars := e.BindParent(uri)
		bound := catalog.Access{Scopes: e.Access.Scopes, Claims: maps.Clone(e.Access.Claims)}
		maps.DeleteFunc(bound.Claims, func(name, _ string) bool { return vars[name] == "" })
		for _, p := range r.who {
			if e.Access.VisibleTo(p) && bound.Check(p, vars) == nil {
				return nil
			}
		}
	}
	if !webhooks {
		return &Terminated{noWebhooks(uri)}
	}
	return &Terminated{Revoked()}
}

func (r Right) permits(rule *catalog.Access, vars map[string]string) bool {
	return rule == nil || slices.ContainsFunc(r.who, func(p auth.Principal) bool { return rule.Check(p, vars) == nil })
}

// ErrTypeRemoved says that the catalog no longer has an event's type, so that nothing says who may have the event.
var ErrTypeRemoved = errors.New("subscription: the event's type was removed from the catalog")

// May reports whether the subscriber may have an event that matches its pattern. Under a
// parent the rule of each event's type decides, as in band; elsewhere it has been decided
// already. It returns [ErrTypeRemoved] if there is no such rule any more.
func (r Right) May(ctx context.Context, e *event.Event) (bool, error) {
	if !r.each {
		return true, nil
	}
	entry, vars, ok := r.catalog.Match(e.URI)
	if !ok || entry.Name != e.Name { // the type may be newer than the catalog that is held
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

// broken names what an event type breaks of a contract that was kept. One that was
// not kept, or that cannot be found, is taken to hold.
func (r *Review) broken(ctx context.Context, id string, now *catalog.Entry) (feature string, err error) {
	current := now.ContractID()
	if id == "" || id == current {
		return "", nil
	}
	if feature, known := r.verdicts.Get([2]string{id, current}); known {
		return feature, nil
	}
	it, err := store.One(ctx, r.DB, contractKey(id), "read the contract of an event type")
	if err != nil {
		return "", err
	}
	if it != nil {
		before, err := catalog.ParseContract(it.Value)
		if err != nil {
			return "", err
		}
		feature = catalog.Broken(before, now)
	}
	r.verdicts.Put([2]string{id, current}, feature)
	return feature, nil
}
