// Package jsonrpc reads and writes JSON-RPC 2.0 messages as MCP uses them.
//
// It keeps ids, params and results as the received bytes, so that a response has exactly the request's id, and large integers keep all
// digits. Unlike encoding/json, it distinguishes upper and lower case in member names. Otherwise a message could mean one thing to a
// proxy that checks it and another thing to this server.
//
// Methods and the rules of MCP are in shared/mcp.
package jsonrpc

import (
	"bytes"
	"encoding/json"
	"fmt"
	"iter"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/mcp-events/mcpevents/shared/platform/jsonpointer"
)

// MaxDepth is the deepest nesting of arrays and objects in a message.
const MaxDepth = jsonpointer.MaxDepth

// MaxID is the maximum length of an encoded id in bytes. It is small, because a stream repeats the id in every message.
const MaxID = 512

// The codes that JSON-RPC 2.0 defines (section 5.1).
const (
	ParseError     = -32700
	InvalidRequest = -32600
	MethodNotFound = -32601
	InvalidParams  = -32602
	InternalError  = -32603
)

// Error is a JSON-RPC error object. It implements error so that handlers can return it.
type Error struct {
	Code    int
	Message string
	Data    any // must marshal to JSON
}

func (e *Error) Error() string { return e.Message }

// Kind says whether a message is a request, a notification or a response.
type Kind uint8

// The kinds of messages.
const (
	Request Kind = iota + 1
	Notification
	Response
)

// Message is one decoded message. Its slices refer to the body's bytes instead of copying them.
type Message struct {
	Kind   Kind
	ID     json.RawMessage // nil if the message has no id or an invalid one
	Method string          // empty in a response
	Params json.RawMessage // an object, an array or nil
	Raw    json.RawMessage // the whole message
}

// maxBatch is the maximum number of messages in a batch.
const maxBatch = 1000

// Split checks that body is valid UTF-8 and JSON, with a nesting of at most [MaxDepth], and returns its messages: the elements of a batch,
// or the body itself. The error has the code [ParseError], or [InvalidRequest] for a batch that is empty or has more than [maxBatch]
// messages.
func Split(body []byte) (elements []json.RawMessage, batch bool, err *Error) {
	return SplitDeep(body, MaxDepth)
}

// SplitDeep is [Split] with the maximum nesting maxDepth instead of [MaxDepth].
func SplitDeep(body []byte, maxDepth int) (elements []json.RawMessage, batch bool, err *Error) {
	body = bytes.TrimLeft(body, " \t\r\n")
	switch {
	case len(body) == 0:
		return nil, false, &Error{Code: ParseError, Message: "the body is empty"}
	case !utf8.Valid(body):
		return nil, false, &Error{Code: ParseError, Message: "the body is not UTF-8"}
	case bytes.Count(body, []byte("{"))+bytes.Count(body, []byte("[")) > maxDepth && Depth(body) > maxDepth:
		// Count the brackets first, because that is faster than Depth. Most bodies have so few brackets that they need no call of Depth.
		return nil, false, &Error{Code: ParseError, Message: "the body is nested too deeply"}
	case !json.Valid(body):
		return nil, false, &Error{Code: ParseError, Message: "the body is not valid JSON"}
	case body[0] != '[':
		return []json.RawMessage{body}, false, nil
	}
	for v := range Elements(body) {
		if len(elements) == maxBatch {
			return nil, true, &Error{Code: InvalidRequest, Message: fmt.Sprintf("the batch has more than %d messages", maxBatch)}
		}
		elements = append(elements, v)
	}
	if len(elements) == 0 {
		return nil, true, &Error{Code: InvalidRequest, Message: "the batch is empty"}
	}
	return elements, true, nil
}

// Parts has the encoded members of a message that JSON-RPC defines. A member that is absent from the message is nil.
type Parts struct {
	Version, ID, Method, Params, Result, Error json.RawMessage
	// Repeated is the name of a member that the message has more than once, or empty.
	Repeated string
}

// ReadParts returns the parts of a message.
func ReadParts(raw json.RawMessage) (p Parts) {
	for key, value := range Members(raw) {
		var part *json.RawMessage
		switch string(key) {
		case "jsonrpc":
			part = &p.Version
		case "id":
			part = &p.ID
		case "method":
			part = &p.Method
		case "params":
			part = &p.Params
		case "result":
			part = &p.Result
		case "error":
			part = &p.Error
		default:
			continue
		}
		if *part != nil {
			p.Repeated = string(key)
		}
		*part = value
	}
	return p
}

// Decode decodes one message from [Split]. Its errors have the code [InvalidRequest]. Together with an error, it returns a message with
// the id, if the id is valid, so that the error response can have the id.
func Decode(raw json.RawMessage) (Message, *Error) {
	m := Message{Raw: raw}
	invalid := func(text string) (Message, *Error) {
		return m, &Error{Code: InvalidRequest, Message: text}
	}
	if len(raw) == 0 || raw[0] != '{' {
		return invalid("a message must be an object")
	}
	p := ReadParts(raw)
	if p.Repeated == "id" { // it is unknown which of the ids is meant, so the error has no id
		return invalid("member id appears twice")
	}
	if p.ID != nil {
		switch {
		case len(p.ID) > MaxID:
			return invalid(fmt.Sprintf("id has %d bytes (allowed: up to %d)", len(p.ID), MaxID))
		case !validID(p.ID):
			return invalid("id must be a string or an integer")
		}
		m.ID = p.ID
	}
	switch {
	case p.Repeated != "":
		return invalid("member " + p.Repeated + " appears twice")
	case string(p.Version) != `"2.0"`:
		return invalid(`jsonrpc must be "2.0"`)
	case p.Method == nil && (p.Result != nil) != (p.Error != nil):
		if m.ID == nil && p.Result != nil {
			return invalid("a response must have an id")
		}
		m.Kind = Response
		return m, nil
	case p.Method == nil:
		return invalid("method is missing")
	case p.Result != nil || p.Error != nil:
		return invalid("a message has either a method or a result or an error")
	}
	name, ok := String(p.Method)
	if !ok || name == "" {
		return invalid("method must be a string")
	}
	m.Method = name
	if p.Params != nil && string(p.Params) != "null" {
		if p.Params[0] != '{' && p.Params[0] != '[' {
			return invalid("params must be an object")
		}
		m.Params = p.Params
	}
	m.Kind = Request
	if m.ID == nil {
		m.Kind = Notification
	}
	return m, nil
}

// validID reports whether an id is a string or an integer without fraction or exponent. MCP forbids null and fractions.
func validID(id json.RawMessage) bool {
	if id[0] == '"' {
		return true
	}
	digits := bytes.TrimPrefix(id, []byte("-"))
	return len(digits) > 0 && len(bytes.Trim(digits, "0123456789")) == 0
}

// SameID reports whether the id or progress token in a response equals the one that was sent. It compares values, because the responder may
// encode them differently: for example "\u0061" for "a", or 5.0 for 5 if it reads numbers as doubles.
func SameID(got, sent json.RawMessage) bool {
	if string(got) == string(sent) {
		return true
	}
	if len(got) == 0 || len(got) > MaxID {
		return false
	}
	if text, ok := String(got); ok {
		same, ok := String(sent)
		return ok && same == text
	}
	one, err := strconv.ParseFloat(string(got), 64)
	other, err2 := strconv.ParseFloat(string(sent), 64)
	return err == nil && err2 == nil && one == other
}

// AppendRequest appends a request. The parameter params is a JSON object or nil.
func AppendRequest(dst []byte, id json.RawMessage, method string, params json.RawMessage) []byte {
	dst = slices.Grow(dst, len(`{"jsonrpc":"2.0","id":,"method":"","params":}`)+len(id)+len(method)+len(params))
	dst = append(append(dst, `{"jsonrpc":"2.0","id":`...), id...)
	dst = AppendString(append(dst, `,"method":`...), method)
	if params != nil {
		dst = append(append(dst, `,"params":`...), params...)
	}
	return append(dst, '}')
}

// AppendResult appends a response whose result is the given JSON.
func AppendResult(dst []byte, id, result json.RawMessage) []byte {
	dst = append(dst, `{"jsonrpc":"2.0","id":`...)
	dst = append(dst, id...)
	dst = append(dst, `,"result":`...)
	dst = append(dst, result...)
	return append(dst, '}')
}

// AppendError appends an error response. It leaves out the id if the request's id could not be read.
func AppendError(dst []byte, id json.RawMessage, e *Error) []byte {
	dst = append(dst, `{"jsonrpc":"2.0"`...)
	if len(id) > 0 {
		dst = append(dst, `,"id":`...)
		dst = append(dst, id...)
	}
	dst = append(dst, `,"error":`...)
	dst = AppendErrorObject(dst, e)
	return append(dst, '}')
}

// AppendErrorObject appends only the error object of a response, without the members around it.
func AppendErrorObject(dst []byte, e *Error) []byte {
	dst = append(dst, `{"code":`...)
	dst = strconv.AppendInt(dst, int64(e.Code), 10)
	dst = append(dst, `,"message":`...)
	dst = AppendString(dst, e.Message)
	if e.Data != nil {
		if data, err := json.Marshal(e.Data); err == nil {
			dst = append(dst, `,"data":`...)
			dst = append(dst, data...)
		}
	}
	return append(dst, '}')
}

// AppendNotification appends a notification. The parameter params is a JSON object or nil.
func AppendNotification(dst []byte, method string, params json.RawMessage) []byte {
	dst = append(dst, `{"jsonrpc":"2.0","method":`...)
	dst = AppendString(dst, method)
	if params != nil {
		dst = append(dst, `,"params":`...)
		dst = append(dst, params...)
	}
	return append(dst, '}')
}

// Encode encodes a value as JSON without escaping <, > and &. It panics if the value does not encode, so all [json.RawMessage] in the value
// must be valid JSON or nil.
func Encode(v any) json.RawMessage {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		panic(err)
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n"))
}

const hex = "0123456789abcdef"

// AppendString appends s as a JSON string. It replaces bytes that are not UTF-8 by U+FFFD, and escapes U+2028 and U+2029, because some
// readers treat them as line ends.
func AppendString(dst []byte, s string) []byte {
	dst = append(dst, '"')
	start := 0
	for i := 0; i < len(s); {
		c := s[i]
		if c < utf8.RuneSelf {
			if c >= ' ' && c != '"' && c != '\\' {
				i++
				continue
			}
			dst = append(dst, s[start:i]...)
			switch c {
			case '"', '\\':
				dst = append(dst, '\\', c)
			case '\n':
				dst = append(dst, '\\', 'n')
			case '\r':
				dst = append(dst, '\\', 'r')
			case '\t':
				dst = append(dst, '\\', 't')
			default:
				dst = append(dst, '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
			}
			i++
			start = i
			continue
		}
		r, n := utf8.DecodeRuneInString(s[i:])
		if r == utf8.RuneError && n == 1 || r == '\u2028' || r == '\u2029' {
			dst = append(dst, s[start:i]...)
			if r == utf8.RuneError {
				dst = append(dst, "\ufffd"...)
			} else {
				dst = append(dst, `\u202`...)
				dst = append(dst, hex[r&15])
			}
			start = i + n
		}
		i += n
	}
	dst = append(dst, s[start:]...)
	return append(dst, '"')
}

// The functions from here on expect valid JSON, so most of them need no checks and no allocations.

// Members iterates over the members of an object in their order, with unescaped keys. Other values have no members.
func Members(object json.RawMessage) iter.Seq2[[]byte, json.RawMessage] {
	return func(yield func([]byte, json.RawMessage) bool) {
		walk(object, func(key []byte, from, to int) bool { return yield(key, object[from:to:to]) })
	}
}

// walk iterates over the members like [Members], but yields the indices at which each value starts and ends.
func walk(object []byte, yield func(key []byte, from, to int) bool) {
	i := skipSpace(object, 0)
	if i >= len(object) || object[i] != '{' {
		return
	}
	for i = skipSpace(object, i+1); i < len(object) && object[i] != '}'; {
		end := skipValue(object, i)
		key := unquote(object[i:end])
		i = skipSpace(object, skipSpace(object, end)+1) // skip the colon
		end = skipValue(object, i)
		if end <= i || !yield(key, i, end) {
			return
		}
		i = next(object, end)
	}
}

// Elements iterates over the elements of an array. Other values have no elements.
func Elements(array json.RawMessage) iter.Seq[json.RawMessage] {
	return func(yield func(json.RawMessage) bool) {
		i := skipSpace(array, 0)
		if i >= len(array) || array[i] != '[' {
			return
		}
		for i = skipSpace(array, i+1); i < len(array) && array[i] != ']'; {
			end := skipValue(array, i)
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

// Value decodes valid JSON like encoding/json, but returns numbers as [json.Number]. If a name is repeated in an object, the last member
// counts.
func Value(b json.RawMessage) any {
	v, _ := decodeValue(b, skipSpace(b, 0))
	return v
}

// decodeValue decodes the value that starts at index i of b, and returns the index after it.
func decodeValue(b []byte, i int) (any, int) {
	switch b[i] {
	case '{':
		object := map[string]any{}
		for i = skipSpace(b, i+1); b[i] != '}'; {
			end := skipString(b, i)
			key := string(unquote(b[i:end]))
			i = skipSpace(b, skipSpace(b, end)+1) // skip the colon
			object[key], i = decodeValue(b, i)
			i = next(b, i)
		}
		return object, i + 1
	case '[':
		array := []any{}
		for i = skipSpace(b, i+1); b[i] != ']'; i = next(b, i) {
			var v any
			v, i = decodeValue(b, i)
			array = append(array, v)
		}
		return array, i + 1
	}
	end := skipValue(b, i)
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

// next returns the index of the member or element that follows the one ending at i. It skips the comma between them.
func next(b []byte, i int) int {
	if i = skipSpace(b, i); i < len(b) && b[i] == ',' {
		i = skipSpace(b, i+1)
	}
	return i
}

// HasSpace reports whether b, which must be valid JSON, has whitespace between its tokens.
func HasSpace(b json.RawMessage) bool {
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

// Depth returns how deeply arrays and objects are nested. It also accepts invalid JSON, so that callers can check the depth before they
// parse.
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

func skipSpace(b []byte, i int) int {
	for i < len(b) && (b[i] == ' ' || b[i] == '\n' || b[i] == '\t' || b[i] == '\r') {
		i++
	}
	return i
}

// skipValue returns the index after the value that starts at i.
func skipValue(b []byte, i int) int {
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
	for i < len(b) && b[i] > ' ' && b[i] != ',' && b[i] != ']' && b[i] != '}' {
		i++
	}
	return i
}

// skipString returns the index after the string that starts at i. It takes linear time even if most characters are escaped.
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

// unquote returns the value of a JSON string. If the string has no escapes, the result shares the memory of b.
func unquote(b []byte) []byte {
	if bytes.IndexByte(b, '\\') < 0 {
		return b[1 : len(b)-1]
	}
	var s string
	_ = json.Unmarshal(b, &s) // cannot fail, because b is valid JSON
	return []byte(s)
}

// Quote returns s as a JSON string.
func Quote(s string) json.RawMessage { return AppendString(nil, s) }

// Replace returns the object with another value for the named member, or the object itself if it has no such member. If several members
// have the name, it replaces the last one.
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

// locate returns the start and end of the last member with the given name. The result from is -1 if there is no such member.
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

// Without returns the object without some of its members: the function out returns true for the names of the members to leave out.
func Without(object json.RawMessage, out func(name string) bool) json.RawMessage {
	kept := []byte{'{'}
	for key, value := range Members(object) {
		if !out(string(key)) {
			kept = AppendMember(kept, string(key), value)
		}
	}
	return append(kept, '}')
}

// AppendMember appends a member to dst, which holds the beginning of a JSON object, for example {"a":1 without the closing brace, or is
// empty. It puts a comma before the member if dst already has a member.
func AppendMember(dst []byte, name string, value []byte) []byte {
	if len(dst) > 0 && dst[len(dst)-1] != '{' {
		dst = append(dst, ',')
	}
	return append(append(AppendString(dst, name), ':'), value...)
}

// MaxComparedMembers is the maximum number of members whose names [HasRepeatedMember] compares. It limits the memory that a hostile
// object needs, for example one with a million members.
const MaxComparedMembers = 1000

// HasRepeatedMember reports whether two members of an object have the same name. Callers refuse such objects, because one JSON reader
// uses the first value and another one the last. It also returns true for more than [MaxComparedMembers] members.
func HasRepeatedMember(object json.RawMessage) bool {
	var seen names
	for name := range Members(object) {
		if !seen.add(name) || seen.n > MaxComparedMembers {
			return true
		}
	}
	return false
}

// FindRepeated returns a JSON Pointer to a member that repeats the name of an earlier member of the same object. It searches value and
// all objects in it.
func FindRepeated(value json.RawMessage) (pointer string, found bool) {
	_, pointer, found = findRepeated(value, skipSpace(value, 0))
	return pointer, found
}

// findRepeated implements [FindRepeated] for the value that starts at index i of b. It also returns the index after the value.
func findRepeated(b []byte, i int) (end int, pointer string, found bool) {
	switch b[i] {
	case '{':
		var seen names
		for i = skipSpace(b, i+1); b[i] != '}'; i = next(b, i) {
			end := skipString(b, i)
			name := unquote(b[i:end])
			if !seen.add(name) {
				return end, jsonpointer.Member(string(name)), true
			}
			if i, pointer, found = findRepeated(b, skipSpace(b, skipSpace(b, end)+1)); found {
				return i, jsonpointer.Member(string(name)) + pointer, true
			}
		}
		return i + 1, "", false
	case '[':
		n := 0
		for i = skipSpace(b, i+1); b[i] != ']'; i = next(b, i) {
			if i, pointer, found = findRepeated(b, i); found {
				return i, "/" + strconv.Itoa(n) + pointer, true
			}
			n++
		}
		return i + 1, "", false
	}
	return skipValue(b, i), "", false
}

// names is a set of the names in an object. It uses a map only above 16 names, because nearly all objects have fewer.
type names struct {
	few  [16][]byte
	more map[string]bool
	n    int
}

// add adds a name. It returns false if the set has it already.
func (s *names) add(name []byte) bool {
	known := slices.ContainsFunc(s.few[:min(s.n, len(s.few))], func(other []byte) bool { return bytes.Equal(other, name) })
	switch {
	case known || s.more[string(name)]:
		return false
	case s.n < len(s.few):
		s.few[s.n] = name
	case s.more == nil:
		s.more = map[string]bool{string(name): true}
	default:
		s.more[string(name)] = true
	}
	s.n++
	return true
}

// IsUTF8 reports whether text is UTF-8 by the charset parameter of its content type. Text without this parameter is UTF-8, too.
func IsUTF8(charset string) bool {
	return slices.Contains([]string{"", "utf-8", "utf8", "us-ascii"}, strings.ToLower(charset)) // ASCII is a part of UTF-8
}

// Insert inserts a member at the beginning of an object.
func Insert(object json.RawMessage, name string, value json.RawMessage) json.RawMessage {
	out := AppendMember([]byte{'{'}, name, value)
	rest := bytes.TrimLeft(object[1:], " \t\r\n")
	if len(rest) > 0 && rest[0] != '}' {
		out = append(out, ',')
	}
	return append(out, rest...)
}
