package delivery

import (
	"time"

	"github.com/mcp-events/mcpevents/shared/events/catalog"
	"github.com/mcp-events/mcpevents/shared/events/event"
	"github.com/mcp-events/mcpevents/shared/events/match"
	"github.com/mcp-events/mcpevents/shared/events/subscription"
	"github.com/mcp-events/mcpevents/shared/protocol/jsonrpc"
)

// The bodies are written without encoding/json, which would look at each byte of a payload again for each
// subscriber. The payload is valid and compact since publish.

// standardBody is the body of a SEP-1803 webhook (Standard Webhooks' type,
// timestamp, data, and ours).
func standardBody(e *event.Event, webhookType, id string) []byte {
	b := make([]byte, 0, len(e.Data)+len(e.URI)+len(webhookType)+192)
	b = jsonrpc.AppendString(append(b, `{"type":`...), webhookType)
	b = appendTimestamp(b, e)
	b = jsonrpc.AppendString(append(b, `,"uri":`...), e.URI)
	b = jsonrpc.AppendString(append(b, `,"subscription":`...), subscription.URI(id))
	return append(appendData(b, e), '}')
}

// eventsBody returns an EventOccurrence (SEP-3415). entry is the event type, or nil if the catalog no longer has it.
func eventsBody(e *event.Event, entry *catalog.Entry, cursor string) []byte {
	b := make([]byte, 0, len(e.Data)+2*len(e.URI)+len(e.Name)+len(cursor)+384)
	b = jsonrpc.AppendString(append(b, `{"eventId":`...), e.ID)
	b = jsonrpc.AppendString(append(b, `,"name":`...), e.Name)
	b = appendData(appendTimestamp(b, e), e)
	b = append(b, `,"cursor":`...)
	if cursor == "" {
		b = append(b, `null`...)
	} else {
		b = jsonrpc.AppendString(b, cursor)
	}
	b = match.AppendOccurrenceMeta(append(b, `,"_meta":{`...), e, entry)
	return append(b, `}}`...)
}

func appendTimestamp(b []byte, e *event.Event) []byte {
	b = append(b, `,"timestamp":"`...)
	return append(e.Time.AppendFormat(b, time.RFC3339Nano), '"')
}

func appendData(b []byte, e *event.Event) []byte {
	b = append(b, `,"data":`...)
	if len(e.Data) == 0 {
		return append(b, `null`...)
	}
	return append(b, e.Data...)
}
