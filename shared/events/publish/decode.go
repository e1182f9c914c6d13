package publish

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"mime"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/mcp-events/mcpevents/shared/events/catalog"
	"github.com/mcp-events/mcpevents/shared/events/event"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/platform/jsonpointer"
	"github.com/mcp-events/mcpevents/shared/platform/trace"
	"github.com/mcp-events/mcpevents/shared/protocol/jsonrpc"
)

// envelope is the number of JSON nesting levels that a request has around a payload: an array of events, and the event object.
const envelope = 2

// decode parses a JSON body with one event or an array of events. An event has our own form or, if it has the member "specversion", is a
// structured CloudEvent. If workspaces is true, an event may have the members workspace and resend, which only the inbox queue allows. An
// error is of kind fault.Invalid, fault.TooLarge or fault.Unsupported, and has a [Refusal].
func decode(body []byte, workspaces bool) ([]Input, error) {
	var r faultList
	if jsonrpc.Depth(body) > event.MaxDepth+envelope {
		r.add(fault.Invalid, "", "is nested deeper than %d levels", event.MaxDepth+envelope)
		return nil, r.err(1)
	}
	if !json.Valid(body) {
		r.add(fault.Invalid, "", "is not valid JSON")
		return nil, r.err(1)
	}
	var in []Input
	switch firstByte(body) {
	case '{':
		in = append(in, r.parseEvent(body, "", workspaces))
	case '[':
		for e := range jsonrpc.Elements(body) {
			if len(in) == maxEvents {
				return nil, fault.New(fault.TooLarge, "too many events in a request (at most %d)", maxEvents).AtLimit("eventsPerRequest", maxEvents)
			}
			in = append(in, r.parseEvent(e, "/"+strconv.Itoa(len(in)), workspaces))
		}
	default:
		r.add(fault.Invalid, "", "is neither an event nor an array of events")
	}
	if err := r.err(len(in)); err != nil {
		return nil, err
	}
	return in, nil
}

// firstByte returns the first byte that is not white space, or 0 if b has only white space.
func firstByte(b []byte) byte {
	if b = bytes.TrimLeft(b, " \n\t\r"); len(b) > 0 {
		return b[0]
	}
	return 0
}

// parseEvent parses one event of the request. The parameter at is the event's JSON Pointer in the request.
func (r *faultList) parseEvent(raw json.RawMessage, at string, workspaces bool) Input {
	in := Input{At: at, DataAt: at + "/data"}
	if firstByte(raw) != '{' {
		r.add(fault.Invalid, at, "is not an object")
		return in
	}
	if jsonrpc.Member(raw, "specversion") != nil {
		r.parseStructured(raw, &in, workspaces)
		return in
	}
	seen := map[string]bool{}
	for key, value := range jsonrpc.Members(raw) {
		name := string(key)
		if seen[name] {
			r.add(fault.Invalid, at+"/"+name, "is given twice")
			continue
		}
		switch name {
		case "uri":
			in.URI = r.parseText(value, at+"/uri")
		case "data":
			in.Data, in.parsed = value, true
		case "id":
			in.ID = r.parseOptional(value, at+"/id")
		case "time":
			in.Time = r.parseTime(r.parseOptional(value, at+"/time"), at+"/time")
		case "workspace":
			if !workspaces {
				r.add(fault.Invalid, at+"/workspace", "cannot be chosen here; events belong to the caller's workspace")
				continue
			}
			in.Workspace = r.parseText(value, at+"/workspace")
		case "resend":
			if !workspaces {
				r.unknownMember(at, name)
				continue
			}
			in.Resend = r.parseText(value, at+"/resend")
		default:
			r.unknownMember(at, name)
			continue
		}
		seen[name] = true
	}
	for _, name := range []string{"uri", "data"} {
		if !seen[name] {
			r.add(fault.Invalid, at+"/"+name, "is missing")
		}
	}
	return in
}

func (r *faultList) unknownMember(at, name string) {
	if len(name) > 64 {
		r.add(fault.Invalid, at, "has an unknown member (allowed: uri, data, id, time)")
		return
	}
	r.add(fault.Invalid, at, "has the unknown member %q (allowed: uri, data, id, time)", name)
}

func (r *faultList) parseText(value json.RawMessage, at string) string {
	s, ok := jsonrpc.String(value)
	if !ok {
		r.add(fault.Invalid, at, "must be a string")
	} else if s == "" {
		r.add(fault.Invalid, at, "is empty")
	}
	return s
}

// parseOptional parses a string like [faultList.parseText], but also accepts null and then returns "".
func (r *faultList) parseOptional(value json.RawMessage, at string) string {
	if string(value) == "null" {
		return ""
	}
	return r.parseText(value, at)
}

func (r *faultList) parseTime(s, at string) time.Time {
	if s == "" {
		return time.Time{}
	}
	t, err := event.ParseTime(s)
	if err != nil || t.IsZero() {
		r.add(fault.Invalid, at, "is not an RFC 3339 time such as 2026-11-21T09:30:00Z")
	}
	return t
}

// We parse CloudEvents 1.0 (JSON format 1.0.2, HTTP binding 1.0.2) ourselves. The tests use the official Go SDK as a reference. We do not
// use it for requests, because it panics if data_base64 is not a string, and does not decode percent-encoded headers.
//
// The event:// URI of a CloudEvent is the first of these that exists:
//
//   1. the extension attribute "mcpuri";
//   2. "source", if it is an event:// URI;
//   3. "subject", if it is an event:// URI.
//
// "id" becomes the event's id. If it has unsupported characters or begins with "msg_", event.ForeignID derives an id from it and
// "source". "time" becomes the event's time. "data" becomes its payload, which must be JSON and is null if it is missing. "traceparent"
// and "tracestate" (the extension for distributed tracing) set the event's trace. "type", "dataschema" and other extensions are ignored.

// uriExtension is the extension attribute with the event:// URI.
const uriExtension = "mcpuri"

// cloudEvent holds the standard attributes of a CloudEvent, and the event:// URI, as text.
type cloudEvent struct {
	specversion, id, source, kind, subject, time, contentType, mcpURI string
}

// parseStructured parses a CloudEvent in the JSON format, and writes it to the parameter in.
func (r *faultList) parseStructured(raw json.RawMessage, in *Input, workspaces bool) {
	var ce cloudEvent
	var base64Data json.RawMessage
	var parent, state string
	fields := ce.fields()
	seen := map[string]bool{}
	for key, value := range jsonrpc.Members(raw) {
		name := string(key)
		if seen[name] {
			r.add(fault.Invalid, in.At+fault.Clip(jsonpointer.Member(name), maxPointer), "is given twice")
			continue
		}
		seen[name] = true
		if field := fields[name]; field != nil {
			*field = r.parseOptional(value, in.At+"/"+name)
			continue
		}
		switch name {
		case "data":
			in.Data = value
		case "data_base64":
			base64Data = value
		case trace.Parent: // a value that is not a string counts as no trace
			parent, _ = jsonrpc.String(value)
		case trace.State:
			state, _ = jsonrpc.String(value)
		case "workspace":
			if workspaces {
				in.Workspace = r.parseText(value, in.At+"/workspace")
			}
		}
	}
	if base64Data != nil && string(base64Data) != "null" {
		in.DataAt = in.At + "/data_base64"
		r.decodeBase64(base64Data, in)
	}
	in.Trace = trace.Parse(parent, state)
	r.addCloudEvent(ce, in, true)
}

func (ce *cloudEvent) fields() map[string]*string {
	return map[string]*string{
		"specversion": &ce.specversion, "id": &ce.id, "source": &ce.source, "type": &ce.kind, "subject": &ce.subject,
		"time": &ce.time, "datacontenttype": &ce.contentType, uriExtension: &ce.mcpURI,
	}
}

func (r *faultList) decodeBase64(value json.RawMessage, in *Input) {
	text, ok := jsonrpc.String(value)
	data, err := base64.StdEncoding.DecodeString(text)
	switch {
	case in.Data != nil:
		r.add(fault.Invalid, in.DataAt, "is given together with data")
	case !ok || err != nil:
		r.add(fault.Invalid, in.DataAt, "is not Base64")
	}
	in.Data = data
}

// parseBinary parses a CloudEvent whose attributes are in headers and whose data is the body, and writes it to the parameter in.
func (r *faultList) parseBinary(h http.Header, body []byte, in *Input) {
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
		in.Trace = trace.Parse(decodeHeader(parent[0]), decodeHeader(h.Get("Ce-Tracestate")))
	}
	if len(body) > 0 {
		in.Data = body
	}
	r.addCloudEvent(ce, in, len(body) > 0)
}

// decodeHeader does the same as [headerText], but returns "" for a malformed header.
func decodeHeader(s string) string {
	s, _ = headerText(s)
	return s
}

// headerText decodes a CloudEvent attribute in a header (HTTP binding of CloudEvents, section 3.1.3.2), which may be percent-encoded and
// quoted.
func headerText(s string) (string, error) {
	if len(s) >= 2 && s[0] == '"' && s[len(s)-1] == '"' {
		s = strings.NewReplacer(`\"`, `"`, `\\`, `\`).Replace(s[1 : len(s)-1])
	}
	return url.PathUnescape(s)
}

// addCloudEvent checks the attributes of ce and copies them to the parameter in. The parameter typed is false for an event without a
// body, because its content type does not matter.
func (r *faultList) addCloudEvent(ce cloudEvent, in *Input, typed bool) {
	if ce.specversion != "1.0" && !r.has(in.At+"/specversion") {
		r.add(fault.Invalid, in.At+"/specversion", "must be 1.0")
	}
	for _, required := range []struct{ name, value string }{{"id", ce.id}, {"source", ce.source}, {"type", ce.kind}} {
		if required.value == "" && !r.has(in.At+"/"+required.name) {
			r.add(fault.Invalid, in.At+"/"+required.name, "is missing; CloudEvents requires it")
		}
	}
	in.cloud = true
	in.ID, in.Source = ce.id, ce.source
	in.Time = r.parseTime(ce.time, in.At+"/time")
	if typed && ce.contentType != "" && !isJSON(ce.contentType) {
		r.add(fault.Unsupported, in.At+"/datacontenttype", "is not supported: a payload must be JSON")
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
		r.add(fault.Invalid, in.At+"/"+uriExtension, "none of %s, source and subject is an event:// URI", uriExtension)
		in.URI = catalog.Scheme
	}
}

// has reports whether the list already has a fault for the member of the request to which the JSON Pointer refers.
func (r *faultList) has(pointer string) bool {
	return slices.ContainsFunc(r.Faults, func(f jsonpointer.Fault) bool { return f.Pointer == pointer })
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
	if !jsonrpc.IsUTF8(params["charset"]) {
		return false
	}
	return media == "application/json" || media == "text/json" || strings.HasSuffix(media, "+json")
}
