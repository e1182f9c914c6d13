// Package streams serves the streams of the MCP endpoint: subscriptions/listen, the GET stream of a session and the GET stream of the
// named-event dialect. Package events adds events/stream.
//
// [Streams.Hold] admits a stream and keeps it open. There is one [Writer] for all kinds of streams: it passes on the deliveries of a
// feed until the stream ends. The [Framing] that it is given says how a kind of stream writes them.
package streams

import (
	"bytes"
	"context"
	"net/http"
	"slices"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/events/stream"
	"github.com/mcp-events/mcpevents/shared/gateway/api"
	"github.com/mcp-events/mcpevents/shared/mcp/method"
	"github.com/mcp-events/mcpevents/shared/mcp/session"
	"github.com/mcp-events/mcpevents/shared/protocol/jsonrpc"
	"github.com/mcp-events/mcpevents/shared/protocol/sse"
)

// Streams opens streams. It contains the dependencies that all of them share.
type Streams struct {
	Admission    *Admission
	Auth         auth.Authenticator
	Catalogs     method.Catalogs
	Targets      *Targets
	Backends     api.Gateway
	Methods      method.Table
	Sessions     *session.Store
	Feeds        *stream.Tails
	Conversation Conversation
	Replies      *method.Replies
	Faults       method.Faults
	Timing       method.Timing
	// MaxURIs limits the URIs of a stream, and MaxPatterns limits how many of them are parents and wildcards.
	MaxURIs, MaxPatterns int
}

// Hold keeps the response of a request open as a stream until the stream ends. open makes the stream writer, which Hold closes even if open
// fails. Hold waits in this frame, so it keeps the frame small: see ServeHTTP of the endpoint.
func (st *Streams) Hold(w http.ResponseWriter, c *method.Call, open func(context.Context) (*Writer, error)) error {
	ctx, leave, err := st.Admission.Admit(w, c.Request, c)
	if leave == nil {
		return err
	}
	defer leave()
	o, err := open(ctx)
	if o == nil {
		return err
	}
	defer o.close()
	if err != nil {
		return err
	}
	o.start(w, c)
	if err = o.Framing.Begin(); err == nil {
		if o.Framing.began != nil {
			o.Framing.began()
		}
		err = o.run(ctx)
	}
	o.finish(c, err)
	return nil
}

// start begins the stream on the response. It drops the request's body, which must not live as long as the stream. Only the id is still
// needed.
func (w *Writer) start(response http.ResponseWriter, c *method.Call) {
	w.subscriptionID = bytes.Clone(c.Msg.ID)
	c.Msg, c.Meta, c.Body = jsonrpc.Message{ID: w.subscriptionID}, nil, nil
	var done func() bool
	w.out, done = w.Streams.Admission.writer(response)
	w.ends = append(w.ends, func() { done() })
}

// Open opens the feed.
func (w *Writer) Open(ctx context.Context, r stream.Request) (err error) {
	if w.Feed, err = w.Streams.Feeds.Open(ctx, r); err == nil {
		w.ends = append(w.ends, w.Feed.Close)
	}
	return err
}

// close releases the resources of the stream in reverse order.
func (w *Writer) close() {
	for _, end := range slices.Backward(w.ends) {
		end()
	}
}

// Streaming serves a method whose response is a stream that stays open.
type Streaming struct {
	Streams *Streams
	Open    func(ctx context.Context, c *method.Call) (*Writer, error)
}

// Serve implements [method.Handler].
func (h Streaming) Serve(w http.ResponseWriter, c *method.Call) error {
	if method.Accepts(c.Request.Header, sse.ContentType) {
		return h.Streams.Hold(w, c, func(ctx context.Context) (*Writer, error) { return h.Open(ctx, c) })
	}
	return method.NotAcceptable(w, c)
}
