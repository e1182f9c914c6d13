// Package source turns webhooks of providers (GitHub, Stripe, …) and messages of AWS services into events. A source is an entry in the
// configuration that says how to verify the senders, and how to map their requests or messages to event types of the catalog. Adding a
// source needs no code.
//
//	POST /sources/{name} ─▶ verify ─▶ [ReadRequest] ──┐
//	                                                  ├─▶ document ─▶ [Source.Map] ─▶ [Event] ─▶ publish
//	inbox queue ─▶ [ReadEnvelope] ────────────────────┘
//
// A document is the JSON of a request or message as [encoding/json] decodes it, with numbers as [json.Number]. The functions here depend
// only on the document and the source. Package pattern selects the mapping, package verify authenticates senders, and package ingest
// connects them. Read shared/events/source/ingest next.
package source

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"mime"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/mcp-events/mcpevents/shared/events/event"
	"github.com/mcp-events/mcpevents/shared/events/source/pattern"
	"github.com/mcp-events/mcpevents/shared/events/source/verify"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/platform/jsonpointer"
	"github.com/mcp-events/mcpevents/shared/platform/secret"
	"github.com/mcp-events/mcpevents/shared/protocol/jsonrpc"
)

// From names the AWS service whose messages a source receives. It is empty for a source that receives HTTP requests.
type From string

// A source with the value HTTP receives requests at POST /sources/{name}. With one of the other values, a source receives messages that
// the AWS service puts into the inbox queue.
const (
	HTTP        From = ""
	EventBridge From = "eventbridge"
	SNS         From = "sns"
	S3          From = "s3"
)

// Buses returns the AWS services whose messages a source can receive.
func Buses() []From { return []From{EventBridge, SNS, S3} }

// ValidName matches valid names of sources. A name is a segment of a URL.
var ValidName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$`)

// Source is the configuration of a source: how to verify its senders, and how to turn their requests or messages into events.
type Source struct {
	Name, Workspace string
	From            From
	// Events map documents, which are decoded requests or messages, to events. The first mapping that matches a document is used.
	Events []Mapping
	Line   int // the source's line in the configuration file
	// Verify configures the verification of senders. It is zero for a source that receives messages from the inbox queue,
	// because IAM controls access to this queue.
	Verify verify.Settings
	// Secrets are the secrets for verifying senders. A request may be signed with any of them, so that secrets can be rotated.
	Secrets []secret.Value
}

// Mapping describes how a document, which is a decoded request or message, becomes an event. In JSON it has the same form as in the
// configuration.
type Mapping struct {
	Line int `json:"-"` // in the configuration file
	// Match selects the requests or messages to which the mapping applies. Nil selects all of them.
	Match *pattern.Pattern `json:"match,omitempty"`
	Name  string           `json:"name"` // the event type
	// Variables are the values of the variables in the event type's URI template.
	Variables map[string]Value `json:"variables,omitempty"`
	// ID finds the provider's id of a webhook delivery. A repeated delivery has the same id, so it does not become a second event. If ID
	// is zero, the event's id is a hash of the request's body, or it is derived from the message in the inbox queue.
	ID Value `json:"id,omitzero"`
	// Time finds the time at which the event happened. If it is zero or finds no value, the event gets the time of its arrival.
	Time Value `json:"time,omitzero"`
	// Data selects the event's payload. If it is zero, the payload is the whole body of a request, or the whole document from an AWS
	// service.
	Data Value `json:"data,omitzero"`
}

// Event is the event that a mapping makes from a request or message.
type Event struct {
	Mapping   int // the index of the mapping that matched
	Name      string
	Variables map[string]string
	ID        string    // empty if the mapping has no ID
	Time      time.Time // zero if the document has no time
	Data      json.RawMessage
}

// Unfit is the data of the error that [Source.Map] returns if a mapping matches a request or message but cannot make a valid event from
// it. For example, a value that the mapping needs may be missing.
type Unfit struct {
	// Faults describe the problems. Their pointers are places in the mapping, such as /variables/repo.
	Faults []jsonpointer.Fault `json:"faults"`
	// ID is the event's id, if the mapping found one.
	ID string `json:"-"`
}

// Map makes an event from a document, which is a decoded request or message, with the first mapping that matches. It returns nil if no
// mapping matches. If the document has no usable value for a part of the event, the error is of kind fault.Unprocessable and its data is
// an [Unfit].
func (s Source) Map(doc any) (*Event, error) {
	for i := range s.Events {
		if m := &s.Events[i]; m.Match == nil || m.Match.Matches(doc) {
			e, err := m.newEvent(doc, s.From)
			if e != nil {
				e.Mapping = i
			}
			return e, err
		}
	}
	return nil, nil
}

func (m *Mapping) newEvent(doc any, from From) (*Event, error) {
	e := &Event{Name: m.Name, Variables: make(map[string]string, len(m.Variables))}
	var unfit Unfit
	for _, name := range slices.Sorted(maps.Keys(m.Variables)) {
		e.Variables[name] = unfit.evaluateText(m.Variables[name], doc, "/variables"+jsonpointer.Member(name))
	}
	if found, _ := m.ID.Evaluate(doc); isBool(found) { // a bool has only two values, so later deliveries would count as redeliveries
		unfit.add("/id", "%s is neither a string nor a number", m.ID)
	} else if !m.ID.IsZero() {
		e.ID = unfit.evaluateText(m.ID, doc, "/id")
	}
	if found, ok := m.Time.Evaluate(doc); ok && found != nil {
		if e.Time, ok = parseTime(found); !ok {
			unfit.add("/time", "%s is neither an RFC 3339 time nor a number of seconds or milliseconds since 1970", m.Time)
		}
	}
	e.Data = unfit.evaluateData(m.Data, doc, from)
	if len(unfit.Faults) == 0 {
		return e, nil
	}
	first := unfit.Faults[0]
	unfit.ID = e.ID
	return nil, fault.New(fault.Unprocessable, "%s: %s", m.Name, first).With(unfit)
}

func isBool(v any) bool { _, ok := v.(bool); return ok }

func (u *Unfit) add(pointer, format string, args ...any) {
	u.Faults = append(u.Faults, jsonpointer.Fault{Pointer: pointer, Message: fmt.Sprintf(format, args...)})
}

// evaluateText evaluates v and returns the result as a string for a URI or an id. If the result is missing or not a scalar, evaluateText
// adds a fault and returns "".
func (u *Unfit) evaluateText(v Value, doc any, pointer string) string {
	found, ok := v.Evaluate(doc)
	switch x := found.(type) {
	case string:
		if x != "" {
			return x
		}
		u.add(pointer, "%s is empty", v)
	case json.Number:
		return x.String()
	case bool:
		return strconv.FormatBool(x)
	default:
		if !ok || x == nil {
			u.add(pointer, "%s finds no value", v)
		} else {
			u.add(pointer, "%s is neither a string nor a number", v)
		}
	}
	return ""
}

func (u *Unfit) evaluateData(v Value, doc any, from From) json.RawMessage {
	if v.IsZero() {
		if v = whole; from == HTTP {
			v = wholeBody
		}
	}
	found, ok := v.Evaluate(doc)
	if !ok {
		u.add("/data", "%s finds no value", v)
		return nil
	}
	return jsonrpc.Encode(found)
}

// milliseconds is the smallest number that parseTime reads as milliseconds since 1970, which is a time in 1973. It reads smaller numbers
// as seconds since 1970, which are times before the year 5138.
const milliseconds = 100_000_000_000

// parseTime parses a time in RFC 3339, or in seconds or milliseconds since 1970, as a string or a number.
func parseTime(v any) (time.Time, bool) {
	text, _ := v.(string)
	if n, ok := v.(json.Number); ok {
		text = n.String()
	} else if t, err := event.ParseTime(text); err == nil {
		return t.UTC(), !t.IsZero()
	}
	seconds, err := strconv.ParseFloat(text, 64)
	if !(err == nil && seconds > 0 && seconds < milliseconds*1000) { // NaN is refused, too, because each comparison with it is false
		return time.Time{}, false
	}
	if seconds < milliseconds {
		return time.UnixMicro(int64(seconds * 1e6)).UTC(), true
	}
	return time.UnixMicro(int64(seconds * 1e3)).UTC(), true
}

// maxNesting is the maximum nesting of a document, which is a decoded request or message. It leaves room for a few JSON objects around
// the payload, which may itself have [event.MaxDepth] levels.
const maxNesting = event.MaxDepth + 4

// neverMapped lists headers that [ReadRequest] leaves out of its result, because they have credentials or describe the transfer of the
// body.
var neverMapped = []string{"Authorization", "Proxy-Authorization", "Cookie", "Content-Length", "Transfer-Encoding", "Trailer"}

// ReadRequest converts a verified request to a document: an object with the members headers, query and body. Header names are in lower
// case, and several values of one name are joined with ", ". Headers that are listed in the parameter secret or in neverMapped are left
// out.
//
// The parameter body must already be decompressed. It is JSON or a form. If a form has a single field named payload, the document's body
// is the JSON in this field, because GitHub and Slack can send webhooks this way. Faults are of kind fault.Invalid or fault.Unsupported.
func ReadRequest(r *http.Request, body []byte, secret []string) (doc map[string]any, err error) {
	headers, query := map[string]any{}, map[string]any{}
	for name, values := range r.Header {
		if !hides(name, secret) {
			headers[toValidUTF8(strings.ToLower(name))] = joinValues(values)
		}
	}
	if r.Host != "" && !hides("host", secret) {
		headers["host"] = toValidUTF8(r.Host)
	}
	for name, values := range r.URL.Query() { // Query skips malformed parameters
		query[toValidUTF8(name)] = joinValues(values)
	}
	form, err := isForm(r.Header.Get("Content-Type"))
	if err == nil && form {
		body, err = fromForm(body)
	}
	if err != nil {
		return nil, err
	}
	if jsonrpc.Depth(body) > event.MaxDepth {
		return nil, fault.New(fault.Invalid, "the body is nested deeper than %d levels", event.MaxDepth).AtLimit("nesting", event.MaxDepth)
	}
	if !utf8.Valid(body) || !json.Valid(body) {
		return nil, fault.New(fault.Invalid, "the body is not JSON in UTF-8")
	}
	return map[string]any{"headers": headers, "query": query, "body": jsonrpc.Value(body)}, nil
}

// toValidUTF8 returns text with invalid UTF-8 replaced by U+FFFD, as [encoding/json] does when it decodes.
func toValidUTF8(text string) string { return strings.ToValidUTF8(text, "\ufffd") }

func joinValues(values []string) string { return toValidUTF8(strings.Join(values, ", ")) }

// isForm reports whether a Content-Type is a form. It returns an error for any type except a form or JSON. The type text/plain counts as
// JSON, because some providers send JSON with it.
func isForm(contentType string) (form bool, err error) {
	if contentType == "" {
		return false, nil
	}
	media, params, err := mime.ParseMediaType(contentType)
	known := media == "application/json" || media == "text/plain" || strings.HasSuffix(media, "+json")
	form = media == "application/x-www-form-urlencoded"
	if err != nil || !known && !form || !jsonrpc.IsUTF8(params["charset"]) {
		return false, fault.New(fault.Unsupported, "the Content-Type must be application/json or application/x-www-form-urlencoded, in UTF-8")
	}
	return form, nil
}

func fromForm(body []byte) ([]byte, error) {
	fields, err := url.ParseQuery(string(body))
	if err != nil {
		return nil, fault.New(fault.Invalid, "the body is not a form")
	}
	if payload := fields["payload"]; len(fields) == 1 && len(payload) == 1 {
		return []byte(payload[0]), nil
	}
	object := make(map[string]string, len(fields))
	for name, values := range fields {
		object[name] = joinValues(values)
	}
	return jsonrpc.Encode(object), nil
}

// DecodeDocument decodes a JSON document for [Source.Map].
func DecodeDocument(text []byte) (any, error) {
	if jsonrpc.Depth(text) > maxNesting {
		return nil, fault.New(fault.Invalid, "the document is nested deeper than %d levels", maxNesting).AtLimit("nesting", maxNesting)
	}
	if !json.Valid(text) {
		return nil, fault.New(fault.Invalid, "the document is not JSON")
	}
	return jsonrpc.Value(bytes.ToValidUTF8(text, []byte("\ufffd"))), nil
}

// maxRecords is the maximum number of records in an S3 notification. S3 itself sends one.
const maxRecords = 100

// ReadEnvelope reads a message that an AWS service put into the inbox queue. The result from is the service, or [HTTP] if the message is
// from no known service. The result docs has the JSON documents in the message.
//
// An S3 notification has one document per record. S3's test message has no records, so the result docs is empty for it. An SNS
// notification is one document. If its member Message contains JSON text, ReadEnvelope replaces the text with the decoded JSON.
func ReadEnvelope(body []byte) (from From, docs []any, err error) {
	if body = bytes.TrimLeft(body, " \t\r\n"); len(body) == 0 || body[0] != '{' || !json.Valid(body) || jsonrpc.Member(body, "specversion") != nil {
		return HTTP, nil, nil
	}
	text := func(name string) string { s, _ := jsonrpc.String(jsonrpc.Member(body, name)); return s }
	has := func(name string) bool { return jsonrpc.Member(body, name) != nil }
	switch {
	case has("detail-type") && has("source") && has("detail"):
		from = EventBridge
	case text("Type") == "Notification" && has("TopicArn") && has("Message"):
		from = SNS
	case text("Service") == "Amazon S3" && text("Event") == "s3:TestEvent":
		return S3, nil, nil
	case isS3(jsonrpc.Member(body, "Records")):
		from = S3
	default:
		return HTTP, nil, nil
	}
	doc, err := DecodeDocument(body)
	if err != nil {
		return from, nil, err
	}
	switch object := doc.(map[string]any); from {
	case SNS:
		decodeMessage(object)
	case S3:
		records := object["Records"].([]any)
		if len(records) > maxRecords {
			return from, nil, fault.New(fault.TooLarge, "a notification with %d records (at most %d)", len(records), maxRecords)
		}
		decodeKeys(records)
		return from, records, nil
	}
	return from, []any{doc}, nil
}

// isS3 reports whether the Records member of a message holds records of an S3 notification.
func isS3(records json.RawMessage) bool {
	if len(records) == 0 || records[0] != '[' {
		return false
	}
	n := 0
	for r := range jsonrpc.Elements(records) {
		if s, ok := jsonrpc.String(jsonrpc.Member(r, "eventSource")); !ok || s != "aws:s3" {
			return false
		}
		n++
	}
	return n > 0
}

// decodeMessage replaces the text of an SNS message with the decoded JSON, if the text is JSON.
func decodeMessage(envelope map[string]any) {
	if text, ok := envelope["Message"].(string); ok {
		if inner, err := DecodeDocument([]byte(text)); err == nil {
			envelope["Message"] = inner
		}
	}
}

// decodeKeys adds a member urlDecodedKey to each record of an S3 notification, because S3 URL-encodes the object's
// key: "red flower.jpg" is sent as "red+flower.jpg". AWS's own libraries use the same member name.
func decodeKeys(records []any) {
	for _, r := range records {
		if object, ok := member(member(r, "s3"), "object").(map[string]any); ok {
			key, _ := object["key"].(string)
			if decoded, err := url.QueryUnescape(key); err == nil && key != "" {
				object["urlDecodedKey"] = decoded
			}
		}
	}
}

// member returns a member of an object, or nil if v is not an object or lacks the member.
func member(v any, name string) any {
	object, _ := v.(map[string]any)
	return object[name]
}
