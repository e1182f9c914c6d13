package publish

import (
	"bytes"
	"slices"
	"strconv"
	"strings"

	"github.com/mcp-events/mcpevents/shared/protocol/jsonrpc"
)

// fewMembers is the number of members up to which names are compared one by one instead of in a map.
const fewMembers = 16

// object is an object or array whose end [findDuplicate] has not reached yet.
type object struct {
	array bool
	index int    // index of the current element of an array
	name  []byte // name of the current member of an object, unescaped
	begin int    // index of its first name in the list of all open objects' names
	many  map[string]bool
}

// findDuplicate finds a member name that occurs twice in an object, in one pass over valid JSON, and returns a JSON
// Pointer to it. We refuse duplicates because parsers differ in which of the two they use: a subscriber might read
// another value than the one that passed the schema check.
func findDuplicate(data []byte) (pointer string, found bool) {
	var open []object
	var names [][]byte
	key := false // whether the next string is a member's name
	for i := 0; i < len(data); i++ {
		switch data[i] {
		case '{':
			open = append(open, object{begin: len(names)})
			key = true
		case '[':
			open = append(open, object{array: true, begin: len(names)})
			key = false
		case '}', ']':
			names = names[:open[len(open)-1].begin]
			open = open[:len(open)-1]
			key = false
		case ',':
			o := &open[len(open)-1]
			o.index++
			key = !o.array
		case '"':
			end := stringEnd(data, i)
			if key {
				o := &open[len(open)-1]
				o.name = unescape(data[i:end])
				if o.has(names) {
					return pointerTo(open), true
				}
				names = append(names, o.name)
				key = false
			}
			i = end - 1
		}
	}
	return "", false
}

// has reports whether the object's current name occurred before in the object.
func (o *object) has(names [][]byte) bool {
	mine := names[o.begin:]
	if len(mine) < fewMembers {
		return slices.ContainsFunc(mine, func(n []byte) bool { return bytes.Equal(n, o.name) })
	}
	if o.many == nil {
		o.many = make(map[string]bool, 4*fewMembers)
		for _, n := range mine {
			o.many[string(n)] = true
		}
	}
	if o.many[string(o.name)] {
		return true
	}
	o.many[string(o.name)] = true
	return false
}

// maxPointer limits the length of a pointer, because the names in a payload may be long.
const maxPointer = 1024

func pointerTo(open []object) string {
	var b strings.Builder
	for _, o := range open {
		b.WriteByte('/')
		if o.array {
			b.WriteString(strconv.Itoa(o.index))
		} else {
			b.WriteString(strings.NewReplacer("~", "~0", "/", "~1").Replace(string(o.name)))
		}
	}
	if b.Len() > maxPointer {
		return strings.ToValidUTF8(b.String()[:maxPointer], "") + "…"
	}
	return b.String()
}

// stringEnd returns the index after the string that starts at i.
func stringEnd(b []byte, i int) int {
	for i++; ; i++ {
		switch b[i] {
		case '\\':
			i++
		case '"':
			return i + 1
		}
	}
}

// unescape returns the value of a JSON string. The result shares b's memory unless something is escaped.
func unescape(b []byte) []byte {
	if bytes.IndexByte(b, '\\') < 0 {
		return b[1 : len(b)-1]
	}
	s, _ := jsonrpc.String(b)
	return []byte(s)
}
