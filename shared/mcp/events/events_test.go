package events

import (
	"encoding/json"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mcp-events/mcpevents/shared/events/catalog"
	"github.com/mcp-events/mcpevents/shared/events/subscription"
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

// TestDeliveryStatusTellsOfThrottling: EVX-10. An endpoint that asked to be left alone is throttled for as long as
// it asked for.
func TestDeliveryStatusTellsOfThrottling(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for wait, want := range map[time.Duration]int64{90 * time.Second: 90_000, 0: 0, -time.Second: 0} {
			got := newDeliveryStatus(true, subscription.Status{LastError: "http_4xx", ThrottledUntil: time.Now().Add(wait)})
			if got.Throttled != (want > 0) || got.RetryAfterMS != want || !got.Active || *got.LastError != "http_4xx" {
				t.Errorf("%v: got %+v, want active, http_4xx and throttled for %d ms", wait, got, want)
			}
		}
	})
}
