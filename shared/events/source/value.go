package source

import (
	"encoding/json"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/platform/jsonpointer"
	"github.com/mcp-events/mcpevents/shared/protocol/jsonrpc"
)

// maxDepth is how deep an object of values may be nested.
const maxDepth = 16

// jsonPath is the beginning of one (RFC 9535), which would be a constant here.
var jsonPath = regexp.MustCompile(`^\$(\.\.?[A-Za-z_*]|\[)`)

// Value is a part of an event: a JSON Pointer into the document (RFC 6901), a constant, or an object of values. The zero
// value is none.
type Value struct {
	kind     kind
	pointer  jsonpointer.Pointer
	constant any
	members  map[string]Value
}

type kind int

const (
	none kind = iota
	isPointer
	isConstant
	isObject
)

// The values of a mapping without data.
var (
	whole     = Value{kind: isPointer}
	wholeBody = Value{kind: isPointer, pointer: jsonpointer.Pointer{"body"}}
)

func (v Value) given() bool { return v.kind != none }

// String is the pointer, or what else it is.
func (v Value) String() string {
	switch {
	case v.kind != isPointer:
		return "the value"
	case len(v.pointer) == 0:
		return "the document"
	}
	return v.pointer.String()
}

// IsZero reports whether the value is none.
func (v Value) IsZero() bool { return !v.given() }

// MarshalJSON is the value as it was written.
func (v Value) MarshalJSON() ([]byte, error) {
	switch v.kind {
	case isPointer:
		return jsonrpc.Encode(v.pointer.String()), nil
	case isObject:
		return json.Marshal(v.members)
	}
	return jsonrpc.Encode(v.constant), nil
}

// ParseValue reads a value as [encoding/json] decodes it: a text that begins with / is a pointer, an object holds values,
// and all else is a constant. Faults are of kind fault.Invalid.
func ParseValue(v any) (Value, error) { return parseValue(v, 0) }

func parseValue(v any, depth int) (Value, error) {
	switch v := v.(type) {
	case string:
		if jsonPath.MatchString(v) {
			return Value{}, fault.New(fault.Invalid, "%.100q looks like a JSONPath: write a JSON Pointer, which begins with /, such as /body/action", v)
		}
		if !strings.HasPrefix(v, "/") {
			return Value{kind: isConstant, constant: v}, nil
		}
		p, err := jsonpointer.Parse(v)
		return Value{kind: isPointer, pointer: p}, err
	case map[string]any:
		if depth == maxDepth {
			return Value{}, fault.New(fault.Invalid, "is nested deeper than %d levels", maxDepth)
		}
		out := Value{kind: isObject, members: make(map[string]Value, len(v))}
		for _, name := range slices.Sorted(maps.Keys(v)) {
			member, err := parseValue(v[name], depth+1)
			if err != nil {
				return Value{}, fault.New(fault.Invalid, "%s: %s", jsonpointer.Member(name), fault.Public(err))
			}
			out.members[name] = member
		}
		return out, nil
	}
	return Value{kind: isConstant, constant: v}, nil
}

// CheckID refuses what can be the id of no delivery: by a constant, all that is sent would be one event, and a redelivery
// of it. It is of kind fault.Invalid, as are the faults of the other checks.
func (v Value) CheckID() error {
	if v.kind != isPointer {
		return fault.New(fault.Invalid, "must be a JSON Pointer to what is another for each delivery, such as /headers/x-request-id or /body/id")
	}
	return nil
}

// CheckVariable refuses what no URI can have.
func (v Value) CheckVariable() error {
	switch v.constant.(type) {
	case json.Number, bool:
		return nil
	case string:
		if v.constant != "" {
			return nil
		}
	}
	if v.kind != isPointer {
		return fault.New(fault.Invalid, "must be a JSON Pointer, or a text, a number or a boolean")
	}
	return nil
}

// CheckTime refuses a constant that is no time.
func (v Value) CheckTime() error {
	if _, ok := instant(v.constant); v.kind != isPointer && !ok {
		return fault.New(fault.Invalid, "must be a JSON Pointer, or a time as in RFC 3339")
	}
	return nil
}

// In is what the value is for a document; ok is false if a pointer leads to nothing. A member of an object whose pointer
// leads to nothing is left out.
func (v Value) In(doc any) (found any, ok bool) {
	switch v.kind {
	case isPointer:
		return v.pointer.In(doc)
	case isConstant:
		return v.constant, true
	case isObject:
		out := make(map[string]any, len(v.members))
		for name, m := range v.members {
			if found, ok := m.In(doc); ok {
				out[name] = found
			}
		}
		return out, true
	}
	return nil, false
}
