package listen

import (
	"encoding/json"
	"strings"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
)

// Arguments converts the values of --arg to a JSON object.
func Arguments(texts map[string]string) (json.RawMessage, error) {
	args := map[string]json.RawMessage{}
	for name, text := range texts {
		value, _ := json.Marshal(text)
		name, asJSON := strings.CutSuffix(name, ":") // NAME:=5
		if asJSON || text == "true" || text == "false" || text != "" && (text[0] == '[' || text[0] == '{') {
			value = []byte(text)
		}
		if !json.Valid(value) {
			return nil, fault.New(fault.Invalid, "--arg %s: the value begins like JSON but is not valid JSON", name)
		}
		args[name] = value
	}
	b, err := json.Marshal(args)
	if err != nil {
		return nil, fault.Wrap(fault.Invalid, err, "--arg")
	}
	return b, nil
}
