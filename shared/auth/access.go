package auth

import (
	"crypto/subtle"
	"maps"
	"slices"

	"github.com/mcp-events/mcpevents/shared/events/catalog"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
)

// CheckAccess holds a principal to the rule of a catalog entry: all its scopes, and
// for every claim rule the template variable equal to the principal's claim, or to
// one of its values if it has several. A
// variable that is omitted (a pattern, a parent) would cover values that the principal
// must not have, so it is refused, as is a claim that the principal lacks. The
// anonymous principal of --auth none has no claims and passes no claim rule.
// The error is of kind fault.Forbidden; missing scopes are its [MissingScopes].
func CheckAccess(rule *catalog.Access, vars map[string]string, p Principal) error {
	if rule == nil {
		return nil
	}
	if err := p.Require(rule.Scopes...); err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(rule.Claims)) {
		values := p.Claims[rule.Claims[name]]
		value, given := vars[name]
		switch {
		case !anyText(values):
			return fault.New(fault.Forbidden, "this needs a token with the claim %q", rule.Claims[name])
		case !given || value == "":
			return fault.New(fault.Forbidden, "the variable %q must be given here", name)
		case !slices.ContainsFunc(values, func(v string) bool { return subtle.ConstantTimeCompare([]byte(value), []byte(v)) == 1 }):
			return fault.New(fault.Forbidden, "the variable %q must be equal to the claim %q of the token", name, rule.Claims[name])
		}
	}
	return nil
}

// Visible reports whether an entry belongs into the principal's lists: whether
// there is any event of it that the principal may have.
func Visible(rule *catalog.Access, p Principal) bool {
	if rule == nil {
		return true
	}
	if !p.Has(rule.Scopes...) {
		return false
	}
	for _, claim := range rule.Claims {
		if !anyText(p.Claims[claim]) {
			return false
		}
	}
	return true
}

// anyText reports whether a claim says anything.
func anyText(values []string) bool {
	return slices.ContainsFunc(values, func(v string) bool { return v != "" })
}
