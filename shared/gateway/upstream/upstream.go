// Package upstream speaks MCP with a backend, in any of its revisions, without
// taking messages apart: what a backend sends is handed on as the bytes that
// came, one message at a time, as soon as it came.
//
// Everything that a backend sends is untrusted: messages are bounded in size and
// depth, redirects are not followed, and an answer of another media type is an
// error. What the messages mean is the business of shared/gateway.
package upstream

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"mime"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/mcp-events/mcpevents/shared/fault"
	"github.com/mcp-events/mcpevents/shared/jsonrpc"
	"github.com/mcp-events/mcpevents/shared/mcpspec"
	"github.com/mcp-events/mcpevents/shared/sse"
)

// MaxMessage bounds a message of a backend in bytes.
const MaxMessage = 8 << 20

// maxSession bounds the name of a session, which is kept, in bytes.
const maxSession = 4096

// Client sends messages to one backend. It may be used concurrently.
type Client struct {
	URL string
	// HTTP must not follow redirects: credentials would go along. [NewHTTP] makes one.
	HTTP *http.Client
	// Credentials are added to each request; may be nil.
	Credentials func(ctx context.Context, h http.Header) error
}

// NewHTTP makes a client for backends. Nothing bounds the time of an exchange but
// its context: a call may take long before it says anything.
func NewHTTP() *http.Client {
	t := http.DefaultTransport.(*http.Transport).Clone()
	t.MaxIdleConnsPerHost, t.IdleConnTimeout = maxResting, RestTime
	t.MaxResponseHeaderBytes = 64 << 10
	return &http.Client{
		Transport:     t,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// Request is one message to a backend.
type Request struct {
	Body []byte
	// Version is the revision that is spoken; empty before it is settled.
	Version string
	// Session is the session of an earlier revision.
	Session string
	// Header are further headers, the mirrored ones of revision 2026-07-28.
	Header http.Header
}

// ErrSession reports that the backend does not know the session any more.
var ErrSession = errors.New("upstream: the backend has ended the session")

// StatusError is an answer by HTTP alone.
type StatusError struct{ Status int }

func (e *StatusError) Error() string {
	return "upstream: the backend answered " + http.StatusText(e.Status)
}

// Exchange is what a backend answers to a request: messages, of which the last is
// the response to it.
type Exchange struct {
	// Session is the session that the backend named; only initialize makes one.
	Session string
	// Status is the HTTP status.
	Status int
	// Streamed is true when the messages come as server-sent events.
	Streamed bool
	// EventID and Retry are those of the last event that had them.
	EventID string

	body   io.ReadCloser
	events *sse.Reader
	queued []json.RawMessage
}

// Post sends a message. A status other than success without a JSON-RPC message is
// a [StatusError], or [ErrSession]; a backend that cannot be reached is a fault of kind Unavailable.
func (c *Client) Post(ctx context.Context, r Request) (*Exchange, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.URL, bytes.NewReader(r.Body))
	if err != nil {
		return nil, fault.Wrap(fault.Internal, err, "make a request to a backend")
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json, text/event-stream")
	return c.do(ctx, req, r)
}

// Get opens a notification stream of the earlier revisions, or goes on with one
// from an event's id.
func (c *Client) Get(ctx context.Context, r Request, lastEventID string) (*Exchange, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.URL, nil)
	if err != nil {
		return nil, fault.Wrap(fault.Internal, err, "make a request to a backend")
	}
	req.Header.Set("Accept", sse.ContentType)
	if lastEventID != "" {
		req.Header.Set(mcpspec.HeaderLastEvent, lastEventID)
	}
	return c.do(ctx, req, r)
}

// Delete ends a session of the earlier revisions.
func (c *Client) Delete(ctx context.Context, r Request) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodDelete, c.URL, nil)
	if err != nil {
		return fault.Wrap(fault.Internal, err, "make a request to a backend")
	}
	x, err := c.do(ctx, req, r)
	if err == nil {
		x.Close()
	}
	return err
}

func (c *Client) do(ctx context.Context, req *http.Request, r Request) (*Exchange, error) {
	for name, values := range r.Header {
		req.Header[name] = values
	}
	if r.Version != "" {
		req.Header.Set(mcpspec.HeaderVersion, r.Version)
	}
	if r.Session != "" {
		req.Header.Set(mcpspec.HeaderSession, r.Session)
	}
	if c.Credentials != nil {
		if err := c.Credentials(ctx, req.Header); err != nil {
			return nil, err
		}
	}
	resp, err := c.send(req)
	if err != nil {
		if where, ok := errors.AsType[*url.Error](err); ok {
			err = where.Err // the URL may hold a secret, and errors are logged
		}
		return nil, fault.Wrap(fault.Unavailable, err, "reach the backend")
	}
	if len(resp.Header.Get(mcpspec.HeaderSession)) > maxSession {
		_ = resp.Body.Close()
		return nil, fault.New(fault.Unavailable, "the backend's session has a name of over %d bytes", maxSession)
	}
	x := &Exchange{Session: resp.Header.Get(mcpspec.HeaderSession), Status: resp.StatusCode, body: resp.Body}
	if err := x.begin(resp, r.Session); err != nil {
		x.Close()
		return nil, err
	}
	return x, nil
}

// begin makes the body readable, or finds that there is no message in it.
func (x *Exchange) begin(resp *http.Response, session string) error {
	media, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	ok := resp.StatusCode >= 200 && resp.StatusCode < 300
	switch {
	case resp.StatusCode == http.StatusNotFound && session != "":
		return ErrSession
	case resp.StatusCode == http.StatusBadRequest && session != "" && x.sessionLost():
		return ErrSession
	case resp.StatusCode == http.StatusAccepted || resp.StatusCode == http.StatusNoContent:
		return nil
	case media == sse.ContentType && ok:
		x.Streamed, x.events = true, sse.NewReader(resp.Body, MaxMessage)
		return nil
	case media == "application/json":
		return x.readJSON(ok)
	case ok:
		return fault.New(fault.Unavailable, "the backend answered with the media type %.100q", media)
	}
	return &StatusError{resp.StatusCode}
}

// maxRefusal bounds what is read of a refusal to see its reason.
const maxRefusal = 16 << 10

// sessionLost reports whether a 400 means that the session is not known any more. The revisions
// want a 404 for that, but servers of before, and many made after the examples of the
// official TypeScript library, look for a request's session before they know that it is missing:
// "Bad Request: No valid session ID provided", "Bad Request: Server not initialized",
// "Invalid or missing session ID", as an error of code -32000 or as text.
func (x *Exchange) sessionLost() bool {
	text, err := io.ReadAll(io.LimitReader(x.body, maxRefusal))
	x.body = struct {
		io.Reader
		io.Closer
	}{io.MultiReader(bytes.NewReader(text), x.body), x.body}
	if err != nil {
		return false
	}
	reason := string(text)
	if json.Valid(text) {
		failure := jsonrpc.Member(text, "error")
		reason, _ = jsonrpc.String(jsonrpc.Member(failure, "message"))
		if code := string(jsonrpc.Member(failure, "code")); code != "-32000" && code != "-32001" && code != "-32600" {
			return false
		}
	}
	reason = strings.ToLower(reason)
	return strings.Contains(reason, "session") || strings.Contains(reason, "not initialized")
}

func (x *Exchange) readJSON(ok bool) error {
	text, err := io.ReadAll(io.LimitReader(x.body, MaxMessage+1))
	if err != nil {
		return fault.Wrap(fault.Unavailable, err, "read the backend's answer")
	}
	if len(text) > MaxMessage {
		return fault.New(fault.Unavailable, "the backend's answer is larger than %d bytes", MaxMessage)
	}
	parts, _, bad := jsonrpc.Split(text)
	switch {
	case bad == nil:
		x.queued = parts
		return nil
	case ok:
		return fault.Wrap(fault.Unavailable, &Garbage{bad.Message}, "read the backend's answer")
	}
	return &StatusError{x.Status}
}

// Next waits for the next message. It is checked to be JSON of bounded depth and
// nothing else. At the end the error is io.EOF.
func (x *Exchange) Next() (json.RawMessage, error) {
	for len(x.queued) == 0 {
		if x.events == nil {
			return nil, io.EOF
		}
		e, err := x.events.Next()
		if err != nil {
			return nil, err
		}
		if e.ID != "" {
			x.EventID = e.ID
		}
		if len(e.Data) == 0 || e.Name != "" && !strings.EqualFold(e.Name, "message") {
			continue // an event that is only an id
		}
		parts, _, bad := jsonrpc.Split(e.Data)
		if bad != nil {
			return nil, &Garbage{bad.Message}
		}
		x.queued = parts
	}
	next := x.queued[0]
	x.queued = x.queued[1:]
	return next, nil
}

// Garbage is a message that is not to be handed on. The exchange goes on behind it.
type Garbage struct{ Reason string }

func (g *Garbage) Error() string { return "upstream: " + g.Reason }

// Close gives the connection up. In revision 2026-07-28 that cancels the request.
func (x *Exchange) Close() { _ = x.body.Close() }

// endTime is what a backend gets to end a stream after its answer, and maxEnd bounds in bytes what it may send with
// that.
const (
	endTime = 20 * time.Millisecond
	maxEnd  = 16 << 10
)

// Finish is Close behind the answer. It sees the stream's end if that comes soon, as it does from nearly all
// servers, so that the connection can be used again.
func (x *Exchange) Finish() {
	if x.events != nil {
		late := time.AfterFunc(endTime, x.Close)
		_, _ = io.CopyN(io.Discard, x.body, maxEnd)
		late.Stop()
	}
	x.Close()
}
