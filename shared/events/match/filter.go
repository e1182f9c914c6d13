package match

import (
	"bytes"
	"encoding/json"
	"slices"
	"sort"
	"strconv"
	"strings"
	"sync"

	"github.com/mcp-events/mcpevents/shared/events/catalog"
	"github.com/mcp-events/mcpevents/shared/events/event"
	"github.com/mcp-events/mcpevents/shared/platform/bounded"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/platform/jsonpointer"
	"github.com/mcp-events/mcpevents/shared/protocol/jsonrpc"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
)

// Limits on the filter values of a subscription, because each event is compared with all of them.
const (
	maxFilterValues = 50  // of one filter
	maxAllValues    = 200 // of all filters of a subscription
	maxGlobs        = 50  // of all these values, how many may contain a `*`
)

// Filter accepts a payload whose value at Pointer is one of Values (`*` matches any characters) or in the range Span.
type Filter struct {
	Pointer string            `json:"p"`
	Values  []json.RawMessage `json:"v,omitempty"`
	Span    *Span             `json:"s,omitempty"`
}

// newFilter makes a filter from an argument of a subscription: a scalar, a list of scalars of which one must match, or a range if the
// parameter ranges allows one.
func newFilter(pointer string, ranges catalog.RangeType, raw json.RawMessage) (Filter, error) {
	if bytes.HasPrefix(bytes.TrimSpace(raw), []byte("{")) {
		span, err := newSpan(ranges, raw)
		return Filter{Pointer: pointer, Span: span}, err
	}
	var list []json.RawMessage
	if err := json.Unmarshal(raw, &list); err != nil {
		list = []json.RawMessage{raw}
	}
	if len(list) == 0 || len(list) > maxFilterValues {
		return Filter{}, fault.New(fault.Invalid, "a filter takes 1 to %d values", maxFilterValues)
	}
	for i, v := range list {
		v = bytes.TrimSpace(v)
		if len(v) == 0 || len(v) > 512 || v[0] == '{' || v[0] == '[' || string(v) == "null" {
			return Filter{}, fault.New(fault.Invalid, "a filter value is not allowed (allowed: a string, number or boolean of up to 512 bytes)")
		}
		list[i] = v
	}
	return Filter{Pointer: pointer, Values: list}, nil
}

// checkFilters returns an error if a subscription's filters together would need too many comparisons per event.
func checkFilters(filters []Filter) error {
	all, globs := 0, 0
	for _, f := range filters {
		all += len(f.Values)
		globs += len(f.values().globs)
	}
	switch {
	case all > maxAllValues:
		return fault.New(fault.Invalid, "the filters have %d values, %d are allowed together", all, maxAllValues)
	case globs > maxGlobs:
		return fault.New(fault.Invalid, "the filters have %d values with *, %d are allowed together", globs, maxGlobs)
	}
	return nil
}

// Payload is an event whose payload is decoded only once, when the first filter needs it. It is safe for concurrent use.
type Payload struct {
	Event *event.Event

	decode sync.Once
	doc    any
}

// NewPayloads returns a Payload for each event.
func NewPayloads(events []event.Event) []*Payload {
	out := make([]*Payload, len(events))
	for i := range events {
		out[i] = &Payload{Event: &events[i]}
	}
	return out
}

// recentPayloads has recently decoded payloads, so that several streams need not decode the same payload again. It is small, because
// decoded payloads may take megabytes.
var recentPayloads = bounded.NewMap[*event.Event, *Payload](16)

// payloadOf returns a [Payload] for an event. Streams that send the same event may share the result and use it concurrently.
func payloadOf(e *event.Event) *Payload {
	p, ok := recentPayloads.Get(e)
	if !ok {
		p = &Payload{Event: e}
		recentPayloads.Put(e, p)
	}
	return p
}

// Passes reports whether all filters accept the payload.
func (p *Payload) Passes(filters []Filter) bool { return p.FindRejecting(filters) == nil }

// FindRejecting returns the first filter that does not accept the payload, or nil if all filters accept it.
func (p *Payload) FindRejecting(filters []Filter) *Filter {
	if len(filters) == 0 {
		return nil
	}
	p.decode.Do(func() { p.doc = valueOf(p.Event.Data) })
	for i := range filters {
		if !filters[i].accepts(p.doc) {
			return &filters[i]
		}
	}
	return nil
}

// ValueAt returns the value at a JSON Pointer in a payload, as JSON. It returns nil if the payload has no such value.
func ValueAt(payload json.RawMessage, pointer string) json.RawMessage {
	path, err := jsonpointer.Parse(pointer)
	if err != nil {
		return nil
	}
	got, ok := path.ValueIn(valueOf(payload))
	if !ok {
		return nil
	}
	text, _ := json.Marshal(got) // decoded JSON always encodes
	return text
}

func (f Filter) accepts(doc any) bool {
	path, err := jsonpointer.Parse(f.Pointer)
	got, ok := path.ValueIn(doc)
	if err != nil || !ok {
		return false
	}
	if f.Span != nil {
		return f.Span.accept(got)
	}
	return f.values().accept(got)
}

// values has the values that a filter accepts, arranged by their type. It is built only once per payload, even if the value in the
// payload is a list whose elements are all checked.
type values struct {
	texts   map[string]bool
	globs   []glob
	numbers map[jsonrpc.Decimal]bool
	bools   map[bool]bool
}

func (f Filter) values() values {
	v := values{texts: map[string]bool{}, numbers: map[jsonrpc.Decimal]bool{}, bools: map[bool]bool{}}
	for _, raw := range f.Values {
		switch raw[0] {
		case '"':
			var text string
			if json.Unmarshal(raw, &text) != nil {
				continue
			}
			if strings.Contains(text, "*") {
				v.globs = append(v.globs, strings.Split(text, "*"))
			} else {
				v.texts[text] = true
			}
		case 't', 'f':
			v.bools[raw[0] == 't'] = true
		default:
			v.numbers[jsonrpc.ParseDecimal(json.Number(raw))] = true
		}
	}
	return v
}

func (v values) accept(got any) bool {
	switch got := got.(type) {
	case string:
		return v.texts[got] || slices.ContainsFunc(v.globs, func(g glob) bool { return g.matches(got) })
	case json.Number:
		return len(v.numbers) > 0 && (v.numbers[jsonrpc.ParseDecimal(got)] || v.numbers[rounded(got)])
	case bool:
		return v.bools[got]
	case []any: // a list is accepted if one of its elements is
		return slices.ContainsFunc(got, v.accept)
	}
	return false
}

// rounded returns the value that a number has in a program that decodes numbers as float64. For example, a subscriber written in
// JavaScript knows the id 1234567890123456789 only as 1234567890123456800. So a filter with the rounded id must match, too.
func rounded(n json.Number) jsonrpc.Decimal {
	if len(n) <= 15 && !strings.ContainsAny(string(n), "eE") { // a float64 keeps 15 digits, so most numbers need no rounding
		return jsonrpc.ParseDecimal(n)
	}
	f, err := n.Float64()
	if err != nil {
		return jsonrpc.ParseDecimal(n)
	}
	return jsonrpc.ParseDecimal(json.Number(strconv.FormatFloat(f, 'g', -1, 64)))
}

// glob is a text pattern, split at its asterisks. An asterisk stands for any number of characters. For example, the pattern "a*b" becomes
// {"a", "b"}.
type glob []string

// matches reports whether s matches the glob. It needs no backtracking, because the first occurrence of each part leaves the most text for
// the following parts.
func (g glob) matches(s string) bool {
	first, last := g[0], g[len(g)-1]
	if len(s) < len(first)+len(last) || !strings.HasPrefix(s, first) || !strings.HasSuffix(s, last) {
		return false
	}
	s = s[len(first) : len(s)-len(last)]
	for _, part := range g[1 : len(g)-1] {
		i := strings.Index(s, part)
		if i < 0 {
			return false
		}
		s = s[i+len(part):]
	}
	return true
}

// valueOf decodes a payload. It returns nil if the event has no payload.
func valueOf(payload json.RawMessage) any {
	if len(payload) == 0 {
		return nil
	}
	return jsonrpc.Value(payload)
}

// Redact returns the payload without the members at the pointers. If a pointer leads to an element of a list, the element becomes null.
func Redact(payload json.RawMessage, pointers []string) (json.RawMessage, error) {
	if len(pointers) == 0 {
		return payload, nil
	}
	doc := valueOf(payload)
	for _, p := range pointers {
		path, err := jsonpointer.Parse(p)
		if err != nil || len(path) == 0 {
			continue
		}
		last := len(path) - 1
		parent, _ := path[:last].ValueIn(doc)
		switch parent := parent.(type) {
		case map[string]any:
			delete(parent, path[last])
		case []any:
			if i, err := strconv.Atoi(path[last]); err == nil && i >= 0 && i < len(parent) {
				parent[i] = nil
			}
		}
	}
	return json.Marshal(doc)
}

// AppendOccurrenceMeta appends the members that _meta of an EventOccurrence has in every delivery mode: the event's URI and arguments. It
// appends no braces.
//
// The arguments are the values of the variables of the event type's URI template, for example {"owner":"acme","repo":"web"}. They are
// left out if the event type is no longer in the catalog (entry is nil), or if its template has changed since the event was published.
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

// Span is a range of numbers or times. A value must satisfy all bounds.
type Span struct {
	Time   bool    `json:"t,omitempty"`
	Bounds []Bound `json:"b"`
}

// Bound is a limit of a [Span]. Value is a JSON number or an RFC 3339 time.
type Bound struct {
	Op    string `json:"o"` // one of rangeOps
	Value string `json:"v"`
}

// rangeOps maps each operator of a range to the results of [cmp.Compare] that satisfy the operator. For example, $gte allows 0 (equal) and
// 1 (greater).
var rangeOps = map[string][]int{"$gt": {1}, "$gte": {0, 1}, "$lt": {-1}, "$lte": {-1, 0}}

func newSpan(ranges catalog.RangeType, raw json.RawMessage) (*Span, error) {
	if ranges == catalog.NoRange {
		return nil, fault.New(fault.Invalid, "a range is not allowed (allowed for what is declared as a number, an integer, or a string of the format date-time)")
	}
	var members map[string]json.RawMessage
	if err := json.Unmarshal(raw, &members); err != nil || len(members) == 0 {
		return nil, fault.New(fault.Invalid, "a range has at least one of $gt, $gte, $lt, $lte")
	}
	s := &Span{Time: ranges == catalog.TimeRange}
	for op, v := range members {
		b := Bound{op, string(bytes.TrimSpace(v))}
		if rangeOps[op] == nil {
			return nil, fault.New(fault.Invalid, "a range has no %.32q (allowed: $gt, $gte, $lt, $lte)", op)
		}
		if s.Time && json.Unmarshal(v, &b.Value) != nil || len(b.Value) > maxBound || !s.isReadable(b.Value) {
			return nil, fault.New(fault.Invalid, "%s of the range is not a %s of up to %d bytes", op, ranges, maxBound)
		}
		s.Bounds = append(s.Bounds, b)
	}
	// Do not use slices.SortFunc here, because it would make the binary 12 KB larger for each type.
	sort.Slice(s.Bounds, func(i, j int) bool { return s.Bounds[i].Op < s.Bounds[j].Op })
	return s, s.checkNotEmpty()
}

func (s *Span) checkNotEmpty() error {
	for _, low := range s.Bounds {
		for _, high := range s.Bounds {
			if low.Op[1] != 'g' || high.Op[1] != 'l' {
				continue
			}
			order, _ := s.compare(low.Value, high.Value)
			if order > 0 || order == 0 && !(low.Op == "$gte" && high.Op == "$lte") {
				return fault.New(fault.Invalid, "the range is empty: no value is both %s %s and %s %s", low.Op, low.Value, high.Op, high.Value)
			}
		}
	}
	return nil
}

const maxBound = 64 // bytes of a bound's text

func (s *Span) isReadable(text string) bool {
	if s.Time {
		_, err := event.ParseTime(text)
		return err == nil
	}
	return text != "" && (text[0] == '-' || text[0] >= '0' && text[0] <= '9') // text is valid JSON, so this is a number
}

func (s *Span) accept(got any) bool {
	switch got := got.(type) {
	case string:
		return s.Time && s.contains(got)
	case json.Number:
		return !s.Time && s.contains(got.String())
	case []any:
		return slices.ContainsFunc(got, s.accept)
	}
	return false
}

func (s *Span) contains(text string) bool {
	for _, b := range s.Bounds {
		order, ok := s.compare(text, b.Value)
		if !ok || !slices.Contains(rangeOps[b.Op], order) {
			return false
		}
	}
	return len(s.Bounds) > 0
}

func (s *Span) compare(a, b string) (order int, ok bool) {
	if !s.Time {
		return jsonrpc.ParseDecimal(json.Number(a)).Compare(jsonrpc.ParseDecimal(json.Number(b))), true
	}
	x, err := event.ParseTime(a)
	if err != nil {
		return 0, false
	}
	y, err := event.ParseTime(b)
	return x.Compare(y), err == nil
}
