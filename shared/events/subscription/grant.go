package subscription

import (
	"maps"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/events/catalog"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
)

// Grant is the rights of a principal when it last made or refreshed a subscription: all its scopes, and the claims that the access rules
// of the catalog named at that time. If a rule names another claim later, the grant does not satisfy it, and the client must subscribe
// again.
type Grant struct {
	Scopes []string            `json:"s,omitempty"`
	Claims map[string][]string `json:"c,omitempty"`
}

func grantOf(cat *catalog.Catalog, p auth.Principal) Grant {
	g := Grant{Scopes: p.Scopes}
	for _, e := range cat.Entries() {
		if e.Access == nil {
			continue
		}
		for claim := range maps.Values(e.Access.Claims) {
			if values, ok := p.Claims[claim]; ok {
				if g.Claims == nil {
					g.Claims = map[string][]string{}
				}
				g.Claims[claim] = values
			}
		}
	}
	return g
}

// IsZero lets encoding/json leave an empty grant out.
func (g Grant) IsZero() bool { return len(g.Scopes) == 0 && len(g.Claims) == 0 }

// The functions Revoked, SchemaChanged, TypeRemoved and NoWebhooks return the reasons for terminating a subscription (SEP-3415, sections
// "Subscription Termination" and "Event type removal and breaking changes").

// Terminated is the error for a subscription that must end. Its reason is an error of [Revoked], [SchemaChanged], [TypeRemoved] or
// [NoWebhooks].
type Terminated struct{ Reason error }

func (e *Terminated) Error() string { return "subscription terminated: " + e.Reason.Error() }

// Revoked returns the reason for a principal that may no longer receive the events.
func Revoked() error {
	return fault.New(fault.Forbidden, "access was revoked").With(map[string]any{"reason": "Access revoked"})
}

// SchemaChanged returns the reason for an event type that has changed incompatibly. feature is the result of [catalog.Broken].
func SchemaChanged(name, feature string) error {
	return fault.New(fault.Unsupported, "%s changed incompatibly", name).
		With(map[string]any{"feature": feature, "reason": "schema_changed"})
}

// TypeRemoved returns the reason for an event type that was removed from the catalog.
func TypeRemoved(what string) error {
	return fault.New(fault.NotFound, "the event type %.128s was removed", what).With(map[string]any{"kind": "event"})
}

// NoWebhooks returns the error for an event type that is not delivered by webhook. It refuses new subscriptions and terminates existing
// ones.
func NoWebhooks(name string) error {
	return fault.New(fault.Unsupported, "%s is not delivered by webhook", name).
		With(map[string]any{"feature": "deliveryMode", "value": "webhook"})
}
