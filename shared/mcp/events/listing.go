package events

import (
	"encoding/json"

	"github.com/mcp-events/mcpevents/shared/events/catalog"
	"github.com/mcp-events/mcpevents/shared/mcp/method"
	"github.com/mcp-events/mcpevents/shared/protocol/jsonrpc"
)

// listed is an encoded entry of a list. The pieces are joined.
type listed struct {
	entry  *catalog.Entry
	pieces [][]byte
}

// entries are the entries of one list, with their indices by name for cursors.
type entries struct {
	all []listed
	at  map[string]int
}

func (es *entries) add(entry *catalog.Entry, text []byte) {
	if es.at == nil {
		es.at = map[string]int{}
	}
	es.at[entry.Name] = len(es.all)
	es.all = append(es.all, listed{entry, [][]byte{text}})
}

// listing is a catalog that was encoded for the lists, once per catalog.
type listing struct {
	resources, templates, events entries
	// open is true if no entry has an access rule, so that all principals see the same lists.
	open bool
}

// eventResource is an event type with a fixed URI (SEP-1803 EventResource), and
// one with a template (EventResourceTemplate).
type eventResource struct {
	URI         string    `json:"uri,omitempty"`
	URITemplate string    `json:"uriTemplate,omitempty"`
	Name        string    `json:"name"`
	Title       string    `json:"title,omitempty"`
	Description string    `json:"description,omitempty"`
	MIMEType    string    `json:"mimeType"`
	Meta        eventMeta `json:"_meta"`
}

type eventMeta struct {
	EventSchema  json.RawMessage `json:"eventSchema,omitempty"`
	ParamsSchema json.RawMessage `json:"paramsSchema,omitempty"`
	WebhookType  string          `json:"webhookType,omitempty"`
}

func encodeCatalog(cat *catalog.Catalog) *listing {
	l := &listing{open: true}
	for _, entry := range cat.Entries() {
		l.open = l.open && entry.Access == nil
		r := eventResource{
			URI: entry.URI, URITemplate: entry.URITemplate, Name: entry.Name, Title: entry.Title,
			Description: entry.Description, MIMEType: "application/json",
			Meta: eventMeta{EventSchema: entry.PayloadSchema, WebhookType: entry.WebhookType},
		}
		l.events.add(entry, encodeEvent(entry))
		if entry.Backend != "" { // its arguments are no variables that a client could fill in
			continue
		}
		if entry.Fixed() {
			l.resources.add(entry, jsonrpc.Encode(r))
			continue
		}
		r.Meta.ParamsSchema = paramsSchema(entry)
		l.templates.add(entry, jsonrpc.Encode(r))
	}
	return l
}

// paramsSchema returns the entry's paramsSchema, or a schema that accepts any text.
func paramsSchema(entry *catalog.Entry) json.RawMessage {
	if entry.ParamsSchema != nil {
		return entry.ParamsSchema
	}
	properties := map[string]any{}
	for _, v := range entry.Variables() {
		properties[v] = map[string]string{"type": "string"}
	}
	return jsonrpc.Encode(map[string]any{"type": "object", "properties": properties, "required": entry.Variables()})
}

// eventType is an entry of events/list without the delivery modes, which depend on the caller.
type eventType struct {
	Name          string          `json:"name"`
	Title         string          `json:"title,omitempty"`
	Description   string          `json:"description"`
	InputSchema   json.RawMessage `json:"inputSchema"`
	PayloadSchema json.RawMessage `json:"payloadSchema"`
}

func encodeEvent(entry *catalog.Entry) []byte {
	payload := entry.PayloadSchema
	if payload == nil {
		payload = json.RawMessage(`{"type":"object"}`)
	}
	return method.WithoutBraces(jsonrpc.Encode(eventType{entry.Name, entry.Title, entry.Description, entry.InputSchema(), payload}))
}
