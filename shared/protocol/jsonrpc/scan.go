package jsonrpc

import (
	"bytes"
	"encoding/json"
	"iter"
)

// The functions of this file walk JSON that is known to be valid, so they check
// nothing and allocate nothing.

// Members iterates over the members of an object in their order. Keys are
// unescaped. Anything but an object has none.
func Members(object json.RawMessage) iter.Seq2[[]byte, json.RawMessage] {
	return func(yield func([]byte, json.RawMessage) bool) {
		walk(object, func(key []byte, from, to int) bool { return yield(key, object[from:to:to]) })
	}
}

// walk is [Members] with where each value lies.
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

// Elements iterates over the elements of an array. Anything but an array has
// none.
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

// Member finds a member of an object; nil if there is none or it is null. Of
// several with the name, the last counts, as with encoding/json.
func Member(object json.RawMessage, name string) json.RawMessage {
	from, to := locate(object, name)
	if from < 0 || string(object[from:to]) == "null" {
		return nil
	}
	return object[from:to:to]
}

// String is the value of a JSON string, or false for anything else.
func String(value json.RawMessage) (string, bool) {
	if len(value) < 2 || value[0] != '"' {
		return "", false
	}
	return string(unquote(value)), true
}

// Value decodes valid JSON as encoding/json does into an any, but keeps numbers as [json.Number]. Of several members
// with one name the last counts.
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

// next passes over the comma after a member or element that ends at i, if there is one.
func next(b []byte, i int) int {
	if i = space(b, i); i < len(b) && b[i] == ',' {
		i = space(b, i+1)
	}
	return i
}

// Spaced reports whether valid JSON has space between its tokens.
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

// Depth is how deeply arrays and objects are nested. It needs no valid JSON.
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

func space(b []byte, i int) int {
	for i < len(b) && (b[i] == ' ' || b[i] == '\n' || b[i] == '\t' || b[i] == '\r') {
		i++
	}
	return i
}

// skip is the index behind the value that starts at i.
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

// skipString is the index after the string that starts at i, in linear time whatever is escaped.
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

// unquote is the value of a JSON string; it shares b's memory unless something
// is escaped.
func unquote(b []byte) []byte {
	if bytes.IndexByte(b, '\\') < 0 {
		return b[1 : len(b)-1]
	}
	var s string
	_ = json.Unmarshal(b, &s) // valid by the caller's word
	return []byte(s)
}
