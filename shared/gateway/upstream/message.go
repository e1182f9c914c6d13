package upstream

import (
	"encoding/json"

	"github.com/mcp-events/mcpevents/shared/jsonrpc"
)

// Message is a backend's message as far as a gateway has to know it. Unlike for
// messages of clients, an id may be any number: it is only ever sent back.
type Message struct {
	ID     json.RawMessage
	Method string
	Result json.RawMessage
	Error  json.RawMessage
	Raw    json.RawMessage
}

// Read looks at a message. It reports false for what is no JSON-RPC message.
func Read(raw json.RawMessage) (m Message, ok bool) {
	m.Raw = raw
	version, named := false, false
	for key, value := range jsonrpc.Members(raw) {
		switch string(key) {
		case "jsonrpc":
			version = string(value) == `"2.0"`
		case "id":
			if m.ID != nil || len(value) > jsonrpc.MaxID || value[0] == '{' || value[0] == '[' {
				return m, false
			}
			if string(value) != "null" {
				m.ID = value
			}
		case "method":
			m.Method, named = jsonrpc.String(value)
			if !named || m.Method == "" {
				return m, false
			}
		case "result":
			m.Result = value
		case "error":
			m.Error = value
		}
	}
	switch {
	case !version:
		return m, false
	case m.Method != "":
		return m, m.Result == nil && m.Error == nil
	}
	return m, (m.Result != nil) != (m.Error != nil) && (m.ID != nil || m.Error != nil)
}

// Response reports whether the message answers a request.
func (m Message) Response() bool { return m.Method == "" }

// Replace returns the object with the value of its member name replaced; the last one
// if there are several. All else stays as it was, byte for byte. Without the member the object
// is returned as it is.
func Replace(object json.RawMessage, name string, value []byte) json.RawMessage {
	from, to := find(object, name)
	if from < 0 {
		return object
	}
	out := make([]byte, 0, len(object)-(to-from)+len(value))
	out = append(out, object[:from]...)
	out = append(out, value...)
	return append(out, object[to:]...)
}

// find is where the value of a member lies.
func find(object json.RawMessage, name string) (from, to int) {
	from = -1
	at := 0
	for key, value := range jsonrpc.Members(object) {
		// Values are parts of the object, in their order.
		at = indexOf(object, value, at)
		if string(key) == name {
			from, to = at, at+len(value)
		}
		at += len(value)
	}
	return from, to
}

// indexOf is where part begins in whole, which holds it, at or behind a position.
func indexOf(whole, part []byte, at int) int {
	if len(part) == 0 {
		return at
	}
	for i := at; i < len(whole); i++ {
		if &whole[i] == &part[0] {
			return i
		}
	}
	return at
}

// Without returns the object without the members for which out reports true. All
// other values stay as they were, byte for byte.
func Without(object json.RawMessage, out func(name string) bool) json.RawMessage {
	kept := []byte{'{'}
	for key, value := range jsonrpc.Members(object) {
		if out(string(key)) {
			continue
		}
		if len(kept) > 1 {
			kept = append(kept, ',')
		}
		kept = append(append(jsonrpc.AppendString(kept, string(key)), ':'), value...)
	}
	return append(kept, '}')
}

// Repeats reports whether an object has two members of one name, which readers
// understand differently.
func Repeats(object json.RawMessage) bool {
	names := map[string]bool{}
	for key := range jsonrpc.Members(object) {
		if names[string(key)] {
			return true
		}
		names[string(key)] = true
	}
	return false
}

// Insert puts a member at the beginning of an object.
func Insert(object json.RawMessage, name string, value json.RawMessage) json.RawMessage {
	out := jsonrpc.AppendString([]byte{'{'}, name)
	out = append(append(out, ':'), value...)
	rest := object[1:]
	if len(rest) > 0 && rest[0] != '}' {
		out = append(out, ',')
	}
	return append(out, rest...)
}
