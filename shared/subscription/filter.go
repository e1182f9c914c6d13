package subscription

import (
	"bytes"
	"encoding/json"
	"strconv"
	"strings"

	"mcpevents/shared/fault"
)

// maxFilterValues bounds the list of a filter.
const maxFilterValues = 50

// newFilter takes the argument of a filter: a scalar, or a list of scalars of
// which one must match.
func newFilter(pointer string, raw json.RawMessage) (Filter, error) {
	var list []json.RawMessage
	if err := json.Unmarshal(raw, &list); err != nil {
		list = []json.RawMessage{raw}
	}
	if len(list) == 0 || len(list) > maxFilterValues {
		return Filter{}, fault.New(fault.Invalid, "a filter takes 1 to %d values", maxFilterValues)
	}
	for i, v := range list {
		v = bytes.TrimSpace(v)
		if len(v) == 0 || len(v) > 512 || v[0] == '{' || v[0] == '[' || string(v) == "null" {
			return Filter{}, fault.New(fault.Invalid, "a filter's value is a string, a number or a boolean of at most 512 bytes")
		}
		list[i] = v
	}
	return Filter{Pointer: pointer, Values: list}, nil
}

// passes reports whether a payload satisfies all filters.
func passes(filters []Filter, payload []byte) bool {
	d := json.NewDecoder(bytes.NewReader(payload))
	d.UseNumber()
	var doc any
	if err := d.Decode(&doc); err != nil {
		return false
	}
	for _, f := range filters {
		got, ok := lookup(doc, f.Pointer)
		if !ok || !f.accepts(got) {
			return false
		}
	}
	return true
}

func (f Filter) accepts(got any) bool {
	for _, raw := range f.Values {
		switch got := got.(type) {
		case string:
			var want string
			if json.Unmarshal(raw, &want) == nil && glob(want, got) {
				return true
			}
		case json.Number:
			if got.String() == string(raw) || sameNumber(got.String(), string(raw)) {
				return true
			}
		case bool:
			if string(raw) == strconv.FormatBool(got) {
				return true
			}
		case []any: // one of its elements
			for _, el := range got {
				if (Filter{Values: []json.RawMessage{raw}}).accepts(el) {
					return true
				}
			}
		}
	}
	return false
}

func sameNumber(a, b string) bool {
	x, err1 := strconv.ParseFloat(a, 64)
	y, err2 := strconv.ParseFloat(b, 64)
	return err1 == nil && err2 == nil && x == y
}

// glob matches with `*` for any characters, in time linear in both lengths but
// for restarts at the last star.
func glob(pattern, s string) bool {
	if !strings.Contains(pattern, "*") {
		return pattern == s
	}
	p, i, star, mark := 0, 0, -1, 0
	for i < len(s) {
		switch {
		case p < len(pattern) && pattern[p] == '*':
			star, mark = p, i
			p++
		case p < len(pattern) && pattern[p] == s[i]:
			p, i = p+1, i+1
		case star >= 0:
			mark++
			p, i = star+1, mark
		default:
			return false
		}
	}
	return strings.Trim(pattern[p:], "*") == ""
}

// lookup follows a JSON pointer (RFC 6901).
func lookup(doc any, pointer string) (any, bool) {
	if pointer == "" {
		return doc, true
	}
	for _, token := range strings.Split(pointer, "/")[1:] {
		token = strings.ReplaceAll(strings.ReplaceAll(token, "~1", "/"), "~0", "~")
		switch node := doc.(type) {
		case map[string]any:
			v, ok := node[token]
			if !ok {
				return nil, false
			}
			doc = v
		case []any:
			i, err := strconv.Atoi(token)
			if err != nil || i < 0 || i >= len(node) {
				return nil, false
			}
			doc = node[i]
		default:
			return nil, false
		}
	}
	return doc, true
}

// Redacted is the payload without the members at the pointers.
func Redacted(payload json.RawMessage, pointers []string) (json.RawMessage, error) {
	if len(pointers) == 0 {
		return payload, nil
	}
	d := json.NewDecoder(bytes.NewReader(payload))
	d.UseNumber()
	var doc any
	if err := d.Decode(&doc); err != nil {
		return nil, fault.Wrap(fault.Internal, err, "redact a payload")
	}
	for _, p := range pointers {
		i := strings.LastIndexByte(p, '/')
		if i < 0 {
			continue
		}
		parent, ok := lookup(doc, p[:i])
		if m, isObject := parent.(map[string]any); ok && isObject {
			delete(m, strings.ReplaceAll(strings.ReplaceAll(p[i+1:], "~1", "/"), "~0", "~"))
		}
	}
	return json.Marshal(doc)
}
