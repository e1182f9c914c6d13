package events

import (
	"encoding/json"
	"testing"

	"github.com/mcp-events/mcpevents/shared/events/catalog"
	"github.com/mcp-events/mcpevents/shared/protocol/jsonrpc"
	"github.com/mcp-events/mcpevents/test/expect"
)

// EVX-02, EVX-04: events without their redacted members conform to the payload schema in events/list.
func TestThePayloadSchemaDoesNotRequireRedactedMembers(t *testing.T) {
	cat := expect.Value(catalog.Parse([]byte(`events:
  - name: a.b
    uri: event://a
    redact: [/author, /head/author, /head/missing/author, /list/0/author]
    payloadSchema:
      type: object
      required: [author, id]
      properties:
        author: {type: string}
        head: {type: object, required: [author], properties: {author: {type: string, minLength: 2}}}
        list: {type: array, items: {type: object, required: [author]}}
`)))(t)
	var listed struct {
		PayloadSchema json.RawMessage `json:"payloadSchema"`
	}
	expect.OK(t, json.Unmarshal([]byte("{"+string(encodeEvent(cat.ByName("a.b")))+"}"), &listed))
	expect.Equal(t, "the schema", string(jsonrpc.Encode(jsonrpc.Value(listed.PayloadSchema))),
		`{"properties":{"author":{"type":"string"},"head":{"properties":{"author":{"minLength":2,"type":"string"}},"required":[],"type":"object"},"list":{"items":{"required":[],"type":"object"},"type":"array"}},"required":["id"],"type":"object"}`)
}
