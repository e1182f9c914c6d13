package subscription

import (
	"maps"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/events/catalog"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
)

// Grant is what a principal held when it last made or refreshed a subscription, as
// far as access rules can ask for it: all its scopes, and those of its claims that a rule
// of the catalog named then. So a rule that names another claim later is not met by
// it, and the subscription has to be made again.
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

// The reasons for which a subscription ends that was granted before (SEP-3415,
// Subscription Termination; Event type removal and breaking changes).

// Revoked is the end of a subscription whose principal may not have the events any more.
func Revoked() error {
	return fault.New(fault.Forbidden, "access was revoked").With(map[string]any{"reason": "Access revoked"})
}

// SchemaChanged is the end of a subscription whose event type changed; feature is
// what [catalog.Broken] says.
func SchemaChanged(name, feature string) error {
	return fault.New(fault.Unsupported, "%s changed incompatibly", name).
		With(map[string]any{"feature": feature, "reason": "schema_changed"})
}

// removed is the end of a subscription whose event type is not there any more.
func removed(what string) error {
	return fault.New(fault.NotFound, "the event type %.128s was removed", what).With(map[string]any{"kind": "event"})
}

// noWebhooks is the fault of asking for webhooks where there are none, and the end of
// those that there were.
func noWebhooks(name string) error {
	return fault.New(fault.Unsupported, "%s is not delivered by webhook", name).
		With(map[string]any{"feature": "deliveryMode", "value": "webhook"})
}
