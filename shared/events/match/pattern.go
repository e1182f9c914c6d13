// Package match decides which events a subscription receives.
//
// A client names events by URI (SEP-1803) or by the name of an event type with arguments (MCP Events). [Resolve] makes a [Pattern] from a
// URI, and [Select] makes one from a name with arguments. A pattern is a concrete URI, a URI template with open variables, or a parent
// URI, which stands for all URIs below it.
//
// The patterns that an event matches are found by their keys. [KeyUnder] returns one key for each [Shape] that is in use, so the cost
// does not grow with the number of patterns. A [Filter] then selects among a pattern's events by their payload.
//
// The package stores nothing. Continue in shared/events/subscription, which keeps subscriptions under their patterns.
package match

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/events/catalog"
	"github.com/mcp-events/mcpevents/shared/events/event"
	eventlog "github.com/mcp-events/mcpevents/shared/events/log"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/protocol/jsonrpc"
)

// Kind says which event URIs a pattern matches.
type Kind string

// The kinds of patterns.
const (
	// Concrete is the kind of a pattern that matches one event URI.
	Concrete Kind = "concrete"
	// Wildcard is the kind of a template in which some variables are open. An open variable matches any value.
	Wildcard Kind = "wildcard"
	// Parent is the kind of a pattern that matches all URIs below a parent URI. For example, the parent event://github/acme matches
	// event://github/acme/web, but not event://github/acme2/web.
	Parent Kind = "parent"
)

// parentMark ends the key of a parent pattern. It distinguishes the key from the URI of an event at the parent itself.
const parentMark = "/**"

// Pattern describes a set of event URIs.
type Pattern struct {
	Kind Kind `json:"k"`
	// Key identifies the pattern within a workspace. It is the URI, with `*` for an open variable and `/**` after a parent, for example
	// "event://github/acme/*/push". A canonical URI contains no `*`.
	Key string `json:"key"`
	// Entry is the name of the event type. It is empty for a pattern of kind Parent.
	Entry string `json:"e,omitempty"`
	Shape Shape  `json:"s"`
	// Unordered is true for a concrete URI of an event type without order (order: none).
	Unordered bool `json:"u,omitempty"`
}

// Partitions returns the partitions of the log that hold the pattern's events.
func (p Pattern) Partitions(log *eventlog.Log, workspace string) []eventlog.Partition {
	if p.Kind != Concrete {
		return eventlog.PatternPartitions(workspace, p.Key)
	}
	return log.PartitionsOf(workspace, p.Key, p.Unordered)
}

// Shape says which variables of a template a pattern leaves open or, for a parent, how many segments the pattern has. For each shape, an
// event matches at most one pattern. So fanout, which finds an event's subscribers, looks up only one key for each shape that is in use,
// however many patterns there are.
type Shape struct {
	// Scope is "entry:" and the name of the event type, or "parents". The shapes that are in use are counted separately for each scope.
	Scope string `json:"c"`
	// Name is "m" followed by the bit mask of the open variables in hexadecimal, for example "m5" if the first and the third are open.
	// For a parent, it is "d" followed by its number of segments, for example "d2" for event://github/acme.
	Name string `json:"n"`
}

const parentsScope = "parents"

// ScopeOf returns the [Shape.Scope] of an event type's patterns or, for an empty name, of parent patterns.
func ScopeOf(entry string) string {
	if entry == "" {
		return parentsScope
	}
	return "entry:" + entry
}

// URI returns the pattern's URI as a client writes it, for example "event://github/acme" for the key "event://github/acme/**".
func (p Pattern) URI() string { return strings.TrimSuffix(p.Key, parentMark) }

// CutParent returns the URI of a parent from its pattern's key, for example "event://github/acme" for "event://github/acme/**". It
// returns false if the key belongs to another kind of pattern.
func CutParent(key string) (uri string, ok bool) { return strings.CutSuffix(key, parentMark) }

func segments(uri string) []string {
	return strings.Split(strings.TrimPrefix(uri, catalog.Scheme), "/")
}

// Access is an event type that a pattern covers, and the variables of its template that the pattern binds. A subscriber needs permission
// for the event type with these variables.
type Access struct {
	Entry *catalog.Entry
	Vars  map[string]string
}

// InCatalog reports whether [Resolve] finds a pattern for a URI.
func InCatalog(cat *catalog.Catalog, uri string) bool {
	_, _, err := Resolve(cat, uri)
	return err == nil
}

// Resolve returns the patterns for a URI and, for [CheckAccess], the event types that they cover. There may be several patterns, because
// a URI may be the URI of an event and also a parent of other URIs. For an unknown URI, the error is of kind Invalid.
func Resolve(cat *catalog.Catalog, uri string) ([]Pattern, []Access, error) {
	canonical, err := catalog.CanonicalPattern(uri)
	if err != nil {
		return nil, nil, fault.Wrap(fault.Invalid, err, "event URI")
	}
	var patterns []Pattern
	var access []Access
	if entry, vars, ok := cat.MatchPattern(canonical); ok && entry.Backend == "" { // clients reach events of backends by name
		if err := entry.ValidateParams(vars); err != nil {
			return nil, nil, fault.Wrap(fault.Invalid, err, "parameters of %s", canonical)
		}
		patterns = append(patterns, ForEntry(entry, vars))
		access = append(access, Access{entry, vars})
	}
	if !strings.Contains(canonical, "*") {
		for _, e := range cat.ListUnder(canonical) {
			vars := e.BindParent(canonical)
			if err = e.ValidateParams(vars); err == nil {
				access = append(access, Access{e, vars})
			}
		}
		if n := len(access) - len(patterns); n > 0 {
			patterns = append(patterns, Pattern{
				Kind: Parent, Key: canonical + parentMark,
				Shape: Shape{Scope: parentsScope, Name: "d" + strconv.Itoa(len(segments(canonical)))},
			})
		}
	}
	switch {
	case len(patterns) == 0 && err != nil:
		return nil, nil, fault.Wrap(fault.Invalid, err, "parameters of %s", canonical)
	case len(patterns) == 0:
		return nil, nil, fault.New(fault.Invalid, "unknown URI %.200q: no event type has it or a URI below it", canonical).
			With(map[string]any{"uri": canonical})
	}
	return patterns, access, nil
}

// ForEntry returns the pattern of an event type with the given variables bound, which the caller must have validated.
func ForEntry(e *catalog.Entry, vars map[string]string) Pattern {
	mask := 0
	for i, name := range e.Variables() {
		if _, ok := vars[name]; !ok {
			mask |= 1 << i
		}
	}
	kind := Concrete
	if mask != 0 {
		kind = Wildcard
	}
	return Pattern{
		Kind: kind, Key: e.Expand(vars), Entry: e.Name,
		Shape:     Shape{Scope: ScopeOf(e.Name), Name: maskName(mask)},
		Unordered: kind == Concrete && e.Unordered(),
	}
}

func maskName(mask int) string { return "m" + strconv.FormatInt(int64(mask), 16) }

// ScopesOf returns each [Shape.Scope] of patterns that can match events of an event type: the type's own scope and the scope of parent
// patterns.
func ScopesOf(entry string) []string { return []string{ScopeOf(entry), parentsScope} }

// KeyUnder returns the key of the pattern that has the given shape and matches an event. The other parameters are the event's type,
// variables and URI. KeyUnder returns false if no pattern with this shape can match the event.
func KeyUnder(e *catalog.Entry, vars map[string]string, uri string, s Shape) (string, bool) {
	if s.Scope == parentsScope {
		depth, err := strconv.Atoi(strings.TrimPrefix(s.Name, "d"))
		if err != nil {
			return "", false
		}
		segs := segments(uri)
		if depth < 1 || depth >= len(segs) {
			return "", false
		}
		return catalog.Scheme + strings.Join(segs[:depth], "/") + parentMark, true
	}
	mask, err := strconv.ParseInt(strings.TrimPrefix(s.Name, "m"), 16, 32)
	if err != nil {
		return "", false
	}
	if mask == 0 {
		return uri, true
	}
	names := e.Variables()
	if mask >= 1<<len(names) {
		return "", false
	}
	bound := make(map[string]string, len(names))
	for i, n := range names {
		if mask&(1<<i) == 0 {
			bound[n] = vars[n]
		}
	}
	return e.Expand(bound), true
}

// Matches reports whether an event can match both patterns. Each parameter is the key of a pattern or the URI of an event.
func Matches(a, b string) bool {
	x, aOpen := strings.CutSuffix(a, parentMark)
	y, bOpen := strings.CutSuffix(b, parentMark)
	as, bs := segments(x), segments(y)
	switch longer := len(as) - len(bs); {
	case longer < 0 && !aOpen, longer > 0 && !bOpen:
		return false
	case longer == 0 && aOpen != bOpen: // a parent matches only the URIs below it, not its own
		return false
	}
	for i := range min(len(as), len(bs)) {
		if as[i] != bs[i] && as[i] != "*" && bs[i] != "*" {
			return false
		}
	}
	return true
}

// CheckAccess returns an error if the principal has no permission for at least one of the event types that a pattern covers.
func CheckAccess(p auth.Principal, access []Access) error {
	for _, a := range access {
		if err := a.Entry.Access.Check(p, a.Vars); err != nil {
			return err
		}
	}
	return nil
}

// Selection describes the events that a client of MCP Events (SEP-3415) wants to receive. The client selects them by an event type and by
// arguments, for example values for the variables in the event type's URI template.
type Selection struct {
	Entry *catalog.Entry
	// Arguments are the client's arguments in canonical JSON, so that equal arguments have equal bytes.
	Arguments json.RawMessage
	// Vars are the variables of the URI template that have a value. Other variables match any value.
	Vars    map[string]string
	Pattern Pattern
	Filters []Filter
	// Redact are the JSON Pointers of members to remove from the payload.
	Redact []string
}

// Select makes a [Selection] from an event type and the arguments of a principal's subscription. Arguments for variables of the URI
// template select the event URIs, and the other arguments filter or redact the events. Errors about an argument are of kind Invalid and
// name the argument.
func Select(e *catalog.Entry, raw json.RawMessage, p auth.Principal) (Selection, error) {
	args, err := decodeArguments(raw)
	if err != nil {
		return Selection{}, err
	}
	s := Selection{Entry: e, Vars: map[string]string{}}
	if e.Backend != "" {
		return s, s.selectOfBackend(canonicalJSON(args), p)
	}
	for _, name := range slices.Sorted(maps.Keys(args)) {
		if err := s.addArgument(name, args[name]); err != nil {
			return Selection{}, err
		}
	}
	if err := checkFilters(s.Filters); err != nil {
		return Selection{}, fault.Wrap(fault.Invalid, err, "arguments")
	}
	s.Arguments = canonicalJSON(args)
	if err := e.ValidateArguments(s.Arguments); err != nil {
		return Selection{}, err
	}
	if err := e.ValidateParams(s.Vars); err != nil {
		return Selection{}, fault.Wrap(fault.Invalid, err, "arguments")
	}
	return s, s.setPattern()
}

// setPattern sets the pattern of the selection. It returns an error if the pattern can match no event. For example, event URIs have a
// maximum length and no dot segments or control characters, and a backend's URIs match only its own event types.
func (s *Selection) setPattern() error {
	s.Pattern = ForEntry(s.Entry, s.Vars)
	if catalog.BackendOf(s.Pattern.Key) != s.Entry.Backend {
		return fault.New(fault.Invalid, "arguments: the first segment of %s must not begin with ~", s.Entry.URITemplate)
	}
	_, err := catalog.CanonicalPattern(s.Pattern.URI())
	return fault.Wrap(fault.Invalid, err, "arguments")
}

// selectOfBackend selects events of a backend. It does not interpret the arguments, because only the backend knows what they mean.
func (s *Selection) selectOfBackend(arguments json.RawMessage, p auth.Principal) (err error) {
	s.Arguments = arguments
	if s.Vars, err = s.Entry.BindArguments(arguments, p); err != nil { // first, because it refuses long arguments, which are slow to validate
		return err
	}
	if err := s.Entry.ValidateArguments(arguments); err != nil {
		return err
	}
	return s.setPattern()
}

func (s *Selection) addArgument(name string, value json.RawMessage) error {
	refuse := func(format string, args ...any) error {
		return fault.New(fault.Invalid, format, args...).With(map[string]any{"argument": fmt.Sprintf("%.128s", name)})
	}
	pointer, isFilter := s.Entry.Filters[name]
	switch {
	case slices.Contains(s.Entry.Variables(), name):
		v, ok := scalar(value)
		if !ok || v == "" {
			return refuse("argument %q is not a non-empty string", name)
		}
		s.Vars[name] = v
	case isFilter:
		f, err := newFilter(pointer, s.Entry.RangeOf(name), value)
		if err != nil {
			return fault.Wrap(fault.Invalid, err, "argument %q", name)
		}
		s.Filters = append(s.Filters, f)
	case name == "redact" && len(s.Entry.Redact) > 0:
		var on bool
		if err := json.Unmarshal(value, &on); err != nil {
			return refuse("argument %q is not a boolean", name)
		}
		if on {
			s.Redact = s.Entry.Redact
		}
	default:
		return refuse("%s takes no argument %.64q", s.Entry.Name, name)
	}
	return nil
}

// CheckAccess returns an error if the principal has no permission for the selected events.
func (s *Selection) CheckAccess(p auth.Principal) error {
	return s.Entry.Access.Check(p, s.Vars)
}

// Wants reports whether an event has the selected type and passes the filters. The event must match the selection's pattern.
func (s *Selection) Wants(e *event.Event) bool {
	return e.Name == s.Entry.Name && (len(s.Filters) == 0 || payloadOf(e).Passes(s.Filters))
}

// RedactedData returns the event's payload without the redacted members.
func (s *Selection) RedactedData(e *event.Event) (json.RawMessage, error) {
	return Redact(e.Data, s.Redact)
}

// CanonicalArguments returns arguments in canonical JSON, sorted by name and without space, so that equal arguments have equal bytes.
// Absent arguments and null become an empty object.
func CanonicalArguments(raw json.RawMessage) (json.RawMessage, error) {
	members, err := decodeArguments(raw)
	if err != nil {
		return nil, err
	}
	return canonicalJSON(members), nil
}

// decodeArguments decodes the arguments of a subscription. It returns an empty map if they are absent or null.
func decodeArguments(raw json.RawMessage) (map[string]json.RawMessage, error) {
	args := map[string]json.RawMessage{}
	if len(bytes.TrimSpace(raw)) > 0 {
		if err := json.Unmarshal(raw, &args); err != nil {
			return nil, fault.New(fault.Invalid, "arguments is not an object")
		}
	}
	if args == nil { // it was null
		args = map[string]json.RawMessage{}
	}
	return args, nil
}

func scalar(raw json.RawMessage) (string, bool) {
	switch v := jsonrpc.Value(raw).(type) {
	case string:
		return v, true
	case json.Number:
		return jsonrpc.ParseDecimal(v).String(), true
	case bool:
		return strconv.FormatBool(v), true
	}
	return "", false
}

// canonicalJSON encodes arguments with sorted members and without insignificant space. Equal numbers have equal bytes.
func canonicalJSON(args map[string]json.RawMessage) json.RawMessage {
	values := make(map[string]any, len(args))
	for name, raw := range args {
		values[name] = withCanonicalNumbers(jsonrpc.Value(raw))
	}
	text, _ := json.Marshal(values) // decoded JSON always encodes; maps are written in the order of their keys
	return text
}

// withCanonicalNumbers returns decoded JSON with all numbers in canonical form, so that equal numbers have equal bytes. It changes lists
// and objects in place.
func withCanonicalNumbers(v any) any {
	switch v := v.(type) {
	case json.Number:
		return json.Number(jsonrpc.ParseDecimal(v).String())
	case []any:
		for i := range v {
			v[i] = withCanonicalNumbers(v[i])
		}
	case map[string]any:
		for name := range v {
			v[name] = withCanonicalNumbers(v[name])
		}
	}
	return v
}
