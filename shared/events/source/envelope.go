package source

import (
	"bytes"
	"encoding/json"
	"net/url"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/protocol/jsonrpc"
)

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
