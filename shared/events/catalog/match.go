package catalog

import (
	"net/url"
	"slices"
	"strings"
)

// node is a place in the trie of segments. Entries cannot overlap, so at most
// one leaf fits a URI, but a literal and a variable may stand at the same place: the
// literal is tried first. There is at most one variable child, for names of
// variables do not matter here.
type node struct {
	literal  map[string]*node
	variable *node
	entry    *Entry // ends here
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

// overlap finds an entry that could match a URI that e also matches.
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

// Match finds the event type of a canonical URI, and the values of its
// template's variables, decoded. The map is nil for a fixed URI. A URI that is
// not canonical matches nothing.
func (c *Catalog) Match(uri string) (*Entry, map[string]string, bool) {
	return c.match(uri, false)
}

// MatchPattern is [Catalog.Match] for a pattern as [CanonicalPattern] gives it: a
// segment "*" is an omitted variable and missing in the map. It does not stand for a
// literal. Since entries do not overlap, at most one fits.
func (c *Catalog) MatchPattern(pattern string) (*Entry, map[string]string, bool) {
	return c.match(pattern, true)
}

func (c *Catalog) match(uri string, wildcards bool) (*Entry, map[string]string, bool) {
	rest, ok := canonicalRest(uri, wildcards)
	if !ok {
		return nil, nil, false
	}
	e := c.root.find(rest)
	if e == nil {
		return nil, nil, false
	}
	return e, e.bind(rest), true
}

// canonicalRest is a canonical URI without its scheme.
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

// bind decodes the values that the segments of a URI, or of a parent, have for variables.
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

// Expand fills in the template. Omitted variables become "*"; for a fixed URI it is
// the URI. Values are encoded as RFC 6570 does for simple variables. An empty value
// counts as omitted, for no URI has an empty segment.
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

// Under lists the entries whose events a canonical parent URI stands for, in the order of the file: the URI is a
// proper prefix, in whole segments, of what they match. "event://github/acme" is a parent of
// event://github/{owner}/{repo}/push.
func (c *Catalog) Under(uri string) (out []*Entry) {
	rest, ok := canonicalRest(uri, false)
	if !ok {
		return nil
	}
	above := strings.Split(rest, "/")
	for _, e := range c.entries {
		if len(e.segments) > len(above) && slices.EqualFunc(above, e.segments[:len(above)], func(seg string, s segment) bool {
			return s.variable != "" || s.literal == seg
		}) {
			out = append(out, e)
		}
	}
	return out
}

// BindParent gives the values that a parent URI has for the first variables of an
// entry of [Catalog.Under]; the others are missing in the map.
func (e *Entry) BindParent(uri string) map[string]string {
	return e.bind(strings.TrimPrefix(uri, Scheme))
}
