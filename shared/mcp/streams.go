package mcp

import (
	"bytes"
	"context"
	"net/http"
	"slices"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/events/stream"
	"github.com/mcp-events/mcpevents/shared/mcp/session"
	"github.com/mcp-events/mcpevents/shared/protocol/jsonrpc"
	"github.com/mcp-events/mcpevents/shared/protocol/sse"
)

// streams opens the streams, and knows what all of them need.
type streams struct {
	admission    *admission
	auth         auth.Authenticator
	catalogs     catalogs
	targets      *targets
	backends     Gateway
	methods      methodTable
	sessions     *session.Store
	feeds        *stream.Tails
	conversation Conversation
	replies      *replies
	faults       faults
	timing       timing
	// How many URIs a stream may have, and how many of them parents and wildcards.
	maxURIs, maxPatterns int
}

// hold keeps the response of a request open as a stream, until it ends. open makes the stream writer; what it has
// opened is closed even if it fails. The stream waits in this frame: see [Endpoint.ServeHTTP].
func (st *streams) hold(w http.ResponseWriter, c *call, open func(context.Context) (*streamWriter, error)) error {
	ctx, leave, err := st.admission.admit(w, c.request, c)
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
	if err = o.framing.begin(); err == nil {
		if o.framing.began != nil {
			o.framing.began()
		}
		err = o.run(ctx)
	}
	o.finish(c, err)
	return nil
}

// start begins the stream on the response. Of the request only the id is needed from here on: the body must not live as
// long as the stream.
func (w *streamWriter) start(response http.ResponseWriter, c *call) {
	w.subscriptionID = bytes.Clone(c.msg.ID)
	c.msg, c.meta, c.body = jsonrpc.Message{ID: w.subscriptionID}, nil, nil
	var done func() bool
	w.out, done = w.streams.admission.writer(response)
	w.ends = append(w.ends, func() { done() })
}

// open opens the feed.
func (w *streamWriter) open(ctx context.Context, r stream.Request) (err error) {
	if w.feed, err = w.streams.feeds.Open(ctx, r); err == nil {
		w.ends = append(w.ends, w.feed.Close)
	}
	return err
}

// close gives back what the stream held, the last first.
func (w *streamWriter) close() {
	for _, end := range slices.Backward(w.ends) {
		end()
	}
}

// streaming serves a method whose response is a stream that stays open.
type streaming struct {
	streams *streams
	open    func(ctx context.Context, c *call) (*streamWriter, error)
}

func (h streaming) serve(w http.ResponseWriter, c *call) error {
	if accepts(c.request.Header, sse.ContentType) {
		return h.streams.hold(w, c, func(ctx context.Context) (*streamWriter, error) { return h.open(ctx, c) })
	}
	return notAcceptable(w, c)
}
