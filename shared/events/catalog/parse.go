package catalog

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/mcp-events/mcpevents/shared/platform/jsonpointer"
	"github.com/mcp-events/mcpevents/shared/platform/strictyaml"
)

// Parse parses a catalog file. It reports all faults together in an error of kind fault.Invalid, whose data is a []strictyaml.Fault. The
// error's text has a line for each fault, for example "catalog.yaml:12: event a.b: uri must not be empty".
func Parse(src []byte) (*Catalog, error) { return ParseFile("catalog.yaml", src) }

// ParseFile parses a catalog like [Parse], with another file name in messages.
func ParseFile(name string, src []byte) (*Catalog, error) {
	return parseFile(name, src, false)
}

func parseFile(name string, src []byte, checked bool) (*Catalog, error) {
	f, root := strictyaml.Parse(name, src, maxSource)
	p := &parser{file: f, checked: checked, byName: map[string]*Entry{}}
	if root != nil {
		p.readCatalog(root)
	}
	if err := f.Err(); err != nil {
		return nil, err
	}
	sum := sha256.Sum256(src)
	return &Catalog{
		entries: p.entries, byName: p.byName, root: &p.root, source: slices.Clone(src),
		fingerprint: base64.RawURLEncoding.EncodeToString(sum[:]),
	}, nil
}

type parser struct {
	file *strictyaml.File
	// checked is true for a stored catalog, which passed all checks before it was stored. Its schemas are therefore compiled only on
	// first use.
	checked bool
	entries []*Entry
	byName  map[string]*Entry
	root    node
}

func (p *parser) readCatalog(root *strictyaml.Node) {
	say := func(member string) string {
		if member == "" {
			return "the catalog"
		}
		return `"` + member + `"`
	}
	given := p.file.Fields(root, say,
		strictyaml.Func("events", func(n *strictyaml.Node, what string) {
			for _, it := range p.file.Items(n, what, maxEntries) {
				p.readEntry(it)
			}
		}),
	)
	if !given["events"] && p.file.Count() == 0 {
		p.file.Add(root.Line, `the member "events" is missing`)
	}
}

// readEntry reads an event type and, if its URI is valid, adds it to the trie. The order of the fields matters, because a field may refer
// to fields before it. For example, other fields refer to the variables of the template, and paramsSchema may describe filters.
func (p *parser) readEntry(n *strictyaml.Node) {
	e := &Entry{line: n.Line, Delivery: allModes(), Order: orderURI}
	var uri *strictyaml.Node
	given := p.file.Fields(n, e.describe,
		strictyaml.Func("name", func(n *strictyaml.Node, _ string) { p.readName(e, n) }),
		strictyaml.Func("uri", func(n *strictyaml.Node, what string) { uri = n; p.readURI(e, n, what) }),
		strictyaml.Func("uriTemplate", func(n *strictyaml.Node, what string) {
			if uri != nil {
				p.file.Add(n.Line, "%s: only one of both can be given", e.describe("uri, uriTemplate"))
				return
			}
			p.readTemplate(e, n, what)
		}),
		strictyaml.Var("title", &e.Title, p.text(200)),
		strictyaml.Var("description", &e.Description, p.text(4000)),
		strictyaml.Func("payloadSchema", func(n *strictyaml.Node, what string) {
			e.PayloadSchema, e.payload = p.readSchema(n, what)
		}),
		strictyaml.Var("webhookType", &e.WebhookType, p.readWebhookType),
		strictyaml.Var("delivery", &e.Delivery, p.readDelivery),
		strictyaml.Var("order", &e.Order, p.readOrder),
		strictyaml.Func("filters", func(n *strictyaml.Node, what string) { p.readFilters(e, n, what) }),
		strictyaml.Func("paramsSchema", func(n *strictyaml.Node, what string) { p.readParamsSchema(e, n, what) }),
		strictyaml.Func("redact", func(n *strictyaml.Node, what string) { p.readRedact(e, n, what) }),
		strictyaml.Func("access", func(n *strictyaml.Node, _ string) { p.readAccess(e, n) }),
	)
	if given == nil {
		return
	}
	if !given["name"] {
		p.file.Add(n.Line, "an entry of events has no name")
	}
	if !given["uri"] && !given["uriTemplate"] {
		p.file.Add(n.Line, "%s: one of both must be given", e.describe("uri, uriTemplate"))
	}
	e.input = inputSchema(e)
	e.arguments = newSchema(e.input)
	e.contractID = sync.OnceValue(func() string { return digest(e.EncodeContract()) })
	p.entries = append(p.entries, e)
}

// describe returns the beginning of an error message: the entry's name and, unless it is empty, the member of the entry. An example is
// "event a.b: uri".
func (e *Entry) describe(member string) string {
	switch {
	case e.Name == "" && member == "":
		return "an entry of events"
	case e.Name == "":
		return member
	case member == "":
		return "event " + strictyaml.Clip(e.Name)
	}
	return "event " + strictyaml.Clip(e.Name) + ": " + member
}

func (p *parser) text(limit int) func(n *strictyaml.Node, what string) string {
	return func(n *strictyaml.Node, what string) string {
		s := p.file.String(n, what)
		if len(s) > limit {
			p.file.Add(n.Line, "%s is longer than %d bytes", what, limit)
		}
		return s
	}
}

var namePattern = regexp.MustCompile(`^[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*$`)

func (p *parser) readName(e *Entry, n *strictyaml.Node) {
	name := p.file.NonEmpty(n, "name")
	if name == "" {
		return
	}
	if len(name) > 128 || !namePattern.MatchString(name) {
		p.file.Add(n.Line, "the name %q is not of letters, digits, - and _ in parts separated by dots, at most 128 bytes", strictyaml.Clip(name))
	}
	e.Name, e.WebhookType = name, name
	if other := p.byName[name]; other != nil {
		p.file.Add(n.Line, "the name %q was already given in line %d", strictyaml.Clip(name), other.line)
		return
	}
	e.line = n.Line
	p.byName[name] = e
}

var webhookType = regexp.MustCompile(`^[A-Za-z0-9_.:/-]{1,128}$`)

func (p *parser) readWebhookType(n *strictyaml.Node, what string) string {
	t, ok := p.file.Text(n, what)
	if ok && !webhookType.MatchString(t) {
		p.file.Add(n.Line, "%s %q is not of letters, digits and _.:/-, from 1 to 128", what, strictyaml.Clip(t))
	}
	return t
}

func (p *parser) readURI(e *Entry, n *strictyaml.Node, what string) {
	s := p.file.NonEmpty(n, what)
	if strings.ContainsAny(s, "{}") {
		p.file.Add(n.Line, "%s has variables; use uriTemplate", what)
		return
	}
	if p.readSegments(e, n, what, s) {
		e.URI = s
		p.insert(e, n, what)
	}
}

func (p *parser) readTemplate(e *Entry, n *strictyaml.Node, what string) {
	s := p.file.NonEmpty(n, what)
	if !p.readSegments(e, n, what, s) {
		return
	}
	switch {
	case len(e.vars) == 0:
		p.file.Add(n.Line, "%s has no variables; use uri", what)
		return
	case len(e.vars) > maxVariables:
		p.file.Add(n.Line, "%s has %d variables; at most %d are possible", what, len(e.vars), maxVariables)
		return
	}
	e.URITemplate = s
	p.insert(e, n, what)
}

func (p *parser) readSegments(e *Entry, n *strictyaml.Node, what, s string) bool {
	if s == "" { // NonEmpty has reported the fault
		return false
	}
	segs, err := parseTemplate(s)
	if err != nil {
		p.file.Add(n.Line, "%s %v", what, err)
		return false
	}
	if !p.checked && strings.HasPrefix(segs[0].literal, backendAuthority) {
		p.file.Add(n.Line, "%s begins with %s%s, which is for events of backends", what, Scheme, backendAuthority)
		return false
	}
	e.segments = segs
	for _, seg := range segs {
		if seg.variable != "" {
			e.vars = append(e.vars, seg.variable)
		}
	}
	return true
}

func (p *parser) insert(e *Entry, n *strictyaml.Node, what string) {
	if other := p.root.overlap(e.segments); other != nil {
		p.file.Add(n.Line, "%s could match the same URI as %s of event %s in line %d", what, other.Pattern(), other.Name, other.line)
		return
	}
	p.root.insert(e)
}

// allModes returns all delivery modes. An event type without "delivery" allows all of them.
func allModes() []string { return []string{deliverPush, deliverPoll, deliverWebhook} }

func (p *parser) readDelivery(n *strictyaml.Node, what string) []string {
	given := p.file.Strings(n, what)
	if len(given) == 0 {
		p.file.Add(n.Line, "%s is empty; leave it out to allow all of %s", what, strings.Join(allModes(), ", "))
	}
	for _, m := range given {
		if !slices.Contains(allModes(), m) {
			p.file.Add(n.Line, "%s: unknown mode %q (allowed: %s)", what, strictyaml.Clip(m), strings.Join(allModes(), ", "))
		}
	}
	return given
}

func (p *parser) readOrder(n *strictyaml.Node, what string) string {
	order := p.file.String(n, what)
	if order != orderURI && order != orderNone {
		p.file.Add(n.Line, "%s: unknown order %q (allowed: %s, %s)", what, strictyaml.Clip(order), orderURI, orderNone)
	}
	return order
}

// redactArgument is the argument with which a subscription asks for events without the members in [Entry.Redact].
const redactArgument = "redact"

func (p *parser) readFilters(e *Entry, n *strictyaml.Node, what string) {
	members := p.file.Members(n, what)
	if len(members) > maxFilters {
		p.file.Add(n.Line, "%s: more than %d are not possible", what, maxFilters)
		return
	}
	e.Filters = make(map[string]string, len(members))
	for _, m := range members {
		switch {
		case !variableName.MatchString(m.Key):
			p.file.Add(m.Line, "%s: the name %q is not of letters, digits and _, at most 64", what, strictyaml.Clip(m.Key))
		case slices.Contains(e.vars, m.Key):
			p.file.Add(m.Line, "%s: %q is also a variable of the template", what, m.Key)
		case m.Key == redactArgument:
			p.file.Add(m.Line, "%s: the name %q is taken by the redact argument", what, m.Key)
		}
		e.Filters[m.Key] = p.readPointer(m.Value, e.describe("filter "+strictyaml.Clip(m.Key)))
	}
}

// readPointer reads a JSON pointer, which must not be empty because that would mean the whole payload.
func (p *parser) readPointer(n *strictyaml.Node, what string) string {
	pointer := p.file.NonEmpty(n, what)
	if _, err := jsonpointer.Parse(pointer); err != nil {
		p.file.Add(n.Line, "%s: %q is not a JSON pointer to a member (RFC 6901)", what, strictyaml.Clip(pointer))
	}
	return pointer
}

func (p *parser) readRedact(e *Entry, n *strictyaml.Node, what string) {
	e.Redact = p.file.Strings(n, what)
	if slices.Contains(e.vars, redactArgument) {
		p.file.Add(n.Line, "%s: the template has a variable of that name", what)
	}
	for _, pointer := range e.Redact {
		if _, err := jsonpointer.Parse(pointer); err != nil || pointer == "" {
			p.file.Add(n.Line, "%s: %q is not a JSON pointer to a member (RFC 6901)", what, strictyaml.Clip(pointer))
		}
	}
}

func (p *parser) readAccess(e *Entry, n *strictyaml.Node) {
	e.Access = &Access{}
	say := func(member string) string { return strings.TrimSpace(e.describe("access") + " " + member) }
	p.file.Fields(n, say,
		strictyaml.Var("scopes", &e.Access.Scopes, p.readScopes),
		strictyaml.Func("claims", func(n *strictyaml.Node, what string) { e.Access.Claims = p.readClaims(e.vars, n, what) }),
	)
}

// scopeToken matches a scope-token of RFC 6749, section 3.3.
var scopeToken = regexp.MustCompile(`^[\x21\x23-\x5B\x5D-\x7E]{1,128}$`)

func (p *parser) readScopes(n *strictyaml.Node, what string) []string {
	scopes := p.file.Strings(n, what)
	for _, s := range scopes {
		if !scopeToken.MatchString(s) {
			p.file.Add(n.Line, "%s: %q is not an OAuth scope", what, strictyaml.Clip(s))
		}
	}
	return scopes
}

func (p *parser) readClaims(vars []string, n *strictyaml.Node, what string) map[string]string {
	out := map[string]string{}
	for _, m := range p.file.Members(n, what) {
		claim, ok := p.file.Text(m.Value, what)
		switch {
		case !slices.Contains(vars, m.Key):
			p.file.Add(m.Line, "%s: %q is not a variable of the template", what, strictyaml.Clip(m.Key))
		case ok && claim == "" || len(claim) > 128:
			p.file.Add(m.Line, "%s: the claim for %q must be named, in at most 128 bytes", what, m.Key)
		}
		out[m.Key] = claim
	}
	return out
}

// readParamsSchema reads the schema of the template's variables and of filters. A filter must not be required, because the variables of
// an event's URI are checked against the same schema, and a URI has no filters.
func (p *parser) readParamsSchema(e *Entry, n *strictyaml.Node, what string) {
	if e.URI != "" {
		p.file.Add(n.Line, "%s: a fixed URI has no variables", what)
		return
	}
	e.ParamsSchema, e.params = p.readSchema(n, what)
	if e.params == nil || e.vars == nil {
		return
	}
	var shape struct {
		Properties map[string]json.RawMessage `json:"properties"`
		Required   []string                   `json:"required"`
	}
	if err := json.Unmarshal(e.ParamsSchema, &shape); err != nil {
		p.file.Add(n.Line, "%s: properties or required are not of their usual form", what)
		return
	}
	e.types = map[string]string{}
	for name, raw := range shape.Properties {
		_, isFilter := e.Filters[name]
		if !slices.Contains(e.vars, name) {
			if !isFilter {
				p.file.Add(strictyaml.Line(n, []string{"properties", name}),
					"%s: %q is neither a variable of the template nor a filter", what, strictyaml.Clip(name))
			}
			continue
		}
		var prop struct {
			Type any `json:"type"`
		}
		_ = json.Unmarshal(raw, &prop) // fails for the schemas true and false, which have no type
		if t, ok := prop.Type.(string); ok && t != "string" {
			e.types[name] = t
		}
	}
	for _, name := range shape.Required {
		if !slices.Contains(e.vars, name) {
			p.file.Add(strictyaml.Line(n, []string{"required"}),
				"%s: the required %q is not a variable of the template", what, strictyaml.Clip(name))
		}
	}
}

const scalarValue = `{"type":["string","number","boolean"]}`

var (
	anyText    = json.RawMessage(`{"type":"string"}`)
	redactFlag = json.RawMessage(`{"type":"boolean","default":false,"description":"Leave out the members that the event type marks as sensitive."}`)
)

// filterSchema returns the schema of a filter's argument, which is a value, a list of values or a range. The parameter own is the
// operator's schema of a value, or nil.
func filterSchema(own json.RawMessage, ranges RangeType) json.RawMessage {
	value, about := string(own), ""
	if own == nil {
		value, about = scalarValue, `,"description":"A value that the event must have here, or a list of which it must have one; in a text, * stands for any characters."`
	}
	span := ""
	if ranges != NoRange {
		span = "," + ranges.schema()
	}
	return json.RawMessage(`{"anyOf":[` + value + `,{"type":"array","items":` + value + `,"minItems":1,"maxItems":50}` + span + `]` + about + `}`)
}

// inputSchema returns the schema of a subscription's arguments. It adds properties for the filters and for "redact" to the params schema,
// and excludes additional properties.
func inputSchema(e *Entry) json.RawMessage {
	schema := map[string]json.RawMessage{}
	if e.ParamsSchema != nil {
		_ = json.Unmarshal(e.ParamsSchema, &schema) // cannot fail: readParamsSchema has decoded it as an object
	}
	props := map[string]json.RawMessage{}
	if raw, ok := schema["properties"]; ok {
		_ = json.Unmarshal(raw, &props)
	}
	for _, v := range e.vars {
		if _, ok := props[v]; !ok {
			props[v] = anyText
		}
	}
	for name := range e.Filters {
		props[name] = filterSchema(props[name], e.RangeOf(name))
	}
	if len(e.Redact) > 0 {
		props[redactArgument] = redactFlag
	}
	schema["type"] = json.RawMessage(`"object"`)
	schema["properties"], _ = json.Marshal(props) // valid JSON always marshals
	schema["additionalProperties"] = json.RawMessage(`false`)
	out, _ := json.Marshal(schema)
	return out
}

// RangeType says whether a filter accepts ranges, such as {"$gt": 5}, and whether their bounds are numbers or times.
type RangeType string

const (
	NoRange     RangeType = ""
	NumberRange RangeType = "number"
	TimeRange   RangeType = "date-time"
)

// RangeOf returns the type of the ranges that a filter accepts. It follows from the filter's schema in paramsSchema. If that schema is
// missing, it follows from the schema of the payload member that the filter compares.
func (e *Entry) RangeOf(filter string) RangeType {
	pointer, ok := e.Filters[filter]
	if !ok {
		return NoRange
	}
	var params struct {
		Properties map[string]json.RawMessage `json:"properties"`
	}
	if e.ParamsSchema != nil && json.Unmarshal(e.ParamsSchema, &params) == nil {
		if own, ok := params.Properties[filter]; ok {
			return rangeType(own)
		}
	}
	path, _ := jsonpointer.Parse(pointer)
	at := e.PayloadSchema
	for _, name := range path {
		var s struct {
			Properties map[string]json.RawMessage `json:"properties"`
			Items      json.RawMessage            `json:"items"`
		}
		if json.Unmarshal(at, &s) != nil {
			return NoRange
		}
		next, ok := s.Properties[name]
		if _, err := strconv.Atoi(name); !ok && err == nil {
			next = s.Items
		}
		at = next
	}
	return rangeType(at)
}

// rangeType returns the type of the ranges for values with the given schema. For an array, the schema of its elements decides.
func rangeType(schema json.RawMessage) RangeType {
	var s struct {
		Type   any             `json:"type"`
		Format string          `json:"format"`
		Items  json.RawMessage `json:"items"`
	}
	if json.Unmarshal(schema, &s) != nil {
		return NoRange
	}
	switch kind, _ := s.Type.(string); {
	case kind == "number", kind == "integer":
		return NumberRange
	case kind == "string" && s.Format == "date-time":
		return TimeRange
	case kind == "array":
		return rangeType(s.Items)
	}
	return NoRange
}

// schema returns the JSON Schema of a range, for example of {"$gte": 1, "$lt": 5}.
func (t RangeType) schema() string {
	bound := `{"type":"number"}`
	if t == TimeRange {
		bound = `{"type":"string","format":"date-time"}`
	}
	return `{"type":"object","minProperties":1,"additionalProperties":false,"properties":{` +
		`"$gt":` + bound + `,"$gte":` + bound + `,"$lt":` + bound + `,"$lte":` + bound + `},` +
		`"description":"A range: greater than, at least, less than, at most. All bounds that are given must hold."}`
}
