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

// timeForm is a time as people read it, in their zone.
const timeForm = "2006-01-02 15:04:05"

// local is a text, with a time in local form.
func local(s string) (text string, isTime bool) {
	if t, err := time.Parse(time.RFC3339Nano, s); err == nil {
		return t.Local().Format(timeForm), true
	}
	return s, false
}

// printTable prints members of objects as aligned columns. A column is a path, as delivery.lastError, and may have a
// heading of its own, as events.name=events.
func printTable(w io.Writer, columns []string, items []json.RawMessage) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	var heads []string
	for _, c := range columns {
		heads = append(heads, heading(c[strings.IndexByte(c, '=')+1:]))
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

// heading is the last part of a path: lastError is LAST ERROR.
func heading(path string) string {
	var b strings.Builder
	for _, r := range path[strings.LastIndexByte(path, '.')+1:] {
		if unicode.IsUpper(r) {
			b.WriteByte(' ')
		}
		b.WriteRune(unicode.ToUpper(r))
	}
	return b.String()
}

// member is what a path leads to, nil if it leads nowhere; of an array, what it leads to in each of its items.
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

// cell is a value in a table, on one line and without what would steer a terminal.
func cell(v any) string {
	var text string
	switch v := v.(type) {
	case nil:
		return ""
	case string:
		text, _ = local(v)
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

// printDocument prints a JSON value as YAML, which people read more easily, with its members in their order.
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

// node reads the next JSON value.
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
			n.Kind = yaml.MappingNode // keys and values in turn
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
		text, isTime := local(v)
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
