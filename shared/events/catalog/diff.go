package catalog

import (
	"cmp"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"

	eventlog "github.com/mcp-events/mcpevents/shared/events/log"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/storage/store"
)

// Change is a difference between two catalogs.
type Change struct {
	Event string // the event type's name
	What  string // for example "the filter s is added"
	// Breaking is true if the change may affect publishers or subscribers that rely on the old catalog.
	Breaking bool
}

// Diff returns the differences between two catalogs, either of which may be nil. They are in the order of the event types in the new
// catalog, followed by the removed event types in the order of the old catalog.
func Diff(before, after *Catalog) []Change {
	var d differ
	for _, e := range after.Entries() {
		d.name = e.Name
		if old := before.ByName(e.Name); old != nil {
			d.compareEntries(old, e)
		} else {
			d.add(false, "is new")
		}
	}
	for _, e := range before.Entries() {
		if after.ByName(e.Name) == nil {
			d.name = e.Name
			d.add(true, "is removed")
		}
	}
	return d.changes
}

// CheckChange returns the changes from one catalog to the next, either of which may be nil.
//
// It returns an error of kind fault.Invalid if the order of an event type changes back from [orderNone] to [orderURI] while the log
// distributes unordered events over several partitions. Readers of ordered events do not read all these partitions, so they would miss
// events.
func CheckChange(db store.DB, before, next *Catalog) ([]Change, error) {
	if before != nil && (&eventlog.Log{DB: db}).Spreads() {
		for _, e := range next.Entries() {
			if old := before.findByURI(e); old != nil && old.Unordered() && !e.Unordered() {
				return nil, fault.New(fault.Invalid, "event %s: order cannot go back to %s while the log has its events (allowed: another URI, or remove the event type, "+
					"wait for the retention, and add it again)", e.Name, orderURI)
			}
		}
	}
	return Diff(before, next), nil
}

// findByURI returns the event type with the URI or template of e, even if its name differs, because the log stores events by URI.
func (c *Catalog) findByURI(e *Entry) *Entry {
	if old := c.ByName(e.Name); old != nil && old.Pattern() == e.Pattern() {
		return old
	}
	if at := slices.IndexFunc(c.entries, func(old *Entry) bool { return old.Pattern() == e.Pattern() }); at >= 0 {
		return c.entries[at]
	}
	return nil
}

type differ struct {
	name    string
	changes []Change
}

func (d *differ) add(breaking bool, format string, args ...any) {
	d.changes = append(d.changes, Change{Event: d.name, What: fmt.Sprintf(format, args...), Breaking: breaking})
}

func (d *differ) compareEntries(a, b *Entry) {
	if a.Pattern() != b.Pattern() {
		d.add(true, "its URI changes from %s to %s", a.Pattern(), b.Pattern())
	}
	if a.Title != b.Title || a.Description != b.Description {
		d.add(false, "its title or description changes")
	}
	if a.WebhookType != b.WebhookType {
		d.add(true, "its webhook type changes from %s to %s", a.WebhookType, b.WebhookType)
	}
	d.compareLists(a.Delivery, b.Delivery, "the delivery mode %s is added", false, "the delivery mode %s is removed", true)
	if a.Order != b.Order {
		d.add(true, "its order changes from %s to %s", a.Order, b.Order)
	}
	d.compareFilters(a.Filters, b.Filters)
	d.compareRedacted(a.Redact, b.Redact, true)
	d.compareAccess(a.Access, b.Access)
	d.compareSchemas("payload", a.PayloadSchema, b.PayloadSchema)
	d.compareSchemas("params", a.ParamsSchema, b.ParamsSchema)
}

// compareLists adds a change for each value that only one of the lists a and b has. The parameter added is the format of the change's
// text for a new value, for example "the delivery mode %s is added", and removed is the format for a removed value.
func (d *differ) compareLists(a, b []string, added string, addedBreaks bool, removed string, removedBreaks bool) {
	for _, x := range b {
		if !slices.Contains(a, x) {
			d.add(addedBreaks, added, x)
		}
	}
	for _, x := range a {
		if !slices.Contains(b, x) {
			d.add(removedBreaks, removed, x)
		}
	}
}

func (d *differ) compareRedacted(a, b []string, addedBreaks bool) {
	d.compareLists(a, b, "the redacted member %s is added", addedBreaks, "the redacted member %s is removed", true)
}

func (d *differ) compareFilters(a, b map[string]string) {
	for _, name := range slices.Sorted(maps.Keys(b)) {
		if old, ok := a[name]; !ok {
			d.add(false, "the filter %s is added", name)
		} else if old != b[name] {
			d.add(true, "the filter %s changes from %s to %s", name, old, b[name])
		}
	}
	for _, name := range slices.Sorted(maps.Keys(a)) {
		if _, ok := b[name]; !ok {
			d.add(true, "the filter %s is removed", name)
		}
	}
}

func (d *differ) compareAccess(a, b *Access) {
	a, b = cmp.Or(a, &Access{}), cmp.Or(b, &Access{})
	d.compareLists(a.Scopes, b.Scopes, "access needs the scope %s", true, "access does not need the scope %s any more", false)
	for _, v := range slices.Sorted(maps.Keys(b.Claims)) {
		if a.Claims[v] != b.Claims[v] {
			d.add(true, "access ties {%s} to the claim %s", v, b.Claims[v])
		}
	}
	for _, v := range slices.Sorted(maps.Keys(a.Claims)) {
		if _, ok := b.Claims[v]; !ok {
			d.add(false, "access does not tie {%s} to the claim %s any more", v, a.Claims[v])
		}
	}
}

// compareSchemas adds a change if two schemas differ. The parameter what names them in the change's text, for example "payload". Only new
// optional properties and annotations are safe for both publishers and subscribers. Any other change may break some of them.
func (d *differ) compareSchemas(what string, a, b json.RawMessage) {
	var x, y any
	_, _ = json.Unmarshal(a, &x), json.Unmarshal(b, &y) // cannot fail: each schema was compiled before, or is missing
	if reflect.DeepEqual(x, y) {
		return
	}
	if x == nil {
		d.add(true, "a %s schema is added", what)
		return
	}
	if y == nil {
		d.add(true, "the %s schema is removed", what)
		return
	}
	if at := findIncompatible(x, y, ""); at != "" {
		d.add(true, "the %s schema changes at %s", what, strings.TrimSuffix(at, "/"))
		return
	}
	d.add(false, "the %s schema gains optional properties or annotations", what)
}

var annotations = []string{"title", "description", "examples", "default", "deprecated", "$comment", "readOnly", "writeOnly"}

// findIncompatible describes the first difference between a schema a and its successor b, or returns "" if they differ only in new
// optional properties and annotations. If a and b are parts of larger schemas, the parameter at is the JSON pointer to them.
func findIncompatible(a, b any, at string) string {
	x, ok1 := a.(map[string]any)
	y, ok2 := b.(map[string]any)
	if !ok1 || !ok2 {
		if reflect.DeepEqual(a, b) {
			return ""
		}
		return describeDifference(a, b, at)
	}
	keys := maps.Clone(x)
	maps.Copy(keys, y)
	for _, k := range slices.Sorted(maps.Keys(keys)) {
		if slices.Contains(annotations, k) {
			continue
		}
		here := at + pointerOf([]string{k})
		old, inOld := x[k]
		next, inNew := y[k]
		switch {
		case k == "$defs" || k == "definitions" || k == "properties":
			if p := findIncompatibleMember(old, next, here); p != "" {
				return p
			}
		case k == "allOf" || k == "anyOf" || k == "oneOf" || k == "prefixItems":
			if p := findIncompatibleItem(old, next, here); p != "" {
				return p
			}
		case k == "const" || k == "dependentSchemas" || k == "patternProperties":
			if !reflect.DeepEqual(old, next) {
				return here + "/"
			}
		case !inOld || !inNew:
			return describeDifference(old, next, here)
		default:
			if p := findIncompatible(old, next, here); p != "" {
				return p
			}
		}
	}
	return ""
}

// describeDifference describes how the old value a and the new value b at a JSON pointer differ. It returns the pointer and, for lists
// such as required, the values that only one of the lists has.
func describeDifference(a, b any, at string) string {
	x, _ := a.([]any)
	y, _ := b.([]any)
	in := func(list []any, v any) bool {
		return slices.ContainsFunc(list, func(w any) bool { return reflect.DeepEqual(v, w) })
	}
	var odd []string
	for _, v := range slices.Concat(x, y) {
		if in(x, v) != in(y, v) {
			odd = append(odd, fmt.Sprint(v))
		}
	}
	if len(odd) == 0 {
		return at + "/"
	}
	return fmt.Sprintf("%s (%s)", at, strings.Join(odd, ", "))
}

// findIncompatibleItem does the same as findIncompatible for lists of schemas, such as anyOf.
func findIncompatibleItem(a, b any, at string) string {
	x, _ := a.([]any)
	y, _ := b.([]any)
	if len(x) != len(y) {
		return at + "/"
	}
	for i := range x {
		if p := findIncompatible(x[i], y[i], at+"/"+strconv.Itoa(i)); p != "" {
			return p
		}
	}
	return ""
}

// findIncompatibleMember is like findIncompatible, for objects that map names to schemas, such as properties. New names are compatible.
func findIncompatibleMember(a, b any, at string) string {
	x, _ := a.(map[string]any)
	y, _ := b.(map[string]any)
	for _, k := range slices.Sorted(maps.Keys(x)) {
		here := at + pointerOf([]string{k})
		next, ok := y[k]
		if !ok {
			return here + "/"
		}
		if p := findIncompatible(x[k], next, here); p != "" {
			return p
		}
	}
	return ""
}

// The parts of an event type that subscribers rely on. SEP-3415 uses these names in the error that ends a subscription.
const (
	FeatureInput   = "inputSchema"
	featurePayload = "payloadSchema"
)

// FindBreakingFeature returns the part of an event type that changed incompatibly for existing subscriptions, by the rules of [Diff], or
// "" if there is no such part. It ignores delivery modes and access, which callers check separately.
func FindBreakingFeature(before, after *Entry) (feature string) {
	var input, payload differ
	if before.Pattern() != after.Pattern() {
		return FeatureInput
	}
	input.compareFilters(before.Filters, after.Filters)
	input.compareSchemas("params", before.ParamsSchema, after.ParamsSchema)
	payload.compareSchemas("payload", before.PayloadSchema, after.PayloadSchema)
	payload.compareRedacted(before.Redact, after.Redact, len(before.Redact) > 0)
	switch {
	case input.isBreaking(), len(before.Redact) > 0 && len(after.Redact) == 0: // the argument "redact" no longer exists
		return FeatureInput
	case payload.isBreaking():
		return featurePayload
	}
	return ""
}

// EndedTypes returns the event types for which a changed catalog ends webhook subscriptions, with the reason. Either catalog may be nil.
func EndedTypes(before, after *Catalog) []Change {
	var d differ
	for _, old := range before.Entries() {
		d.name = old.Name
		e := after.ByName(old.Name)
		switch {
		case !old.WebhookAllowed():
		case e == nil:
			d.add(true, "it is removed")
		case FindBreakingFeature(old, e) != "":
			d.add(true, "its %s changes incompatibly", FindBreakingFeature(old, e))
		case !e.WebhookAllowed():
			d.add(true, "it is not delivered by webhook any more")
		default:
			access := differ{}
			if access.compareAccess(old.Access, e.Access); access.isBreaking() {
				d.add(true, "its access needs more, which not every subscriber may have")
			}
		}
	}
	return d.changes
}

func (d *differ) isBreaking() bool {
	return slices.ContainsFunc(d.changes, func(c Change) bool { return c.Breaking })
}

// contract is the stored form of the parts of an event type that [FindBreakingFeature] compares.
type contract struct {
	URI         string            `json:"uri,omitempty"`
	URITemplate string            `json:"uriTemplate,omitempty"`
	Filters     map[string]string `json:"filters,omitempty"`
	Redact      []string          `json:"redact,omitempty"`
	Params      json.RawMessage   `json:"params,omitempty"`
	Payload     json.RawMessage   `json:"payload,omitempty"`
}

// EncodeContract returns the parts of the event type that [FindBreakingFeature] compares, as JSON. It is stored with a subscription, so
// that a later catalog can be compared with the event type to which the client subscribed. The JSON has up to about twice [maxSchema]
// bytes, because it contains two schemas.
func (e *Entry) EncodeContract() []byte {
	text, _ := json.Marshal(contract{e.URI, e.URITemplate, e.Filters, e.Redact, e.ParamsSchema, e.PayloadSchema}) // cannot fail
	return text
}

// ContractID returns a hash of [Entry.EncodeContract], as a text of 22 characters.
func (e *Entry) ContractID() string { return e.contractID() }

// HashTerms returns, by name, a hash of each event type's terms: its contract ([Entry.EncodeContract]), its access rule, and whether
// webhooks are allowed. If the hash changes, the webhook subscriptions to the event type are checked again.
func (c *Catalog) HashTerms() map[string]string {
	out := make(map[string]string, len(c.entries))
	for _, e := range c.entries {
		out[e.Name] = e.hashTerms()
	}
	return out
}

func (e *Entry) hashTerms() string {
	text, _ := json.Marshal(struct {
		Contract string
		Webhook  bool
		Access   *Access
	}{e.ContractID(), e.WebhookAllowed(), e.Access}) // cannot fail
	return digest(text)
}

func digest(text []byte) string {
	sum := sha256.Sum256(text)
	return base64.RawURLEncoding.EncodeToString(sum[:16])
}

// ParseContract decodes the result of [Entry.EncodeContract]. The entry has only the parts that [FindBreakingFeature] compares. For
// example, it has no name and no access rule, so do not use it for anything else.
func ParseContract(text []byte) (*Entry, error) {
	var c contract
	if err := json.Unmarshal(text, &c); err != nil {
		return nil, fault.Wrap(fault.Internal, err, "decode a contract")
	}
	return &Entry{
		URI: c.URI, URITemplate: c.URITemplate, Filters: c.Filters, Redact: c.Redact,
		ParamsSchema: c.Params, PayloadSchema: c.Payload,
	}, nil
}
