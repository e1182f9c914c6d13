package mcp

import (
	"context"
	"time"

	"github.com/mcp-events/mcpevents/shared/events/stream"
	"github.com/mcp-events/mcpevents/shared/protocol/sse"
)

// framing is what differs between the kinds of streams: the listen, the events/stream, the stream of a
// session and that of the dialect. The loop is [streamWriter.run] for all.
type framing interface {
	// begin sends the first message.
	begin() error
	// deliver sends one delivery, if it is anything that the client is to know.
	deliver(ctx context.Context, d stream.Delivery) error
	// due is when something must be written if nothing comes: at quiet, or before.
	due(quiet time.Time) time.Time
	// heartbeat keeps a quiet stream alive.
	heartbeat(ctx context.Context) error
	// moved is called when the feed has moved its cursor past events of the log that the client does not get.
	moved() error
	// failed takes an error of the feed. With nil the stream goes on.
	failed(ctx context.Context, err error) error
	// event is what an event has beside the message that the cursor is of.
	event(cursor string) sse.Event
	// lost gets once a URI that the catalog takes away.
	lost(t target) error
	// end sends the last message, and is not called when the client has closed the stream.
	end(c *call, why error)
}

// plain is what most kinds have in common.
type plain struct{ *streamWriter }

func (p plain) deliver(ctx context.Context, d stream.Delivery) error {
	if err := p.verify(ctx, d); err != nil {
		return err
	}
	return p.notify(ctx, d)
}

func (plain) due(quiet time.Time) time.Time { return quiet }

func (p plain) heartbeat(ctx context.Context) error {
	if err := p.look(ctx); err != nil {
		return err
	}
	return p.write(comment)
}

func (plain) moved() error { return nil }

func (plain) failed(_ context.Context, err error) error { return err }

func (plain) event(string) sse.Event { return sse.Event{} }

func (plain) lost(target) error { return nil }
