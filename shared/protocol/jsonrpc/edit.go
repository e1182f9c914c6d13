package jsonrpc

import (
	"bytes"
	"encoding/json"
)

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
