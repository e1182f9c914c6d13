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

// maxNesting is how deep a document may be nested: its payload in an envelope of ours and one of its sender's.
const maxNesting = event.MaxDepth + 4

// never are headers that no document has: those with credentials, whatever the scheme, and those that say how the body came.
var never = []string{"Authorization", "Proxy-Authorization", "Cookie", "Content-Length", "Transfer-Encoding", "Trailer"}

// ReadRequest makes the document of a verified request: its headers and its query as texts, and its body. The body is given
// without its Content-Encoding. Headers named in secret, and
// those of never, are left out. The header host is the request's Host. Names are in lower case, and values of a name that
// is there more than once are joined with ", ". A body is JSON, or a form; a form with the one field payload is the JSON
// in it, as GitHub and Slack send it. Faults are of kind fault.Invalid or fault.Unsupported.
func ReadRequest(of *http.Request, body []byte, secret []string) (doc map[string]any, err error) {
	headers, query := map[string]any{}, map[string]any{}
	for name, values := range of.Header {
		if !hides(name, secret) {
			headers[valid(strings.ToLower(name))] = joined(values)
		}
	}
	if of.Host != "" && !hides("host", secret) {
		headers["host"] = valid(of.Host)
	}
	for name, values := range of.URL.Query() { // what is malformed is left out
		query[valid(name)] = joined(values)
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

// valid is a text as JSON decodes it.
func valid(text string) string { return strings.ToValidUTF8(text, "\ufffd") }

func joined(values []string) string { return valid(strings.Join(values, ", ")) }

// isForm says which of the two kinds of bodies a Content-Type is. Text is JSON too: some providers send it so.
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

// fromForm makes JSON of a form.
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
		object[name] = joined(values)
	}
	return jsonrpc.Encode(object), nil
}

// Document decodes JSON for [Source.Map].
func Document(text []byte) (any, error) {
	if jsonrpc.Depth(text) > maxNesting {
		return nil, fault.New(fault.Invalid, "the document is nested deeper than %d levels", maxNesting).AtLimit("nesting", maxNesting)
	}
	if !json.Valid(text) {
		return nil, fault.New(fault.Invalid, "the document is not JSON")
	}
	return jsonrpc.Value(bytes.ToValidUTF8(text, []byte("\ufffd"))), nil
}
