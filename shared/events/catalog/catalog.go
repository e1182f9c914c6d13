// Package catalog holds which events there are: the operator's list of event
// types, each with its URI or URI template, its schemas, how it may be delivered
// and who may have it.
//
// [Parse] reads the file strictly, [Catalog.Match] finds the entry of an event's
// URI, [Apply] and [Stored] keep the catalog in the store. No HTTP, no cloud and no
// subscription enters here. Go on in shared/events/publish, which checks events
// against it, and shared/events/subscription, which resolves what a client asks for.
package catalog

import (
	"cmp"
	"encoding/json"
	"slices"
)

// Limits of a catalog.
const (
	// MaxSource is the largest catalog file in bytes.
	MaxSource = 4 << 20
	// MaxEntries is the largest number of event types.
	MaxEntries = 2000
	// MaxVariables is the largest number of variables of a template. A URI has at
	// most 2^6 wildcard patterns then, which bounds what an event is looked up under.
	MaxVariables = 6
	// MaxFilters is the largest number of filters of an entry.
	MaxFilters = 20
	// MaxSchema is the largest schema in bytes of JSON.
	MaxSchema = 128 << 10
)

// The delivery modes, as SEP-3415 names them.
const (
	DeliverPush    = "push"    // on an open stream
	DeliverPoll    = "poll"    // with a cursor, on request
	DeliverWebhook = "webhook" // as POST to a registered endpoint
)

// What an event type keeps of the order of its events.
const (
	OrderURI  = "uri"  // those of one URI come as they were published
	OrderNone = "none" // as they come, so that one URI can have more of them a second
)

// Catalog is an immutable set of event types. It may be used concurrently.
type Catalog struct {
	entries     []*Entry
	byName      map[string]*Entry
	root        *node
	source      []byte
	fingerprint string
}

// Entry is one event type.
type Entry struct {
	// Name is the dotted name, unique in the catalog.
	Name string
	// URI is set for an event type with a fixed URI, URITemplate for one with
	// variables; the other is empty. Both are canonical.
	URI         string
	URITemplate string
	// Title and Description are for people; both may be empty.
	Title       string
	Description string
	// PayloadSchema and ParamsSchema are JSON Schemas, nil when there are none.
	PayloadSchema json.RawMessage
	ParamsSchema  json.RawMessage
	// WebhookType is the "type" member of a SEP-1803 webhook's body.
	WebhookType string
	// Delivery lists the allowed modes: a subset of push, poll and webhook, not empty.
	Delivery []string
	// Filters maps an argument's name to the JSON pointer of the payload's member
	// that it is compared with.
	Filters map[string]string
	// Redact lists the JSON pointers of the payload's members that a subscription
	// with the argument "redact": true does not get.
	Redact []string
	// Order is what the log keeps of the order of events: [OrderURI] or [OrderNone].
	Order string
	// Access says who may have the events; nil is everyone with the general scope.
	Access *Access

	line     int
	segments []segment
	vars     []string
	payload  schema
	params   schema
	types    map[string]string // of the variables whose schema wants no string
	input    json.RawMessage

	arguments schema // input

	contractID func() string
}

// segment is what stands between two slashes of a URI: a literal in its
// percent-encoded form, or a variable.
type segment struct{ literal, variable string }

// Entries lists the event types in the order of the file. The slice and what it
// points to must not be changed. A nil catalog has none.
func (c *Catalog) Entries() []*Entry {
	if c == nil {
		return nil
	}
	return c.entries
}

// ByName finds an event type by its name; nil when there is none.
func (c *Catalog) ByName(name string) *Entry {
	if c == nil {
		return nil
	}
	return c.byName[name]
}

// Fingerprint identifies the content: equal sources have equal fingerprints (43
// characters, base64url SHA-256).
func (c *Catalog) Fingerprint() string { return c.fingerprint }

// Source returns the text that the catalog was parsed from, which must not be changed. It is empty for a nil catalog.
func (c *Catalog) Source() []byte {
	if c == nil {
		return nil
	}
	return c.source
}

// Variables lists the template's variables in their order; none for a fixed URI.
func (e *Entry) Variables() []string { return e.vars }

// Fixed reports whether the event type has one URI without variables.
func (e *Entry) Fixed() bool { return e.URITemplate == "" }

// Pattern is the URI, or the template.
func (e *Entry) Pattern() string { return cmp.Or(e.URI, e.URITemplate) }

// Unordered reports whether the events of one URI may overtake each other.
func (e *Entry) Unordered() bool { return e.Order == OrderNone }

// PushAllowed reports whether the events may be sent on open streams.
func (e *Entry) PushAllowed() bool { return slices.Contains(e.Delivery, DeliverPush) }

// PollAllowed reports whether the events may be polled.
func (e *Entry) PollAllowed() bool { return slices.Contains(e.Delivery, DeliverPoll) }

// WebhookAllowed reports whether the events may be sent to webhooks.
func (e *Entry) WebhookAllowed() bool { return slices.Contains(e.Delivery, DeliverWebhook) }

// InputSchema is the JSON Schema of the arguments that a subscription by name
// takes (events/list, SEP-3415): the template's variables and the filters, each of
// which is a value or a list of values.
func (e *Entry) InputSchema() json.RawMessage { return e.input }
