package catalog

import (
	"net/url"
	"slices"
	"strings"
)

// node is a node in the trie of segments. Entries cannot overlap, so at most one entry matches a URI. A node may have both literal and
// variable children, and then find tries the literal first. There is at most one variable child, because names of variables do not
// matter here.
type node struct {
	literal  map[string]*node
	variable *node
	entry    *Entry // the entry that ends here
}

func (n *node) insert(e *Entry) {
	for _, s := range e.segments {
		var next *node
		if s.variable != "" {
			if n.variable == nil {
				n.variable = &node{}
			}
			next = n.variable
		} else {
			if n.literal == nil {
				n.literal = make(map[string]*node)
			}
			if next = n.literal[s.literal]; next == nil {
				next = &node{}
				n.literal[s.literal] = next
			}
		}
		n = next
	}
	n.entry = e
}

// overlap returns an entry that could match the same URI as the segments, or nil.
func (n *node) overlap(segs []segment) *Entry {
	if len(segs) == 0 {
		return n.entry
	}
	if n.variable != nil {
		if e := n.variable.overlap(segs[1:]); e != nil {
			return e
		}
	}
	if segs[0].variable == "" {
		if next := n.literal[segs[0].literal]; next != nil {
			return next.overlap(segs[1:])
		}
		return nil
	}
	for _, next := range n.literal {
		if e := next.overlap(segs[1:]); e != nil {
			return e
		}
	}
	return nil
}

// Match returns the event type of a canonical URI and the decoded values of its template's variables. The map is nil for a fixed URI.
// Match returns false if the URI is not canonical. URIs of a backend match only its own event types, also if an event type of the operator
// has a variable as its first segment.
func (c *Catalog) Match(uri string) (*Entry, map[string]string, bool) {
	return c.match(uri, false)
}

// MatchPattern is [Catalog.Match] for a pattern that [CanonicalPattern] returned. A segment "*" is an omitted variable, which the map
// then lacks. It does not match a literal.
func (c *Catalog) MatchPattern(pattern string) (*Entry, map[string]string, bool) {
	return c.match(pattern, true)
}

func (c *Catalog) match(uri string, wildcards bool) (*Entry, map[string]string, bool) {
	rest, ok := canonicalRest(uri, wildcards)
	if !ok {
		return nil, nil, false
	}
	e := c.root.find(rest)
	if e == nil || e.Backend != BackendOf(uri) {
		return nil, nil, false
	}
	return e, e.bind(rest), true
}

// canonicalRest returns a canonical URI without its scheme.
func canonicalRest(uri string, wildcards bool) (string, bool) {
	if same, err := canonical(uri, wildcards); err != nil || same != uri {
		return "", false
	}
	return uri[len(Scheme):], true
}

func (n *node) find(rest string) *Entry {
	seg, tail, more := strings.Cut(rest, "/")
	for _, next := range []*node{n.literal[seg], n.variable} {
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

// bind returns the decoded values of the variables in a URI or a parent URI.
func (e *Entry) bind(rest string) map[string]string {
	if len(e.vars) == 0 {
		return nil
	}
	vars := make(map[string]string, len(e.vars))
	for _, s := range e.segments {
		seg, tail, more := strings.Cut(rest, "/")
		if s.variable != "" && seg != Wildcard {
			vars[s.variable], _ = url.PathUnescape(seg) // it is canonical
		}
		if !more {
			break
		}
		rest = tail
	}
	return vars
}

// Bind returns the values that an event URI gives to the variables of the template, decoded. It returns false if the URI does not
// match the template. The map is nil for a fixed URI.
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

// Under returns the operator's entries below a canonical parent URI, in the order of the file. A parent URI is a prefix of whole segments. For
// example, event://github/acme is a parent of event://github/{owner}/{repo}/push.
func (c *Catalog) Under(uri string) (out []*Entry) {
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

// BindParent returns the values that a parent URI has for the first variables of an entry from [Catalog.Under].
func (e *Entry) BindParent(uri string) map[string]string {
	return e.bind(strings.TrimPrefix(uri, Scheme))
}
