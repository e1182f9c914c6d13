package catalog

import (
	"net/url"
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
		if s.Variable != "" {
			if n.variable == nil {
				n.variable = &node{}
			}
			next = n.variable
		} else {
			if n.literal == nil {
				n.literal = make(map[string]*node)
			}
			if next = n.literal[s.Literal]; next == nil {
				next = &node{}
				n.literal[s.Literal] = next
			}
		}
		n = next
	}
	n.entry = e
}

// overlap finds an entry that could match a URI that e also matches.
func (n *node) overlap(segs []Segment) *Entry {
	if len(segs) == 0 {
		return n.entry
	}
	if n.variable != nil {
		if e := n.variable.overlap(segs[1:]); e != nil {
			return e
		}
	}
	if segs[0].Variable == "" {
		if next := n.literal[segs[0].Literal]; next != nil {
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
	rest, ok := strings.CutPrefix(uri, Scheme)
	if !ok || rest == "" {
		return nil, nil, false
	}
	e := c.root.find(rest, wildcards)
	if e == nil {
		return nil, nil, false
	}
	vars, ok := e.bind(rest)
	return e, vars, ok
}

func (n *node) find(rest string, wildcards bool) *Entry {
	seg, tail, more := strings.Cut(rest, "/")
	if next := n.literal[seg]; next != nil {
		if e := next.ends(tail, more, wildcards); e != nil {
			return e
		}
	}
	if n.variable != nil && fits(seg, wildcards) {
		return n.variable.ends(tail, more, wildcards)
	}
	return nil
}

func (n *node) ends(tail string, more, wildcards bool) *Entry {
	if !more {
		return n.entry
	}
	return n.find(tail, wildcards)
}

// fits reports whether a segment can be the value of a variable.
func fits(seg string, wildcards bool) bool {
	if seg == "" || dots(seg) {
		return false
	}
	if seg == Wildcard {
		return wildcards
	}
	for i := 0; i < len(seg); i++ {
		if unreserved(seg[i]) {
			continue
		}
		if seg[i] != '%' || i+2 >= len(seg) || !upperHex(seg[i+1]) || !upperHex(seg[i+2]) {
			return false
		}
		i += 2
	}
	return true
}

func upperHex(c byte) bool { return '0' <= c && c <= '9' || 'A' <= c && c <= 'F' }

func (e *Entry) bind(rest string) (map[string]string, bool) {
	if len(e.vars) == 0 {
		return nil, true
	}
	vars := make(map[string]string, len(e.vars))
	for _, s := range e.segments {
		seg, tail, _ := strings.Cut(rest, "/")
		rest = tail
		if s.Variable == "" || seg == Wildcard {
			continue
		}
		v, err := url.PathUnescape(seg)
		if err != nil {
			return nil, false
		}
		vars[s.Variable] = v
	}
	return vars, true
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
		case s.Variable == "":
			b.WriteString(s.Literal)
		case vars[s.Variable] == "":
			b.WriteString(Wildcard)
		default:
			encode(&b, vars[s.Variable])
		}
	}
	return b.String()
}

// Under lists the entries whose events a canonical parent URI stands for, in the order of the file: the URI is a
// proper prefix, in whole segments, of what they match. "event://github/acme" is a parent of
// event://github/{owner}/{repo}/push.
func (c *Catalog) Under(uri string) (out []*Entry) {
	in := map[*Entry]bool{}
	if rest, ok := strings.CutPrefix(uri, Scheme); ok && rest != "" {
		c.root.below(rest, in)
	}
	if len(in) == 0 {
		return nil
	}
	for _, e := range c.entries {
		if in[e] {
			out = append(out, e)
		}
	}
	return out
}

// BindParent gives the values that a parent URI has for the first variables of an
// entry of [Catalog.Under]; the others are missing in the map.
func (e *Entry) BindParent(uri string) map[string]string {
	rest, _ := strings.CutPrefix(uri, Scheme)
	vars := make(map[string]string, len(e.vars))
	for _, s := range e.segments {
		seg, tail, more := strings.Cut(rest, "/")
		if s.Variable != "" {
			if v, err := url.PathUnescape(seg); err == nil {
				vars[s.Variable] = v
			}
		}
		if !more {
			break
		}
		rest = tail
	}
	return vars
}

// below adds the entries below the rest of a parent URI.
func (n *node) below(rest string, in map[*Entry]bool) {
	seg, tail, more := strings.Cut(rest, "/")
	next := []*node{n.literal[seg]}
	if fits(seg, false) {
		next = append(next, n.variable)
	}
	for _, child := range next {
		switch {
		case child == nil:
		case more:
			child.below(tail, in)
		default:
			child.children(in)
		}
	}
}

// children adds the entries that are longer than the place.
func (n *node) children(in map[*Entry]bool) {
	for _, next := range n.literal {
		next.all(in)
	}
	if n.variable != nil {
		n.variable.all(in)
	}
}

func (n *node) all(in map[*Entry]bool) {
	if n.entry != nil {
		in[n.entry] = true
	}
	n.children(in)
}
