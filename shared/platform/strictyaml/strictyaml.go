// Package strictyaml reads a YAML file that people write by hand: every fault is
// reported with its line, all of them at once, and nothing is guessed.
//
// Unknown members, duplicate keys, several documents and merge keys are faults.
// It knows the shape of no particular file; shared/events/catalog and shared/app/config
// walk the nodes that it hands out. No defaults and no environment enter here.
package strictyaml

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
)

// Node is a parsed YAML node with its line.
type Node = yaml.Node

// maxFaults bounds what one answer lists; a file with more faults has usually
// one cause, and the rest is counted.
const maxFaults = 50

// maxDepth is the deepest nesting of a file.
const maxDepth = 100

// Fault is one thing that is wrong, at a line counted from 1 (0 is unknown).
type Fault struct {
	Line    int    `json:"line"`
	Message string `json:"message"`
}

// File is a file under examination, with the faults found so far.
type File struct {
	name   string
	faults []Fault
	more   int
}

// Parse reads the one document of a file. The name only appears in messages. A file
// that is not YAML, is larger than limit bytes, or is not a mapping has the
// nil node; [File.Err] says why.
func Parse(name string, src []byte, limit int) (*File, *Node) {
	f := &File{name: name}
	if len(src) > limit {
		f.Add(0, "is larger than %d bytes", limit)
		return f, nil
	}
	dec := yaml.NewDecoder(bytes.NewReader(src))
	var doc, second Node
	switch err := dec.Decode(&doc); {
	case errors.Is(err, io.EOF):
		f.Add(0, "is empty")
		return f, nil
	case err != nil:
		f.syntax(err)
		return f, nil
	}
	if err := dec.Decode(&second); err == nil {
		f.Add(second.Line, "holds a second document")
		return f, nil
	} else if !errors.Is(err, io.EOF) {
		f.syntax(err)
		return f, nil
	}
	if len(doc.Content) != 1 || resolve(doc.Content[0]).Kind != yaml.MappingNode {
		f.Add(doc.Line, "is not a mapping of members")
		return f, nil
	}
	return f, doc.Content[0]
}

var syntaxLine = regexp.MustCompile(`^line (\d+): `)

// syntax reports the parser's own error, whose text carries the line.
func (f *File) syntax(err error) {
	msg := strings.TrimPrefix(err.Error(), "yaml: ")
	line := 0
	if m := syntaxLine.FindStringSubmatch(msg); m != nil {
		line, _ = strconv.Atoi(m[1])
		msg = msg[len(m[0]):]
	}
	f.Add(line, "is not valid YAML: %s", msg)
}

// Add reports a fault.
func (f *File) Add(line int, format string, args ...any) {
	if len(f.faults) >= maxFaults {
		f.more++
		return
	}
	f.faults = append(f.faults, Fault{Line: line, Message: fmt.Sprintf(format, args...)})
}

// Count is the number of faults so far; a caller compares it to see whether a
// part was read without one.
func (f *File) Count() int { return len(f.faults) + f.more }

// Err is nil without faults, else of kind fault.Invalid: one line for each
// fault in the order of the file ("catalog.yaml:12: …"), with the []Fault as its data.
func (f *File) Err() error {
	if len(f.faults) == 0 {
		return nil
	}
	slices.SortStableFunc(f.faults, func(a, b Fault) int { return a.Line - b.Line })
	var b strings.Builder
	for i, x := range f.faults {
		if i > 0 {
			b.WriteByte('\n')
		}
		b.WriteString(f.name)
		if x.Line > 0 {
			fmt.Fprintf(&b, ":%d", x.Line)
		}
		b.WriteString(": ")
		b.WriteString(x.Message)
	}
	if f.more > 0 {
		fmt.Fprintf(&b, "\n%s: and %d more", f.name, f.more)
	}
	return fault.New(fault.Invalid, "%s", b.String()).With(f.faults)
}

// resolve follows aliases; an alias can only point at a node that came before
// it or encloses it, so the chain ends.
func resolve(n *Node) *Node {
	for n.Kind == yaml.AliasNode && n.Alias != nil {
		n = n.Alias
	}
	return n
}

// Member is a key of a mapping and its value.
type Member struct {
	Key   string
	Line  int
	Value *Node
}

// Members lists a mapping in the order of the file. A node that is not a mapping, a
// duplicate key, a merge key, and a key that is not a string are faults; what names
// the node in messages ("entry github.push").
func (f *File) Members(n *Node, what string) []Member {
	n = resolve(n)
	if n.Kind != yaml.MappingNode {
		f.Add(n.Line, "%s must be a mapping, not %s", what, Describe(n))
		return nil
	}
	out := make([]Member, 0, len(n.Content)/2)
	first := make(map[string]int, len(n.Content)/2)
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, val := n.Content[i], n.Content[i+1]
		if msg := badKey(key); msg != "" {
			f.Add(key.Line, "%s: %s", what, msg)
			continue
		}
		name := resolve(key).Value
		if line, dup := first[name]; dup {
			f.Add(key.Line, "%s: member %q was already given in line %d", what, Clip(name), line)
			continue
		}
		first[name] = key.Line
		out = append(out, Member{Key: name, Line: key.Line, Value: val})
	}
	return out
}

func badKey(key *Node) string {
	key = resolve(key)
	switch {
	case key.Kind != yaml.ScalarNode:
		return "a member's name must be text"
	case key.Tag == "!!merge":
		return "merge keys (<<) are not supported"
	case key.Tag != "!!str" && key.Tag != "!!int":
		return fmt.Sprintf("the member name %s must be quoted", Clip(key.Value))
	}
	return ""
}

// Unknown reports a member that the file format does not have.
func (f *File) Unknown(m Member, what string, known ...string) {
	f.Add(m.Line, "%s: unknown member %q (allowed: %s)", what, Clip(m.Key), strings.Join(known, ", "))
}

// Items lists a sequence. A node of another kind is a fault.
func (f *File) Items(n *Node, what string) []*Node {
	n = resolve(n)
	if n.Kind != yaml.SequenceNode {
		f.Add(n.Line, "%s must be a list, not %s", what, Describe(n))
		return nil
	}
	out := make([]*Node, len(n.Content))
	for i, c := range n.Content {
		out[i] = resolve(c)
	}
	return out
}

// String reads a text. Numbers, truth values and nulls are faults, for YAML
// has a way of turning text into them.
func (f *File) String(n *Node, what string) string {
	n = resolve(n)
	if n.Kind != yaml.ScalarNode || (n.Tag != "!!str" && n.Tag != "!!timestamp") {
		f.Add(n.Line, "%s must be text, not %s", what, Describe(n))
		return ""
	}
	return n.Value
}

// Strings reads a list of texts without repetition.
func (f *File) Strings(n *Node, what string) []string {
	items := f.Items(n, what)
	out := make([]string, 0, len(items))
	for _, it := range items {
		s := f.String(it, "an element of "+what)
		if slices.Contains(out, s) {
			f.Add(it.Line, "%s: %q is listed twice", what, Clip(s))
			continue
		}
		out = append(out, s)
	}
	return out
}

// Bool reads a truth value.
func (f *File) Bool(n *Node, what string) bool {
	n = resolve(n)
	var b bool
	if n.Kind != yaml.ScalarNode || n.Tag != "!!bool" || n.Decode(&b) != nil {
		f.Add(n.Line, "%s must be true or false, not %s", what, Describe(n))
	}
	return b
}

// Int reads a whole number from least to most.
func (f *File) Int(n *Node, what string, least, most int) int {
	n = resolve(n)
	var i int
	switch {
	case n.Kind != yaml.ScalarNode || n.Tag != "!!int" || n.Decode(&i) != nil:
		f.Add(n.Line, "%s must be a whole number, not %s", what, Describe(n))
	case i < least || i > most:
		f.Add(n.Line, "%s is %d and must be from %d to %d", what, i, least, most)
	}
	return i
}

// Describe says what a node is, for messages.
func Describe(n *Node) string {
	n = resolve(n)
	switch n.Kind {
	case yaml.MappingNode:
		return "a mapping"
	case yaml.SequenceNode:
		return "a list"
	case yaml.ScalarNode:
		switch n.Tag {
		case "!!str":
			return "text"
		case "!!int", "!!float":
			return "a number"
		case "!!bool":
			return "a truth value"
		case "!!null":
			return "null"
		}
	}
	return "something else"
}

// Clip shortens input for a message, at a rune border.
func Clip(s string) string {
	const limit = 80
	if len(s) <= limit {
		return s
	}
	return strings.ToValidUTF8(s[:limit], "") + "…"
}
