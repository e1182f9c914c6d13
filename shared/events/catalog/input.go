package catalog

import (
	"encoding/json"
	"slices"
	"strconv"

	"github.com/mcp-events/mcpevents/shared/platform/jsonpointer"
	"github.com/mcp-events/mcpevents/shared/platform/strictyaml"
)

// readParamsSchema reads the schema of the template's variables. Its properties may also describe filters. Any other property is a
// fault. A required filter is a fault too, because filters are not part of a URI.
func (p *parser) readParamsSchema(e *Entry, n *strictyaml.Node, what string) {
	if e.URI != "" {
		p.file.Add(n.Line, "%s: a fixed URI has no variables", what)
		return
	}
	e.ParamsSchema, e.params = p.readSchema(n, what)
	if e.params == nil || e.vars == nil {
		return
	}
	var shape struct {
		Properties map[string]json.RawMessage `json:"properties"`
		Required   []string                   `json:"required"`
	}
	if err := json.Unmarshal(e.ParamsSchema, &shape); err != nil {
		p.file.Add(n.Line, "%s: properties or required are not of their usual form", what)
		return
	}
	e.types = map[string]string{}
	for name, raw := range shape.Properties {
		_, isFilter := e.Filters[name]
		if !slices.Contains(e.vars, name) {
			if !isFilter {
				p.file.Add(strictyaml.Line(n, []string{"properties", name}),
					"%s: %q is neither a variable of the template nor a filter", what, strictyaml.Clip(name))
			}
			continue
		}
		var prop struct {
			Type any `json:"type"`
		}
		_ = json.Unmarshal(raw, &prop) // a boolean schema has no type
		if t, ok := prop.Type.(string); ok && t != "string" {
			e.types[name] = t
		}
	}
	for _, name := range shape.Required {
		if !slices.Contains(e.vars, name) {
			p.file.Add(strictyaml.Line(n, []string{"required"}),
				"%s: the required %q is not a variable of the template", what, strictyaml.Clip(name))
		}
	}
}

const scalarValue = `{"type":["string","number","boolean"]}`

var (
	anyText    = json.RawMessage(`{"type":"string"}`)
	redactFlag = json.RawMessage(`{"type":"boolean","default":false,"description":"Leave out the members that the event type marks as sensitive."}`)
)

// filterSchema returns the schema for the argument of a filter. Own is the operator's schema of a single value, or nil.
func filterSchema(own json.RawMessage, of RangeType) json.RawMessage {
	value, about := string(own), ""
	if own == nil {
		value, about = scalarValue, `,"description":"A value that the event must have here, or a list of which it must have one; in a text, * stands for any characters."`
	}
	span := ""
	if of != NoRange {
		span = "," + of.schema()
	}
	return json.RawMessage(`{"anyOf":[` + value + `,{"type":"array","items":` + value + `,"minItems":1,"maxItems":50}` + span + `]` + about + `}`)
}

// inputSchema returns the params schema with the filters added and unknown arguments excluded. It keeps the operator's other keywords.
func inputSchema(e *Entry) json.RawMessage {
	schema := map[string]json.RawMessage{}
	if e.ParamsSchema != nil {
		_ = json.Unmarshal(e.ParamsSchema, &schema) // an object, because it was compiled
	}
	props := map[string]json.RawMessage{}
	if raw, ok := schema["properties"]; ok {
		_ = json.Unmarshal(raw, &props)
	}
	for _, v := range e.vars {
		if _, ok := props[v]; !ok {
			props[v] = anyText
		}
	}
	for name := range e.Filters {
		props[name] = filterSchema(props[name], e.RangeOf(name))
	}
	if len(e.Redact) > 0 {
		props[redactArgument] = redactFlag
	}
	schema["type"] = json.RawMessage(`"object"`)
	schema["properties"], _ = json.Marshal(props) // valid JSON always marshals
	schema["additionalProperties"] = json.RawMessage(`false`)
	out, _ := json.Marshal(schema)
	return out
}

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
