package source

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/net/http/httpguts"

	"github.com/mcp-events/mcpevents/shared/platform/jsonpointer"
	"github.com/mcp-events/mcpevents/shared/protocol/jsonrpc"
)

// parts are the members of a document made from a request.
var parts = []string{"headers", "query", "body"}

// buses describes for each AWS service the members of its documents, for use in error messages. Documents may have
// more, because AWS adds members.
var buses = map[From]string{
	EventBridge: "a message of EventBridge has /id, /time, /source, /detail-type and /detail",
	SNS:         "a message of SNS has /MessageId, /TopicArn, /Timestamp and /Message",
	S3:          "a document of S3 is one record, with /eventName, /eventTime and /s3",
}

// textIn holds the parts whose members are always strings, each with the noun that error messages use for a member.
var textIn = map[string]string{"headers": "a header", "query": "a parameter of the query"}

// hides reports whether a header is left out of documents because it is in never or in secret.
func hides(name string, secret []string) bool {
	same := func(s string) bool { return strings.EqualFold(s, name) }
	return slices.ContainsFunc(never, same) || slices.ContainsFunc(secret, same)
}

// CheckValue finds pointers in a value that cannot match anything in any document of a source. Headers in secret are
// left out of a request's document. The pointers of the faults refer to the value as it was written.
func CheckValue(from From, v Value, secret []string) []jsonpointer.Fault {
	c := reach{from: from, secret: secret}
	c.value(v, nil)
	return c.faults
}

// CheckText checks a value like CheckValue, and refuses objects. It is for ids, times and variables.
func CheckText(from From, v Value, secret []string) []jsonpointer.Fault {
	if from == HTTP && len(v.pointer) == 1 && textIn[v.pointer[0]] != "" {
		return []jsonpointer.Fault{{Message: fmt.Sprintf("%q is always an object: write one of its members, e.g. %s/NAME", v.pointer, v.pointer)}}
	}
	return CheckValue(from, v, secret)
}

// CheckPattern finds parts of an event pattern, given as JSON, that cannot match any document of a source. The
// pointers of the faults refer to the pattern.
func CheckPattern(from From, text json.RawMessage, secret []string) []jsonpointer.Fault {
	c := reach{from: from, secret: secret}
	c.pattern(text, nil, nil)
	return c.faults
}

// reach collects the pointers and patterns that can never match.
type reach struct {
	from   From
	secret []string
	faults []jsonpointer.Fault
}

func (r *reach) fail(place jsonpointer.Pointer, format string, args ...any) {
	r.faults = append(r.faults, jsonpointer.Fault{Pointer: place.String(), Message: fmt.Sprintf(format, args...)})
}

func (r *reach) value(v Value, place jsonpointer.Pointer) {
	if v.kind == isPointer {
		r.leads(v.pointer, place)
	}
	for _, name := range slices.Sorted(maps.Keys(v.members)) {
		r.value(v.members[name], append(slices.Clip(place), name))
	}
}

// pattern checks the first two levels of a pattern, and the values allowed for members that are always strings. At is
// the current path in the document. An $or adds no level to it, because its alternatives apply to the object that
// contains the $or.
func (r *reach) pattern(text json.RawMessage, at, place jsonpointer.Pointer) {
	for name, value := range jsonrpc.Members(text) {
		here, place := append(slices.Clip(at), string(name)), append(slices.Clip(place), string(name))
		isList := value[0] == '['
		switch kind := textIn[here[0]]; {
		case string(name) == "$or" && isList:
			i := 0
			for branch := range jsonrpc.Elements(value) {
				r.pattern(branch, at, append(slices.Clip(place), strconv.Itoa(i)))
				i++
			}
		case !r.leads(here, place) || kind == "":
		case len(here) == 1 && isList:
			r.fail(place, "%s: needs the name of a member, e.g. {%s: {NAME: […]}}", place, name)
		case len(here) == 1:
			r.pattern(value, here, place)
		case !isList:
			r.fail(place, "%s: %s is a string without members: write its allowed values, e.g. [opened, closed]", place, kind)
		default:
			r.texts(value, kind, place)
		}
	}
}

// texts refuses values that a string can never equal.
func (r *reach) texts(list json.RawMessage, kind string, place jsonpointer.Pointer) {
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

// leads reports whether a document may have a value at a pointer.
func (r *reach) leads(pointer, place jsonpointer.Pointer) bool {
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
