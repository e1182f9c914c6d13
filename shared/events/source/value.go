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

// jsonPath matches the beginning of a JSONPath (RFC 9535). Without this check a JSONPath would silently become a
// constant.
var jsonPath = regexp.MustCompile(`^\$(\.\.?[A-Za-z_*]|\[)`)

// Value describes a part of an event: a JSON Pointer into the document (RFC 6901), a constant, or an object of
// values. The zero value means that the part is not configured.
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

// Defaults for a mapping without data.
var (
	whole     = Value{kind: isPointer}
	wholeBody = Value{kind: isPointer, pointer: jsonpointer.Pointer{"body"}}
)

func (v Value) given() bool { return v.kind != none }

// String returns the pointer, or a phrase that describes the value in an error message.
func (v Value) String() string {
	switch {
	case v.kind != isPointer:
		return "the value"
	case len(v.pointer) == 0:
		return "the document"
	}
	return v.pointer.String()
}

// IsZero reports whether the value is not configured.
func (v Value) IsZero() bool { return !v.given() }

// MarshalJSON returns the value as it was written in the configuration.
func (v Value) MarshalJSON() ([]byte, error) {
	switch v.kind {
	case isPointer:
		return jsonrpc.Encode(v.pointer.String()), nil
	case isObject:
		return json.Marshal(v.members)
	}
	return jsonrpc.Encode(v.constant), nil
}

// ParseValue parses a value that [encoding/json] has decoded. A string that begins with / is a JSON Pointer, the
// members of an object are values themselves, and anything else is a constant. Faults are of kind fault.Invalid.
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
		if depth == jsonpointer.MaxDepth {
			return Value{}, fault.New(fault.Invalid, "is nested deeper than %d levels", jsonpointer.MaxDepth)
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

// CheckID refuses a value that cannot identify deliveries. With a constant, every delivery after the first would
// count as a redelivery of it. The errors of this check and of those below are of kind fault.Invalid.
func (v Value) CheckID() error {
	if v.kind != isPointer {
		return fault.New(fault.Invalid, "must be a JSON Pointer to a value that is unique per delivery, such as /headers/x-request-id or /body/id")
	}
	return nil
}

// CheckVariable refuses a value that cannot be part of a URI.
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

// CheckTime refuses a constant that is not a time.
func (v Value) CheckTime() error {
	if _, ok := instant(v.constant); v.kind != isPointer && !ok {
		return fault.New(fault.Invalid, "must be a JSON Pointer, or a time as in RFC 3339")
	}
	return nil
}

// In evaluates the value for a document. It returns false if a pointer finds no value. Members of an object whose
// pointers find no value are left out.
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
