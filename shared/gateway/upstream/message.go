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
