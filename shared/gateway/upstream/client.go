// Package upstream speaks MCP with a backend, in any of its revisions, without
// taking messages apart: what a backend sends is handed on as the bytes that
// came, one message at a time, as soon as it came.
//
//	client.go     requests
//	connection.go the connections that they go over
//	exchange.go   the messages of an answer, JSON or stream
//	ask.go        what the gateway asks on its own behalf: discover, initialize, lists
//
// Everything that a backend sends is untrusted: messages are bounded in size and
// depth, redirects are not followed, and an answer of another media type is an
// error. What the messages mean is the business of shared/gateway.
package upstream

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"maps"
	"net/http"
	"net/url"
	"time"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/platform/trace"
	"github.com/mcp-events/mcpevents/shared/protocol/jsonrpc"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
	"github.com/mcp-events/mcpevents/shared/protocol/sse"
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
	// Dropped gets why something that the backend sent was not handed on; may be nil.
	Dropped func(ctx context.Context, reason string)

	// Observer counts and traces requests.
	Observer Observer

	// Server is what the client calls itself in requests of its own: an MCP Implementation.
	// AskTimeout bounds such a request. See ask.go.
	Server     json.RawMessage
	AskTimeout time.Duration
}

// Request is one message to a backend.
type Request struct {
	Body []byte
	// Version is the revision that is spoken; empty before it is settled.
	Version spec.Version
	// Session is the session of a session-based revision.
	Session string
	// Header are further headers, the mirrored ones of revision 2026-07-28.
	Header http.Header
	// MaxDepth is how deeply the answer may be nested; 0 is [jsonrpc.MaxDepth].
	MaxDepth int
}

// Post sends a message. A status other than success without a JSON-RPC message is
// a [StatusError], or [ErrSession]; a backend that cannot be reached is a fault of kind Unavailable.
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

// Get opens a notification stream of the earlier revisions, or goes on with one
// from an event's id.
func (c *Client) Get(ctx context.Context, r Request, lastEventID string) (*Exchange, error) {
	h := http.Header{"Accept": {sse.ContentType}}
	if lastEventID != "" {
		h.Set(spec.HeaderLastEvent, lastEventID)
	}
	return c.do(ctx, http.MethodGet, r, h)
}

// Send sends a notification, or the response to a request of the backend. It returns an error unless the backend accepts it:
// "If the server cannot accept the input, it MUST return an HTTP error status code" (2025-11-25, Transports), with or without JSON.
func (c *Client) Send(ctx context.Context, r Request) error {
	h := http.Header{"Content-Type": {"application/json"}, "Accept": {"application/json, text/event-stream"}}
	trace.From(ctx).AddTo(h)
	resp, err := c.roundTrip(ctx, http.MethodPost, r, h)
	if err != nil {
		return err
	}
	x := &Exchange{Status: resp.StatusCode, body: resp.Body}
	defer x.Close()
	if succeeded(resp) {
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

// roundTrip sends a request and returns the response with its body unread.
func (c *Client) roundTrip(ctx context.Context, method string, r Request, h http.Header) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, c.URL, bytes.NewReader(r.Body))
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
	resp, err := c.send(req)
	if err != nil {
		if where, ok := errors.AsType[*url.Error](err); ok {
			err = where.Err // the URL may hold a secret, and errors are logged
		}
		return nil, fault.Wrap(fault.Unavailable, err, "reach the backend")
	}
	if len(resp.Header.Get(spec.HeaderSession)) > maxSession {
		_ = resp.Body.Close()
		return nil, fault.New(fault.Unavailable, "the backend's session has a name of over %d bytes", maxSession)
	}
	return resp, nil
}

func succeeded(resp *http.Response) bool { return resp.StatusCode >= 200 && resp.StatusCode < 300 }
