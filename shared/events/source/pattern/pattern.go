// Package pattern evaluates event patterns in the syntax of Amazon EventBridge. A source's mapping uses a pattern to select the
// documents, which are decoded requests or messages, that become its events (SRC-03).
//
// A pattern has the shape of the documents that it matches, with a list of allowed values at each leaf. It matches if every leaf matches,
// and a leaf matches if the document has one of the allowed values there. If a document has an array, the pattern is applied to each of
// its elements. Leaves below the same array of objects must all match in the same element.
//
// Package source turns matching documents into events.
package pattern

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/platform/jsonpointer"
	"github.com/mcp-events/mcpevents/shared/protocol/jsonrpc"
)

// Limits of a pattern. The time that [Pattern.Matches] takes grows at most with the length of the document times the number of values in
// the pattern.
const (
	// maxSize is the maximum length of a pattern in bytes. EventBridge allows 2048 characters.
	maxSize  = 8 << 10
	maxDepth = jsonpointer.MaxDepth
	// maxAlternatives limits the alternatives into which the $or lists of a pattern expand, like EventBridge does. For example, two $or
	// lists of 3 patterns make 9 alternatives.
	maxAlternatives = 1000
	maxValues       = 20_000 // the maximum number of values in all alternatives together
)

// Pattern is a parsed event pattern. It is safe for concurrent use.
type Pattern struct {
	alternatives []*node // one of them must match
	text         []byte
}

// MarshalJSON returns the pattern as it was written.
func (p *Pattern) MarshalJSON() ([]byte, error) { return p.text, nil }

// Matches reports whether the document doc matches the pattern. Numbers in doc must be of type json.Number.
func (p *Pattern) Matches(doc any) bool {
	if _, ok := doc.(map[string]any); !ok {
		return false
	}
	return slices.ContainsFunc(p.alternatives, func(n *node) bool { return n.matches(doc) })
}

// node is a node of a tree that has the shape of the documents to match. Each alternative of a pattern has its own tree. A node has
// either the fields of an object or a leaf with allowed values.
type node struct {
	fields []field
	leaf   *leaf
	// wanting is true if at least one leaf at or below the node requires a value. It is false if all these leaves require that the value
	// is missing.
	wanting bool
}

type field struct {
	name string
	node *node
}

// leaf is a path in the documents to match, with the values that are allowed there. If absent is true, a document must have no value
// there. Otherwise the value must pass one of the tests.
type leaf struct {
	path    []string
	pointer string // the leaf's place in the pattern, for faults
	absent  bool   // true if the document must have no value at the path
	values  []test
}

// test reports whether a scalar value of a document is allowed.
type test func(value any) bool

// missing is the value of a member that does not exist in a document. A member that is null has the value nil instead.
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

// contains reports whether a value passes the test, or is an array with an element that passes it. Objects and missing values never pass.
func contains(value any, ok test) bool {
	switch value := value.(type) {
	case map[string]any, missing:
		return false
	case []any:
		return slices.ContainsFunc(value, func(e any) bool { return contains(e, ok) })
	}
	return ok(value)
}

const maxFaults = 20 // the maximum number of faults in one error

// Parse parses a pattern. If the pattern has mistakes, the error is a fault of kind Invalid, whose data is a
// []jsonpointer.Fault with up to [maxFaults] of them.
func Parse(text []byte) (*Pattern, error) {
	p := parser{}
	root := p.read(text)
	var alternatives []conjunction
	if len(p.faults) == 0 {
		alternatives = p.parseObject(root, nil, "")
	}
	out := &Pattern{text: slices.Clone(text)}
	for _, c := range alternatives {
		out.alternatives = append(out.alternatives, p.buildTree(c))
	}
	if len(p.faults) == 0 {
		return out, nil
	}
	slices.SortStableFunc(p.faults, func(a, b jsonpointer.Fault) int { return strings.Compare(a.Pointer, b.Pointer) })
	p.faults = slices.Compact(p.faults)
	first, more := p.faults[0], ""
	if n := len(p.faults) - 1; n > 0 {
		more = fmt.Sprintf(" (and %d more)", n)
	}
	p.faults = p.faults[:min(len(p.faults), maxFaults)]
	return nil, fault.New(fault.Invalid, "the event pattern: %s%s", first, more).With(p.faults)
}

// conjunction is one alternative of a pattern: a set of leaves that must all match.
type conjunction []*leaf

type parser struct {
	faults []jsonpointer.Fault
	// tooLarge is true after a fault about too many alternatives or values. The parser then stops combining alternatives.
	tooLarge bool
}

func (p *parser) fail(pointer, format string, args ...any) {
	p.faults = append(p.faults, jsonpointer.Fault{Pointer: pointer, Message: fmt.Sprintf(format, args...)})
}

// parseObject parses an object in a pattern and returns its alternatives, which are all combinations of its members' alternatives.
func (p *parser) parseObject(value any, path []string, pointer string) []conjunction {
	members, ok := value.(map[string]any)
	switch {
	case !ok:
		p.fail(pointer, "must be an object, not %s", kindOf(value))
		return nil
	case len(members) == 0:
		p.fail(pointer, "is an empty object; leave it out to allow anything")
	}
	all := []conjunction{nil}
	for _, name := range slices.Sorted(maps.Keys(members)) {
		at := pointer + jsonpointer.Member(name)
		var alternatives []conjunction
		below := append(slices.Clip(path), name)
		switch v := members[name].(type) {
		case map[string]any:
			alternatives = p.parseObject(v, below, at)
		case []any:
			if name == "$or" {
				alternatives = p.parseOr(v, path, at)
			} else {
				alternatives = p.parseLeaf(v, below, at)
			}
		default:
			p.fail(at, "must be a list of values or an object, not %s", kindOf(v))
		}
		all = p.combine(all, alternatives, at)
	}
	return all
}

func (p *parser) parseOr(list []any, path []string, pointer string) (out []conjunction) {
	if len(list) < 2 {
		p.fail(pointer, "has %s, at least 2 are needed", []string{"no alternatives", "1 alternative"}[len(list)])
	}
	for i, v := range list {
		out = append(out, p.parseObject(v, path, pointer+"/"+strconv.Itoa(i))...)
	}
	return out
}

// combine combines each alternative of a with each alternative of b. If the result would be too large, combine adds a fault and returns
// a. It checks the size before it allocates memory for the result.
func (p *parser) combine(a, b []conjunction, pointer string) []conjunction {
	if p.tooLarge {
		return a
	}
	values := len(b)*countValues(a) + len(a)*countValues(b)
	switch {
	case len(a)*len(b) > maxAlternatives:
		p.tooLarge = true
		p.fail(pointer, "makes the pattern stand for %d alternatives, %d are allowed", len(a)*len(b), maxAlternatives)
		return a
	case values > maxValues:
		p.tooLarge = true
		p.fail(pointer, "makes the alternatives of the pattern have %d values together, %d are allowed", values, maxValues)
		return a
	}
	out := make([]conjunction, 0, len(a)*len(b))
	for _, x := range a {
		for _, y := range b {
			out = append(out, append(slices.Clip(x), y...))
		}
	}
	return out
}

func countValues(all []conjunction) (values int) {
	for _, c := range all {
		for _, l := range c {
			values += len(l.values) + 1
		}
	}
	return values
}

// parseLeaf parses the list of allowed values at a path. If the list allows some values, and also allows that the value is missing,
// parseLeaf returns two alternatives.
func (p *parser) parseLeaf(list []any, path []string, pointer string) (out []conjunction) {
	if len(list) == 0 {
		p.fail(pointer, "is an empty list, which matches nothing")
	}
	l, absent := &leaf{path: path, pointer: pointer}, false
	for i, v := range list {
		at := pointer + "/" + strconv.Itoa(i)
		if isAbsence(v) {
			absent = true
			continue
		}
		if t := p.parseValue(v, at); t != nil {
			l.values = append(l.values, t)
		}
	}
	if absent {
		out = append(out, conjunction{{path: path, pointer: pointer, absent: true}})
	}
	if len(l.values) > 0 {
		out = append(out, conjunction{l})
	}
	return out
}

// buildTree arranges the leaves of a conjunction in a tree with the shape of the documents, so that matching can walk through the tree
// and a document in parallel.
func (p *parser) buildTree(c conjunction) *node {
	root := &node{}
	for _, l := range c {
		at := root
		for _, name := range l.path {
			at.wanting = at.wanting || !l.absent
			if at.leaf != nil {
				break
			}
			at = at.child(name)
		}
		if at.leaf != nil || len(at.fields) > 0 {
			p.fail(l.pointer, "is also set by an object that applies at the same time; set it only once")
			continue
		}
		at.leaf = l
	}
	return root
}

func (n *node) child(name string) *node {
	for _, f := range n.fields {
		if f.name == name {
			return f.node
		}
	}
	c := &node{}
	n.fields = append(n.fields, field{name, c})
	return c
}

func (p *parser) read(text []byte) any {
	err := json.Unmarshal(text, new(json.RawMessage))
	switch {
	case len(text) > maxSize:
		p.fail("", "has %d bytes, %d are allowed", len(text), maxSize)
	case !utf8.Valid(text):
		p.fail("", "is not UTF-8")
	case jsonrpc.Depth(text) > maxDepth:
		p.fail("", "is nested deeper than %d levels", maxDepth)
	case err != nil:
		p.fail("", "is not JSON: %v", err)
	default:
		if at, found := jsonrpc.FindRepeated(text); found {
			p.fail(at, "appears twice")
		}
		return jsonrpc.Value(text)
	}
	return nil
}

func kindOf(value any) string {
	switch value.(type) {
	case nil:
		return "null"
	case string:
		return "a string"
	case bool:
		return "a boolean"
	case json.Number:
		return "a number"
	case []any:
		return "a list"
	}
	return "an object"
}
