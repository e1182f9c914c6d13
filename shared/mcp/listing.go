package mcp

import (
	"bytes"
	"encoding/json"

	"github.com/mcp-events/mcpevents/shared/catalog"
)

// listed is an entry of the catalog in the form of a list.
type listed struct {
	entry *catalog.Entry
	json  []byte
}

// listing is a catalog encoded for the lists. It is made once per catalog.
type listing struct {
	resources, templates, events []listed
	// open is true when no entry has a rule of access, so that all principals
	// see the same. Then the first page is kept as a whole, too.
	open                           bool
	firstResources, firstTemplates []byte
	// Places by name, for cursors.
	resourceAt, tmplAt, eventAt map[string]int
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

func encodeCatalog(cat *catalog.Catalog, pageSize int) *listing {
	l := &listing{open: true, resourceAt: map[string]int{}, tmplAt: map[string]int{}, eventAt: map[string]int{}}
	for _, entry := range cat.Entries() {
		l.open = l.open && entry.Access == nil
		r := eventResource{
			URI: entry.URI, URITemplate: entry.URITemplate, Name: entry.Name, Title: entry.Title,
			Description: entry.Description, MIMEType: "application/json",
			Meta: eventMeta{EventSchema: entry.PayloadSchema, WebhookType: entry.WebhookType},
		}
		l.eventAt[entry.Name] = len(l.events)
		l.events = append(l.events, listed{entry, encodeEvent(entry)})
		if entry.Fixed() {
			l.resourceAt[entry.Name] = len(l.resources)
			l.resources = append(l.resources, listed{entry, mustJSON(r)})
			continue
		}
		r.Meta.ParamsSchema = paramsSchema(entry)
		l.tmplAt[entry.Name] = len(l.templates)
		l.templates = append(l.templates, listed{entry, mustJSON(r)})
	}
	l.firstResources = join(l.resources, pageSize)
	l.firstTemplates = join(l.templates, pageSize)
	return l
}

func join(entries []listed, most int) []byte {
	var parts [][]byte
	for _, x := range entries[:min(most, len(entries))] {
		parts = append(parts, x.json)
	}
	return bytes.Join(parts, []byte(","))
}

// paramsSchema is the entry's own, or one that lets any text through.
func paramsSchema(entry *catalog.Entry) json.RawMessage {
	if entry.ParamsSchema != nil {
		return entry.ParamsSchema
	}
	properties := map[string]any{}
	for _, v := range entry.Variables() {
		properties[v] = map[string]string{"type": "string"}
	}
	return mustJSON(map[string]any{"type": "object", "properties": properties, "required": entry.Variables()})
}

// eventType is an entry of events/list without the delivery modes, which depend
// on the caller, and without its braces.
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
	b := mustJSON(eventType{entry.Name, entry.Title, entry.Description, entry.InputSchema(), payload})
	return b[1 : len(b)-1]
}
