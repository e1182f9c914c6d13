// Package queue is the transport between the stages of the pipeline. Messages are sent, handled in batches, and
// redelivered until their handler has accepted them.
//
// A stage is a [Handler]. On AWS an event source mapping calls it. In a stand-alone server the workers of a [Consumer] call
// it, with the same batches and the same partial failures. The adapters queue/sqs and queue/sqlite pass queue/queuetest.
// Only the package that sends a message knows what it means.
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
	// Inbox receives events from direct senders; publish validates them. Standard.
	Inbox Name = "inbox"
	// Events carries accepted events to fanout. FIFO; group = hash of workspace and URI.
	Events Name = "events"
	// Deliveries carries page tasks to dispatch. Standard.
	Deliveries Name = "deliveries"
	// Slow carries single deliveries: retries, and deliveries to slow endpoints. Standard, fair.
	Slow Name = "slow"
	// Dead receives messages that no handler can handle. Standard.
	Dead Name = "dead"
)

// FIFO reports whether the queue keeps the order within a group.
func (n Name) FIFO() bool { return n == Events }

// Names lists all queues in a stable order.
func Names() []Name { return []Name{Inbox, Events, Deliveries, Slow, Dead} }

// Limits of a message (SQS).
const (
	// MaxBody is the largest body in bytes. SQS accepts 1 MiB, but some emulators and other consumers accept only 256 KiB.
	MaxBody = 256 << 10
	// MaxDelay is the longest delay of a message on a standard queue.
	MaxDelay = 15 * time.Minute
)

// Outgoing is a message to send.
type Outgoing struct {
	// Body is valid UTF-8 text of at most [MaxBody] bytes, without characters that XML 1.0 forbids.
	Body []byte
	// Group has at most 128 characters of [A-Za-z0-9_-]. A FIFO queue keeps the order within a group, and a standard queue
	// shares its consumers fairly among the groups.
	Group string
	// Dedup is a deduplication id. A FIFO queue drops a message if it accepted one with the same id in the last five minutes.
	// Standard queues do not deduplicate.
	Dedup string
	// Delay postpones the delivery by whole seconds, up to [MaxDelay]. FIFO queues have no delays.
	Delay time.Duration
}

// Escape replaces U+FFFE and U+FFFF, which XML 1.0 forbids, by JSON escapes. The body is JSON in UTF-8, where the two
// characters can occur only in strings.
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
	// Sent is when the queue accepted the message.
	Sent time.Time
	// From is the queue that moved the message here unchanged, after too many receives. It is "" for other messages.
	From Name
	// Attributes are the SQS message attributes that a direct sender set, with binary values in base64.
	Attributes map[string]string
}

// Sender puts messages on queues. Send splits the messages into batches as the queue requires, and returns when all of them
// are durable. After an error some of them may have been sent.
type Sender interface {
	Send(ctx context.Context, q Name, msgs ...Outgoing) error
}

// Forwarder is a [Sender] whose consumers are in the same process.
//
// Forward sends messages that the caller can create again until Forward returns, for example from the message that caused
// them. Their handlers may start before anything is written, and messages that are accepted within milliseconds are never
// written. Forward returns when each message is durable or accepted.
type Forwarder interface {
	Forward(ctx context.Context, q Name, msgs ...Outgoing) error
}

// Handler handles a batch and returns the ids of the messages that failed. The queue redelivers them after [Backoff] and
// deletes the others. On a FIFO queue, a handler that fails a message also fails the later messages of its group. An error
// fails the whole batch.
type Handler func(ctx context.Context, batch []Message) (failed []string, err error)

// ConsumeOptions correspond to the settings of an event source mapping.
type ConsumeOptions struct {
	// Batch is the largest number of messages per call; 0 is 10.
	Batch int
	// Concurrency is the number of concurrent calls; 0 is 1.
	Concurrency int
	// Visibility is how long the messages of a call stay in flight if its process dies; 0 is 30 s. The context of the call
	// ends after this time, but its messages stay in flight until it returns.
	Visibility time.Duration
	// MaxReceives is the number of failures after which a message moves to [Dead] as a [DeadLetter]; 0 is never. On a FIFO
	// queue, only the first failed message of a group counts a failure.
	MaxReceives int
	// PerGroup limits how many messages of one group of a standard queue are in handlers; 0 is no limit. Messages without a
	// group are not limited. SQS has no such limit.
	PerGroup int
	// Bytes limits the total size of the bodies in handlers; 0 is no limit. One group of a standard queue gets at most half
	// of it. A message that is larger is handled when no other is. SQS has no such limit.
	Bytes int
}

// Consumer runs handlers outside of Lambda.
type Consumer interface {
	// Consume calls h until ctx ends, then waits for running calls and returns.
	Consume(ctx context.Context, q Name, h Handler, opts ConsumeOptions) error
}

// MaxReceives is the number of failures after which a message becomes a dead letter. It is the most that SQS allows. With
// [Backoff] so many failures take ten days; SQS deletes a message after 14.
const MaxReceives = 1000

// Backoff returns how long a failed message waits after so many receives: one second, doubled with each receive, up to five
// minutes. A message that has failed for almost two days waits 25 minutes each time. All times vary by up to a fifth, so
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

// Discarder is a queue that can discard delayed messages whose bodies contain one of the texts. Other queues deliver such
// messages when they are due.
type Discarder interface {
	Discard(ctx context.Context, q Name, texts ...string) error
}
