// Package queue carries JSON messages between the stages of event processing, such as publish, fanout and dispatch. A stage is a
// [Handler], which receives batches of messages. The queue redelivers each message until the handler accepts it.
//
// On AWS, an SQS event source mapping calls the handler in a Lambda function. In a stand-alone server, the workers of a [Consumer] call
// it. In both cases, the handler may accept some messages of a batch and fail others. The adapters queue/sqs and queue/sqlite both pass
// the test suite queue/queuetest.
package queue

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/storage/store"
)

// Name is the name of a queue, for example [Events].
type Name string

// The queues of the system. As in SQS, a FIFO queue keeps the order of the messages within a group, and a standard queue does not. A fair
// queue is a standard queue that shares its consumers among the groups.
const (
	// Inbox is the standard queue for events that other systems, for example Amazon EventBridge, send to SQS instead of calling POST
	// /events.
	Inbox Name = "inbox"
	// Events is the FIFO queue that carries accepted events to fanout, the stage that finds an event's subscribers. A message's group is
	// a hash of the event's workspace and URI.
	Events Name = "events"
	// Deliveries is the standard queue for page tasks. A page task delivers one event to one part (a page) of the event's subscribers.
	Deliveries Name = "deliveries"
	// Slow is the fair queue for deliveries to a single subscriber: retries, and deliveries to slow endpoints.
	Slow Name = "slow"
	// Dead is the standard queue for messages that no handler can handle.
	Dead Name = "dead"
)

// FIFO reports whether the queue keeps the order of the messages within a group.
func (n Name) FIFO() bool { return n == Events }

// Names lists all queues in a stable order.
func Names() []Name { return []Name{Inbox, Events, Deliveries, Slow, Dead} }

// Limits of a message. They are the limits of SQS, or lower.
const (
	// MaxBody is the largest size of a message body in bytes. SQS accepts 1 MiB, but some SQS emulators and some consumers accept only
	// 256 KiB.
	MaxBody = 256 << 10
	// MaxDelay is the longest delay of a message on a standard queue.
	MaxDelay = 15 * time.Minute
	// maxID is the largest number of characters of a group, an owner or a deduplication id.
	maxID = 128
)

// Outgoing is a message to send.
type Outgoing struct {
	// Body is valid UTF-8 text of at most [MaxBody] bytes. SQS refuses characters that XML 1.0 forbids. In a JSON body, queue/sqs
	// escapes them.
	Body []byte
	// Value is the Go value that Body encodes, or nil. A queue in the same process may pass Value to the handler, which then need not
	// decode Body. The sender and the handler must not change Body or Value after the message was sent.
	Value any
	// Group has at most 128 characters of [A-Za-z0-9_-]. A FIFO queue keeps the order of messages with the same group. A standard queue
	// shares its consumers fairly among the groups.
	Group string
	// Owner identifies on whose behalf the message is handled, for example a principal. Consumers serve the owners in turn. Of the
	// consumers that do not work for other owners, one owner can occupy at most three quarters.
	//
	// Owner has the same format as Group. Only messages of standard queues may have an owner, and SQS ignores it.
	Owner string
	// Dedup is a deduplication id, in the same format as Group. A FIFO queue drops a message if it accepted one with the same id in
	// the last five minutes. Standard queues do not deduplicate.
	Dedup string
	// Delay postpones the delivery by whole seconds, up to [MaxDelay]. A message on a FIFO queue cannot have a delay.
	Delay time.Duration
}

// Check returns an error if a message for the queue breaks a limit of [Outgoing]. Each adapter calls it before it sends the message.
func Check(name Name, m *Outgoing) error {
	switch {
	case len(m.Body) == 0 || !utf8.Valid(m.Body):
		return fault.New(fault.Invalid, "a message for %s is empty or not UTF-8", name)
	case len(m.Body) > MaxBody:
		return fault.New(fault.TooLarge, "a message for %s has %d bytes (allowed: up to %d)", name, len(m.Body), MaxBody)
	case m.Owner != "" && (name.FIFO() || m.Group == "" || !validID(m.Owner)):
		return fault.New(fault.Invalid, "owner of a message for %s is invalid (allowed: on a standard queue with a group, up to %d characters of [A-Za-z0-9_-])", name, maxID)
	case !validID(m.Group) || !validID(m.Dedup):
		return fault.New(fault.Invalid, "group or deduplication id of a message for %s is invalid (allowed: up to %d characters of [A-Za-z0-9_-])", name, maxID)
	case m.Delay < 0 || m.Delay > MaxDelay:
		return fault.New(fault.Invalid, "delay %v of a message for %s is not allowed (allowed: 0 to %v)", m.Delay, name, MaxDelay)
	case name.FIFO() && m.Group == "":
		return fault.New(fault.Invalid, "a message for %s needs a group", name)
	case name.FIFO() && m.Delay != 0:
		return fault.New(fault.Invalid, "a message for %s cannot be delayed", name)
	case !name.FIFO() && m.Dedup != "":
		return fault.New(fault.Invalid, "%s does not deduplicate", name)
	}
	return nil
}

func validID(s string) bool { return len(s) <= maxID && store.IsWord(s) }

// Escape replaces the characters U+FFFE and U+FFFF in a JSON text with JSON escapes. SQS refuses these characters because XML 1.0 forbids
// them.
func Escape(body []byte) []byte {
	body = bytes.ReplaceAll(body, []byte("\uFFFE"), []byte(`\ufffe`))
	return bytes.ReplaceAll(body, []byte("\uFFFF"), []byte(`\uffff`))
}

// Message is a received message.
type Message struct {
	ID string
	Outgoing
	// Received is how often the queue has delivered the message to a handler, including this time. It may be too low after a crash,
	// because some counts are only in memory.
	Received int
	// First is true if the queue knows that no handler has received the message before, not even in an earlier process.
	First bool
	// Sent is when the queue accepted the message.
	Sent time.Time
	// Unwritten says that the message was sent with [Forwarder] and is not durable yet.
	Unwritten bool
	// From is the queue from which SQS moved the message to this queue, because it was received there too often. It is empty if SQS did
	// not move the message.
	From Name
	// Attributes are the SQS message attributes that a sender to [Inbox] has set, with binary values in base64.
	Attributes map[string]string
}

// Sender puts messages on queues. Send returns when all messages are durable. If it returns an error, some of the messages may have been
// sent.
type Sender interface {
	Send(ctx context.Context, q Name, msgs ...Outgoing) error
}

// Forwarder is a [Sender] that can give messages to handlers in the same process before the messages are durable. A handler's own writes
// are never committed before the message that it handles.
//
// On a FIFO queue, Forward returns when all messages are durable. On a standard queue, it returns when each message is durable or
// accepted by its handler. If Forward returns an error, handlers may have accepted some of the messages nevertheless.
//
// A standard queue does not write a message that is accepted within milliseconds. A crash before Forward returns may therefore lose
// messages. So the caller must then be able to create them again, for example from the message that caused them.
type Forwarder interface {
	Forward(ctx context.Context, q Name, msgs ...Outgoing) error
}

// Forward calls s.Forward if s is a [Forwarder], and otherwise s.Send.
func Forward(ctx context.Context, s Sender, q Name, msgs ...Outgoing) error {
	if f, ok := s.(Forwarder); ok {
		return f.Forward(ctx, q, msgs...)
	}
	return s.Send(ctx, q, msgs...)
}

// Handler handles a batch of messages and returns the ids of the messages that failed. The queue redelivers these messages after
// [Backoff] and deletes the others. If the handler returns an error, the whole batch has failed.
//
// On a FIFO queue, a handler that fails a message must also fail the batch's later messages of the same group, because they would
// otherwise overtake it.
type Handler func(ctx context.Context, batch []Message) (failed []string, err error)

// Call calls the handler. If the handler panics, Call returns the panic as an error.
func (h Handler) Call(ctx context.Context, batch []Message) (failed []string, err error) {
	defer fault.Recovered(&err)
	return h(ctx, batch)
}

// ConsumeOptions are the settings of [Consumer.Consume]. An SQS event source mapping has similar settings.
type ConsumeOptions struct {
	// Batch is the largest number of messages per call of the handler; 0 means 10.
	Batch int
	// Concurrency is the number of concurrent calls of the handler; 0 means 1.
	Concurrency int
	// Visibility limits a call of the handler: the context of the call ends after this time; 0 means 30 s. The messages of the call stay
	// in flight, and are not delivered again, until the handler returns. If the process dies, they stay in flight until that time is
	// over.
	Visibility time.Duration
	// MaxReceives is the number of failures after which a message moves to [Dead]; 0 means that it never moves. If several messages of a
	// FIFO group fail together, only the first one counts a failure, because the handler fails the others only to keep the order.
	MaxReceives int
	// PerGroup limits how many messages of one group of a standard queue are handled concurrently; 0 means no limit. Messages
	// without a group are not limited. SQS has no such limit.
	PerGroup int
	// Bytes limits the total size of the messages that are handled concurrently; 0 means no limit. One group of a standard queue gets at
	// most half of it, and a message that is larger than the limit is handled alone. SQS has no such limit.
	Bytes int
}

// Consumer calls handlers outside of Lambda, for example in a stand-alone server.
type Consumer interface {
	// Consume calls h with batches of the queue q until ctx ends. It then waits for running calls of h and returns.
	Consume(ctx context.Context, q Name, h Handler, opts ConsumeOptions) error
}

// MaxReceives is the number of failures after which a message becomes a dead letter, which is a message on [Dead]. SQS allows no larger
// number. With the pauses of [Backoff], that many failures take about ten days, less than the 14 days after which SQS deletes a message.
const MaxReceives = 1000

// Backoff returns how long a failed message waits before it is delivered again. The wait is one second after the first receive
// and doubles with each receive, up to five minutes. After 500 receives it is 25 minutes. It varies randomly by a fifth, so that
// messages that failed together are not redelivered together.
func Backoff(received int) time.Duration {
	d := min(time.Second<<min(max(received-1, 0), 9), 5*time.Minute)
	if received > MaxReceives/2 {
		d = 25 * time.Minute
	}
	return d - d/5 + rand.N(2*d/5+1)
}

// ReasonReceives is the [DeadLetter.Reason] of a message that failed [ConsumeOptions.MaxReceives] times.
const ReasonReceives = "received too often"

// Depth tells an operator how many messages a queue has, and when the oldest of them was sent.
type Depth struct {
	Visible, InFlight, Delayed int
	Oldest                     time.Time
}

// Discarder is a set of queues that can discard delayed messages. Discard deletes the delayed messages of the queue q whose bodies
// contain one of the texts. Queues without this method deliver such messages when they are due.
type Discarder interface {
	Discard(ctx context.Context, q Name, texts ...string) error
}

// DeadLetter is the body of a message on [Dead]. It describes a message that no handler could handle, and says from which queue it comes
// and why it failed.
type DeadLetter struct {
	V      int    `json:"v"`
	Queue  Name   `json:"queue"`
	Reason string `json:"reason"`
	// Faults has details of Reason, for example the faults that the validation of an event found. It may be missing.
	Faults json.RawMessage `json:"faults,omitempty"`
	// Message is the id that the failed message had on its queue.
	Message  string `json:"message,omitempty"`
	Group    string `json:"group,omitempty"`
	Owner    string `json:"owner,omitempty"`
	Received int    `json:"received,omitempty"`
	// Attributes are the SQS message attributes of the failed message. They are left out if they would leave too little room for Body.
	Attributes map[string]string `json:"attributes,omitempty"`
	Sent       time.Time         `json:"sent"`
	Dead       time.Time         `json:"dead,omitzero"`
	// Body is the body of the failed message, as plain text or in the given Encoding. [DeadLetter.Content] decodes it.
	Body     string `json:"body"`
	Encoding string `json:"encoding,omitempty"`
	// Truncated says that Body has only the beginning of the failed message's body, which had Size bytes.
	Truncated bool `json:"truncated,omitempty"`
	Size      int  `json:"size,omitempty"`
}

const (
	// deadLetterVersion is the value of [DeadLetter.V]. Dead letters of version 1 lack the fields message, group, received, dead,
	// encoding and size.
	deadLetterVersion = 2
	// gzipBase64 is the [DeadLetter.Encoding] of a body that is not UTF-8, or that is too large as plain text.
	gzipBase64 = "gzip+base64"
	// maxReason, maxFaults and maxAttributes limit fields of a [DeadLetter] in bytes, so that most of [MaxBody] is left for the body of
	// the failed message.
	maxReason     = 2 << 10
	maxFaults     = 32 << 10
	maxAttributes = 32 << 10
)

// NewDeadLetter returns a dead letter for the message m. The caller must send it to [Dead]. The parameter faults has details of the
// reason, or is nil.
func NewDeadLetter(from Name, m Message, reason string, faults any, now time.Time) Outgoing {
	l := DeadLetter{
		V: deadLetterVersion, Queue: from, Reason: fault.Clip(reason, maxReason),
		Message: m.ID, Group: m.Group, Owner: m.Owner, Received: m.Received, Sent: m.Sent.UTC(), Dead: now.UTC(),
	}
	if raw, err := json.Marshal(faults); err == nil && faults != nil && len(raw) <= maxFaults {
		l.Faults = raw
	}
	size := 0
	for name, value := range m.Attributes {
		size += len(name) + len(value)
	}
	if size <= maxAttributes {
		l.Attributes = m.Attributes
	}
	if utf8.Valid(m.Body) {
		l.Body = string(m.Body)
		if body := l.encode(); len(body) <= MaxBody {
			return Outgoing{Body: body}
		}
	}
	l.Encoding = gzipBase64
	for size := len(m.Body); ; size = size * 3 / 4 {
		l.Body = compress(m.Body[:size])
		if body := l.encode(); len(body) <= MaxBody {
			return Outgoing{Body: body}
		}
		l.Truncated, l.Size = true, len(m.Body)
	}
}

func (l DeadLetter) encode() []byte {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	_ = e.Encode(l) // cannot fail, because l has only texts, numbers, times, and JSON that was made here
	return Escape(bytes.TrimSuffix(b.Bytes(), []byte("\n")))
}

// ParseDeadLetter decodes the body of a message on [Dead].
func ParseDeadLetter(body []byte) (DeadLetter, error) {
	var l DeadLetter
	if err := json.Unmarshal(body, &l); err != nil {
		return l, fmt.Errorf("decode a dead letter: %w", err)
	}
	if l.V < 1 || l.V > deadLetterVersion {
		return l, fmt.Errorf("decode a dead letter: unknown version %d", l.V)
	}
	return l, nil
}

// Content returns the body of the failed message. If the dead letter is Truncated, it returns only the beginning of that body.
func (l DeadLetter) Content() ([]byte, error) {
	if l.Encoding == "" {
		return []byte(l.Body), nil
	}
	if l.Encoding != gzipBase64 {
		return nil, fmt.Errorf("a dead letter has the unknown encoding %.32q", l.Encoding)
	}
	r, err := gzip.NewReader(base64.NewDecoder(base64.StdEncoding, strings.NewReader(l.Body)))
	if err != nil {
		return nil, fmt.Errorf("read the body of a dead letter: %w", err)
	}
	body, err := io.ReadAll(io.LimitReader(r, 1<<20)) // the largest body that SQS accepts
	if err != nil {
		return nil, fmt.Errorf("read the body of a dead letter: %w", err)
	}
	return body, nil
}

func compress(body []byte) string {
	var b strings.Builder
	text := base64.NewEncoder(base64.StdEncoding, &b)
	z := gzip.NewWriter(text)
	_, _ = z.Write(body)
	_ = z.Close()
	_ = text.Close()
	return b.String()
}

// SendItemLetter sends a dead letter to [Dead] for a stored item that cannot be decoded. The dead letter has the item's key and value.
// Its Queue is "table:" and the table's name.
func SendItemLetter(ctx context.Context, q Sender, it *store.Item, reason string, now time.Time) error {
	m := Message{ID: it.Partition + " " + it.Sort, Outgoing: Outgoing{Body: it.Value}}
	letter := NewDeadLetter(Name("table:"+it.Table), m, reason, nil, now)
	return fault.Wrap(fault.Unavailable, q.Send(ctx, Dead, letter), "dead-letter an item that cannot be decoded")
}

// DeadLetterItem sends a stored item that cannot be decoded to [Dead] and deletes it from the store, so that a periodic job does not fail
// on it again.
func DeadLetterItem(ctx context.Context, q Sender, db store.DB, it *store.Item, reason error, now time.Time, log *slog.Logger) error {
	if err := SendItemLetter(ctx, q, it, fault.Public(reason), now); err != nil {
		return err
	}
	log.ErrorContext(ctx, "stored item dead-lettered", "table", it.Table, "partition", it.Partition, "sort", it.Sort, "error", reason)
	return fault.Wrap(fault.Unavailable, db.Write(ctx, store.Delete(it.Key)), "delete an item that cannot be decoded")
}
