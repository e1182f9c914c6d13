// Package jsonrpc reads and writes JSON-RPC 2.0 messages as MCP uses them.
//
// It keeps ids, params and results as the bytes that came in: an id is echoed in
// value and type, a large integer stays what it was. Member names are compared
// exactly, unlike encoding/json does, because a gateway in front may have
// decided on the same bytes. No method and no MCP rule enters here; those are in
// shared/mcp.
package jsonrpc

import (
	"bytes"
	"encoding/json"
	"fmt"
	"unicode/utf8"

	"github.com/mcp-events/mcpevents/shared/platform/jsonpointer"
)

// MaxDepth is the deepest nesting of arrays and objects in a message.
const MaxDepth = jsonpointer.MaxDepth

// MaxID is the longest id in bytes as it stands in the message. An id is echoed
// on every message of a stream, so it is bounded apart from the body.
const MaxID = 512

// The codes that JSON-RPC 2.0 defines (section 5.1).
const (
	ParseError     = -32700
	InvalidRequest = -32600
	MethodNotFound = -32601
	InvalidParams  = -32602
	InternalError  = -32603
)

// Error is a JSON-RPC error object. It is an error, so that handlers return it
// as it is.
type Error struct {
	Code    int
	Message string
	// Data must marshal to JSON; nil leaves the member out.
	Data any
}

func (e *Error) Error() string { return e.Message }

// Kind tells messages apart.
type Kind uint8

// The kinds of messages.
const (
	Request Kind = iota + 1
	Notification
	Response
)

// Message is one decoded message. Its slices share the memory of the body.
type Message struct {
	Kind Kind
	// ID is the id as it stood in the message; nil when there was none or it
	// could not be read.
	ID json.RawMessage
	// Method is empty in a response.
	Method string
	// Params is an object or an array, or nil.
	Params json.RawMessage
	// Raw is the whole message.
	Raw json.RawMessage
}

// MaxBatch is how many messages a batch may have.
const MaxBatch = 1000

// Split checks that body is JSON in UTF-8 of bounded depth and takes a batch
// apart. The error has code [ParseError], or [InvalidRequest] for a batch that is empty or
// has more than [MaxBatch] messages.
func Split(body []byte) (elements []json.RawMessage, batch bool, err *Error) {
	return SplitDeep(body, MaxDepth)
}

// SplitDeep does what [Split] does, but allows the given depth instead of [MaxDepth].
func SplitDeep(body []byte, maxDepth int) (elements []json.RawMessage, batch bool, err *Error) {
	body = bytes.TrimLeft(body, " \t\r\n")
	switch {
	case len(body) == 0:
		return nil, false, &Error{Code: ParseError, Message: "the body is empty"}
	case !utf8.Valid(body):
		return nil, false, &Error{Code: ParseError, Message: "the body is not UTF-8"}
	case Depth(body) > maxDepth:
		return nil, false, &Error{Code: ParseError, Message: "the body is nested too deeply"}
	case !json.Valid(body):
		return nil, false, &Error{Code: ParseError, Message: "the body is not valid JSON"}
	case body[0] != '[':
		return []json.RawMessage{body}, false, nil
	}
	for v := range Elements(body) {
		if len(elements) == MaxBatch {
			return nil, true, &Error{Code: InvalidRequest, Message: fmt.Sprintf("the batch has more than %d messages", MaxBatch)}
		}
		elements = append(elements, v)
	}
	if len(elements) == 0 {
		return nil, true, &Error{Code: InvalidRequest, Message: "the batch is empty"}
	}
	return elements, true, nil
}

// Decode reads one element of [Split]. On an error, of code [InvalidRequest], the
// message has its id if that could be read.
func Decode(raw json.RawMessage) (Message, *Error) {
	m := Message{Raw: raw}
	invalid := func(text string) (Message, *Error) {
		return m, &Error{Code: InvalidRequest, Message: text}
	}
	if len(raw) == 0 || raw[0] != '{' {
		return invalid("a message must be an object")
	}
	var version, id, method, params, result, failure json.RawMessage
	twice := ""
	for key, value := range Members(raw) {
		var slot *json.RawMessage
		switch string(key) {
		case "jsonrpc":
			slot = &version
		case "id":
			slot = &id
		case "method":
			slot = &method
		case "params":
			slot = &params
		case "result":
			slot = &result
		case "error":
			slot = &failure
		default:
			continue
		}
		if *slot != nil {
			twice = string(key)
		}
		*slot = value
	}
	if twice == "id" { // which one was meant cannot be known
		return invalid("member id appears twice")
	}
	if id != nil {
		if !validID(id) {
			return invalid("id must be a string or an integer")
		}
		m.ID = id
	}
	switch {
	case twice != "":
		return invalid("member " + twice + " appears twice")
	case string(version) != `"2.0"`:
		return invalid(`jsonrpc must be "2.0"`)
	case method == nil && (result != nil) != (failure != nil):
		if m.ID == nil && result != nil {
			return invalid("a response must have an id")
		}
		m.Kind = Response
		return m, nil
	case method == nil:
		return invalid("method is missing")
	case result != nil || failure != nil:
		return invalid("a message has either a method or a result or an error")
	}
	name, ok := String(method)
	if !ok || name == "" {
		return invalid("method must be a string")
	}
	m.Method = name
	if params != nil && string(params) != "null" {
		if params[0] != '{' && params[0] != '[' {
			return invalid("params must be an object")
		}
		m.Params = params
	}
	m.Kind = Request
	if m.ID == nil {
		m.Kind = Notification
	}
	return m, nil
}

// validID reports whether the raw value is a string or an integer as it is
// written: MCP takes no null and no fraction.
func validID(id json.RawMessage) bool {
	if len(id) > MaxID {
		return false
	}
	if id[0] == '"' {
		return true
	}
	digits := bytes.TrimPrefix(id, []byte("-"))
	return len(digits) > 0 && len(bytes.Trim(digits, "0123456789")) == 0
}
