package catalog

import (
	"crypto/sha256"
	"encoding/base64"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/mcp-events/mcpevents/shared/platform/jsonpointer"
	"github.com/mcp-events/mcpevents/shared/platform/strictyaml"
)

// Parse reads a catalog file. Every fault is found in one go: the error is of kind
// fault.Invalid, its text has a line for each ("catalog.yaml:12: …", at most 50), its
// data is []strictyaml.Fault.
func Parse(src []byte) (*Catalog, error) { return ParseFile("catalog.yaml", src) }

// ParseFile is [Parse] with the name that messages give the file.
func ParseFile(name string, src []byte) (*Catalog, error) {
	return parseFile(name, src, false)
}

func parseFile(name string, src []byte, checked bool) (*Catalog, error) {
	f, root := strictyaml.Parse(name, src, MaxSource)
	p := &parser{file: f, checked: checked}
	if root != nil {
		p.catalog(root)
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
	// checked is true for a text that went through all checks when it was stored:
	// its schemas are compiled when they are used.
	checked bool
	entries []*Entry
	byName  map[string]*Entry
	root    node
}

func (p *parser) catalog(root *strictyaml.Node) {
	p.byName = map[string]*Entry{}
	var events *strictyaml.Node
	for _, m := range p.file.Members(root, "the catalog") {
		switch m.Key {
		case "events":
			events = m.Value
		default:
			p.file.Unknown(m, "the catalog", "events")
		}
	}
	if events == nil {
		if p.file.Count() == 0 {
			p.file.Add(root.Line, `the member "events" is missing`)
		}
		return
	}
	items := p.file.Items(events, `"events"`)
	if len(items) > MaxEntries {
		p.file.Add(events.Line, "there are more than %d event types", MaxEntries)
		return
	}
	for _, n := range items {
		p.entry(n)
	}
}

var entryMembers = []string{
	"name", "uri", "uriTemplate", "title", "description", "payloadSchema", "paramsSchema",
	"webhookType", "delivery", "order", "filters", "redact", "access",
}

// entry reads one event type and, if its URI is usable, places it in the trie.
func (p *parser) entry(n *strictyaml.Node) {
	e := &Entry{line: n.Line}
	at := map[string]*strictyaml.Node{}
	members := p.file.Members(n, "an entry of events")
	for _, m := range members {
		at[m.Key] = m.Value
	}
	p.name(e, n, at["name"])
	for _, m := range members {
		if !slices.Contains(entryMembers, m.Key) {
			p.file.Unknown(m, e.what(), entryMembers...)
		}
	}
	text := func(member string, limit int) string {
		v := at[member]
		if v == nil {
			return ""
		}
		s := p.file.String(v, e.say(member))
		if len(s) > limit {
			p.file.Add(v.Line, "%s is longer than %d bytes", e.say(member), limit)
		}
		return s
	}
	e.Title = text("title", 200)
	e.Description = text("description", 4000)
	p.webhookType(e, at["webhookType"])
	p.pattern(e, n, at["uri"], at["uriTemplate"])
	p.delivery(e, at["delivery"])
	p.order(e, at["order"])
	p.filters(e, at["filters"])
	p.redact(e, at["redact"])
	p.access(e, at["access"])
	if v := at["payloadSchema"]; v != nil {
		e.PayloadSchema, e.payload = p.schema(e, "payloadSchema", v)
	}
	p.paramsSchema(e, at["paramsSchema"])
	e.input = inputSchema(e)
	e.arguments = newSchema(e.input)
	e.contractID = sync.OnceValue(func() string { return digest(e.Contract()) })
	p.entries = append(p.entries, e)
}

// what names the entry in a message.
func (e *Entry) what() string {
	if e.Name == "" {
		return "an entry of events"
	}
	return "event " + strictyaml.Clip(e.Name)
}

// say names a member of the entry in a message.
func (e *Entry) say(member string) string {
	if e.Name == "" {
		return member
	}
	return e.what() + ": " + member
}

var namePattern = regexp.MustCompile(`^[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*$`)

func (p *parser) name(e *Entry, n, at *strictyaml.Node) {
	if at == nil {
		p.file.Add(n.Line, "an entry of events has no name")
		return
	}
	name := p.file.String(at, "name")
	switch {
	case name == "":
		if at.Value == "" {
			p.file.Add(at.Line, "an entry of events has an empty name")
		}
		return
	case len(name) > 128 || !namePattern.MatchString(name):
		p.file.Add(at.Line, "the name %q is not of letters, digits, - and _ in parts separated by dots, at most 128 bytes", strictyaml.Clip(name))
	}
	e.Name, e.WebhookType = name, name
	if other := p.byName[name]; other != nil {
		p.file.Add(at.Line, "the name %q was already given in line %d", strictyaml.Clip(name), other.line)
		return
	}
	e.line = at.Line
	p.byName[name] = e
}

var webhookType = regexp.MustCompile(`^[A-Za-z0-9_.:/-]{1,128}$`)

func (p *parser) webhookType(e *Entry, at *strictyaml.Node) {
	if at == nil {
		return
	}
	t := p.file.String(at, e.say("webhookType"))
	if t != "" && !webhookType.MatchString(t) {
		p.file.Add(at.Line, "%s %q is not of letters, digits and _.:/-, at most 128", e.say("webhookType"), strictyaml.Clip(t))
	}
	e.WebhookType = t
}

// pattern reads uri or uriTemplate, of which there must be exactly one.
func (p *parser) pattern(e *Entry, n, uri, template *strictyaml.Node) {
	switch {
	case uri == nil && template == nil:
		p.file.Add(n.Line, "%s: one of both must be given", e.say("uri, uriTemplate"))
		return
	case uri != nil && template != nil:
		p.file.Add(template.Line, "%s: only one of both can be given", e.say("uri, uriTemplate"))
		return
	}
	at, member := uri, "uri"
	if uri == nil {
		at, member = template, "uriTemplate"
	}
	s := p.file.String(at, e.say(member))
	if s == "" {
		if at.Value == "" {
			p.file.Add(at.Line, "%s is empty", e.say(member))
		}
		return
	}
	if uri != nil && strings.ContainsAny(s, "{}") {
		p.file.Add(at.Line, "%s has variables; use uriTemplate", e.say(member))
		return
	}
	segs, err := parseTemplate(s)
	if err != nil {
		p.file.Add(at.Line, "%s %v", e.say(member), err)
		return
	}
	for _, seg := range segs {
		if seg.variable != "" {
			e.vars = append(e.vars, seg.variable)
		}
	}
	switch {
	case uri == nil && len(e.vars) == 0:
		p.file.Add(at.Line, "%s has no variables; use uri", e.say(member))
		return
	case len(e.vars) > MaxVariables:
		p.file.Add(at.Line, "%s has %d variables; at most %d are possible", e.say(member), len(e.vars), MaxVariables)
		return
	}
	if uri != nil {
		e.URI = s
	} else {
		e.URITemplate = s
	}
	e.segments = segs
	if other := p.root.overlap(segs); other != nil {
		p.file.Add(at.Line, "%s could match the same URI as %s of event %s in line %d",
			e.say(member), other.Pattern(), other.Name, other.line)
		return
	}
	p.root.insert(e)
}

func (p *parser) delivery(e *Entry, at *strictyaml.Node) {
	modes := []string{DeliverPush, DeliverPoll, DeliverWebhook}
	if at == nil {
		e.Delivery = modes
		return
	}
	e.Delivery = p.file.Strings(at, e.say("delivery"))
	if len(e.Delivery) == 0 {
		p.file.Add(at.Line, "%s is empty; leave it out to allow all of %s", e.say("delivery"), strings.Join(modes, ", "))
	}
	for _, m := range e.Delivery {
		if !slices.Contains(modes, m) {
			p.file.Add(at.Line, "%s: unknown mode %q (allowed: %s)", e.say("delivery"), strictyaml.Clip(m), strings.Join(modes, ", "))
		}
	}
}

func (p *parser) order(e *Entry, at *strictyaml.Node) {
	e.Order = OrderURI
	if at == nil {
		return
	}
	if e.Order = p.file.String(at, e.say("order")); e.Order != OrderURI && e.Order != OrderNone {
		p.file.Add(at.Line, "%s: unknown order %q (allowed: %s, %s)", e.say("order"), strictyaml.Clip(e.Order), OrderURI, OrderNone)
	}
}

// redactArgument is the argument of a subscription that asks for less.
const redactArgument = "redact"

func (p *parser) filters(e *Entry, at *strictyaml.Node) {
	if at == nil {
		return
	}
	members := p.file.Members(at, e.say("filters"))
	if len(members) > MaxFilters {
		p.file.Add(at.Line, "%s: more than %d are not possible", e.say("filters"), MaxFilters)
		return
	}
	e.Filters = make(map[string]string, len(members))
	for _, m := range members {
		pointer := p.file.String(m.Value, e.say("filter "+strictyaml.Clip(m.Key)))
		_, err := jsonpointer.Parse(pointer)
		switch {
		case !variableName.MatchString(m.Key):
			p.file.Add(m.Line, "%s: the name %q is not of letters, digits and _, at most 64", e.say("filters"), strictyaml.Clip(m.Key))
		case slices.Contains(e.vars, m.Key):
			p.file.Add(m.Line, "%s: %q is also a variable of the template", e.say("filters"), m.Key)
		case m.Key == redactArgument:
			p.file.Add(m.Line, "%s: the name %q is taken by the redact argument", e.say("filters"), m.Key)
		case err != nil:
			p.file.Add(m.Line, "%s: %q is not a JSON pointer to a member (RFC 6901)", e.say("filters"), strictyaml.Clip(pointer))
		case pointer == "" && m.Value.Value == "":
			p.file.Add(m.Line, "%s: the JSON pointer of %q is empty", e.say("filters"), m.Key)
		}
		e.Filters[m.Key] = pointer
	}
}

func (p *parser) redact(e *Entry, at *strictyaml.Node) {
	if at == nil {
		return
	}
	e.Redact = p.file.Strings(at, e.say("redact"))
	if slices.Contains(e.vars, redactArgument) {
		p.file.Add(at.Line, "%s: the template has a variable of that name", e.say("redact"))
	}
	for _, pointer := range e.Redact {
		if _, err := jsonpointer.Parse(pointer); err != nil || pointer == "" {
			p.file.Add(at.Line, "%s: %q is not a JSON pointer to a member (RFC 6901)", e.say("redact"), strictyaml.Clip(pointer))
		}
	}
}

func (p *parser) access(e *Entry, at *strictyaml.Node) {
	if at == nil {
		return
	}
	e.Access = &Access{}
	for _, m := range p.file.Members(at, e.say("access")) {
		switch m.Key {
		case "scopes":
			e.Access.Scopes = p.file.Strings(m.Value, e.say("access scopes"))
			for _, s := range e.Access.Scopes {
				if !scopeToken.MatchString(s) {
					p.file.Add(m.Line, "%s: %q is not an OAuth scope", e.say("access scopes"), strictyaml.Clip(s))
				}
			}
		case "claims":
			e.Access.Claims = p.claims(e, m.Value)
		default:
			p.file.Unknown(m, e.say("access"), "scopes", "claims")
		}
	}
}

// scopeToken is scope-token of RFC 6749, section 3.3.
var scopeToken = regexp.MustCompile(`^[\x21\x23-\x5B\x5D-\x7E]{1,128}$`)

func (p *parser) claims(e *Entry, at *strictyaml.Node) map[string]string {
	out := map[string]string{}
	for _, m := range p.file.Members(at, e.say("access claims")) {
		claim := p.file.String(m.Value, e.say("access claims"))
		switch {
		case !slices.Contains(e.vars, m.Key):
			p.file.Add(m.Line, "%s: %q is not a variable of the template", e.say("access claims"), strictyaml.Clip(m.Key))
		case claim == "" && m.Value.Value == "" || len(claim) > 128:
			p.file.Add(m.Line, "%s: the claim for %q must be named, in at most 128 bytes", e.say("access claims"), m.Key)
		}
		out[m.Key] = claim
	}
	return out
}
