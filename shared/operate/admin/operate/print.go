package operate

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
)

const timeForm = "2006-01-02 15:04:05"

// localTime formats a text that is a time, in the local time zone. It returns any other text unchanged.
func localTime(s string) (text string, isTime bool) {
	if t, err := time.Parse(time.RFC3339Nano, s); err == nil {
		return t.Local().Format(timeForm), true
	}
	return s, false
}

const (
	formatJSON = "json"
	formatYAML = "yaml"
	formatName = "name"
)

// leastColumns is the number of columns that a table keeps even on the narrowest terminal.
const (
	gap          = 2
	leastColumns = 2
)

// printTable prints members of JSON objects as aligned columns. These are examples of columns:
//
//   - delivery.lastError: the path of a member
//   - events.name=events: the path, and a heading
//   - statusCode|status=status: a second path, for objects without the first member, and a heading
//
// If the table is wider than the parameter width, printTable shortens ids. It does not shorten the column id, because users copy these
// ids into other commands. If the table is still too wide, it hides columns and returns their headings: first the columns in drop, then
// the last ones. A width of 0 means no limit.
func printTable(w io.Writer, columns, drop []string, width int, items []json.RawMessage) (hidden []string, err error) {
	rows := [][]string{nil} // the first has the headings
	var paths []string
	for _, c := range columns {
		path, heading, named := strings.Cut(c, "=")
		if !named {
			heading = path
		}
		paths, rows[0] = append(paths, path), append(rows[0], headingOf(heading))
	}
	for _, raw := range items {
		var item any
		if err := decodeItem(raw, &item); err != nil {
			return nil, err
		}
		var cells []string
		for _, path := range paths {
			var value any
			for alternative := range strings.SplitSeq(path, "|") {
				if value = memberAt(item, alternative); value != nil {
					break
				}
			}
			cells = append(cells, formatCell(value))
		}
		rows = append(rows, cells)
	}
	if width > 0 && tableWidth(rows) > width {
		hidden = fitRows(rows, paths, drop, width)
	}
	t := tabwriter.NewWriter(w, 0, 0, gap, ' ', 0)
	for _, cells := range rows {
		fmt.Fprintln(t, strings.Join(cells, "\t"))
	}
	return hidden, fault.Wrap(fault.Unavailable, t.Flush(), "print")
}

// fitRows makes the rows of a table fit into the given width, which is a number of characters. It shortens ids and, if that is not
// enough, removes columns, beginning with the columns in drop. It returns the headings of the removed columns.
func fitRows(rows [][]string, paths, drop []string, width int) (hidden []string) {
	for _, cells := range rows[1:] {
		for i := range cells {
			if paths[i] != "id" {
				cells[i] = shortID(cells[i])
			}
		}
	}
	for tableWidth(rows) > width && len(paths) > leastColumns {
		at := len(paths) - 1
		if len(drop) > 0 {
			at, drop = slices.Index(paths, drop[0]), drop[1:]
		}
		hidden = append(hidden, rows[0][at])
		paths = slices.Delete(slices.Clone(paths), at, at+1)
		for i := range rows {
			rows[i] = slices.Delete(rows[i], at, at+1)
		}
	}
	return hidden
}

func tableWidth(rows [][]string) int {
	width := gap * (len(rows[0]) - 1)
	for i := range rows[0] {
		widest := 0
		for _, cells := range rows {
			widest = max(widest, utf8.RuneCountInString(cells[i]))
		}
		width += widest
	}
	return width
}

// longID matches generated ids, such as evt_0198c1d2-7a44-7c3e-9d11-5b6f0a8e2c47.
var longID = regexp.MustCompile(`^([a-z]+_)[A-Za-z0-9_-]{16,}$`)

// shortID shortens a generated id, e.g. to evt_0198…2c47. Other texts stay as they are.
func shortID(text string) string {
	found := longID.FindStringSubmatch(text)
	if found == nil {
		return text
	}
	const kept = 4 // characters on each side
	return text[:len(found[1])+kept] + "…" + text[len(text)-kept:]
}

// decodeItem decodes an item of a list. It keeps numbers as text, because a float64 would change large numbers.
func decodeItem(raw json.RawMessage, into any) error {
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	return fault.Wrap(fault.Unavailable, d.Decode(into), "read an item")
}

func printNames(w io.Writer, items []json.RawMessage, name string) error {
	for _, raw := range items {
		var object map[string]any
		if err := decodeItem(raw, &object); err != nil {
			return err
		}
		if text := formatCell(object[name]); text != "" {
			if _, err := fmt.Fprintln(w, text); err != nil {
				return fault.Wrap(fault.Unavailable, err, "print")
			}
		}
	}
	return nil
}

// headingOf returns the heading of the column for a path. For example, the heading for delivery.lastError is LAST ERROR.
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

// memberAt returns the value at a path such as delivery.lastError, or nil. For an array it returns the values of all elements.
func memberAt(v any, path string) any {
	if list, ok := v.([]any); ok {
		var all []any
		for _, one := range list {
			all = append(all, memberAt(one, path))
		}
		return all
	}
	object, _ := v.(map[string]any)
	name, rest, more := strings.Cut(path, ".")
	if v = object[name]; more {
		return memberAt(v, rest)
	}
	return v
}

// formatCell returns a value as text for a table cell. The text has a single line. Control characters are escaped, because they could
// manipulate the user's terminal.
func formatCell(v any) string {
	var text string
	switch v := v.(type) {
	case nil:
		return ""
	case string:
		text, _ = localTime(v)
	case []any:
		var parts []string
		for _, one := range v {
			parts = append(parts, formatCell(one))
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

// These are the values of the parameter local of [printDocument].
const (
	localTimes = true  // in the local time zone, for people
	exactTimes = false // as the API sends them, for programs
)

// printDocument prints a JSON value as YAML, which is easier to read. It keeps the order of the members.
func printDocument(w io.Writer, raw json.RawMessage, local bool) error {
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	n, err := node(d, local)
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

// node reads the next JSON value from d and converts it to a YAML node. If local is true, it converts times to the local time zone.
func node(d *json.Decoder, local bool) (*yaml.Node, error) {
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
			child, err := node(d, local)
			if err != nil {
				return nil, err
			}
			n.Content = append(n.Content, child)
		}
		_, err = d.Token() // the closing bracket
	case string:
		n.Value, n.Tag = v, "!!str"
		if text, isTime := localTime(v); isTime && local {
			n.Value, n.Tag = text, "!!timestamp" // printed without quotes because of this tag
		}
	case nil:
		n.Value, n.Tag = "null", "!!null"
	default:
		n.Value = fmt.Sprint(v)
	}
	return n, err
}
