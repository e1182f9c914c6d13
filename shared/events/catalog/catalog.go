// Package catalog defines event types: the operator's list of them and the event types of backends, each with its URI or URI template, its
// schemas, its delivery modes and its access rule.
//
// [Parse] reads the operator's file strictly, [Catalog.Match] finds the event type of a URI, and [Stored] serves the stored catalog. The
// package does not depend on HTTP, a cloud or subscriptions. Read shared/events/publish next, which checks events against the catalog, and
// shared/events/match, which finds the event types that a client's URI or arguments select.
package catalog

import (
	"cmp"
	"crypto/subtle"
	"encoding/json"
	"maps"
	"slices"
	"strings"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/platform/bounded"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
)

const (
	maxSource  = 4 << 20 // bytes of a catalog file
	maxEntries = 2000
	// maxVariables limits the variables of a URI template. A subscription may replace each variable with a wildcard, so the server looks
	// up an event under each combination of values and wildcards. For example, there are 2^6 combinations for 6 variables.
	maxVariables = 6
	maxFilters   = 20        // filters of one event type
	maxSchema    = 128 << 10 // bytes of JSON of one schema
)

// The delivery modes, as SEP-3415 names them.
const (
	deliverPush    = "push"    // on an open stream
	deliverPoll    = "poll"    // in responses to polls
	deliverWebhook = "webhook" // with a POST to an endpoint
)

// The order in which events are delivered.
const (
	orderURI  = "uri"  // events of a URI arrive in the order in which they were published
	orderNone = "none" // events of a URI may overtake each other, which allows more of them per second
)

// Catalog is an immutable set of event types. It may be used concurrently.
type Catalog struct {
	entries     []*Entry
	byName      map[string]*Entry
	root        *node
	source      []byte
	fingerprint string
	warnings    map[string][]string // see [Catalog.Warnings]
	backends    map[string]BackendTypes

	hasPerCaller bool
	perCaller    bounded.Map[string, *Entry] // cache of [Catalog.perCallerType]
}

// Entry is one event type in a catalog.
type Entry struct {
	// Name is the dotted name, unique in the catalog.
	Name string
	// URI is set for an event type without variables, and URITemplate for one with variables.
	URI         string
	URITemplate string
	// Title and Description are for people; both may be empty.
	Title       string
	Description string
	// PayloadSchema is the JSON Schema of payloads, and ParamsSchema is the JSON Schema of the template's variables and the filters. Both
	// may be nil.
	PayloadSchema json.RawMessage
	ParamsSchema  json.RawMessage
	// WebhookType is the member "type" in the body of SEP-1803 webhooks.
	WebhookType string
	// Delivery lists the allowed modes: a subset of push, poll and webhook, not empty.
	Delivery []string
	// Filters maps an argument's name to a JSON pointer, for example "state" to "/order/state". A subscriber that gives the argument
	// receives only events whose payload has the argument's value at the pointer.
	Filters map[string]string
	// Redact lists JSON pointers of sensitive payload members. A subscriber with the argument "redact": true receives the events without
	// these members.
	Redact []string
	Order  string // orderURI or orderNone
	// Access restricts who may receive the events, in addition to the scope that a principal needs for the MCP method. Nil adds no
	// restriction.
	Access *Access
	// Backend is the backend that offers this event type, and Own the type's name there. Both are empty for the operator's own types.
	Backend, Own string

	line     int
	segments []segment
	vars     []string
	payload  schema
	params   schema
	types    map[string]string // JSON types of the variables that are not strings, e.g. "integer"
	input    json.RawMessage

	arguments schema // the schema input, compiled
	cost      int    // see [schemaCost]; 0 for the operator's event types, whose schemas are trusted

	contractID func() string
}

// segment is the part of a URI between two slashes: a literal in its percent-encoded form, or a variable.
type segment struct{ literal, variable string }

// Entries returns the event types in the order of the file. They are immutable. A nil catalog has no event types.
func (c *Catalog) Entries() []*Entry {
	if c == nil {
		return nil
	}
	return c.entries
}

// HasTemplate reports whether an event type has the given URI template.
func (c *Catalog) HasTemplate(template string) bool {
	return slices.ContainsFunc(c.Entries(), func(e *Entry) bool { return e.URITemplate == template })
}

// ByName returns the event type with the name, or nil. If the name has the prefix of a backend that acts for its callers, ByName returns
// an event type even if the backend has no such type, because the catalog does not know the backend's types.
func (c *Catalog) ByName(name string) *Entry {
	if c == nil {
		return nil
	}
	if e := c.byName[name]; e != nil {
		return e
	}
	return c.findPerCaller(name)
}

// Fingerprint returns a hash of the catalog's text and of its backends' event types: a SHA-256 in base64url.
func (c *Catalog) Fingerprint() string { return c.fingerprint }

// Text returns the text of the catalog, or an empty text for a nil catalog. Callers must not change it.
func (c *Catalog) Text() []byte {
	if c == nil {
		return nil
	}
	return c.source
}

// Variables returns the names of the variables in the event type's URI template, in their order. A fixed URI has no variables.
func (e *Entry) Variables() []string { return e.vars }

// Fixed reports whether the event type has one URI without variables.
func (e *Entry) Fixed() bool { return e.URITemplate == "" }

// Pattern returns the event type's URI or, if it has variables, its URI template.
func (e *Entry) Pattern() string { return cmp.Or(e.URI, e.URITemplate) }

// Unordered reports whether the events of one URI may overtake each other.
func (e *Entry) Unordered() bool { return e.Order == orderNone }

// PushAllowed reports whether the events may be sent on open streams.
func (e *Entry) PushAllowed() bool { return slices.Contains(e.Delivery, deliverPush) }

// PollAllowed reports whether the events may be polled.
func (e *Entry) PollAllowed() bool { return slices.Contains(e.Delivery, deliverPoll) }

// WebhookAllowed reports whether the events may be sent to webhooks.
func (e *Entry) WebhookAllowed() bool { return slices.Contains(e.Delivery, deliverWebhook) }

// InputSchema returns the JSON Schema for the arguments of a subscription by name (events/list, SEP-3415): the template's variables and
// the filters. A filter accepts a value, a list of values or, for numbers and times, a range.
func (e *Entry) InputSchema() json.RawMessage { return e.input }

// Access restricts who may receive the events of an event type, in addition to the scope that a principal needs for the MCP method. A nil
// Access adds no restriction.
type Access struct {
	// Scopes lists the scopes that a principal needs. It needs all of them.
	Scopes []string
	// Claims maps a template variable to a claim of the access token. The variable's value must be one of the claim's values.
	Claims map[string]string
	// perCaller is set if the URI names the only principal that may receive the events, see [CallerOf].
	perCaller bool
}

// Check returns nil if the principal may receive the events with these values of the template's variables. Check refuses the principal if
// a variable of Claims has no value, because a subscription with a wildcard or to a parent URI would also receive the events of other
// values. With --auth none, callers have no claims, so they are refused if Claims has any variable.
//
// The error is of kind [fault.Forbidden]. If scopes are missing, its data is [auth.MissingScopes].
func (a *Access) Check(p auth.Principal, vars map[string]string) error {
	if a == nil {
		return nil
	}
	if err := p.Require(a.Scopes...); err != nil {
		return err
	}
	if _, caller, _ := strings.Cut(vars[argumentsVariable], "."); a.perCaller && (p.Anonymous || caller != CallerID(p.ID)) {
		return fault.New(fault.Forbidden, "the events are for another principal")
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

// VisibleTo reports whether lists of event types show this event type to the principal, because the principal may receive at least some
// of its events.
func (a *Access) VisibleTo(p auth.Principal) bool {
	if a == nil {
		return true
	}
	if !p.Has(a.Scopes...) || a.perCaller && p.Anonymous {
		return false
	}
	for _, claim := range a.Claims {
		if !hasText(p.Claims[claim]) {
			return false
		}
	}
	return true
}

func hasText(values []string) bool {
	return slices.ContainsFunc(values, func(v string) bool { return v != "" })
}
