// Package pattern evaluates event patterns in the syntax of Amazon EventBridge. A mapping of a source uses a pattern
// to select documents (SRC-03).
//
// A pattern has the shape of the documents that it matches, with a list of allowed values at each leaf. It matches if
// every leaf matches, and a leaf matches if one of its values does. If a document has an array, the pattern is
// applied to each of its elements. Leaves below the same array of objects must all match in the same element.
//
// The package imports only fault, jsonpointer and jsonrpc. Package source defines documents, and turns matching documents into
// events.
package pattern

import (
	"slices"

	"github.com/mcp-events/mcpevents/shared/platform/jsonpointer"
)

// Limits of a pattern. The work of [Pattern.Matches] is at most the length of the document times the number of values
// in all alternatives.
const (
	// MaxSize is the maximum length of a pattern in bytes. EventBridge allows 2048 characters.
	MaxSize = 8 << 10
	// MaxDepth is the maximum nesting depth of a pattern.
	MaxDepth = jsonpointer.MaxDepth
	// MaxAlternatives is the maximum number of conjunctions that a pattern expands to, which is the product of the
	// alternatives of its $or lists. EventBridge has the same limit.
	MaxAlternatives = 1000
	// MaxValues is the maximum number of values in all conjunctions together.
	MaxValues = 20_000
)

// Pattern is a parsed event pattern. It is safe for concurrent use.
type Pattern struct {
	alternatives []*node // one of them must match
	text         []byte
}

// MarshalJSON returns the pattern as it was written.
func (p *Pattern) MarshalJSON() ([]byte, error) { return p.text, nil }

// Matches reports whether doc, a document as encoding/json decodes it with UseNumber, matches.
func (p *Pattern) Matches(doc any) bool {
	if _, ok := doc.(map[string]any); !ok {
		return false
	}
	return slices.ContainsFunc(p.alternatives, func(n *node) bool { return n.matches(doc) })
}

// node is a node in the tree of a conjunction: an inner node, or one with a leaf.
type node struct {
	fields []field
	leaf   *leaf
	// wanting reports whether some leaf below needs a value, rather than only the absence of values.
	wanting bool
}

type field struct {
	name string
	node *node
}

// leaf is a path and the values allowed there. A document must have one of them.
type leaf struct {
	path    []string
	pointer string // in the pattern, for faults
	absent  bool   // no value may be there
	values  []test
}

// test reports whether a scalar value is allowed.
type test func(value any) bool

// missing stands for a member that does not exist, as opposed to one that is null.
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
		if n.wanting { // all leaves below must match in the same element
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

// contains reports whether a value, or an element of an array, passes the test. Objects never pass.
func contains(value any, ok test) bool {
	switch value := value.(type) {
	case map[string]any, missing:
		return false
	case []any:
		return slices.ContainsFunc(value, func(e any) bool { return contains(e, ok) })
	}
	return ok(value)
}
