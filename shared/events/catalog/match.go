package catalog

import (
	"maps"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/yosida95/uritemplate/v3"

	"github.com/mcp-events/mcpevents/shared/events/event"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/platform/strictyaml"
)

// node is a node of a trie whose keys are segments of URIs. All variables share one child, because their names do not matter for matching.
// Entries cannot overlap, so at most one entry matches a URI.
type node struct {
	next  map[string]*node // by literal segment; the key "" stands for a variable, because no literal is empty
	entry *Entry           // the entry whose last segment leads to this node, or nil
}

func (n *node) insert(e *Entry) {
	for _, s := range e.segments {
		next := n.next[s.literal]
		if next == nil {
			if n.next == nil {
				n.next = map[string]*node{}
			}
			next = &node{}
			n.next[s.literal] = next
		}
		n = next
	}
	n.entry = e
}

// overlap returns an entry below n that could match the same URI as a template with the given segments, or nil.
func (n *node) overlap(segs []segment) *Entry {
	switch {
	case n == nil:
		return nil
	case len(segs) == 0:
		return n.entry
	}
	candidates := []*node{n.next[""], n.next[segs[0].literal]}
	if segs[0].variable != "" {
		candidates = slices.Collect(maps.Values(n.next))
	}
	for _, next := range candidates {
		if e := next.overlap(segs[1:]); e != nil {
			return e
		}
	}
	return nil
}

// Match returns the event type that matches a URI, and the decoded values of its template's variables. It returns false if no event type
// matches or the URI is not canonical. The URI of a backend's event matches only types of that backend, even if a template of the
// operator begins with a variable.
func (c *Catalog) Match(uri string) (*Entry, map[string]string, bool) {
	return c.match(uri, false)
}

// MatchPattern is like [Catalog.Match], for a pattern that [CanonicalPattern] returned. A segment "*" in the pattern stands for any value
// of a variable. It matches only a variable of the template, and the returned map has no value for this variable.
func (c *Catalog) MatchPattern(pattern string) (*Entry, map[string]string, bool) {
	return c.match(pattern, true)
}

func (c *Catalog) match(uri string, wildcards bool) (*Entry, map[string]string, bool) {
	rest, ok := canonicalRest(uri, wildcards)
	if !ok {
		return nil, nil, false
	}
	e := c.root.find(rest)
	if CallerOf(uri) != "" {
		_, own, _, _ := ParseBackendURI(uri)
		e = c.perCallerType(BackendOf(uri), own)
	}
	if e == nil || e.Backend != BackendOf(uri) {
		return nil, nil, false
	}
	return e, e.bind(rest), true
}

func canonicalRest(uri string, wildcards bool) (string, bool) {
	if same, err := canonicalize(uri, wildcards); err != nil || same != uri {
		return "", false
	}
	return uri[len(Scheme):], true
}

// find returns the entry that matches a URI without its scheme, or nil. It tries literals before variables.
func (n *node) find(rest string) *Entry {
	seg, tail, more := strings.Cut(rest, "/")
	for _, next := range []*node{n.next[seg], n.next[""]} {
		switch {
		case next == nil:
		case !more && next.entry != nil:
			return next.entry
		case more:
			if e := next.find(tail); e != nil {
				return e
			}
		}
	}
	return nil
}

// bind returns the decoded variables of a URI without its scheme. A parent URI has values only for the first variables.
func (e *Entry) bind(rest string) map[string]string {
	if len(e.vars) == 0 {
		return nil
	}
	vars := make(map[string]string, len(e.vars))
	for _, s := range e.segments {
		seg, tail, more := strings.Cut(rest, "/")
		if s.variable != "" && seg != Wildcard {
			vars[s.variable], _ = url.PathUnescape(seg) // cannot fail, because the URI is canonical
		}
		if !more {
			break
		}
		rest = tail
	}
	return vars
}

// Bind returns the decoded values of the template's variables in an event URI, or false if the URI does not match.
// The map is nil for a fixed URI.
func (e *Entry) Bind(uri string) (map[string]string, bool) {
	vars := e.bind(strings.TrimPrefix(uri, Scheme))
	return vars, e.Expand(vars) == uri
}

// Expand returns the URI for values of the template's variables. Missing and empty values become "*", because a URI cannot have an
// empty segment. Other values are encoded as in RFC 6570. For a fixed URI, Expand returns the URI.
func (e *Entry) Expand(vars map[string]string) string {
	if e.Fixed() {
		return e.URI
	}
	var b strings.Builder
	b.Grow(len(e.URITemplate) + 32)
	b.WriteString(Scheme)
	for i, s := range e.segments {
		if i > 0 {
			b.WriteByte('/')
		}
		switch {
		case s.variable == "":
			b.WriteString(s.literal)
		case vars[s.variable] == "":
			b.WriteString(Wildcard)
		default:
			encode(&b, vars[s.variable])
		}
	}
	return b.String()
}

// ListUnder returns the operator's event types below a canonical parent URI, in the order of the file. A parent URI is a prefix of whole
// segments. For example, event://github/acme is a parent of event://github/{owner}/{repo}/push.
func (c *Catalog) ListUnder(uri string) (out []*Entry) {
	rest, ok := canonicalRest(uri, false)
	if !ok || BackendOf(uri) != "" {
		return nil
	}
	above := strings.Split(rest, "/")
	for _, e := range c.entries {
		if e.Backend == "" && len(e.segments) > len(above) && slices.EqualFunc(above, e.segments[:len(above)], func(seg string, s segment) bool {
			return s.variable != "" || s.literal == seg
		}) {
			out = append(out, e)
		}
	}
	return out
}

// BindParent returns the decoded values of the variables that a parent URI already fixes. The entry comes from [Catalog.ListUnder].
func (e *Entry) BindParent(uri string) map[string]string {
	return e.bind(strings.TrimPrefix(uri, Scheme))
}

var variableName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]{0,63}$`)

// parseTemplate splits a URI template into segments. Of RFC 6570 it accepts only {name} as a whole segment, so that matching compares
// segments, is unambiguous and needs no regular expressions.
func parseTemplate(s string) ([]segment, error) {
	if len(s) > event.MaxURI {
		return nil, fault.New(fault.Invalid, "is longer than %d bytes", event.MaxURI)
	}
	if _, err := uritemplate.New(s); err != nil {
		return nil, fault.New(fault.Invalid, "is not a URI template (RFC 6570): %s",
			strings.TrimPrefix(err.Error(), "uritemplate:"))
	}
	rest, ok := strings.CutPrefix(s, Scheme)
	if !ok {
		return nil, fault.New(fault.Invalid, "does not begin with %s", Scheme)
	}
	var segs []segment
	seen := map[string]bool{}
	for i, part := range strings.Split(rest, "/") {
		seg, err := parseSegment(part, i == 0)
		if err != nil {
			return nil, err
		}
		if seg.variable != "" && seen[seg.variable] {
			return nil, fault.New(fault.Invalid, "has the variable {%s} twice", seg.variable)
		}
		seen[seg.variable] = true
		segs = append(segs, seg)
	}
	return segs, nil
}

func parseSegment(part string, authority bool) (segment, error) {
	if open := strings.IndexByte(part, '{'); open >= 0 {
		if open != 0 || strings.IndexByte(part, '}') != len(part)-1 {
			return segment{}, fault.New(fault.Invalid,
				"has a variable next to other text in %q; a variable must be a whole segment", strictyaml.Clip(part))
		}
		name := part[1 : len(part)-1]
		if !variableName.MatchString(name) {
			return segment{}, fault.New(fault.Invalid, "has the expression {%s}; only {name} is supported, "+
				"where name is letters, digits and _, at most 64, not beginning with a digit", strictyaml.Clip(name))
		}
		return segment{variable: name}, nil
	}
	var b strings.Builder
	if err := canonicalSegment(&b, part, authority); err != nil {
		return segment{}, fault.New(fault.Invalid, "%s", strings.TrimPrefix(fault.Public(err), "the event URI "))
	}
	if b.String() != part {
		return segment{}, fault.New(fault.Invalid, "must be written canonically: %q as %q",
			strictyaml.Clip(part), strictyaml.Clip(b.String()))
	}
	return segment{literal: part}, nil
}

// Scheme is the beginning of every event URI.
const Scheme = "event://"

// Wildcard is the segment of a pattern that stands for any value of a variable.
const Wildcard = "*"

// Canonical validates an event URI and returns its canonical spelling, which all equal URIs share: the scheme is in lower case,
// and all characters of a segment except the unreserved ones of RFC 3986 are percent-encoded in upper case. For example, it
// returns event://a/b%3Ac for EVENT://a/b:c. The segments are case-sensitive.
//
// The error is of kind fault.Invalid, for example if the URI has a query, a fragment, user information, an empty segment, a dot
// segment or a control character, or if it is longer than [event.MaxURI] bytes.
func Canonical(uri string) (string, error) { return canonicalize(uri, false) }

// CanonicalPattern returns the canonical form of a pattern, as [Canonical] does for a URI. It keeps segments that are [Wildcard].
func CanonicalPattern(uri string) (string, error) { return canonicalize(uri, true) }

func canonicalize(uri string, wildcards bool) (string, error) {
	if len(uri) > 3*event.MaxURI {
		return "", invalidURI("is longer than %d bytes", event.MaxURI).AtLimit("eventURI", event.MaxURI)
	}
	if len(uri) < len(Scheme) || !strings.EqualFold(uri[:len(Scheme)], Scheme) {
		return "", invalidURI("does not begin with %s", Scheme)
	}
	rest := uri[len(Scheme):]
	if rest == "" {
		return "", invalidURI("names no event")
	}
	if uri[:len(Scheme)] == Scheme && len(uri) <= event.MaxURI && isCanonical(rest, wildcards) {
		return uri, nil
	}
	var b strings.Builder
	b.Grow(len(uri) + 16)
	b.WriteString(Scheme)
	for i, seg := range strings.Split(rest, "/") {
		if i > 0 {
			b.WriteByte('/')
		}
		if wildcards && seg == Wildcard {
			b.WriteString(seg)
		} else if err := canonicalSegment(&b, seg, i == 0); err != nil {
			return "", err
		}
	}
	if b.Len() > event.MaxURI {
		return "", invalidURI("is longer than %d bytes", event.MaxURI).AtLimit("eventURI", event.MaxURI)
	}
	return b.String(), nil
}

func invalidURI(format string, args ...any) *fault.Error {
	return fault.New(fault.Invalid, "the event URI "+format, args...)
}

// isCanonical reports whether all segments have only unreserved characters. It is the fast path of canonicalize.
func isCanonical(rest string, wildcards bool) bool {
	for seg := range strings.SplitSeq(rest, "/") {
		if wildcards && seg == Wildcard {
			continue
		}
		if seg == "" || isDots(seg) {
			return false
		}
		for i := range len(seg) {
			if !isUnreserved(seg[i]) {
				return false
			}
		}
	}
	return true
}

func canonicalSegment(b *strings.Builder, seg string, authority bool) error {
	if seg == "" {
		return invalidURI("has an empty segment")
	}
	for i := 0; i < len(seg); i++ {
		switch c := seg[i]; {
		case c == '?':
			return invalidURI("must not have a query")
		case c == '#':
			return invalidURI("must not have a fragment")
		case c == '@' && authority:
			return invalidURI("must not have user information")
		case c == '{' || c == '}':
			return invalidURI("has a variable that was not filled in")
		case c <= ' ' || c == 0x7f || strings.IndexByte("\"<>\\^`|", c) >= 0:
			return invalidURI("has a character that must be percent-encoded")
		}
	}
	text, err := url.PathUnescape(seg)
	switch {
	case err != nil:
		return invalidURI("has a broken percent-encoding")
	case !validText(text):
		return invalidURI("has a control character, or is not UTF-8")
	case isDots(text):
		return invalidURI("has a dot segment")
	}
	encode(b, text)
	return nil
}

func validText(s string) bool {
	return utf8.ValidString(s) && !strings.ContainsFunc(s, func(r rune) bool { return r < 0x20 || r == 0x7f })
}

func isDots(s string) bool { return s == "." || s == ".." }

func isUnreserved(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' ||
		c == '-' || c == '_' || c == '.' || c == '~'
}

// encode percent-encodes a value in the way in which RFC 6570 encodes a simple variable, such as {name}.
func encode(b *strings.Builder, s string) {
	b.WriteString(strings.ReplaceAll(url.QueryEscape(s), "+", "%20"))
}
