package logsource

import (
	"encoding/json"
	"strings"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/platform/opaque"
)

// handle is a subscription as a model holds it: NAME~ARGUMENTS~CURSOR, with the arguments in base64url, for example
// ci.deploy~~AAAA. It grants nothing, because each call checks name and arguments like subscribe does, and the cursor is sealed.
type handle struct {
	name      string
	arguments json.RawMessage // nil for none
	cursor    string
}

const (
	handleSeparator    = "~" // does not occur in names of event types or in base64url
	maxHandle          = 8 << 10
	maxHandleArguments = 2 << 10
)

// String returns the text that a model holds. [parseHandle] reads it.
func (h handle) String() string {
	arguments := ""
	if string(h.arguments) != "{}" {
		arguments = opaque.Encode(h.arguments)
	}
	return strings.Join([]string{h.name, arguments, h.cursor}, handleSeparator)
}

func errNoHandle() error {
	return fault.New(fault.Invalid, "this is not a subscription that subscribe or a later call returned; copy it exactly, or subscribe again")
}

func parseHandle(text string) (h handle, err error) {
	parts := strings.Split(text[:min(len(text), maxHandle)], handleSeparator)
	if text == "" {
		return h, fault.New(fault.Invalid, "subscription is missing")
	}
	if len(text) > maxHandle || len(parts) != 3 || parts[0] == "" || parts[2] == "" {
		return h, errNoHandle()
	}
	if parts[1] != "" {
		h.arguments, err = opaque.Decode(parts[1])
		if err != nil || len(h.arguments) > maxHandleArguments || !json.Valid(h.arguments) || h.arguments[0] != '{' {
			return handle{}, errNoHandle()
		}
	}
	h.name, h.cursor = parts[0], parts[2]
	return h, nil
}
