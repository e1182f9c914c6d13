package catalog

import (
	"encoding/json"
	"strconv"

	"github.com/mcp-events/mcpevents/shared/platform/jsonpointer"
)

// RangeType is the type of the values whose ranges a filter accepts.
type RangeType string

const (
	NoRange     RangeType = ""
	NumberRange RangeType = "number"
	TimeRange   RangeType = "date-time"
)

// RangeOf returns the type of ranges that a filter accepts. It depends on the schema of the argument in paramsSchema or, without one,
// on the schema of the filtered member in payloadSchema.
func (e *Entry) RangeOf(filter string) RangeType {
	pointer, ok := e.Filters[filter]
	if !ok {
		return NoRange
	}
	var params struct {
		Properties map[string]json.RawMessage `json:"properties"`
	}
	if e.ParamsSchema != nil && json.Unmarshal(e.ParamsSchema, &params) == nil {
		if own, ok := params.Properties[filter]; ok {
			return rangeType(own)
		}
	}
	path, _ := jsonpointer.Parse(pointer)
	at := e.PayloadSchema
	for _, name := range path {
		var s struct {
			Properties map[string]json.RawMessage `json:"properties"`
			Items      json.RawMessage            `json:"items"`
		}
		if json.Unmarshal(at, &s) != nil {
			return NoRange
		}
		next, ok := s.Properties[name]
		if _, err := strconv.Atoi(name); !ok && err == nil {
			next = s.Items
		}
		at = next
	}
	return rangeType(at)
}

// rangeType returns the type for values with a schema. A list has the type of its elements.
func rangeType(schema json.RawMessage) RangeType {
	var s struct {
		Type   any             `json:"type"`
		Format string          `json:"format"`
		Items  json.RawMessage `json:"items"`
	}
	if json.Unmarshal(schema, &s) != nil {
		return NoRange
	}
	switch kind, _ := s.Type.(string); {
	case kind == "number", kind == "integer":
		return NumberRange
	case kind == "string" && s.Format == "date-time":
		return TimeRange
	case kind == "array":
		return rangeType(s.Items)
	}
	return NoRange
}

// schema returns the schema of a range.
func (t RangeType) schema() string {
	bound := `{"type":"number"}`
	if t == TimeRange {
		bound = `{"type":"string","format":"date-time"}`
	}
	return `{"type":"object","minProperties":1,"additionalProperties":false,"properties":{` +
		`"$gt":` + bound + `,"$gte":` + bound + `,"$lt":` + bound + `,"$lte":` + bound + `},` +
		`"description":"A range: greater than, at least, less than, at most. All bounds that are given must hold."}`
}
