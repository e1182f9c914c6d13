package upstream

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"mime"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/mcp-events/mcpevents/shared/gateway/translate"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/protocol/jsonrpc"
	"github.com/mcp-events/mcpevents/shared/protocol/sse"
)

// ErrSession reports that the backend no longer knows the session.
var ErrSession = errors.New("upstream: the backend has ended the session")

// ErrNoResponse reports that the backend ended its answer without a response.
var ErrNoResponse = errors.New("upstream: the answer ended without a response")

// StatusError reports that the backend answered with an HTTP error status and without a JSON-RPC message.
type StatusError struct{ Status int }

func (e *StatusError) Error() string {
	return "upstream: the backend answered " + http.StatusText(e.Status)
}

// Exchange is a backend's answer to a request: a sequence of messages that ends with the response to the request.
type Exchange struct {
	Session string // only in the answer to initialize
	Status  int
	// EventID is the id of the latest SSE event of the answer. Retry is how long the backend last asked the client to wait
	// before a reconnection. Events is the number of SSE events.
	EventID string
	Retry   time.Duration
	Events  int

	request  *request // nil unless the message sent was a request
	failure  string   // the failure that the request's span records; empty if the response is a result
	body     io.ReadCloser
	events   *sse.Reader
	queued   []json.RawMessage
	dropped  func(ctx context.Context, reason string) // see [Client.Dropped]
	maxDepth int
}

// begin prepares the body of the answer for reading. It returns [ErrSession], a [StatusError] or a fault if the body cannot contain a
// message, for example because of its media type. An answer with the status 202 or 204 is valid and has no messages.
func (x *Exchange) begin(resp *http.Response, r Request) error {
	media := resp.Header.Get("Content-Type")
	if media != "application/json" { // nearly all answers need no parsing
		media, _, _ = mime.ParseMediaType(media)
	}
	ok := isSuccess(resp)
	switch {
	case !ok && media == "application/json" && x.answers(r):
		return nil
	case !ok && x.sessionLost(resp, r):
		return ErrSession
	case resp.StatusCode == http.StatusAccepted || resp.StatusCode == http.StatusNoContent:
		return nil
	case media == sse.ContentType && ok:
		x.events = sse.NewReader(resp.Body, maxMessage)
		return nil
	case media == "application/json":
		return x.readJSON(ok)
	case ok:
		return fault.New(fault.Unavailable, "the backend answered with the media type %.100q", media)
	}
	return &StatusError{resp.StatusCode}
}

// sessionNotFound is the error code with which official libraries report an unknown session.
const sessionNotFound = "-32001"

// answers reports whether the body of an answer with an error status contains the JSON-RPC response to the request. If so, the response
// counts and the status does not: the backend has read the request and may have acted on it, so the gateway must not send it again. The
// exception is an error whose code means that the session is unknown.
func (x *Exchange) answers(r Request) bool {
	id := jsonrpc.Member(r.Body, "id")
	if id == nil {
		return false
	}
	parts, _, bad := jsonrpc.SplitDeep(x.peek(maxMessage), x.maxDepth)
	if bad != nil {
		return false
	}
	for _, raw := range parts {
		m, ok := Read(raw)
		if ok && m.Response() && jsonrpc.SameID(m.ID, id) {
			if r.Session != "" && string(jsonrpc.Member(m.Error, "code")) == sessionNotFound {
				return false
			}
			x.queued = parts
			return true
		}
	}
	return false
}

// peek returns the body's first bytes, at most the given number. Later reads of the body return these bytes again.
func (x *Exchange) peek(most int64) []byte {
	text, err := io.ReadAll(io.LimitReader(x.body, most))
	rest := io.Reader(x.body)
	if err != nil {
		rest = failed{err}
	}
	x.body = struct {
		io.Reader
		io.Closer
	}{io.MultiReader(bytes.NewReader(text), rest), x.body}
	return text
}

type failed struct{ err error }

func (f failed) Read([]byte) (int, error) { return 0, f.err }

// maxRefusal limits how many bytes of an error response are read to find out why the backend refused the request.
const maxRefusal = 16 << 10

// sessionLost reports whether an error status means that the backend no longer knows the session of the request. The
// specification demands 404 for that. Many servers answer 400 instead, because they are older than that rule or follow the
// examples of the official TypeScript library. Their messages, as plain text or in an error of code -32000, are for example
// "Bad Request: No valid session ID provided", "Bad Request: Server not initialized", or "Invalid or missing session ID".
func (x *Exchange) sessionLost(resp *http.Response, r Request) bool {
	switch {
	case r.Session == "":
		return false
	case resp.StatusCode != http.StatusBadRequest:
		return resp.StatusCode == http.StatusNotFound
	}
	text := x.peek(maxRefusal)
	reason := string(text)
	if json.Valid(text) {
		failure := jsonrpc.Member(text, "error")
		reason, _ = jsonrpc.String(jsonrpc.Member(failure, "message"))
		if code := string(jsonrpc.Member(failure, "code")); code != "-32000" && code != sessionNotFound && code != "-32600" {
			return false
		}
	}
	reason = strings.ToLower(reason)
	return strings.Contains(reason, "session") || strings.Contains(reason, "not initialized")
}

func (x *Exchange) readJSON(ok bool) error {
	text, err := io.ReadAll(io.LimitReader(x.body, maxMessage+1))
	if err != nil {
		return fault.Wrap(fault.Unavailable, err, "read the backend's answer")
	}
	if len(text) > maxMessage {
		return fault.New(fault.Unavailable, "the backend's answer is larger than %d bytes", maxMessage)
	}
	parts, _, bad := jsonrpc.SplitDeep(text, x.maxDepth)
	switch {
	case bad == nil && (ok || slices.ContainsFunc(parts, isMessage)):
		x.queued = parts
		return nil
	case ok:
		return fault.Wrap(fault.Unavailable, &malformedError{bad.Message}, "read the backend's answer")
	}
	return &StatusError{x.Status}
}

func isMessage(raw json.RawMessage) bool {
	_, ok := Read(raw)
	return ok
}

// Reasons for dropping data of a backend that is not a message; see [Client.Dropped].
const (
	NotJSON    = "it is no JSON"
	NotMessage = "it is no JSON-RPC message"
)

// Next returns the next message. It drops invalid messages, and returns io.EOF after the last one.
func (x *Exchange) Next(ctx context.Context) (Message, error) {
	for {
		raw, err := x.next()
		if _, ok := errors.AsType[*malformedError](err); ok {
			x.drop(ctx, NotJSON)
			continue
		}
		if err != nil {
			return Message{}, err
		}
		if m, ok := Read(raw); ok {
			if m.Response() {
				x.failure = ""
				if m.Error != nil {
					x.failure = failedAnswer
				}
			}
			return m, nil
		}
		x.drop(ctx, NotMessage)
	}
}

func (x *Exchange) drop(ctx context.Context, reason string) {
	if x.dropped != nil {
		x.dropped(ctx, reason)
	}
}

// next returns the next JSON text of the answer. It checks only the syntax and the depth.
func (x *Exchange) next() (json.RawMessage, error) {
	for len(x.queued) == 0 {
		if x.events == nil {
			return nil, io.EOF
		}
		e, err := x.events.Next()
		if err != nil {
			return nil, err
		}
		x.Events++
		if e.ID != "" {
			x.EventID = e.ID
		}
		if e.Retry > 0 {
			x.Retry = e.Retry
		}
		if len(e.Data) == 0 || e.Name != "" && !strings.EqualFold(e.Name, "message") {
			continue // the event has no message, for example only an id
		}
		parts, _, bad := jsonrpc.SplitDeep(e.Data, x.maxDepth)
		if bad != nil {
			return nil, &malformedError{bad.Message}
		}
		x.queued = parts
	}
	next := x.queued[0]
	x.queued = x.queued[1:]
	return next, nil
}

// malformedError reports data that is no valid JSON. The exchange continues after it.
type malformedError struct{ reason string }

func (e *malformedError) Error() string { return "upstream: " + e.reason }

// Close closes the connection. In revision 2026-07-28 that cancels the request.
func (x *Exchange) Close() {
	_ = x.body.Close()
	if x.request != nil {
		x.request.end(x.failure)
	}
}

// ContinueWith closes the exchange, but its request continues with the exchange next, for example after a reconnection. So metrics and
// traces count a single request, which ends when next ends.
func (x *Exchange) ContinueWith(next *Exchange) {
	next.request, next.failure, x.request = x.request, x.failure, nil
	x.Close()
}

// endTime and maxEnd limit how long, and for how many bytes, [Exchange.Finish] waits for the end of a stream.
const (
	endTime = 20 * time.Millisecond
	maxEnd  = 16 << 10
)

// Finish closes the exchange after the response. If the answer is a stream, Finish waits a moment for the stream's end, so that
// the connection can be used again. Nearly all servers end the stream right after the response.
func (x *Exchange) Finish() {
	if x.events != nil {
		late := time.AfterFunc(endTime, x.Close)
		_, _ = io.CopyN(io.Discard, x.body, maxEnd)
		late.Stop()
	}
	x.Close()
}

// Message is a parsed message of a backend. Unlike a client's message it may have any number as its id, because the gateway only sends
// the id back.
type Message struct {
	ID     json.RawMessage
	Method string
	Result json.RawMessage
	Error  json.RawMessage
	Raw    json.RawMessage
}

// WithoutOwn returns the message without the members of _meta that only the gateway may set, see [translate.WithoutOwn].
func (m Message) WithoutOwn() Message {
	switch {
	case m.Result != nil:
		if result, dropped := translate.WithoutOwn(m.Result); dropped {
			m.Result, m.Raw = result, jsonrpc.Replace(m.Raw, "result", result)
		}
	case m.Error != nil: // error -32042 has elicitations in its data, which may have a _meta
		if data, dropped := translate.WithoutOwn(jsonrpc.Member(m.Error, "data")); dropped {
			m.Error = jsonrpc.Replace(m.Error, "data", data)
			m.Raw = jsonrpc.Replace(m.Raw, "error", m.Error)
		}
	default:
		if params, dropped := translate.WithoutOwn(jsonrpc.Member(m.Raw, "params")); dropped {
			m.Raw = jsonrpc.Replace(m.Raw, "params", params)
		}
	}
	return m
}

// Read parses a message. The result ok is false if the message is not valid JSON-RPC, or if a JSON-RPC member or a member of its params
// occurs twice. The client gets the same bytes, and might use the member that Read did not check.
func Read(raw json.RawMessage) (m Message, ok bool) {
	p := jsonrpc.ReadParts(raw)
	m = Message{Result: p.Result, Error: p.Error, Raw: raw}
	if string(p.Version) != `"2.0"` || p.Repeated != "" || jsonrpc.HasRepeatedMember(p.Params) {
		return m, false
	}
	if p.ID != nil && string(p.ID) != "null" {
		if len(p.ID) > jsonrpc.MaxID || p.ID[0] == '{' || p.ID[0] == '[' {
			return m, false
		}
		m.ID = p.ID
	}
	if p.Method != nil {
		m.Method, _ = jsonrpc.String(p.Method)
		return m, m.Method != "" && m.Result == nil && m.Error == nil
	}
	return m, (m.Result != nil) != (m.Error != nil) && (m.ID != nil || m.Error != nil)
}

// Response reports whether the message is the response to a request.
func (m Message) Response() bool { return m.Method == "" }
