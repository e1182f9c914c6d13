package ingest_test

import (
	"encoding/json"

	"github.com/mcp-events/mcpevents/shared/events/source"
)

func parseValue(text string) (source.Value, error) {
	var v any
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		return source.Value{}, err
	}
	return source.ParseValue(v)
}
