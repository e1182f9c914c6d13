// Package strictyaml reads YAML files that people write by hand. It reports all faults of a file together, each with its line, and never
// guesses what the author meant.
//
// [File.Fields] reads a mapping into typed variables. It rejects unknown members, duplicate keys and merge keys. Values keep their type: 5
// and null are not text, and "5" is not a number.
package strictyaml

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"math/big"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/platform/jsonpointer"
)

// Node is a parsed YAML node with its line.
type Node = yaml.Node

// maxFaults limits the faults that [File.Err] lists. If a file has more faults, most of them usually have one cause, so Err only counts
// the rest.
const maxFaults = 50

// Fault is a mistake in a file.
type Fault struct {
	Line    int    `json:"line"` // counted from 1; 0 if unknown
	Message string `json:"message"`
}

// File is a YAML file that is being read. It collects the faults of the file.
type File struct {
	name   string
	faults []Fault
	more   int
}

// Parse parses a YAML file that has a single document, which must be a mapping. The name of the file is used only in messages.
//
// The node is nil if the file is not such a document or is larger than limit bytes. [File.Err] then says why.
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
		f.addSyntax(err)
		return f, nil
	}
	if err := dec.Decode(&second); err == nil {
		f.Add(second.Line, "holds a second document")
		return f, nil
	} else if !errors.Is(err, io.EOF) {
		f.addSyntax(err)
		return f, nil
	}
	if len(doc.Content) != 1 || resolve(doc.Content[0]).Kind != yaml.MappingNode {
		f.Add(doc.Line, "is not a mapping of members")
		return f, nil
	}
	return f, doc.Content[0]
}

var syntaxLine = regexp.MustCompile(`^line (\d+): `)

func (f *File) addSyntax(err error) {
	msg := strings.TrimPrefix(err.Error(), "yaml: ")
	line := 0
	if m := syntaxLine.FindStringSubmatch(msg); m != nil {
		line, _ = strconv.Atoi(m[1])
		msg = msg[len(m[0]):]
	}
	f.Add(line, "is not valid YAML: %s", msg)
}

// Add records a fault in the given line of the file. Line 0 means that the line is unknown.
func (f *File) Add(line int, format string, args ...any) {
	if len(f.faults) >= maxFaults {
		f.more++
		return
	}
	f.faults = append(f.faults, Fault{Line: line, Message: fmt.Sprintf(format, args...)})
}

// Count returns the number of faults so far. A part of the file has no faults if reading it does not change the number.
func (f *File) Count() int { return len(f.faults) + f.more }

// Err returns nil if the file has no faults. Otherwise it returns an error of kind [fault.Invalid] whose text has a line for each fault,
// in the order of the file, for example "catalog.yaml:12: event a.b: uri is missing". The data of the error is a []Fault.
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

// resolve returns the node to which an alias refers, and any other node unchanged. It always ends, because an alias can only refer to an
// anchor that begins before it.
func resolve(n *Node) *Node {
	for n.Kind == yaml.AliasNode && n.Alias != nil {
		n = n.Alias
	}
	return n
}

// Field is a member that a mapping may have, with a function that reads its value.
type Field struct {
	name string
	read func(n *Node, what string)
}

// Func returns a field whose value is read by the function read. This function receives the member's name for messages as the argument
// what.
func Func(name string, read func(n *Node, what string)) Field { return Field{name, read} }

// Var returns a field that stores the result of the function read in *to, for example Var("path", &key.Path, file.Bool).
func Var[T any](name string, to *T, read func(n *Node, what string) T) Field {
	return Field{name, func(n *Node, what string) { *to = read(n, what) }}
}

// Fields reads the given fields of a mapping in their order, so that a field can use the values of earlier fields. All other members of
// the mapping are faults. Fields returns the names of the fields that the mapping has, or nil if the node is not a mapping.
//
// In messages, say(name) names a member and say("") names the mapping.
func (f *File) Fields(n *Node, say func(member string) string, fields ...Field) (given map[string]bool) {
	members := f.Members(n, say(""))
	if members == nil {
		return nil
	}
	given = make(map[string]bool, len(members))
	names := make([]string, len(fields))
	for i, field := range fields {
		names[i] = field.name
		for _, m := range members {
			if m.Key == field.name {
				given[m.Key] = true
				field.read(m.Value, say(m.Key))
			}
		}
	}
	for _, m := range members {
		if !given[m.Key] {
			f.Add(m.Line, "%s: unknown member %q (allowed: %s)", say(""), Clip(m.Key), strings.Join(names, ", "))
		}
	}
	return given
}

// Member is a key of a mapping and its value.
type Member struct {
	Key   string
	Line  int
	Value *Node
}

// Members returns the members of a mapping in the order of the file. It reports a fault if the node is not a mapping, and for
// each key that is a duplicate, a merge key, or of another type than text and integer. The parameter what is the name of the
// mapping in messages, for example "event github.push".
func (f *File) Members(n *Node, what string) []Member {
	n = resolve(n)
	if n.Kind != yaml.MappingNode {
		f.Add(n.Line, "%s must be a mapping, not %s", what, describe(n))
		return nil
	}
	out := make([]Member, 0, len(n.Content)/2)
	first := make(map[string]int, len(n.Content)/2)
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, val := n.Content[i], n.Content[i+1]
		if msg := checkKey(key); msg != "" {
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

// checkKey returns a message about the fault of a mapping's key, or "" if the key is valid.
func checkKey(key *Node) string {
	key = resolve(key)
	switch {
	case key.Kind != yaml.ScalarNode:
		return "a member's name must be text"
	case key.Tag == "!!merge":
		return "merge keys (<<) are not supported"
	case key.Tag != "!!str" && key.Tag != "!!int": // an integer can only mean its digits
		return fmt.Sprintf("the member name %s must be quoted", Clip(key.Value))
	}
	return ""
}

// Items returns the elements of a list of at most limit elements. It reports a fault for any other node.
func (f *File) Items(n *Node, what string, limit int) []*Node {
	n = resolve(n)
	if n.Kind != yaml.SequenceNode {
		f.Add(n.Line, "%s must be a list, not %s", what, describe(n))
		return nil
	}
	if len(n.Content) > limit {
		f.Add(n.Line, "%s has %d elements (at most %d)", what, len(n.Content), limit)
		return nil
	}
	out := make([]*Node, len(n.Content))
	for i, c := range n.Content {
		out[i] = resolve(c)
	}
	return out
}

// Text returns the text of a node. If the node is not text, it reports a fault, and ok is false. Numbers, truth values and null are
// faults, because their text may not be what the author meant; for example, the version 1.10 without quotes is the number 1.1.
func (f *File) Text(n *Node, what string) (text string, ok bool) {
	n = resolve(n)
	if n.Kind != yaml.ScalarNode || (n.Tag != "!!str" && n.Tag != "!!timestamp") {
		f.Add(n.Line, "%s must be text, not %s", what, describe(n))
		return "", false
	}
	return n.Value, true
}

// String returns a node's text like [File.Text], with a signature that fits [Var].
func (f *File) String(n *Node, what string) string {
	s, _ := f.Text(n, what)
	return s
}

// NonEmpty returns a node's text like [File.String], and also reports an empty text as a fault.
func (f *File) NonEmpty(n *Node, what string) string {
	s, ok := f.Text(n, what)
	if ok && s == "" {
		f.Add(n.Line, "%s must not be empty", what)
	}
	return s
}

// Matching returns a function that reads a text and reports a fault if the text does not match the pattern.
func (f *File) Matching(pattern *regexp.Regexp) func(n *Node, what string) string {
	return func(n *Node, what string) string {
		s, ok := f.Text(n, what)
		if ok && !pattern.MatchString(s) {
			f.Add(n.Line, "%s: %q does not match %s", what, Clip(s), pattern)
		}
		return s
	}
}

// Strings reads a list of texts. It reports a fault if a text is listed twice.
func (f *File) Strings(n *Node, what string) []string {
	items := f.Items(n, what, math.MaxInt)
	out := make([]string, 0, len(items))
	seen := make(map[string]bool, len(items))
	for _, it := range items {
		s := f.String(it, "an element of "+what)
		if seen[s] {
			f.Add(it.Line, "%s: %q is listed twice", what, Clip(s))
			continue
		}
		seen[s] = true
		out = append(out, s)
	}
	return out
}

// Bool reads a truth value.
func (f *File) Bool(n *Node, what string) bool {
	n = resolve(n)
	var b bool
	if n.Kind != yaml.ScalarNode || n.Tag != "!!bool" || n.Decode(&b) != nil {
		f.Add(n.Line, "%s must be true or false, not %s", what, describe(n))
	}
	return b
}

// Int returns a function that reads a whole number. It reports a fault if the number is not from least to most.
func (f *File) Int(least, most int) func(n *Node, what string) int {
	return func(n *Node, what string) int {
		n = resolve(n)
		var i int
		switch {
		case n.Kind != yaml.ScalarNode || n.Tag != "!!int" || n.Decode(&i) != nil:
			f.Add(n.Line, "%s must be a whole number, not %s", what, describe(n))
		case i < least || i > most:
			f.Add(n.Line, "%s is %d and must be from %d to %d", what, i, least, most)
		}
		return i
	}
}

func describe(n *Node) string {
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

// Clip shortens a text from a file to about 80 bytes for a message.
func Clip(s string) string { return fault.Clip(s, 80) }

// JSON returns a node as JSON of at most limit bytes, with members in the order of the file and with all digits of its numbers. It
// expands aliases only within the limit, so a small file cannot become very large. If JSON cannot express the node, for example because
// of a binary value, an infinity or a duplicate key, JSON reports a fault and returns nil.
func (f *File) JSON(n *Node, what string, limit int) json.RawMessage {
	w := jsonWriter{file: f, what: what, limit: limit}
	if !w.node(n, 0) {
		return nil
	}
	return w.out
}

// Object returns a node as JSON like [File.JSON], and reports a fault if the node is not a mapping.
func (f *File) Object(n *Node, what string, limit int) json.RawMessage {
	if resolve(n).Kind != yaml.MappingNode {
		f.Add(n.Line, "%s must be a mapping, not %s", what, describe(n))
		return nil
	}
	return f.JSON(n, what, limit)
}

type jsonWriter struct {
	file  *File
	what  string
	limit int
	out   []byte
}

func (w *jsonWriter) fail(line int, format string, args ...any) bool {
	w.file.Add(line, "%s: %s", w.what, fmt.Sprintf(format, args...))
	return false
}

func (w *jsonWriter) node(n *Node, depth int) bool {
	n = resolve(n)
	if depth >= jsonpointer.MaxDepth && n.Kind != yaml.ScalarNode {
		return w.fail(n.Line, "is nested deeper than %d levels", jsonpointer.MaxDepth)
	}
	if len(w.out) > w.limit {
		return w.fail(n.Line, "is larger than %d bytes as JSON", w.limit)
	}
	switch n.Kind {
	case yaml.MappingNode:
		return w.object(n, depth)
	case yaml.SequenceNode:
		w.out = append(w.out, '[')
		for i, c := range n.Content {
			if i > 0 {
				w.out = append(w.out, ',')
			}
			if !w.node(c, depth+1) {
				return false
			}
		}
		w.out = append(w.out, ']')
		return true
	case yaml.ScalarNode:
		return w.scalar(n)
	}
	return w.fail(n.Line, "holds a node that JSON does not have")
}

func (w *jsonWriter) object(n *Node, depth int) bool {
	before := w.file.Count()
	members := w.file.Members(n, w.what)
	if w.file.Count() > before {
		return false
	}
	w.out = append(w.out, '{')
	for i, m := range members {
		if i > 0 {
			w.out = append(w.out, ',')
		}
		w.text(m.Key)
		w.out = append(w.out, ':')
		if !w.node(m.Value, depth+1) {
			return false
		}
	}
	w.out = append(w.out, '}')
	return true
}

func (w *jsonWriter) text(s string) {
	b, _ := json.Marshal(s) // a string always marshals
	w.out = append(w.out, b...)
}

func (w *jsonWriter) scalar(n *Node) bool {
	switch n.Tag {
	case "!!str", "!!timestamp":
		w.text(n.Value)
	case "!!null":
		w.out = append(w.out, "null"...)
	case "!!bool":
		var b bool
		if err := n.Decode(&b); err != nil {
			return w.fail(n.Line, "%q is not a boolean", Clip(n.Value))
		}
		w.out = strconv.AppendBool(w.out, b)
	case "!!int":
		i, ok := new(big.Int).SetString(strings.TrimPrefix(n.Value, "+"), 0)
		if !ok || len(n.Value) > 100 {
			return w.fail(n.Line, "%q is not an integer", Clip(n.Value))
		}
		w.out = i.Append(w.out, 10)
	case "!!float":
		if json.Valid([]byte(n.Value)) { // keep the digits as they are written
			w.out = append(w.out, n.Value...)
			return true
		}
		var x float64
		if err := n.Decode(&x); err != nil || math.IsInf(x, 0) || math.IsNaN(x) {
			return w.fail(n.Line, "%q is not a JSON number", Clip(n.Value))
		}
		w.out = strconv.AppendFloat(w.out, x, 'g', -1, 64)
	default:
		return w.fail(n.Line, "a value of type %s is not possible in JSON", Clip(n.Tag))
	}
	return true
}

// Line returns the line of the value to which a JSON Pointer refers. The parameter tokens has the parts of the pointer. If the value is
// missing, Line returns the line of its closest existing parent.
func Line(n *Node, tokens []string) int {
	n = resolve(n)
	for _, t := range tokens {
		next := child(n, t)
		if next == nil {
			break
		}
		n = resolve(next)
	}
	return n.Line
}

func child(n *Node, token string) *Node {
	switch n.Kind {
	case yaml.MappingNode:
		for i := 0; i+1 < len(n.Content); i += 2 {
			if resolve(n.Content[i]).Value == token {
				return n.Content[i+1]
			}
		}
	case yaml.SequenceNode:
		if i, err := strconv.Atoi(token); err == nil && i >= 0 && i < len(n.Content) {
			return n.Content[i]
		}
	}
	return nil
}
