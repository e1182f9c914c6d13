package catalog

import (
	"crypto/subtle"
	"maps"
	"slices"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
)

// Access restricts who may receive the events of an entry, in addition to the general scopes. A nil Access admits everyone.
type Access struct {
	// Scopes lists the scopes that a principal needs, all of them.
	Scopes []string
	// Claims maps template variables to the claims of the access token whose value they must have.
	Claims map[string]string
}

// Check returns nil if the principal may receive the events with these template variables. The principal needs all scopes and,
// for every claim rule, a variable that equals its claim or one of the claim's values. Check refuses a missing variable, because a
// pattern or a parent without it would also match values that the principal must not see. With --auth none callers have no claims,
// so every claim rule refuses them.
//
// The error is of kind [fault.Forbidden]. If scopes are missing, its data is [auth.MissingScopes].
func (a *Access) Check(p auth.Principal, vars map[string]string) error {
	if a == nil {
		return nil
	}
	if err := p.Require(a.Scopes...); err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(a.Claims)) {
		values := p.Claims[a.Claims[name]]
		value, given := vars[name]
		switch {
		case !hasText(values):
			return fault.New(fault.Forbidden, "this needs a token with the claim %q", a.Claims[name])
		case !given || value == "":
			return fault.New(fault.Forbidden, "the variable %q must be given here", name)
		case !slices.ContainsFunc(values, func(v string) bool { return subtle.ConstantTimeCompare([]byte(value), []byte(v)) == 1 }):
			return fault.New(fault.Forbidden, "the variable %q must be equal to the claim %q of the token", name, a.Claims[name])
		}
	}
	return nil
}

// VisibleTo reports whether the entry belongs in the principal's lists, because the principal may receive at least some of its events.
func (a *Access) VisibleTo(p auth.Principal) bool {
	if a == nil {
		return true
	}
	if !p.Has(a.Scopes...) {
		return false
	}
	for _, claim := range a.Claims {
		if !hasText(p.Claims[claim]) {
			return false
		}
	}
	return true
}

// hasText reports whether a claim has a value that is not empty.
func hasText(values []string) bool {
	return slices.ContainsFunc(values, func(v string) bool { return v != "" })
}
