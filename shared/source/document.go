package source

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"mime"
	"net/http"
	"net/url"
	"strings"
	"unicode/utf8"

	"github.com/mcp-events/mcpevents/shared/event"
	"github.com/mcp-events/mcpevents/shared/fault"
	"github.com/mcp-events/mcpevents/shared/jsonrpc"
)

// maxNesting is how deep a document may be nested: its payload in an envelope of ours and one of its sender's.
const maxNesting = event.MaxDepth + 4

// Request is a verified request to an HTTP source. As JSON it is the source's document.
type Request struct {
	Headers map[string]string `json:"headers"`
	Query   map[string]string `json:"query"`
	Body    json.RawMessage   `json:"body"`

	body any // Body decoded, if [ReadRequest] did
}

// never are headers that no document has: those with credentials, whatever the scheme, and those that say how the body came.
var never = []string{"Authorization", "Proxy-Authorization", "Cookie", "Content-Length", "Transfer-Encoding", "Trailer"}

// ReadRequest takes a request apart. The body is the request's without its Content-Encoding. Headers named in secret, and
// those of never, are left out. The header host is the request's Host. Names are in lower case, and values of a name that
// is there more than once are joined with ", ". A body is JSON, or a form; a form with the one field payload is the JSON
// in it, as GitHub and Slack send it. Faults are of kind fault.Invalid or fault.Unsupported.
func ReadRequest(of *http.Request, body []byte, secret []string) (*Request, error) {
	query := of.URL.Query() // what is malformed is left out
	r := &Request{Headers: make(map[string]string, len(of.Header)+1), Query: make(map[string]string, len(query))}
	for name, values := range of.Header {
		if !hides(name, secret) {
			r.Headers[strings.ToLower(name)] = strings.Join(values, ", ")
		}
	}
	if of.Host != "" && !hides("host", secret) {
		r.Headers["host"] = of.Host
	}
	for name, values := range query {
		r.Query[name] = strings.Join(values, ", ")
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
	if r.body, err = decode(body); err != nil || !utf8.Valid(body) {
		return nil, fault.New(fault.Invalid, "the body is not JSON in UTF-8")
	}
	r.Body = body
	return r, nil
}

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
		object[name] = strings.Join(values, ", ")
	}
	return encode(object)
}

// Document decodes JSON for [Source.Map].
func Document(text []byte) (any, error) {
	if jsonrpc.Depth(text) > maxNesting {
		return nil, fault.New(fault.Invalid, "the document is nested deeper than %d levels", maxNesting).AtLimit("nesting", maxNesting)
	}
	doc, err := decode(text)
	if err != nil {
		return nil, fault.New(fault.Invalid, "the document is not JSON")
	}
	return doc, nil
}

// decode decodes one JSON value.
func decode(text []byte) (doc any, err error) {
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	if err := d.Decode(&doc); err != nil {
		return nil, err
	}
	if _, err := d.Token(); err != io.EOF {
		return nil, errors.New("more follows the JSON value")
	}
	return doc, nil
}

// Document is what mappings are for.
func (r *Request) Document() (any, error) {
	body := r.body
	if body == nil {
		var err error
		if body, err = Document(r.Body); err != nil {
			return nil, err
		}
	}
	return map[string]any{"headers": texts(r.Headers), "query": texts(r.Query), "body": body}, nil
}

// texts are texts as JSON decodes them.
func texts(of map[string]string) map[string]any {
	out := make(map[string]any, len(of))
	for name, text := range of {
		out[strings.ToValidUTF8(name, "\ufffd")] = strings.ToValidUTF8(text, "\ufffd")
	}
	return out
}
