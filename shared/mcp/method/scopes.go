package method

import (
	"encoding/json"
	"slices"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/events/catalog"
	"github.com/mcp-events/mcpevents/shared/events/match"
	"github.com/mcp-events/mcpevents/shared/events/subscription"
	"github.com/mcp-events/mcpevents/shared/protocol/jsonrpc"
)

// allMissing returns an error that names all missing scopes of an operation: the method's scope and the scopes of every event type in
// the params. Thus a client has to ask its user only once (MCP 2026-07-28, Scope Challenge Handling).
func (r *Replies) allMissing(c *Call, m Row, err error) error {
	needed := r.entryScopes(c, m)
	if m.Scope != "" {
		needed = append(needed, m.Scope)
	}
	if all := c.Principal.Require(needed...); all != nil {
		return all
	}
	return err
}

// entryScopes returns the scopes of the event types that the params name or whose URIs they contain. It ignores malformed and unknown
// names, which cause another error once the caller has the scopes.
func (r *Replies) entryScopes(c *Call, m Row) []string {
	cat, err := r.catalogs.Of(c.Request.Context(), c.Principal)
	if err != nil {
		return nil
	}
	var scopes []string
	if name, ok := jsonrpc.String(c.Param("name")); ok && m.Family == EventsMethods {
		if entry := cat.ByName(name); entry != nil && entry.Access != nil {
			scopes = append(scopes, entry.Access.Scopes...)
		}
	}
	uris := texts(c.Param("uris"))
	all := len(uris) > 0 // a webhook for a parent needs the scopes of all event types below it
	if uri, ok := jsonrpc.String(c.Param("uri")); ok {
		uris = append(uris, uri)
	}
	if filter := c.Param("notifications"); len(filter) > 0 && filter[0] == '{' {
		uris = append(uris, texts(jsonrpc.Member(filter, "resourceSubscriptions"))...)
	}
	for _, uri := range uris[:min(len(uris), subscription.MaxURIs)] {
		scopes = append(scopes, scopesOf(cat, uri, c.Principal, all)...)
	}
	return scopes
}

// scopesOf returns the scopes that a URI needs. On streams and polls, a caller that may receive one of the event types below a parent needs
// no further scopes.
func scopesOf(cat *catalog.Catalog, uri string, p auth.Principal, all bool) (scopes []string) {
	_, access, err := match.Resolve(cat, uri)
	if err != nil {
		return nil
	}
	for _, a := range access {
		rule := a.Entry.Access
		if rule == nil || p.Has(rule.Scopes...) {
			if !all {
				return nil
			}
			continue
		}
		scopes = append(scopes, rule.Scopes...)
	}
	slices.Sort(scopes)
	return slices.Compact(scopes)
}

// texts returns the strings of an array, or nil for any other value.
func texts(raw json.RawMessage) (out []string) {
	if len(raw) == 0 || raw[0] != '[' || json.Unmarshal(raw, &out) != nil {
		return nil
	}
	return out
}
