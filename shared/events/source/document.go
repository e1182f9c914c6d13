package source

import (
	"bytes"
	"encoding/json"
	"mime"
	"net/http"
	"net/url"
	"strings"
	"unicode/utf8"

	"github.com/mcp-events/mcpevents/shared/events/event"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/protocol/jsonrpc"
)

// maxNesting is the maximum nesting depth of a whole document: a payload of at most [event.MaxDepth] levels, our
// envelope around it, and possibly an envelope of the sender.
const maxNesting = event.MaxDepth + 4

// never lists headers that are left out of every document: headers with credentials, whatever the scheme, and
// headers that describe how the body was transferred.
var never = []string{"Authorization", "Proxy-Authorization", "Cookie", "Content-Length", "Transfer-Encoding", "Trailer"}

// ReadRequest makes the document of a verified request. It has three members: headers and query, whose values are
// strings, and body.
//
// Header names are in lower case, and the header host holds the request's Host. Headers in secret or in never are
// left out. If a name occurs more than once, its values are joined with ", ". The body must already be free of its
// Content-Encoding. It is JSON or a form. If a form has a single field named payload, the body is the JSON in that
// field, because GitHub and Slack can send webhooks this way. Faults are of kind fault.Invalid or fault.Unsupported.
func ReadRequest(of *http.Request, body []byte, secret []string) (doc map[string]any, err error) {
	headers, query := map[string]any{}, map[string]any{}
	for name, values := range of.Header {
		if !hides(name, secret) {
			headers[valid(strings.ToLower(name))] = joinValues(values)
		}
	}
	if of.Host != "" && !hides("host", secret) {
		headers["host"] = valid(of.Host)
	}
	for name, values := range of.URL.Query() { // Query skips malformed parameters
		query[valid(name)] = joinValues(values)
	}
	form, err := isForm(of.Header.Get("Content-Type"))
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

// valid returns text with invalid UTF-8 replaced by U+FFFD, as [encoding/json] does when it decodes.
func valid(text string) string { return strings.ToValidUTF8(text, "\ufffd") }

func joinValues(values []string) string { return valid(strings.Join(values, ", ")) }

// isForm reports whether a Content-Type is a form, rather than JSON. It accepts text/plain as JSON because some
// providers send JSON with this type.
func isForm(contentType string) (form bool, err error) {
	if contentType == "" {
		return false, nil
	}
	media, params, err := mime.ParseMediaType(contentType)
	known := media == "application/json" || media == "text/plain" || strings.HasSuffix(media, "+json")
	form = media == "application/x-www-form-urlencoded"
	if charset := params["charset"]; err != nil || !known && !form || charset != "" && !strings.EqualFold(charset, "utf-8") {
		return false, fault.New(fault.Unsupported, "the Content-Type must be application/json or application/x-www-form-urlencoded, in UTF-8")
	}
	return form, nil
}

// fromForm converts a form to JSON.
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

// Document decodes a JSON document for [Source.Map].
func Document(text []byte) (any, error) {
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

// ReadEnvelope recognizes messages that an AWS service put into the inbox queue and returns their documents. An
// EventBridge event is one document. So is an SNS envelope, and if its Message is JSON, it is decoded in place. An S3
// notification has one document per record. For any other message, from is [HTTP]. The test message that S3 sends
// when notifications are set up has no documents.
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
	doc, err := Document(body)
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

// decodeMessage replaces the text of an SNS message with the JSON in it, if it is JSON.
func decodeMessage(envelope map[string]any) {
	if text, ok := envelope["Message"].(string); ok {
		if inner, err := Document([]byte(text)); err == nil {
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
