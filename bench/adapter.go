package bench

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/platform/jsonpointer"
)

// Adapter describes how to publish events to a sender of webhooks, and how to register endpoints with it.
//
// The texts may contain variables. A publish request may contain {{id}}, {{uri}}, {{n}} (the event's number) and {{payload}} (a JSON
// object). A registration may contain {{target}}, {{uri}} and {{n}} (the endpoint's number). Values are inserted without escaping.
type Adapter struct {
	Name    string  `yaml:"name"`
	Publish Request `yaml:"publish"`
	// Array is true if the sender accepts a request with a JSON array of events. Otherwise, each event of a batch is sent in its own
	// request.
	Array bool `yaml:"array"`
	// Register is the request that registers an endpoint with the sender. It is sent for each endpoint before the first event.
	//
	// If it is nil, register the endpoints yourself before the run. Their URLs are http://RECEIVER/endpoint/N, with N from 0 to URIs ×
	// subscribers - 1. Endpoint N subscribes to the URI with the number N modulo URIs.
	Register *Request `yaml:"register"`
	// Secret is a JSON Pointer to the endpoint's secret in the response to Register. If it is set, the receiver verifies one of 64
	// signatures. The signatures must have the format of Standard Webhooks.
	Secret   string   `yaml:"secret"`
	Received Received `yaml:"received"`
	// PID is the id of the sender's process, whose CPU time and memory are measured. If it is 0, they are not measured.
	PID int `yaml:"pid"`
}

// Request is an HTTP POST request. Its texts may contain variables, see [Adapter].
type Request struct {
	URL     string            `yaml:"url"`
	Headers map[string]string `yaml:"headers"`
	Body    string            `yaml:"body"`

	sign *signature // nil if the sender accepts unsigned requests
}

// signature describes a signature header of a request: a prefix, and the HMAC-SHA256 of the body in hexadecimal.
type signature struct{ header, prefix, secret string }

// Received says where a webhook contains the event's id: in a header, or at a JSON Pointer in the body.
type Received struct {
	Header  string `yaml:"header"`
	Pointer string `yaml:"pointer"`
}

// ReadAdapter reads an adapter from a YAML or JSON file. It refuses unknown members.
func ReadAdapter(file string) (Adapter, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return Adapter{}, fault.Wrap(fault.Invalid, err, "read the adapter")
	}
	var a Adapter
	d := yaml.NewDecoder(bytes.NewReader(b))
	d.KnownFields(true)
	if err := d.Decode(&a); err != nil {
		return Adapter{}, fault.Wrap(fault.Invalid, err, "read the adapter %s", file)
	}
	if a.Name == "" {
		a.Name = file
	}
	return a, fault.Wrap(fault.Invalid, a.check(), "read the adapter %s", file)
}

func (a Adapter) check() error {
	requests := []Request{a.Publish}
	if a.Register != nil {
		requests = append(requests, *a.Register)
	}
	for _, r := range requests {
		if u, err := url.Parse(r.URL); err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
			return fault.New(fault.Invalid, "the URL %q is not allowed (http:// or https://)", r.URL)
		}
	}
	if !strings.Contains(a.Publish.URL+a.Publish.Body+strings.Join(headerLines(a.Publish.Headers), ""), "{{id}}") {
		return fault.New(fault.Invalid, "publish has no {{id}}, without which no webhook can be told from another")
	}
	if (a.Received.Header == "") == (a.Received.Pointer == "") {
		return fault.New(fault.Invalid, "received needs one of header and pointer")
	}
	return nil
}

func headerLines(headers map[string]string) []string {
	lines := []string{"Content-Type: application/json\r\n"}
	for name, value := range headers {
		if strings.EqualFold(name, "Content-Type") {
			lines[0] = "Content-Type: " + value + "\r\n"
			continue
		}
		lines = append(lines, name+": "+value+"\r\n")
	}
	slices.Sort(lines)
	return lines
}

// template is a text with variables such as {{id}}, split at the variables.
type template []part

type part struct{ text, variable string }

func parseTemplate(s string) template {
	var t template
	for s != "" {
		before, rest, found := strings.Cut(s, "{{")
		variable, after, closed := strings.Cut(rest, "}}")
		if !found || !closed {
			return append(t, part{text: s})
		}
		t = append(t, part{text: before, variable: strings.TrimSpace(variable)})
		s = after
	}
	return t
}

// values has the values of the variables in a [template].
type values struct {
	id, uri, payload, target string
	n                        int
}

// append appends the text to b. It replaces variables with their values. Unknown variables stay as they are.
func (t template) append(b []byte, v values) []byte {
	for _, p := range t {
		b = append(b, p.text...)
		switch p.variable {
		case "":
		case "id":
			b = append(b, v.id...)
		case "uri":
			b = append(b, v.uri...)
		case "payload":
			b = append(b, v.payload...)
		case "target":
			b = append(b, v.target...)
		case "n":
			b = strconv.AppendInt(b, int64(v.n), 10)
		default:
			b = append(b, "{{"+p.variable+"}}"...)
		}
	}
	return b
}

// request is a [Request] whose texts are parsed into templates.
type request struct {
	url              template
	fixed            *url.URL // the parsed URL, if it has no variables
	head, body       template
	headers, content []byte // buffers that each request uses again
	sign             *signature
}

func (r Request) ready() *request {
	q := &request{url: parseTemplate(r.URL), head: parseTemplate(strings.Join(headerLines(r.Headers), "")), body: parseTemplate(r.Body), sign: r.sign}
	if !strings.Contains(r.URL, "{{") {
		q.fixed, _ = url.Parse(r.URL) // ReadAdapter has checked the URL
	}
	return q
}

// post sends one HTTP request, and returns the body of the response. If the parameter array is true, the request has an array with an
// element for each of the values.
func (q *request) post(c poster, array bool, all ...values) ([]byte, error) {
	target := q.fixed
	if target == nil {
		u, err := url.Parse(string(q.url.append(nil, all[0])))
		if err != nil {
			return nil, fault.Wrap(fault.Invalid, err, "fill in the URL")
		}
		target = u
	}
	q.headers = q.head.append(q.headers[:0], all[0])
	q.content = q.content[:0]
	for i, v := range all {
		if array {
			q.content = append(q.content, "[,"[min(i, 1)])
		}
		q.content = q.body.append(q.content, v)
	}
	if array {
		q.content = append(q.content, ']')
	}
	if q.sign != nil {
		mac := hmac.New(sha256.New, []byte(q.sign.secret))
		mac.Write(q.content)
		q.headers = fmt.Appendf(q.headers, "%s: %s%x\r\n", q.sign.header, q.sign.prefix, mac.Sum(nil))
	}
	return c.post(target, q.headers, q.content)
}

func text(doc []byte, pointer string) string {
	var whole any
	p, err := jsonpointer.Parse(pointer)
	if err != nil || json.Unmarshal(doc, &whole) != nil {
		return ""
	}
	at, _ := p.ValueIn(whole)
	s, _ := at.(string)
	return s
}

// own returns the adapter for the server of this project.
func own(server, token string) Adapter {
	headers := map[string]string{}
	if token != "" {
		headers["Authorization"] = "Bearer " + token
	}
	register := map[string]string{
		"MCP-Protocol-Version": "2026-07-28", "Mcp-Method": "resources/subscriptions/register", "Accept": "application/json, text/event-stream",
	}
	maps.Copy(register, headers)
	return Adapter{
		Name:    "mcp-events",
		Publish: Request{URL: server + "/events", Headers: headers, Body: `{"id":"{{id}}","uri":"{{uri}}","data":{{payload}}}`},
		Array:   true,
		Register: &Request{URL: server + "/mcp", Headers: register, Body: `{"jsonrpc":"2.0","id":1,"method":"resources/subscriptions/register",` +
			`"params":{"uris":["{{uri}}"],"targetUri":"{{target}}","_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}}}`},
		Secret:   "/result/subscription/webhookSecret/key",
		Received: Received{Header: http.CanonicalHeaderKey("webhook-id")},
	}
}
