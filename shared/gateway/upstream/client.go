// Package upstream is the gateway's HTTP client for one backend. It sends MCP messages in all revisions, and forwards the backend's
// messages byte for byte, one at a time, as soon as each arrives.
//
//	client.go     requests
//	connection.go the connections for them
//	direct.go     requests without TLS
//	exchange.go   the messages of an answer, which is JSON or a stream
//	ask.go        the gateway's own requests: discover, initialize, lists
//
// A backend's data is untrusted. So messages are limited in size and depth, redirects are not followed, and an answer with an
// unexpected media type is an error. Package gateway interprets the messages.
package upstream

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"maps"
	"net"
	"net/http"
	"net/http/httptrace"
	"time"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/platform/trace"
	"github.com/mcp-events/mcpevents/shared/protocol/jsonrpc"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
	"github.com/mcp-events/mcpevents/shared/protocol/sse"
)

// maxMessage limits the size of a backend's message, in bytes.
const maxMessage = 8 << 20

// maxSession limits the length of a session's id, in bytes, because the gateway stores it.
const maxSession = 4096

// Client sends messages to one backend. It is safe for concurrent use.
type Client struct {
	URL string
	// HTTP must not follow redirects, because they would leak the credentials. [NewHTTP] creates a suitable client.
	HTTP *http.Client
	// Credentials adds headers with credentials to each request. It may be nil.
	Credentials func(ctx context.Context, h http.Header) error
	// Refused is called with the headers of a request that the backend answers with 401, so that the next request can have other
	// credentials. It may be nil.
	Refused func(h http.Header)
	// Dropped is called with the reason when the gateway drops a message of the backend. It may be nil.
	Dropped func(ctx context.Context, reason string)

	Observer Observer

	// Server is the MCP Implementation object with which the client identifies itself in its own requests. AskTimeout limits these
	// requests.
	Server     json.RawMessage
	AskTimeout time.Duration
}

// Request is one message to a backend.
type Request struct {
	Body     []byte
	Version  spec.Version // empty before it has been negotiated
	Session  string       // empty in revisions without sessions and before initialize
	Header   http.Header  // repeats a part of the body in revision 2026-07-28
	MaxDepth int          // limits the nesting of the answer; 0 means [jsonrpc.MaxDepth]
}

// Post sends a message and returns the backend's answer. If the status is an error and the body is no JSON-RPC message, Post returns a
// [StatusError] or [ErrSession]. If it cannot reach the backend, it returns a fault of kind Unavailable.
func (c *Client) Post(ctx context.Context, r Request) (*Exchange, error) {
	request, where := c.Observer.begin(ctx, &r)
	h := http.Header{"Content-Type": {"application/json"}, "Accept": {"application/json, text/event-stream"}}
	where.AddTo(h)
	x, err := c.do(ctx, http.MethodPost, r, h)
	if err != nil {
		request.end(noAnswer)
		return nil, err
	}
	x.request, x.failure = request, noAnswer
	return x, nil
}

// Get opens a notification stream of a session-based revision, or resumes a stream after the event with the given id.
func (c *Client) Get(ctx context.Context, r Request, lastEventID string) (*Exchange, error) {
	h := http.Header{"Accept": {sse.ContentType}}
	if lastEventID != "" {
		h.Set(spec.HeaderLastEvent, lastEventID)
	}
	return c.do(ctx, http.MethodGet, r, h)
}

// Send sends a notification, or the response to a request of the backend. It returns an error unless the backend accepts the message. "If
// the server cannot accept the input, it MUST return an HTTP error status code" (2025-11-25, Transports), with or without JSON.
func (c *Client) Send(ctx context.Context, r Request) error {
	h := http.Header{"Content-Type": {"application/json"}, "Accept": {"application/json, text/event-stream"}}
	trace.From(ctx).AddTo(h)
	return c.checkStatus(ctx, http.MethodPost, r, h)
}

// checkStatus sends a request to which the backend answers only with a status. It ignores the body of a successful answer.
func (c *Client) checkStatus(ctx context.Context, method string, r Request, h http.Header) error {
	resp, err := c.roundTrip(ctx, method, r, h)
	if err != nil {
		return err
	}
	x := &Exchange{Status: resp.StatusCode, body: resp.Body}
	defer x.Close()
	if isSuccess(resp) {
		return nil
	}
	if x.sessionLost(resp, r) {
		return ErrSession
	}
	return &StatusError{resp.StatusCode}
}

func (c *Client) do(ctx context.Context, method string, r Request, h http.Header) (*Exchange, error) {
	resp, err := c.roundTrip(ctx, method, r, h)
	if err != nil {
		return nil, err
	}
	x := &Exchange{Session: resp.Header.Get(spec.HeaderSession), Status: resp.StatusCode, body: resp.Body, dropped: c.Dropped, maxDepth: cmp.Or(r.MaxDepth, jsonrpc.MaxDepth)}
	if err := x.begin(resp, r); err != nil {
		x.Close()
		return nil, err
	}
	return x, nil
}

func (c *Client) roundTrip(ctx context.Context, method string, r Request, h http.Header) (*http.Response, error) {
	var progress requestProgress
	req, err := http.NewRequestWithContext(httptrace.WithClientTrace(ctx, progress.clientTrace()), method, c.URL, bytes.NewReader(r.Body))
	if err != nil {
		return nil, fault.Wrap(fault.Internal, err, "make a request to a backend")
	}
	req.Header = h
	maps.Copy(h, r.Header)
	if r.Version != "" {
		req.Header.Set(spec.HeaderVersion, string(r.Version))
	}
	if r.Session != "" {
		req.Header.Set(spec.HeaderSession, r.Session)
	}
	if c.Credentials != nil {
		if err := c.Credentials(ctx, req.Header); err != nil {
			return nil, err
		}
	}
	resp, err := c.send(req, &progress)
	if err != nil {
		if unsent, ok := errors.AsType[*UnsentError](err); ok {
			return nil, unsent
		}
		if failed, ok := errors.AsType[*net.OpError](err); ok && failed.Op == "dial" && ctx.Err() == nil {
			return nil, &UnsentError{Fault: fault.New(fault.Unavailable, "backend %s cannot be reached", c.Observer.Name), Cause: err}
		}
		return nil, fault.Wrap(fault.Unavailable, err, "reach the backend")
	}
	if resp.StatusCode == http.StatusUnauthorized && c.Refused != nil {
		c.Refused(req.Header)
	}
	if len(resp.Header.Get(spec.HeaderSession)) > maxSession {
		_ = resp.Body.Close()
		return nil, fault.New(fault.Unavailable, "the backend's session has a name of over %d bytes", maxSession)
	}
	return resp, nil
}

// UnsentError reports that a request was not sent, because the backend does not run or cannot be reached, or because there are no
// credentials for its caller. The text of Fault may be shown to the MCP client, and Cause, which may be nil, is for the log.
type UnsentError struct {
	Fault *fault.Error
	Cause error
	// NoToken is true if the gateway could not get a token for the caller. Other callers can still use the backend.
	NoToken bool
}

func (e *UnsentError) Error() string {
	if e.Cause == nil {
		return e.Fault.Error()
	}
	return e.Fault.Error() + ": " + e.Cause.Error()
}

// Unwrap returns the fault first, so that errors.As finds it before a fault in the cause.
func (e *UnsentError) Unwrap() []error { return []error{e.Fault, e.Cause} }

func isSuccess(resp *http.Response) bool { return resp.StatusCode >= 200 && resp.StatusCode < 300 }
