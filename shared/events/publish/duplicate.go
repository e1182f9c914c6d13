package publish

import (
	"bytes"
	"slices"
	"strconv"
	"strings"

	"github.com/mcp-events/mcpevents/shared/protocol/jsonrpc"
)

// fewMembers is up to how many members of an object are compared one by one.
const fewMembers = 16

// object is an object or an array that is open while [twice] reads on.
type object struct {
	array bool
	index int    // of the array's element
	name  []byte // of the object's current member, unescaped
	begin int    // where its names begin among those of all open objects
	many  map[string]bool
}

// twice finds a member that an object has twice, by one pass over valid JSON, and
// returns its pointer. Parsers differ in which of the two they take, so what the schema
// check saw might not be what a subscriber reads.
func twice(data []byte) (pointer string, found bool) {
	var open []object
	var names [][]byte
	key := false // the next string is a member's name
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
				o.name = unescaped(data[i:end])
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

// has reports whether the object's current name is among its earlier ones.
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

// maxPointer bounds the pointer to a fault: the names of a payload may be long.
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

// stringEnd is the index after the string that starts at i.
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

// unescaped is the value of a JSON string; it shares b's memory unless something is escaped.
func unescaped(b []byte) []byte {
	if bytes.IndexByte(b, '\\') < 0 {
		return b[1 : len(b)-1]
	}
	s, _ := jsonrpc.String(b)
	return []byte(s)
}
