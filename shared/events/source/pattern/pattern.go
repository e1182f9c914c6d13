// Package pattern evaluates event patterns in the syntax of Amazon EventBridge:
// which documents a mapping of a source is for (SRC-03).
//
// A pattern has the shape of the documents that it matches, with a list of allowed
// values at each leaf. It matches if every leaf does, and a leaf matches if one of its
// values does. An array in a document stands for each of its elements; leaves that lie
// in one array of objects must match in one and the same element.
//
// It depends on fault and on JSON as jsonpointer and jsonrpc read it. What a document is, and
// what happens to one that matches, is said in shared/events/source.
package pattern

import (
	"slices"
)

// Bounds of a pattern. The work of [Pattern.Matches] is at most the length of the
// document times the values of all alternatives.
const (
	// MaxSize is the longest pattern in bytes. EventBridge takes 2048 characters.
	MaxSize = 8 << 10
	// MaxDepth is how deep a pattern may be nested.
	MaxDepth = 32
	// MaxAlternatives is how many conjunctions a pattern may stand for: the $or in it,
	// multiplied. EventBridge takes as many.
	MaxAlternatives = 1000
	// MaxValues is how many values these may have together.
	MaxValues = 20_000
)

// Pattern is a parsed event pattern. It may be used by several goroutines.
type Pattern struct {
	alternatives []*node // one of them must match
	text         []byte
}

// MarshalJSON is the pattern as it was written.
func (p *Pattern) MarshalJSON() ([]byte, error) { return p.text, nil }

// Matches reports whether doc, a document as encoding/json decodes it with UseNumber, matches.
func (p *Pattern) Matches(doc any) bool {
	if _, ok := doc.(map[string]any); !ok {
		return false
	}
	return slices.ContainsFunc(p.alternatives, func(n *node) bool { return n.matches(doc) })
}

// node is an object of a conjunction of leaves, or a leaf.
type node struct {
	fields []field
	leaf   *leaf
	// wanting is that some leaf below must be found, not only be missing.
	wanting bool
}

type field struct {
	name string
	node *node
}

// leaf is a path with the values that are allowed there; one must be in the document.
type leaf struct {
	path    []string
	pointer string // in the pattern, for faults
	absent  bool   // no value may be there
	values  []test
}

// test reports whether a value that is neither an object nor an array is allowed.
type test func(value any) bool

// missing stands for a member that is not there; null is one that is.
type missing struct{}

func (n *node) matches(value any) bool {
	if n.leaf != nil {
		return n.leaf.matches(value)
	}
	switch value := value.(type) {
	case map[string]any:
		for _, f := range n.fields {
			if !f.node.matches(member(value, f.name)) {
				return false
			}
		}
		return true
	case []any:
		if n.wanting { // all of it in one element
			return slices.ContainsFunc(value, n.matches)
		}
		return !slices.ContainsFunc(value, func(e any) bool { return !n.matches(e) })
	}
	return !n.wanting
}

func member(object map[string]any, name string) any {
	if value, ok := object[name]; ok {
		return value
	}
	return missing{}
}

func (l *leaf) matches(value any) bool {
	if l.absent {
		return !contains(value, func(any) bool { return true })
	}
	return contains(value, func(v any) bool {
		return slices.ContainsFunc(l.values, func(t test) bool { return t(v) })
	})
}

// contains reports whether a value, or one in an array, passes. Objects are no values.
func contains(value any, ok test) bool {
	switch value := value.(type) {
	case map[string]any, missing:
		return false
	case []any:
		return slices.ContainsFunc(value, func(e any) bool { return contains(e, ok) })
	}
	return ok(value)
}
