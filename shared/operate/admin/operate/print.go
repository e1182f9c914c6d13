package operate

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"

	"go.yaml.in/yaml/v3"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
)

// timeForm is the format of times, which are printed in the local time zone.
const timeForm = "2006-01-02 15:04:05"

// localTime returns a text. If it is a time, localTime formats it in the local time zone.
func localTime(s string) (text string, isTime bool) {
	if t, err := time.Parse(time.RFC3339Nano, s); err == nil {
		return t.Local().Format(timeForm), true
	}
	return s, false
}

// printTable prints members of objects as aligned columns. A column is a path, e.g. delivery.lastError, optionally with a
// heading, e.g. events.name=events.
func printTable(w io.Writer, columns []string, items []json.RawMessage) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	var heads []string
	for _, c := range columns {
		heads = append(heads, headingOf(c[strings.IndexByte(c, '=')+1:]))
	}
	fmt.Fprintln(t, strings.Join(heads, "\t"))
	for _, raw := range items {
		d := json.NewDecoder(bytes.NewReader(raw))
		d.UseNumber()
		var item any
		if err := d.Decode(&item); err != nil {
			return fault.Wrap(fault.Unavailable, err, "read an item")
		}
		var cells []string
		for _, c := range columns {
			path, _, _ := strings.Cut(c, "=")
			cells = append(cells, cell(member(item, path)))
		}
		fmt.Fprintln(t, strings.Join(cells, "\t"))
	}
	return fault.Wrap(fault.Unavailable, t.Flush(), "print")
}

// headingOf returns the heading for a path, e.g. LAST ERROR for delivery.lastError.
func headingOf(path string) string {
	var b strings.Builder
	for _, r := range path[strings.LastIndexByte(path, '.')+1:] {
		if unicode.IsUpper(r) {
			b.WriteByte(' ')
		}
		b.WriteRune(unicode.ToUpper(r))
	}
	return b.String()
}

// member returns the value at a path, or nil if the path does not exist. For an array it returns the values of all items.
func member(v any, path string) any {
	if list, ok := v.([]any); ok {
		var all []any
		for _, one := range list {
			all = append(all, member(one, path))
		}
		return all
	}
	object, _ := v.(map[string]any)
	name, rest, more := strings.Cut(path, ".")
	if v = object[name]; more {
		return member(v, rest)
	}
	return v
}

// cell returns a value as text for a table. It is on one line and contains no control characters, which could change the terminal.
func cell(v any) string {
	var text string
	switch v := v.(type) {
	case nil:
		return ""
	case string:
		text, _ = localTime(v)
	case []any:
		var parts []string
		for _, one := range v {
			parts = append(parts, cell(one))
		}
		return strings.Join(parts, ", ")
	case map[string]any:
		b, _ := json.Marshal(v)
		text = string(b)
	default:
		text = fmt.Sprint(v)
	}
	if strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsPrint(r) }) {
		text = strings.Trim(strconv.Quote(text), `"`)
	}
	return text
}

// printDocument prints a JSON value as YAML, which is easier to read. It keeps the order of the members.
func printDocument(w io.Writer, raw json.RawMessage) error {
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	n, err := node(d)
	if err != nil {
		return fault.Wrap(fault.Unavailable, err, "read the answer")
	}
	e := yaml.NewEncoder(w)
	e.SetIndent(2)
	if err := e.Encode(n); err != nil {
		return fault.Wrap(fault.Unavailable, err, "print")
	}
	return fault.Wrap(fault.Unavailable, e.Close(), "print")
}

// node reads the next JSON value and returns it as a YAML node.
func node(d *json.Decoder) (*yaml.Node, error) {
	token, err := d.Token()
	if err != nil {
		return nil, err
	}
	n := &yaml.Node{Kind: yaml.ScalarNode}
	switch v := token.(type) {
	case json.Delim:
		n.Kind = yaml.SequenceNode
		if v == '{' {
			n.Kind = yaml.MappingNode // its content alternates keys and values
		}
		for d.More() {
			child, err := node(d)
			if err != nil {
				return nil, err
			}
			n.Content = append(n.Content, child)
		}
		_, err = d.Token() // the end
	case string:
		text, isTime := localTime(v)
		n.Value, n.Tag = text, "!!str"
		if isTime {
			n.Tag = "!!timestamp" // without quotes
		}
	case nil:
		n.Value, n.Tag = "null", "!!null"
	default:
		n.Value = fmt.Sprint(v) // a number or a bool
	}
	return n, err
}
