// Package queue is the transport between the stages of the pipeline: messages
// are sent, handled in batches, and redelivered until their handler has accepted
// them.
//
// A stage is a [Handler]. On AWS an event source mapping calls it, embedded a
// [Consumer]'s workers do, with the same batches and the same partial failures.
// The adapters queue/sqs and queue/sqlite pass queue/queuetest. What a message
// means is the business of the package that sends it.
package queue

import (
	"context"
	"time"
)

// Name names a queue of the system.
type Name string

// The queues. The FIFO ones keep the order within a group.
const (
	// Inbox takes events from direct senders; publish validates them. Standard.
	Inbox Name = "inbox"
	// Events takes accepted events to fanout. FIFO; group = hash of workspace and URI.
	Events Name = "events"
	// Deliveries takes page tasks to dispatch. Standard.
	Deliveries Name = "deliveries"
	// Slow takes single deliveries: retries and endpoints known to be slow. Standard, fair.
	Slow Name = "slow"
	// Dead takes messages that no handler could make sense of. Standard.
	Dead Name = "dead"
)

// FIFO reports whether the queue keeps the order within a group.
func (n Name) FIFO() bool { return n == Events }

// Names lists all queues in a stable order.
func Names() []Name { return []Name{Inbox, Events, Deliveries, Slow, Dead} }

// Limits of a message (SQS).
const (
	// MaxBody is the largest body in bytes. SQS takes 1 MiB; some emulators and
	// other consumers stop at 256 KiB, and so do we.
	MaxBody = 256 << 10
	// MaxDelay is the longest delay of a message on a standard queue.
	MaxDelay = 15 * time.Minute
)

// Outgoing is a message to send.
type Outgoing struct {
	// Body is valid UTF-8 text without characters that XML 1.0 lacks, at most [MaxBody].
	Body []byte
	// Group orders messages on a FIFO queue, and spreads consumers fairly on a
	// standard one; at most 128 characters of [A-Za-z0-9_-].
	Group string
	// Dedup drops a second message with the same id within five minutes (FIFO only).
	Dedup string
	// Delay postpones delivery, whole seconds up to [MaxDelay]; standard queues only.
	Delay time.Duration
}

// Message is a received message.
type Message struct {
	ID string
	Outgoing
	// Received counts deliveries of this message, from 1.
	Received int
	// Sent is when the queue took the message.
	Sent time.Time
}

// Sender puts messages on queues. Send returns when all are durable; on an error
// some may have been sent. It splits into the batches that the queue takes.
type Sender interface {
	Send(ctx context.Context, q Name, msgs ...Outgoing) error
}

// Handler handles a batch and reports the ids of the messages that failed;
// those come again after the visibility timeout, the others are gone. On a FIFO
// queue a handler that fails a message fails all later ones of the same group. An
// error fails the whole batch.
type Handler func(ctx context.Context, batch []Message) (failed []string, err error)

// ConsumeOptions shape batches as an event source mapping would.
type ConsumeOptions struct {
	// Batch is the largest number of messages per call; 0 is 10.
	Batch int
	// Concurrency is how many calls may run at once; 0 is 1.
	Concurrency int
	// Visibility is how long a message stays hidden after a failed or lost call; 0 is 30 s.
	Visibility time.Duration
	// MaxReceives moves a message to [Dead] after that many failures; 0 is never.
	MaxReceives int
}

// Consumer runs handlers outside of Lambda.
type Consumer interface {
	// Consume calls h until ctx ends, then waits for running calls and returns.
	Consume(ctx context.Context, q Name, h Handler, opts ConsumeOptions) error
}

// Depth is the state of a queue for its operator.
type Depth struct {
	Visible, InFlight, Delayed int
	Oldest                     time.Time
}
