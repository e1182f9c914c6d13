package publish

import (
	"encoding/base64"
	"encoding/json"
	"mime"
	"net/http"
	"net/url"
	"strings"

	"github.com/mcp-events/mcpevents/shared/events/catalog"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/platform/trace"
	"github.com/mcp-events/mcpevents/shared/protocol/jsonrpc"
)

// CloudEvents 1.0 (JSON format 1.0.2, HTTP binding 1.0.2), read by ourselves. The
// official Go SDK judges this in the tests; it is not in the path of a request,
// because it panics on a data_base64 that is no string and leaves
// percent-encoded headers as they are.
//
// The event:// URI of a CloudEvent is, in this order:
//
//  1. the extension attribute "mcpuri", if there is one;
//  2. "source", if it is an event:// URI;
//  3. "subject".
//
// "id" becomes the event's id, by event.ForeignID with "source" if it has other
// characters or begins with "msg_"; "time" its time; "data" its payload, which must be JSON, and null
// when it is missing. "traceparent" and "tracestate" (the extension for distributed tracing) are the trace that it
// belongs to. "type", "dataschema" and other extensions are not used.

// uriExtension is the extension attribute that names the event:// URI.
const uriExtension = "mcpuri"

// cloudEvent is the context of a CloudEvent, as text.
type cloudEvent struct {
	specversion, id, source, kind, subject, time, contentType, mcpURI string
}

// structured reads a CloudEvent in the JSON format.
func (r *refused) structured(raw json.RawMessage, in *Input, workspaces bool) {
	var ce cloudEvent
	var base64Data json.RawMessage
	var parent, state string
	fields := ce.fields()
	seen := map[string]bool{}
	for key, value := range jsonrpc.Members(raw) {
		name := string(key)
		if seen[name] {
			r.add(fault.Invalid, in.at+pointerTo([]object{{name: key}}), "is given twice")
			continue
		}
		seen[name] = true
		if field := fields[name]; field != nil {
			*field = r.optional(value, in.at+"/"+name)
			continue
		}
		switch name {
		case "data":
			in.Data = value
		case "data_base64":
			base64Data = value
		case trace.Parent: // what is no text is malformed, and as none
			parent, _ = jsonrpc.String(value)
		case trace.State:
			state, _ = jsonrpc.String(value)
		case "workspace":
			if workspaces {
				in.Workspace = r.text(value, in.at+"/workspace")
			}
		}
	}
	if base64Data != nil && string(base64Data) != "null" {
		in.DataAt = in.at + "/data_base64"
		r.decodeBase64(base64Data, in)
	}
	in.Trace = trace.Parse(parent, state)
	r.cloudEvent(ce, in, true)
}

func (ce *cloudEvent) fields() map[string]*string {
	return map[string]*string{
		"specversion": &ce.specversion, "id": &ce.id, "source": &ce.source, "type": &ce.kind, "subject": &ce.subject,
		"time": &ce.time, "datacontenttype": &ce.contentType, uriExtension: &ce.mcpURI,
	}
}

func (r *refused) decodeBase64(value json.RawMessage, in *Input) {
	text, ok := jsonrpc.String(value)
	data, err := base64.StdEncoding.DecodeString(text)
	switch {
	case in.Data != nil:
		r.add(fault.Invalid, in.DataAt, "is given beside data")
	case !ok || err != nil:
		r.add(fault.Invalid, in.DataAt, "is not Base64")
	}
	in.Data = data
}

// binary reads a CloudEvent whose attributes are headers and whose body is the data.
func (r *refused) binary(h http.Header, body []byte, in *Input) {
	var ce cloudEvent
	fields := ce.fields()
	for name, values := range h {
		attribute, ok := strings.CutPrefix(strings.ToLower(name), "ce-")
		field := fields[attribute]
		if !ok || field == nil || attribute == "datacontenttype" {
			continue
		}
		if len(values) != 1 {
			r.add(fault.Invalid, "/"+attribute, "is given in several headers")
			continue
		}
		text, err := headerText(values[0])
		if err != nil {
			r.add(fault.Invalid, "/"+attribute, "is badly percent-encoded in its header")
			continue
		}
		*field = text
	}
	ce.contentType = h.Get("Content-Type")
	if parent := h["Ce-Traceparent"]; len(parent) == 1 {
		in.Trace = trace.Parse(decoded(parent[0]), decoded(h.Get("Ce-Tracestate")))
	}
	if len(body) > 0 {
		in.Data = body
	}
	r.cloudEvent(ce, in, len(body) > 0)
}

// decoded is [headerText], empty if that fails.
func decoded(s string) string {
	s, _ = headerText(s)
	return s
}

// headerText undoes the encoding of an attribute in a header (HTTP binding,
// section 3.1.3.2). A header may be quoted as a whole, too.
func headerText(s string) (string, error) {
	if len(s) >= 2 && s[0] == '"' && s[len(s)-1] == '"' {
		s = strings.NewReplacer(`\"`, `"`, `\\`, `\`).Replace(s[1 : len(s)-1])
	}
	return url.PathUnescape(s)
}

// cloudEvent checks the attributes and takes over what becomes of them.
func (r *refused) cloudEvent(ce cloudEvent, in *Input, typed bool) {
	if ce.specversion != "1.0" {
		r.add(fault.Invalid, in.at+"/specversion", "must be 1.0")
	}
	for _, required := range []struct{ name, value string }{{"id", ce.id}, {"source", ce.source}, {"type", ce.kind}} {
		if required.value == "" {
			r.add(fault.Invalid, in.at+"/"+required.name, "is missing; CloudEvents requires it")
		}
	}
	in.cloud = true
	in.ID, in.Source = ce.id, ce.source
	in.Time = r.time(ce.time, in.at+"/time")
	if typed && ce.contentType != "" && !isJSON(ce.contentType) {
		r.add(fault.Unsupported, in.at+"/datacontenttype", "is not supported: a payload must be JSON")
	}
	if in.Data == nil {
		in.Data = json.RawMessage("null")
	}
	switch {
	case ce.mcpURI != "":
		in.URI = ce.mcpURI
	case isEventURI(ce.source):
		in.URI = ce.source
	case isEventURI(ce.subject):
		in.URI = ce.subject
	default:
		r.add(fault.Invalid, in.at+"/"+uriExtension, "none of %s, source and subject is an event:// URI", uriExtension)
		in.URI = catalog.Scheme
	}
}

func isEventURI(s string) bool {
	return len(s) >= len(catalog.Scheme) && strings.EqualFold(s[:len(catalog.Scheme)], catalog.Scheme)
}

// isJSON reports whether a media type is JSON in UTF-8.
func isJSON(contentType string) bool {
	media, params, err := mime.ParseMediaType(contentType)
	if err != nil {
		return false
	}
	if charset := params["charset"]; charset != "" && !strings.EqualFold(charset, "utf-8") && !strings.EqualFold(charset, "us-ascii") {
		return false
	}
	return media == "application/json" || media == "text/json" || strings.HasSuffix(media, "+json")
}
