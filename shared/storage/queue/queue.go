// Package queue is the transport between the stages of the pipeline. Messages are sent, handled in batches, and
// redelivered until their handler has accepted them.
//
// A stage is a [Handler]. On AWS an event source mapping calls it, embedded the workers of a [Consumer], with the same
// batches and the same partial failures. The adapters queue/sqs and queue/sqlite pass queue/queuetest. Only the package
// that sends a message knows what it means.
package queue

import (
	"bytes"
	"context"
	"math/rand/v2"
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
	// Dead takes messages that no handler can handle. Standard.
	Dead Name = "dead"
)

// FIFO reports whether the queue keeps the order within a group.
func (n Name) FIFO() bool { return n == Events }

// Names lists all queues in a stable order.
func Names() []Name { return []Name{Inbox, Events, Deliveries, Slow, Dead} }

// Limits of a message (SQS).
const (
	// MaxBody is the largest body in bytes. SQS takes 1 MiB, but some emulators and other consumers only 256 KiB.
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

// Escape writes U+FFFE and U+FFFF, which XML 1.0 lacks, as escapes of JSON. It works on JSON in UTF-8, where the two can only
// stand in strings.
func Escape(body []byte) []byte {
	body = bytes.ReplaceAll(body, []byte("\uFFFE"), []byte(`\ufffe`))
	return bytes.ReplaceAll(body, []byte("\uFFFF"), []byte(`\uffff`))
}

// Message is a received message.
type Message struct {
	ID string
	Outgoing
	// Received counts deliveries of this message, from 1.
	Received int
	// Sent is when the queue took the message.
	Sent time.Time
	// From is the queue that moved the message here as it was, after too many receives; "" if none did.
	From Name
	// Attributes are the SQS message attributes of a direct sender; binary ones are in base64. Our own messages have
	// none.
	Attributes map[string]string
}

// Sender puts messages on queues. Send returns when all are durable; on an error
// some may have been sent. It splits into the batches that the queue takes.
type Sender interface {
	Send(ctx context.Context, q Name, msgs ...Outgoing) error
}

// Forwarder is a [Sender] whose consumers are in the same process. Forward is Send for messages that can be made again
// until it returns, for example from the message that caused them. Their handlers may begin at once, and messages that
// are accepted soon are never written. Forward returns when each message is durable or accepted.
type Forwarder interface {
	Forward(ctx context.Context, q Name, msgs ...Outgoing) error
}

// Handler handles a batch and returns the ids of the messages that failed. Those are redelivered after [Backoff], the
// others are deleted. On a FIFO queue a handler that fails a message fails all later ones of the same group. An error
// fails the whole batch.
type Handler func(ctx context.Context, batch []Message) (failed []string, err error)

// ConsumeOptions shape batches as an event source mapping would.
type ConsumeOptions struct {
	// Batch is the largest number of messages per call; 0 is 10.
	Batch int
	// Concurrency is how many calls may run at once; 0 is 1.
	Concurrency int
	// Visibility is how long the messages of a lost call stay in flight; 0 is 30 s. The context of the call ends after
	// it. While the call continues, its messages stay in flight.
	Visibility time.Duration
	// MaxReceives moves a message to [Dead] after that many failures, as a [DeadLetter]; 0 is
	// never. On a FIFO queue only the first failed message of a group has failed itself.
	MaxReceives int
	// PerGroup is how many messages of a group of a standard queue may be in handlers at once;
	// 0 is any number. Messages without a group are not bounded. SQS has no such bound.
	PerGroup int
	// Bytes limits the bodies of the messages in handlers together; 0 is any size. Half of it is for one group of a standard
	// queue. A single message is handled whatever its size. SQS has no such limit.
	Bytes int
}

// Consumer runs handlers outside of Lambda.
type Consumer interface {
	// Consume calls h until ctx ends, then waits for running calls and returns.
	Consume(ctx context.Context, q Name, h Handler, opts ConsumeOptions) error
}

// MaxReceives is how many failures dead-letter a message, the most that SQS allows. With [Backoff] they take ten days, so
// that an event of a newer version waits that long for a newer program. SQS would delete it after 14 days.
const MaxReceives = 1000

// Backoff is how long a failed message waits after so many receives: a second, doubled with each, at most five minutes.
// A message that has failed for almost two days waits 25 minutes each time. All times are up to a fifth more or less, so
// that messages that failed together are not redelivered together.
func Backoff(received int) time.Duration {
	d := min(time.Second<<min(max(received-1, 0), 9), 5*time.Minute)
	if received > MaxReceives/2 {
		d = 25 * time.Minute
	}
	return d - d/5 + rand.N(2*d/5+1)
}

// ReasonReceives is the reason of a message that was received [ConsumeOptions.MaxReceives] times.
const ReasonReceives = "received too often"

// Depth is the state of a queue for its operator.
type Depth struct {
	Visible, InFlight, Delayed int
	Oldest                     time.Time
}

// Discarder is a queue of which delayed messages can be discarded: those whose bodies contain one of the texts. Others
// hand them out when they are due.
type Discarder interface {
	Discard(ctx context.Context, q Name, texts ...string) error
}
