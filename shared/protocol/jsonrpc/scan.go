package jsonrpc

import (
	"bytes"
	"encoding/json"
	"iter"
)

// The functions of this file walk valid JSON, so most of them work without checks and allocations.

// Members iterates over the members of an object in their order, with unescaped keys. Other values have no members.
func Members(object json.RawMessage) iter.Seq2[[]byte, json.RawMessage] {
	return func(yield func([]byte, json.RawMessage) bool) {
		walk(object, func(key []byte, from, to int) bool { return yield(key, object[from:to:to]) })
	}
}

// walk does what [Members] does, but yields the start and end of each value.
func walk(object []byte, yield func(key []byte, from, to int) bool) {
	i := space(object, 0)
	if i >= len(object) || object[i] != '{' {
		return
	}
	for i = space(object, i+1); i < len(object) && object[i] != '}'; {
		end := skip(object, i)
		key := unquote(object[i:end])
		i = space(object, space(object, end)+1) // the colon
		end = skip(object, i)
		if end <= i || !yield(key, i, end) {
			return
		}
		i = next(object, end)
	}
}

// Elements iterates over the elements of an array. Other values have no elements.
func Elements(array json.RawMessage) iter.Seq[json.RawMessage] {
	return func(yield func(json.RawMessage) bool) {
		i := space(array, 0)
		if i >= len(array) || array[i] != '[' {
			return
		}
		for i = space(array, i+1); i < len(array) && array[i] != ']'; {
			end := skip(array, i)
			if end <= i || !yield(array[i:end:end]) {
				return
			}
			i = next(array, end)
		}
	}
}

// Member returns a member of an object, or nil if it is absent or null. If several members have the name, it returns the last one, as
// encoding/json does.
func Member(object json.RawMessage, name string) json.RawMessage {
	from, to := locate(object, name)
	if from < 0 || string(object[from:to]) == "null" {
		return nil
	}
	return object[from:to:to]
}

// String returns the value of a JSON string, or false for another value.
func String(value json.RawMessage) (string, bool) {
	if len(value) < 2 || value[0] != '"' {
		return "", false
	}
	return string(unquote(value)), true
}

// Value decodes valid JSON as encoding/json does, but keeps numbers as [json.Number]. If several members have the same name, the last one
// counts.
func Value(b json.RawMessage) any {
	v, _ := value(b, space(b, 0))
	return v
}

// value decodes the value at i and returns the index after it.
func value(b []byte, i int) (any, int) {
	switch b[i] {
	case '{':
		object := map[string]any{}
		for i = space(b, i+1); b[i] != '}'; {
			end := skipString(b, i)
			key := string(unquote(b[i:end]))
			i = space(b, space(b, end)+1) // the colon
			object[key], i = value(b, i)
			i = next(b, i)
		}
		return object, i + 1
	case '[':
		array := []any{}
		for i = space(b, i+1); b[i] != ']'; i = next(b, i) {
			var v any
			v, i = value(b, i)
			array = append(array, v)
		}
		return array, i + 1
	}
	end := skip(b, i)
	switch b[i] {
	case '"':
		return string(unquote(b[i:end])), end
	case 't', 'f':
		return b[i] == 't', end
	case 'n':
		return nil, end
	}
	return json.Number(b[i:end]), end
}

// next returns the index of the next member or element after one that ends at i. It skips the comma, if any.
func next(b []byte, i int) int {
	if i = space(b, i); i < len(b) && b[i] == ',' {
		i = space(b, i+1)
	}
	return i
}

// Spaced reports whether b, which must be valid JSON, has whitespace between its tokens.
func Spaced(b json.RawMessage) bool {
	for i := 0; i < len(b); i++ {
		switch b[i] {
		case '"':
			i = skipString(b, i) - 1
		case ' ', '\n', '\t', '\r':
			return true
		}
	}
	return false
}

// Depth returns the nesting depth of arrays and objects. The JSON may be invalid.
func Depth(b []byte) int {
	depth, deepest := 0, 0
	for i := 0; i < len(b); i++ {
		switch b[i] {
		case '"':
			i = skipString(b, i) - 1
		case '{', '[':
			depth++
			deepest = max(deepest, depth)
		case '}', ']':
			depth--
		}
	}
	return deepest
}

// space returns the index of the first byte at or after i that is not space.
func space(b []byte, i int) int {
	for i < len(b) && (b[i] == ' ' || b[i] == '\n' || b[i] == '\t' || b[i] == '\r') {
		i++
	}
	return i
}

// skip returns the index after the value that starts at i.
func skip(b []byte, i int) int {
	if i >= len(b) {
		return i
	}
	switch b[i] {
	case '"':
		return skipString(b, i)
	case '{', '[':
		depth := 0
		for ; i < len(b); i++ {
			switch b[i] {
			case '"':
				i = skipString(b, i) - 1
			case '{', '[':
				depth++
			case '}', ']':
				if depth--; depth == 0 {
					return i + 1
				}
			}
		}
		return i
	}
	for i < len(b) && bytes.IndexByte([]byte(",]} \n\t\r"), b[i]) < 0 {
		i++
	}
	return i
}

// skipString returns the index after the string that starts at i. It takes linear time even if the string has many escapes.
func skipString(b []byte, i int) int {
	quote := i
	for i++; i < len(b); {
		if quote < i {
			n := bytes.IndexByte(b[i:], '"')
			if n < 0 {
				return len(b)
			}
			quote = i + n
		}
		n := bytes.IndexByte(b[i:quote], '\\')
		if n < 0 {
			return quote + 1
		}
		i += n + 2
	}
	return len(b)
}

// unquote returns the value of a JSON string. Without escapes, the result shares the memory of b.
func unquote(b []byte) []byte {
	if bytes.IndexByte(b, '\\') < 0 {
		return b[1 : len(b)-1]
	}
	var s string
	_ = json.Unmarshal(b, &s) // the caller has checked it
	return []byte(s)
}

// The functions in this file change members of JSON objects and keep all other bytes.

// Quote returns the text as a JSON string.
func Quote(s string) json.RawMessage { return AppendString(nil, s) }

// Replace returns the object with another value for a member. If several members have the name, it replaces the last one. Without such a
// member it returns the object unchanged.
func Replace(object json.RawMessage, name string, value []byte) json.RawMessage {
	from, to := locate(object, name)
	if from < 0 {
		return object
	}
	out := make([]byte, 0, len(object)-(to-from)+len(value))
	out = append(out, object[:from]...)
	out = append(out, value...)
	return append(out, object[to:]...)
}

// locate returns the start and end of a member's value, or -1 if the object does not have the member.
func locate(object json.RawMessage, name string) (from, to int) {
	from = -1
	walk(object, func(key []byte, start, end int) bool {
		if string(key) == name {
			from, to = start, end
		}
		return true
	})
	return from, to
}

// Without returns the object without the members for which out reports true.
func Without(object json.RawMessage, out func(name string) bool) json.RawMessage {
	kept := []byte{'{'}
	for key, value := range Members(object) {
		if out(string(key)) {
			continue
		}
		if len(kept) > 1 {
			kept = append(kept, ',')
		}
		kept = append(append(AppendString(kept, string(key)), ':'), value...)
	}
	return append(kept, '}')
}

// MaxDistinct is the number of members up to which [Repeats] compares their names, because it needs memory for each.
const MaxDistinct = 1000

// Repeats reports whether an object has two members with the same name, which readers interpret differently, or more than
// [MaxDistinct] members.
func Repeats(object json.RawMessage) bool {
	var names [16][]byte // nearly every object has fewer members, and needs no map
	n := 0
	for key := range Members(object) {
		if n == len(names) {
			return repeatsAny(object)
		}
		for _, name := range names[:n] {
			if bytes.Equal(name, key) {
				return true
			}
		}
		names[n] = key
		n++
	}
	return false
}

// repeatsAny does what [Repeats] does for an object with any number of members.
func repeatsAny(object json.RawMessage) bool {
	names := map[string]bool{}
	for key := range Members(object) {
		if names[string(key)] || len(names) == MaxDistinct {
			return true
		}
		names[string(key)] = true
	}
	return false
}

// Insert inserts a member at the beginning of an object.
func Insert(object json.RawMessage, name string, value json.RawMessage) json.RawMessage {
	out := AppendString([]byte{'{'}, name)
	out = append(append(out, ':'), value...)
	rest := bytes.TrimLeft(object[1:], " \t\r\n")
	if len(rest) > 0 && rest[0] != '}' {
		out = append(out, ',')
	}
	return append(out, rest...)
}
