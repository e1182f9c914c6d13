package mcp

import (
	"context"
	"time"

	"github.com/mcp-events/mcpevents/shared/events/stream"
	"github.com/mcp-events/mcpevents/shared/protocol/sse"
)

// framing is how one kind of stream writes: the listen, the events/stream, the stream of a session and that of the named-event
// dialect. [streamWriter.run] is the loop of all of them. It uses the default of each hook that is nil, but begin and end must be set.
type framing struct {
	// begin sends the first message, and began is called when it is written.
	begin func() error
	began func()
	// deliver sends a delivery that the client is to receive. The default checks the credentials if it is time to, and sends it with
	// [streamWriter.notify].
	deliver func(ctx context.Context, d stream.Delivery) error
	// due returns when something must be written if no delivery arrives: at quiet, which is the default, or earlier.
	due func(quiet time.Time) time.Time
	// heartbeat keeps a quiet stream alive. The default checks the credentials and sends a comment.
	heartbeat func(ctx context.Context) error
	// moved is called when the feed has moved its cursor past events of the log that the client does not receive.
	moved func() error
	// failed handles an error of the feed. The stream continues if it returns nil. The default returns the error.
	failed func(ctx context.Context, err error) error
	// event returns the name and the id of the SSE event of a message. The cursor is the position after the message.
	event func(cursor string) sse.Event
	// lost is called once for a URI that the catalog takes away.
	lost func(t target) error
	// end sends the last message. It is not called if the client has closed the stream.
	end func(c *call, why error)
}

// deliver sends one delivery as the framing does.
func (w *streamWriter) deliver(ctx context.Context, d stream.Delivery) error {
	if w.framing.deliver != nil {
		return w.framing.deliver(ctx, d)
	}
	if err := w.verify(ctx, d); err != nil {
		return err
	}
	return w.notify(ctx, d)
}

// heartbeat sends a heartbeat as the framing does.
func (w *streamWriter) heartbeat(ctx context.Context) error {
	if w.framing.heartbeat != nil {
		return w.framing.heartbeat(ctx)
	}
	if err := w.look(ctx); err != nil {
		return err
	}
	return w.write(comment)
}
