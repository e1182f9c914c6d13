package streams

import (
	"context"
	"time"

	"github.com/mcp-events/mcpevents/shared/events/stream"
	"github.com/mcp-events/mcpevents/shared/mcp/method"
	"github.com/mcp-events/mcpevents/shared/protocol/sse"
)

// Framing defines how a kind of stream writes its messages. There is a framing for subscriptions/listen, for events/stream, for the
// streams of sessions, and for the stream of the named-event dialect. All of them share the loop in [Writer.run].
// Begin and End must be set. If another hook is nil, the loop uses its default.
type Framing struct {
	// Begin sends the first message. After that, began is called.
	Begin func() error
	began func()
	// Deliver sends a delivery. The default sends it with [Writer.notify], and first checks the credentials if a check is due.
	Deliver func(ctx context.Context, d stream.Delivery) error
	// Due returns when the next heartbeat is due: at quiet, which is the default, or earlier.
	Due func(quiet time.Time) time.Time
	// Heartbeat keeps a quiet stream alive. The default checks the credentials and sends a comment.
	Heartbeat func(ctx context.Context) error
	// Moved is called when the feed has moved its cursor past events that the client does not receive.
	Moved func() error
	// Failed handles an error of the feed. The stream continues if it returns nil. The default returns the error.
	Failed func(ctx context.Context, err error) error
	// event returns an SSE event with the name and the id for a message. The cursor is the position after the message.
	event func(cursor string) sse.Event
	// lost is called once for a URI that is no longer in the catalog, or that the caller may no longer read.
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
	if err := w.CheckCredentials(ctx); err != nil {
		return err
	}
	return w.write(method.Comment)
}
