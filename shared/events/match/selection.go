package match

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/events/catalog"
	"github.com/mcp-events/mcpevents/shared/events/event"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/protocol/jsonrpc"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
)

// Selection is the events that a client of the MCP Events extension (SEP-3415) selects by the name of an event type and arguments. It means the
// same for webhooks, streams and polls.
type Selection struct {
	Entry *catalog.Entry
	// Arguments are canonical, so that equal arguments have equal bytes.
	Arguments json.RawMessage
	// Vars are the bound variables of the template. Other variables match any value.
	Vars    map[string]string
	Pattern Pattern
	Filters []Filter
	// Redact are the JSON Pointers of members to remove from the payload.
	Redact []string
}

// Select checks the arguments of a subscription to an event type. Arguments that are variables of the template bind the URI, and the others
// filter or redact the events. Errors are of kind Invalid and name the argument.
func Select(e *catalog.Entry, raw json.RawMessage) (Selection, error) {
	args, err := objectOf(raw)
	if err != nil {
		return Selection{}, err
	}
	s := Selection{Entry: e, Vars: map[string]string{}}
	if e.Backend != "" {
		return s, s.selectOfBackend(canonicalJSON(args))
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

// setPattern sets the pattern. It returns an error if no event can match, because URIs of events have a maximum length and no dot segments
// or control characters, and because URIs of a backend belong to its own event types.
func (s *Selection) setPattern() error {
	s.Pattern = ForEntry(s.Entry, s.Vars)
	if catalog.BackendOf(s.Pattern.Key) != s.Entry.Backend {
		return fault.New(fault.Invalid, "arguments: the first segment of %s must not begin with ~", s.Entry.URITemplate)
	}
	_, err := catalog.CanonicalPattern(s.Pattern.URI())
	return fault.Wrap(fault.Invalid, err, "arguments")
}

// selectOfBackend selects events of a backend, which alone knows what its arguments mean.
func (s *Selection) selectOfBackend(arguments json.RawMessage) (err error) {
	s.Arguments = arguments
	if s.Vars, err = s.Entry.BindArguments(arguments); err != nil { // first, because checking long arguments would take long
		return err
	}
	if err := s.Entry.ValidateArguments(arguments); err != nil {
		return err
	}
	return s.setPattern()
}

// addArgument adds one argument to the selection.
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

// Allowed checks the principal's right to the selected events.
func (s *Selection) Allowed(p auth.Principal) error {
	return s.Entry.Access.Check(p, s.Vars)
}

// Wants reports whether an event that matches the pattern has the selected type and passes the filters.
func (s *Selection) Wants(e *event.Event) bool {
	return e.Name == s.Entry.Name && (len(s.Filters) == 0 || payloadOf(e).Passes(s.Filters))
}

// Data returns the event's payload without the redacted members.
func (s *Selection) Data(e *event.Event) (json.RawMessage, error) {
	return Redacted(e.Data, s.Redact)
}

// CanonicalArguments returns the arguments in the form in which equal arguments have equal bytes: members in the order of their
// names, without insignificant space. Absent arguments and null become an empty object.
func CanonicalArguments(raw json.RawMessage) (json.RawMessage, error) {
	members, err := objectOf(raw)
	if err != nil {
		return nil, err
	}
	return canonicalJSON(members), nil
}

// objectOf decodes arguments. Absent arguments and null are an empty object.
func objectOf(raw json.RawMessage) (map[string]json.RawMessage, error) {
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

// scalar returns the text of a string, a number or a boolean.
func scalar(raw json.RawMessage) (string, bool) {
	switch v := jsonrpc.Value(raw).(type) {
	case string:
		return v, true
	case json.Number:
		return v.String(), true
	case bool:
		return strconv.FormatBool(v), true
	}
	return "", false
}

// canonicalJSON sorts the members and removes insignificant space. Numbers keep their digits.
func canonicalJSON(args map[string]json.RawMessage) json.RawMessage {
	values := make(map[string]any, len(args))
	for name, raw := range args {
		values[name] = jsonrpc.Value(raw)
	}
	text, _ := json.Marshal(values) // decoded JSON always encodes; maps are written in the order of their keys
	return text
}

// AppendOccurrenceMeta appends the members that the _meta of an EventOccurrence has in every delivery mode, without braces.
//
// The arguments are the values of the variables of the event type's URI template, e.g. {"owner":"acme","repo":"web"}. They are
// left out if the catalog has lost the event type or changed its template since the event was published; entry is nil in the first case.
func AppendOccurrenceMeta(b []byte, e *event.Event, entry *catalog.Entry) []byte {
	b = jsonrpc.AppendString(append(b, `"`+spec.MetaURI+`":`...), e.URI)
	if entry == nil {
		return b
	}
	if _, _, arguments, ok := catalog.ParseBackendURI(e.URI); ok && entry.Backend != "" {
		return append(append(b, `,"`+spec.MetaArguments+`":`...), arguments...)
	}
	vars, ok := entry.Bind(e.URI)
	if !ok {
		return b
	}
	b = append(b, `,"`+spec.MetaArguments+`":{`...)
	for i, name := range entry.Variables() {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(jsonrpc.AppendString(b, name), ':')
		b = jsonrpc.AppendString(b, vars[name])
	}
	return append(b, '}')
}
