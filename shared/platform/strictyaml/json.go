package strictyaml

import (
	"encoding/json"
	"fmt"
	"math"
	"math/big"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/mcp-events/mcpevents/shared/platform/jsonpointer"
)

// JSON returns a node as JSON of at most limit bytes, with members in the order of the file and with all digits of its integers. It
// expands aliases within the limit, so a small file cannot grow without bound. If JSON cannot express the node, for example because
// of a binary value, an infinity or a duplicate key, JSON adds a fault and returns nil.
func (f *File) JSON(n *Node, what string, limit int) json.RawMessage {
	w := jsonWriter{file: f, what: what, limit: limit}
	if !w.node(n, 0) {
		return nil
	}
	return w.out
}

// Object encodes a node like [File.JSON], and reports an error unless the node is a mapping.
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
		if json.Valid([]byte(n.Value)) { // keeps the digits as they are written
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

// Line returns the line of the value that a parsed JSON Pointer refers to. If there is no such value, it is the line of the deepest
// value on the way there.
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
