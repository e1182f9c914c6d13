package conversation

import (
	"encoding/json"
	"unicode/utf8"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/protocol/jsonrpc"
)

// Limits of a message in bytes, or turns. What is over one is of kind fault.TooLarge
// with [Limit] as its data.
const (
	MaxMessageID = 256
	MaxContent   = 64 << 10
	MaxTurns     = 100
	MaxHistory   = 96 << 10 // of all turns together
	// MaxEncoded is the message as it is sent on, in JSON. It leaves room for what an event
	// and a message of a queue have besides.
	MaxEncoded = 192 << 10
)

// Kind is what was said: the method that carries it.
type Kind string

// The kinds. The first is of the seed; the second answers one of its open questions.
const (
	UserMessage       Kind = "userMessage"
	AssistantResponse Kind = "assistantResponse"
)

// Kinds are all of them.
var Kinds = []Kind{UserMessage, AssistantResponse}

// Method is the method of MCP that carries such a message.
func (k Kind) Method() string { return "conversation/" + string(k) }

// Message is what a client sends: the params of conversation/userMessage.
type Message struct {
	Kind Kind `json:"-"`
	// ID is chosen by the client. It names the message in the context that answers it,
	// and makes a repeated one the same event.
	ID      string `json:"messageId"`
	Content string `json:"content"`
	// History is what was said before, the oldest first.
	History []Turn `json:"recentHistory,omitempty"`
}

// Turn is an earlier message.
type Turn struct {
	Role    string `json:"role"` // "user" or "assistant"
	Content string `json:"content"`
}

// Parse reads the params of a message, which are valid JSON. Unknown members are
// passed over. The errors, of kind fault.Invalid or fault.TooLarge, repeat nothing of it.
func Parse(kind Kind, params json.RawMessage) (*Message, error) {
	m := &Message{Kind: kind}
	if len(params) == 0 || params[0] != '{' {
		return nil, fault.New(fault.Invalid, "params must be an object")
	}
	var err error
	if m.ID, err = text(params, "messageId", MaxMessageID); err != nil {
		return nil, err
	}
	if m.ID == "" {
		return nil, fault.New(fault.Invalid, "messageId must not be empty")
	}
	if m.Content, err = text(params, "content", MaxContent); err != nil {
		return nil, err
	}
	if m.History, err = history(params); err != nil {
		return nil, err
	}
	if len(m.Params(nil)) > MaxEncoded {
		return nil, tooLarge("message", MaxEncoded)
	}
	return m, nil
}

// text reads a member that must be a string.
func text(object json.RawMessage, name string, most int) (string, error) {
	raw, err := once(object, name)
	if err != nil {
		return "", err
	}
	s, ok := jsonrpc.String(raw)
	switch {
	case !ok:
		return "", fault.New(fault.Invalid, "%s must be a string", name)
	case !utf8.ValidString(s):
		return "", fault.New(fault.Invalid, "%s is not valid UTF-8", name)
	case len(s) > most:
		return "", tooLarge(name, most)
	}
	return s, nil
}

// once finds a member that must not be there twice: a provider might read the other one.
func once(object json.RawMessage, name string) (found json.RawMessage, err error) {
	n := 0
	for key, value := range jsonrpc.Members(object) {
		if string(key) == name {
			found = value
			n++
		}
	}
	if n > 1 {
		return nil, fault.New(fault.Invalid, "%s appears twice", name)
	}
	return found, nil
}

func history(params json.RawMessage) ([]Turn, error) {
	raw, err := once(params, "recentHistory")
	switch {
	case err != nil:
		return nil, err
	case raw == nil || string(raw) == "null":
		return nil, nil
	case raw[0] != '[':
		return nil, fault.New(fault.Invalid, "recentHistory must be an array")
	}
	var turns []Turn
	size := 0
	for one := range jsonrpc.Elements(raw) {
		if len(turns) == MaxTurns {
			return nil, tooLarge("recentHistory", MaxTurns)
		}
		if one[0] != '{' {
			return nil, fault.New(fault.Invalid, "recentHistory must hold objects")
		}
		var t Turn
		if t.Role, err = text(one, "role", MaxMessageID); err == nil && t.Role != "user" && t.Role != "assistant" {
			err = fault.New(fault.Invalid, "role must be user or assistant")
		}
		if err == nil {
			t.Content, err = text(one, "content", MaxHistory)
		}
		if err != nil {
			return nil, fault.Wrap(fault.Invalid, err, "recentHistory")
		}
		if size += len(t.Content); size > MaxHistory {
			return nil, tooLarge("recentHistory", MaxHistory)
		}
		turns = append(turns, t)
	}
	return turns, nil
}

func tooLarge(what string, most int) error {
	return fault.New(fault.TooLarge, "the limit %s of %d is exceeded", what, most).AtLimit(what, float64(most))
}

// Params encodes the message as it came, with further members of _meta, without
// braces; nil for none.
func (m *Message) Params(meta []byte) json.RawMessage {
	b := jsonrpc.Encode(m)
	if len(meta) > 0 {
		b = append(append(append(b[:len(b)-1], `,"_meta":{`...), meta...), "}}"...)
	}
	return b
}
