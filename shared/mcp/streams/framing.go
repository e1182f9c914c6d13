package streams

import (
	"context"
	"time"

	"github.com/mcp-events/mcpevents/shared/events/stream"
	"github.com/mcp-events/mcpevents/shared/mcp/method"
	"github.com/mcp-events/mcpevents/shared/protocol/sse"
)

// Framing is how one kind of stream writes: the listen, the events/stream, the stream of a session and that of the named-event
// dialect. [Writer.run] is the loop of all of them. It uses the default of each hook that is nil, but begin and end must be set.
type Framing struct {
	// Begin sends the first message, and began is called when it is written.
	Begin func() error
	began func()
	// Deliver sends a delivery that the client is to receive. The default checks the credentials if it is time to, and sends it with
	// [Writer.notify].
	Deliver func(ctx context.Context, d stream.Delivery) error
	// Due returns when something must be written if no delivery arrives: at quiet, which is the default, or earlier.
	Due func(quiet time.Time) time.Time
	// Heartbeat keeps a quiet stream alive. The default checks the credentials and sends a comment.
	Heartbeat func(ctx context.Context) error
	// Moved is called when the feed has moved its cursor past events of the log that the client does not receive.
	Moved func() error
	// Failed handles an error of the feed. The stream continues if it returns nil. The default returns the error.
	Failed func(ctx context.Context, err error) error
	// event returns the name and the id of the SSE event of a message. The cursor is the position after the message.
	event func(cursor string) sse.Event
	// lost is called once for a URI that the catalog takes away.
	lost func(t Target) error
	// End sends the last message. It is not called if the client has closed the stream.
	End func(c *method.Call, why error)
}

// deliver sends one delivery as the framing does.
func (w *Writer) deliver(ctx context.Context, d stream.Delivery) error {
	if w.Framing.Deliver != nil {
		return w.Framing.Deliver(ctx, d)
	}
	if err := w.verify(ctx, d); err != nil {
		return err
	}
	return w.notify(ctx, d)
}

// heartbeat sends a heartbeat as the framing does.
func (w *Writer) heartbeat(ctx context.Context) error {
	if w.Framing.Heartbeat != nil {
		return w.Framing.Heartbeat(ctx)
	}
	if err := w.Look(ctx); err != nil {
		return err
	}
	return w.write(method.Comment)
}
