package source

import (
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/net/http/httpguts"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/platform/jsonpointer"
	"github.com/mcp-events/mcpevents/shared/protocol/jsonrpc"
)

// jsonPath matches the beginning of a JSONPath (RFC 9535). ParseValue refuses a JSONPath, because it would otherwise use the text as a
// constant.
var jsonPath = regexp.MustCompile(`^\$(\.\.?[A-Za-z_*]|\[)`)

// Value configures one part of an event, for example its id. It is a JSON Pointer into the document (RFC 6901), a constant, or an object
// whose members are such values. The zero value means that the part is not configured.
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

// Values for the payload of a mapping that does not set data: wholeBody selects the body of an HTTP request, and whole selects the whole
// document of a message from an AWS service.
var (
	whole     = Value{kind: isPointer}
	wholeBody = Value{kind: isPointer, pointer: jsonpointer.Pointer{"body"}}
)

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
func (v Value) IsZero() bool { return v.kind == none }

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

// ParseValue makes a Value from decoded JSON. A string that begins with / is a JSON Pointer, an object has a Value for each of its
// members, and anything else is a constant. Faults are of kind fault.Invalid.
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

// CheckID returns an error if the value is not a JSON Pointer. A constant, for example, would be the same id for all deliveries. Errors
// are of kind fault.Invalid.
func (v Value) CheckID() error {
	if v.kind != isPointer {
		return fault.New(fault.Invalid, "must be a JSON Pointer to a value that is unique per delivery, such as /headers/x-request-id or /body/id")
	}
	return nil
}

// CheckVariable returns an error for a value that cannot be a part of an event's URI, for example an object or an empty text.
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

// CheckTime returns an error unless the value is a JSON Pointer or a constant time.
func (v Value) CheckTime() error {
	if _, ok := parseTime(v.constant); v.kind != isPointer && !ok {
		return fault.New(fault.Invalid, "must be a JSON Pointer, or a time as in RFC 3339")
	}
	return nil
}

// Evaluate returns the value for a document, which is a decoded request or message. If the value is a JSON Pointer to a value
// that the document lacks, Evaluate returns false. If the value is an object, it leaves out members with such pointers.
func (v Value) Evaluate(doc any) (found any, ok bool) {
	switch v.kind {
	case isPointer:
		return v.pointer.ValueIn(doc)
	case isConstant:
		return v.constant, true
	case isObject:
		out := make(map[string]any, len(v.members))
		for name, m := range v.members {
			if found, ok := m.Evaluate(doc); ok {
				out[name] = found
			}
		}
		return out, true
	}
	return nil, false
}

// parts are the members of a document that [ReadRequest] made from an HTTP request.
var parts = []string{"headers", "query", "body"}

// buses says which members the documents of each AWS service have. Error messages contain this text.
var buses = map[From]string{
	EventBridge: "a message of EventBridge has /id, /time, /source, /detail-type and /detail",
	SNS:         "a message of SNS has /MessageId, /TopicArn, /Timestamp and /Message",
	S3:          "a document of S3 is one record, with /eventName, /eventTime and /s3",
}

// textIn lists the parts of a document whose members are always strings. Its values are the names that error messages use for such a
// member.
var textIn = map[string]string{"headers": "a header", "query": "a parameter of the query"}

// hides reports whether [ReadRequest] leaves a header out of documents, because its name is in neverMapped or in the parameter secret.
func hides(name string, secret []string) bool {
	same := func(s string) bool { return strings.EqualFold(s, name) }
	return slices.ContainsFunc(neverMapped, same) || slices.ContainsFunc(secret, same)
}

// CheckValue returns a fault for each JSON Pointer in v that can never find a value in the source's requests or messages. For example, a
// pointer to a header that is listed in secret finds no value, because such headers are removed first. The faults point to places in v.
func CheckValue(from From, v Value, secret []string) []jsonpointer.Fault {
	c := reach{from: from, secret: secret}
	c.checkValue(v, nil)
	return c.faults
}

// CheckText checks the value of an id, a time or a variable like CheckValue. It also refuses the pointers /headers and /query, because
// they find objects instead of texts.
func CheckText(from From, v Value, secret []string) []jsonpointer.Fault {
	if from == HTTP && len(v.pointer) == 1 && textIn[v.pointer[0]] != "" {
		return []jsonpointer.Fault{{Message: fmt.Sprintf("%q is always an object: write one of its members, e.g. %s/NAME", v.pointer, v.pointer)}}
	}
	return CheckValue(from, v, secret)
}

// CheckPattern returns a fault for each part of an event pattern that can never match the source's requests or messages. The parameter
// text is the pattern as JSON.
func CheckPattern(from From, text json.RawMessage, secret []string) []jsonpointer.Fault {
	c := reach{from: from, secret: secret}
	c.checkPattern(text, nil, nil)
	return c.faults
}

// reach collects faults for pointers and patterns that can never match the source's requests or messages.
type reach struct {
	from   From
	secret []string
	faults []jsonpointer.Fault
}

func (r *reach) fail(place jsonpointer.Pointer, format string, args ...any) {
	r.faults = append(r.faults, jsonpointer.Fault{Pointer: place.String(), Message: fmt.Sprintf(format, args...)})
}

func (r *reach) checkValue(v Value, place jsonpointer.Pointer) {
	if v.kind == isPointer {
		r.checkPointer(v.pointer, place)
	}
	for _, name := range slices.Sorted(maps.Keys(v.members)) {
		r.checkValue(v.members[name], append(slices.Clip(place), name))
	}
}

// checkPattern adds a fault for each member of text that can never match. The parameter text is a pattern or an object inside it. The
// parameter at is the path in the document to which text applies. The parameter place is the path of text in the pattern, and faults
// contain it.
//
// checkPattern follows only the first two levels of the document, because the deeper levels depend on the provider. The operator $or is not
// a level of the document, so its alternatives have the same path in the document as the object around $or.
func (r *reach) checkPattern(text json.RawMessage, at, place jsonpointer.Pointer) {
	for name, value := range jsonrpc.Members(text) {
		here, place := append(slices.Clip(at), string(name)), append(slices.Clip(place), string(name))
		isList := value[0] == '['
		switch kind := textIn[here[0]]; {
		case string(name) == "$or" && isList:
			i := 0
			for branch := range jsonrpc.Elements(value) {
				r.checkPattern(branch, at, append(slices.Clip(place), strconv.Itoa(i)))
				i++
			}
		case !r.checkPointer(here, place) || kind == "":
		case len(here) == 1 && isList:
			r.fail(place, "%s: needs the name of a member, e.g. {%s: {NAME: […]}}", place, name)
		case len(here) == 1:
			r.checkPattern(value, here, place)
		case !isList:
			r.fail(place, "%s: %s is a string without members: write its allowed values, e.g. [opened, closed]", place, kind)
		default:
			r.checkTexts(value, kind, place)
		}
	}
}

// checkTexts adds a fault for each value in list that a string can never equal, for example a number. The parameter kind names the string
// in the text of a fault, for example "a header".
func (r *reach) checkTexts(list json.RawMessage, kind string, place jsonpointer.Pointer) {
	i := 0
	for value := range jsonrpc.Elements(list) {
		place := append(slices.Clip(place), strconv.Itoa(i))
		switch {
		case value[0] == '{' && jsonrpc.Member(value, "numeric") != nil:
			r.fail(place, "%s: %s is a string, which numeric never matches", place, kind)
		case value[0] == 'n':
			r.fail(place, "%s: %s is a string and never null", place, kind)
		case value[0] != '{' && value[0] != '"':
			r.fail(place, "%s: %s is a string: write \"%s\"", place, kind, value)
		}
		i++
	}
}

// checkPointer reports whether the source's requests or messages can have a value at the given pointer. If not, it adds a fault. The
// parameter place says where the pointer is in a pattern or value.
func (r *reach) checkPointer(pointer, place jsonpointer.Pointer) bool {
	before := len(r.faults)
	switch {
	case len(pointer) == 0:
	case r.from != HTTP && (slices.Contains(parts, pointer[0]) || r.from == S3 && pointer[0] == "Records"):
		r.fail(place, "%.100q finds no value: %s", pointer, buses[r.from])
	case r.from != HTTP:
	case !slices.Contains(parts, pointer[0]):
		r.fail(place, "%.100q finds no value: a request has /headers, /query and /body", pointer)
	case len(pointer) < 2:
	case pointer[0] == "headers" && pointer[1] != strings.ToLower(pointer[1]):
		r.fail(place, "%.100q finds no value: names of headers are in lower case", pointer)
	case pointer[0] == "headers" && !httpguts.ValidHeaderFieldName(pointer[1]):
		r.fail(place, "%.100q finds no value: this is not a header name; write one without spaces, e.g. x-request-id", pointer)
	case pointer[0] == "headers" && hides(pointer[1], r.secret):
		r.fail(place, "%.100q finds no value: headers with credentials or signatures, or about the transfer of the body, are left out", pointer)
	case len(pointer) > 2 && textIn[pointer[0]] != "":
		r.fail(place, "%.100q finds no value: %s is a string without members; write %.100s", pointer, textIn[pointer[0]], pointer[:2])
	}
	return len(r.faults) == before
}
