package pattern

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/platform/jsonpointer"
	"github.com/mcp-events/mcpevents/shared/protocol/jsonrpc"
)

// maxFaults limits the faults that one error lists.
const maxFaults = 20

// Parse parses a pattern. It returns everything that is wrong with it as one fault of kind Invalid, whose data is a
// []jsonpointer.Fault.
func Parse(text []byte) (*Pattern, error) {
	p := parser{}
	root := p.read(text)
	var alternatives []conjunction
	if len(p.faults) == 0 {
		alternatives = p.object(root, nil, "")
	}
	out := &Pattern{text: slices.Clone(text)}
	for _, c := range alternatives {
		out.alternatives = append(out.alternatives, p.tree(c))
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

// conjunction is a set of leaves that must all match.
type conjunction []*leaf

type parser struct {
	faults []jsonpointer.Fault
	// After one of these faults the parser stops reading (tooDeep) or combining alternatives (tooLarge).
	tooDeep, tooLarge bool
}

func (p *parser) fail(pointer, format string, args ...any) {
	p.faults = append(p.faults, jsonpointer.Fault{Pointer: pointer, Message: fmt.Sprintf(format, args...)})
}

// object parses the members of an object. All members must match, so the result is every combination of the members'
// alternatives.
func (p *parser) object(value any, path []string, pointer string) []conjunction {
	members, ok := value.(object)
	switch {
	case !ok:
		p.fail(pointer, "must be an object, not %s", kindOf(value))
		return nil
	case len(members) == 0:
		p.fail(pointer, "is an empty object; leave it out to allow anything")
	}
	all := []conjunction{nil}
	for _, m := range members {
		at := pointer + jsonpointer.Member(m.name)
		var alternatives []conjunction
		below := append(slices.Clip(path), m.name)
		switch v := m.value.(type) {
		case object:
			alternatives = p.object(v, below, at)
		case []any:
			if m.name == "$or" {
				alternatives = p.or(v, path, at)
			} else {
				alternatives = p.leaf(v, below, at)
			}
		default:
			p.fail(at, "must be a list of values or an object, not %s", kindOf(v))
		}
		all = p.both(all, alternatives, at)
	}
	return all
}

func (p *parser) or(list []any, path []string, pointer string) (out []conjunction) {
	if len(list) < 2 {
		p.fail(pointer, "has %s, at least 2 are needed", []string{"no alternatives", "1 alternative"}[len(list)])
	}
	for i, v := range list {
		out = append(out, p.object(v, path, pointer+"/"+strconv.Itoa(i))...)
	}
	return out
}

// both returns every combination of a and b. It checks the size of the result before it allocates it.
func (p *parser) both(a, b []conjunction, pointer string) []conjunction {
	if p.tooLarge {
		return a
	}
	values := len(b)*size(a) + len(a)*size(b)
	switch {
	case len(a)*len(b) > MaxAlternatives:
		p.tooLarge = true
		p.fail(pointer, "makes the pattern stand for %d alternatives, %d are allowed", len(a)*len(b), MaxAlternatives)
		return a
	case values > MaxValues:
		p.tooLarge = true
		p.fail(pointer, "makes the alternatives of the pattern have %d values together, %d are allowed", values, MaxValues)
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

func size(all []conjunction) (values int) {
	for _, c := range all {
		for _, l := range c {
			values += len(l.values) + 1
		}
	}
	return values
}

// leaf parses the allowed values of a leaf. A list that allows both absence and some values results in two
// alternatives.
func (p *parser) leaf(list []any, path []string, pointer string) (out []conjunction) {
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
		if t := p.value(v, at); t != nil {
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

// tree arranges the leaves of a conjunction in a tree that has the shape of a document.
func (p *parser) tree(c conjunction) *node {
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

// object is a decoded JSON object. It keeps the order of its members, and members with the same name.
type object []struct {
	name  string
	value any
}

// read decodes JSON, with objects as values of type object.
func (p *parser) read(text []byte) any {
	if len(text) > MaxSize {
		p.fail("", "has %d bytes, %d are allowed", len(text), MaxSize)
		return nil
	}
	if !utf8.Valid(text) {
		p.fail("", "is not UTF-8")
		return nil
	}
	if err := json.Unmarshal(text, new(json.RawMessage)); err != nil {
		p.fail("", "is not JSON: %v", err)
		return nil
	}
	return p.decode(text, "", 0)
}

func (p *parser) decode(text json.RawMessage, pointer string, depth int) any {
	text = bytes.TrimLeft(text, " \t\r\n")
	nested := text[0] == '{' || text[0] == '['
	switch {
	case !nested:
		return jsonrpc.Value(text)
	case depth == MaxDepth:
		p.fail(pointer, "is nested deeper than %d levels", MaxDepth)
		p.tooDeep = true
		return nil
	case text[0] == '[':
		list := []any{}
		for value := range jsonrpc.Elements(text) {
			if p.tooDeep {
				break
			}
			list = append(list, p.decode(value, pointer+"/"+strconv.Itoa(len(list)), depth+1))
		}
		return list
	}
	members, seen := object{}, map[string]bool{}
	for key, value := range jsonrpc.Members(text) {
		if p.tooDeep {
			break
		}
		name := string(key)
		at := pointer + jsonpointer.Member(name)
		if seen[name] {
			p.fail(at, "appears twice")
		}
		seen[name] = true
		members = append(members, object{{name, p.decode(value, at, depth+1)}}...)
	}
	return members
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
