package events

import (
	"context"
	"encoding/json"
	"maps"
	"slices"
	"strings"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/events/catalog"
	eventlog "github.com/mcp-events/mcpevents/shared/events/log"
	"github.com/mcp-events/mcpevents/shared/mcp/method"
	"github.com/mcp-events/mcpevents/shared/protocol/jsonrpc"
)

const (
	refResource    = "ref/resource"
	maxCompletions = 100  // values that MCP allows in one answer
	maxSeen        = 1000 // past events that are searched for values of a variable
)

type completion struct {
	Values  []string `json:"values"`
	Total   int      `json:"total"`
	HasMore bool     `json:"hasMore"`
}

// completionRequest is a client's request to suggest values for a variable of an event type's URI template.
type completionRequest struct {
	entry *catalog.Entry
	name  string
	typed string            // the beginning of the value, as the user has typed it so far
	given map[string]string // known values of other variables
}

// Completions serves completion/complete.
type Completions struct {
	Catalogs method.Catalogs
	Log      *eventlog.Log
}

// Complete serves completion/complete. It suggests values for a variable of an event type's URI template. The values are from the event
// type's schema, from the caller's token and from past events.
func (h *Completions) Complete(ctx context.Context, c *method.Call) (method.Result, error) {
	cat, err := h.Catalogs.CatalogOf(ctx, c.Principal)
	if err != nil {
		return method.Result{}, err
	}
	q, err := readCompletion(c, cat)
	if err != nil {
		return method.Result{}, err
	}
	values := schemaValues(q)
	if claim, ok := q.claim(); ok {
		values = append(values, c.Principal.Claims[claim]...)
	}
	seen, err := h.seenValues(ctx, c.Principal, cat, q)
	if err != nil {
		return method.Result{}, err
	}
	values = q.rank(c.Principal, append(values, seen...))
	out := completion{Values: values[:min(len(values), maxCompletions)], Total: len(values), HasMore: len(values) > maxCompletions}
	return method.Result{Members: [][]byte{[]byte(`"completion":`), jsonrpc.Encode(out)}}, nil
}

// readCompletion reads the params of completion/complete. For a template that the caller cannot see, it returns the same error as for an
// unknown template.
func readCompletion(c *method.Call, cat *catalog.Catalog) (q completionRequest, err error) {
	ref, argument := c.Param("ref"), c.Param("argument")
	kind, _ := jsonrpc.String(jsonrpc.Member(ref, "type"))
	uri, _ := jsonrpc.String(jsonrpc.Member(ref, "uri"))
	if kind != refResource || uri == "" {
		return q, method.InvalidParams("ref must be of type %s and have the uri of a template; there are no prompts", refResource)
	}
	for _, entry := range cat.Entries() {
		if entry.URITemplate == uri && entry.Backend == "" && entry.Access.VisibleTo(c.Principal) {
			q.entry = entry
		}
	}
	if q.entry == nil {
		return q, method.InvalidParams("no event type has the template %s", method.Clip(uri))
	}
	var isName, isValue bool
	q.name, isName = jsonrpc.String(jsonrpc.Member(argument, "name"))
	q.typed, isValue = jsonrpc.String(jsonrpc.Member(argument, "value"))
	if !isName || !isValue {
		return q, method.InvalidParams("argument must have the strings name and value")
	}
	if !slices.Contains(q.entry.Variables(), q.name) {
		return q, method.InvalidParams("the template has no variable %s", method.Clip(q.name))
	}
	if given := jsonrpc.Member(c.Param("context"), "arguments"); given != nil && json.Unmarshal(given, &q.given) != nil {
		return q, method.InvalidParams("context.arguments must be an object of strings")
	}
	return q, nil
}

func schemaValues(q completionRequest) (values []string) {
	var schema struct {
		Properties map[string]struct {
			Enum  []any `json:"enum"`
			Const any   `json:"const"`
		} `json:"properties"`
	}
	if q.entry.ParamsSchema == nil || json.Unmarshal(q.entry.ParamsSchema, &schema) != nil {
		return nil
	}
	p := schema.Properties[q.name]
	for _, v := range append(p.Enum, p.Const) {
		switch v := v.(type) {
		case string:
			values = append(values, v)
		case float64, bool:
			values = append(values, string(jsonrpc.Encode(v)))
		}
	}
	return values
}

// seenValues returns the variable's values in past events that the caller may receive. It searches the URIs below the part of the
// template that is known. For example, for event://repos/{owner}/{name} and the owner acme, it searches below event://repos/acme.
func (h *Completions) seenValues(ctx context.Context, p auth.Principal, cat *catalog.Catalog, q completionRequest) (values []string, err error) {
	known := maps.Clone(q.given)
	delete(known, q.name)
	parent, _, _ := strings.Cut(q.entry.Expand(known), "/"+catalog.Wildcard)
	parent, err = catalog.Canonical(parent)
	if err != nil {
		return nil, nil // no event can have such a URI
	}
	uris, err := h.Log.ListBelow(ctx, p.Workspace, parent, maxSeen)
	if err != nil {
		return nil, err
	}
	for _, uri := range uris {
		entry, vars, ok := cat.Match(uri)
		if !ok || entry != q.entry || entry.Access.Check(p, vars) != nil {
			continue
		}
		fits := true
		for name, value := range q.given {
			fits = fits && (name == q.name || vars[name] == value || value == "")
		}
		if fits {
			values = append(values, vars[q.name])
		}
	}
	slices.Sort(values)
	return values, nil
}

// rank returns the values that contain the typed text, and puts the values that begin with the text first. If the event type's access
// rule names a claim for the variable, rank keeps only values that the claim in the caller's token contains.
func (q completionRequest) rank(p auth.Principal, values []string) []string {
	typed := strings.ToLower(q.typed)
	begin, within := []string{}, []string(nil)
	met := map[string]bool{}
	for _, v := range values {
		if claim, ok := q.claim(); v == "" || met[v] || ok && !slices.Contains(p.Claims[claim], v) {
			continue
		}
		met[v] = true
		switch text := strings.ToLower(v); {
		case strings.HasPrefix(text, typed):
			begin = append(begin, v)
		case strings.Contains(text, typed):
			within = append(within, v)
		}
	}
	return append(begin, within...)
}

// claim returns the name of the claim with which the event type's access rule restricts the variable. The caller receives an event only
// if this claim in the caller's token contains the variable's value. claim returns false if the rule does not restrict the variable.
func (q completionRequest) claim() (name string, ok bool) {
	if q.entry.Access == nil {
		return "", false
	}
	name, ok = q.entry.Access.Claims[q.name]
	return name, ok
}
