// Package mapping implements event source mappings between queues and functions. A mapping receives batches, invokes
// the function with them, and deletes the messages that the function accepted.
//
// The queue redelivers messages that are not deleted. It also keeps the order within a FIFO group, because it does
// not deliver a message while another one of the same group is in flight.
package mapping

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/aws/aws-lambda-go/events"
	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/mcp-events/mcpevents/localstack/internal/lambda"
)

// Source is a queue.
type Source interface {
	// Receive returns up to limit (1 to 10) messages. It waits for the first one.
	Receive(ctx context.Context, limit int, wait time.Duration) ([]events.SQSMessage, error)
	// Delete removes up to 10 received messages.
	Delete(ctx context.Context, batch []events.SQSMessage) error
	// Bury moves a message to the queue's dead-letter queue. It ignores the message if the queue does not have one.
	Bury(ctx context.Context, message events.SQSMessage) error
}

// Invoker is a function.
type Invoker interface {
	Name() string
	Invoke(ctx context.Context, inv lambda.Invocation) (*lambda.Response, error)
	// Loops reports whether an invocation with this trace would be refused. Chained returns how often the function
	// was invoked in its chain.
	Loops(trace string) bool
	Chained(trace string) int
}

// Options configure an event source mapping.
type Options struct {
	// BatchSize is the maximum number of messages per invocation. 0 means 10.
	BatchSize int
	// Window is how long a batch may be collected. 0 means that a batch is the result of one request.
	Window time.Duration
	// Concurrency is the maximum number of concurrent invocations. 0 means 5, with which Lambda begins.
	Concurrency int
	// ReportFailures means that the response names the messages that failed (ReportBatchItemFailures). Without it, a
	// response accepts all of them.
	ReportFailures bool
	// Patience is how long a throttled batch is retried. 0 means 30 s. After that the queue redelivers it when its
	// visibility timeout has passed.
	Patience time.Duration
	// Poll is how long one request waits for a message. 0 means 10 s.
	Poll time.Duration
	// Log logs failed batches. Nil discards the messages.
	Log *slog.Logger
}

// perRequest is the maximum number of messages that one request to SQS receives or deletes.
const perRequest = 10

// maxBodies is the maximum size of a batch's bodies in bytes. It keeps the event, including escapes, below
// [lambda.MaxPayload].
const maxBodies = 3 << 20

// ackTime limits the deletion of a batch.
const ackTime = 10 * time.Second

// Run invokes fn with the messages of source until ctx ends, then waits for running invocations.
func Run(ctx context.Context, source Source, fn Invoker, opts Options) {
	opts.BatchSize = cmp.Or(opts.BatchSize, perRequest)
	opts.Concurrency = cmp.Or(opts.Concurrency, 5)
	opts.Patience = cmp.Or(opts.Patience, 30*time.Second)
	opts.Poll = cmp.Or(opts.Poll, 10*time.Second)
	opts.Log = cmp.Or(opts.Log, slog.New(slog.DiscardHandler))
	m := &mapping{source: source, fn: fn, opts: opts}
	slots := make(chan struct{}, opts.Concurrency)
	var running sync.WaitGroup
	defer running.Wait()
	pause := time.Duration(0)
	for {
		select {
		case slots <- struct{}{}:
		case <-ctx.Done():
			return
		}
		batch, err := m.collect(ctx)
		if err != nil && ctx.Err() == nil {
			pause = min(max(2*pause, 100*time.Millisecond), 5*time.Second)
			opts.Log.Warn("receive failed", "function", fn.Name(), "error", err, "pause", pause)
			sleep(ctx, pause)
		} else {
			pause = 0
		}
		if len(batch) == 0 {
			<-slots
			continue
		}
		running.Go(func() {
			defer func() { <-slots }()
			// Finish a batch that has been received even if the mapping ends.
			m.handle(context.WithoutCancel(ctx), batch)
		})
	}
}

func sleep(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

type mapping struct {
	source Source
	fn     Invoker
	opts   Options
}

// collect returns a batch. With an error, it returns the messages received so far.
func (m *mapping) collect(ctx context.Context) (batch []events.SQSMessage, err error) {
	wait, size := m.opts.Poll, 0
	var end time.Time
	for {
		got, err := m.source.Receive(ctx, min(m.opts.BatchSize-len(batch), perRequest), wait)
		batch = append(batch, got...)
		for _, message := range got {
			size += len(message.Body)
		}
		if err != nil || m.opts.Window == 0 || len(batch) >= m.opts.BatchSize || size >= maxBodies {
			return batch, err
		}
		if end.IsZero() && len(got) > 0 {
			end = time.Now().Add(m.opts.Window) // starts with the first message
		}
		if !end.IsZero() {
			if wait = time.Until(end); wait <= 0 {
				return batch, nil
			}
		}
		if ctx.Err() != nil {
			return batch, nil
		}
	}
}

// handle invokes the function with a batch and deletes the messages that it accepted.
func (m *mapping) handle(ctx context.Context, batch []events.SQSMessage) {
	batch = m.breakLoops(ctx, batch)
	if len(batch) == 0 {
		return
	}
	accepted, err := m.invoke(ctx, batch)
	if err != nil && !errors.Is(err, lambda.ErrClosed) {
		m.opts.Log.Warn("batch failed", "function", m.fn.Name(), "messages", len(batch), "error", err)
	} else if n := len(batch) - len(accepted); n > 0 {
		m.opts.Log.Info("messages failed", "function", m.fn.Name(), "messages", len(batch), "failed", n)
	}
	m.remove(ctx, accepted)
}

// remove deletes messages.
func (m *mapping) remove(ctx context.Context, messages []events.SQSMessage) {
	ctx, cancel := context.WithTimeout(ctx, ackTime)
	defer cancel()
	for len(messages) > 0 {
		n := min(len(messages), perRequest)
		if err := m.source.Delete(ctx, messages[:n]); err != nil {
			// These messages are redelivered, as it happens on AWS.
			m.opts.Log.Warn("delete failed", "function", m.fn.Name(), "messages", n, "error", err)
		}
		messages = messages[n:]
	}
}

// breakLoops removes messages that would continue a chain that is too long. They become dead letters, or are deleted
// if there is no dead-letter queue.
func (m *mapping) breakLoops(ctx context.Context, batch []events.SQSMessage) (rest []events.SQSMessage) {
	var broken []events.SQSMessage
	for _, message := range batch {
		if !m.fn.Loops(message.Attributes[lambda.AWSTraceHeader]) {
			rest = append(rest, message)
			continue
		}
		m.opts.Log.Error("recursive loop stopped", "function", m.fn.Name(), "message", message.MessageId)
		ctx, cancel := context.WithTimeout(ctx, ackTime)
		err := m.source.Bury(ctx, message)
		cancel()
		if err != nil {
			m.opts.Log.Warn("dead letter not sent", "function", m.fn.Name(), "error", err)
			continue // the queue redelivers it
		}
		broken = append(broken, message)
	}
	m.remove(ctx, broken)
	return rest
}

// call invokes the function, and retries with increasing pauses while it is throttled.
func (m *mapping) call(ctx context.Context, inv lambda.Invocation) (*lambda.Response, error) {
	pause, until := 100*time.Millisecond, time.Now().Add(m.opts.Patience)
	for {
		resp, err := m.fn.Invoke(ctx, inv)
		if !errors.Is(err, lambda.ErrThrottled) || time.Now().Add(pause).After(until) {
			return resp, err
		}
		sleep(ctx, pause)
		pause = min(2*pause, 5*time.Second)
	}
}

func (m *mapping) invoke(ctx context.Context, batch []events.SQSMessage) (accepted []events.SQSMessage, err error) {
	payload, err := json.Marshal(events.SQSEvent{Records: batch})
	if err != nil {
		return nil, fmt.Errorf("encode the batch: %w", err)
	}
	// The invocation continues the longest chain in the batch.
	longest := slices.MaxFunc(batch, func(a, b events.SQSMessage) int {
		return m.fn.Chained(a.Attributes[lambda.AWSTraceHeader]) - m.fn.Chained(b.Attributes[lambda.AWSTraceHeader])
	})
	resp, err := m.call(ctx, lambda.Invocation{Payload: payload, Trace: longest.Attributes[lambda.AWSTraceHeader]})
	if err != nil {
		return nil, err
	}
	answer, err := resp.ReadAll()
	switch {
	case err != nil:
		return nil, err
	case resp.FunctionError != "":
		return nil, fmt.Errorf("the function failed: %s", answer)
	case !m.opts.ReportFailures:
		return batch, nil
	}
	failed, err := failures(answer, batch)
	if err != nil {
		return nil, err
	}
	for _, message := range batch {
		if !failed[message.MessageId] {
			accepted = append(accepted, message)
		}
	}
	return accepted, nil
}

// failures parses a response of ReportBatchItemFailures. As on Lambda, an empty response or list means success. A
// malformed response, or one with an unknown message, fails the whole batch.
func failures(answer []byte, batch []events.SQSMessage) (map[string]bool, error) {
	if len(answer) == 0 {
		return nil, nil
	}
	var response struct {
		BatchItemFailures []struct {
			ItemIdentifier *string `json:"itemIdentifier"`
		} `json:"batchItemFailures"`
	}
	if err := json.Unmarshal(answer, &response); err != nil {
		return nil, fmt.Errorf("the response is not a list of failures: %w", err)
	}
	known := make(map[string]bool, len(batch))
	for _, message := range batch {
		known[message.MessageId] = true
	}
	failed := make(map[string]bool, len(response.BatchItemFailures))
	for _, f := range response.BatchItemFailures {
		if f.ItemIdentifier == nil || !known[*f.ItemIdentifier] {
			return nil, errors.New("the response names a message that is not of the batch")
		}
		failed[*f.ItemIdentifier] = true
	}
	return failed, nil
}

// Queue is a [Source] in SQS.
type Queue struct {
	Client   *sqs.Client
	URL, ARN string
	// DeadURL is the URL of its dead-letter queue, or empty if it does not have one.
	DeadURL string
}

// Receive receives messages with all their attributes.
func (q Queue) Receive(ctx context.Context, limit int, wait time.Duration) ([]events.SQSMessage, error) {
	seconds := min(int32((wait+time.Second-1)/time.Second), 20) // rounded up, so a window may last slightly longer
	out, err := q.Client.ReceiveMessage(ctx, &sqs.ReceiveMessageInput{
		QueueUrl:                    &q.URL,
		MaxNumberOfMessages:         int32(limit),
		WaitTimeSeconds:             seconds,
		MessageSystemAttributeNames: []types.MessageSystemAttributeName{types.MessageSystemAttributeNameAll},
		MessageAttributeNames:       []string{"All"},
	})
	if err != nil {
		return nil, fmt.Errorf("receive from %s: %w", q.URL, err)
	}
	region := ""
	if parts := strings.Split(q.ARN, ":"); len(parts) > 3 {
		region = parts[3]
	}
	messages := make([]events.SQSMessage, 0, len(out.Messages))
	for _, m := range out.Messages {
		message := events.SQSMessage{
			MessageId:              aws.ToString(m.MessageId),
			ReceiptHandle:          aws.ToString(m.ReceiptHandle),
			Body:                   aws.ToString(m.Body),
			Md5OfBody:              aws.ToString(m.MD5OfBody),
			Md5OfMessageAttributes: aws.ToString(m.MD5OfMessageAttributes),
			Attributes:             m.Attributes,
			MessageAttributes:      map[string]events.SQSMessageAttribute{},
			EventSourceARN:         q.ARN,
			EventSource:            "aws:sqs",
			AWSRegion:              region,
		}
		for name, a := range m.MessageAttributes {
			message.MessageAttributes[name] = events.SQSMessageAttribute{
				StringValue: a.StringValue, BinaryValue: a.BinaryValue, DataType: aws.ToString(a.DataType),
			}
		}
		messages = append(messages, message)
	}
	return messages, nil
}

// Bury sends a message to the dead-letter queue, with its attributes.
func (q Queue) Bury(ctx context.Context, message events.SQSMessage) error {
	if q.DeadURL == "" {
		return nil
	}
	in := &sqs.SendMessageInput{QueueUrl: &q.DeadURL, MessageBody: &message.Body, MessageAttributes: map[string]types.MessageAttributeValue{}}
	for name, a := range message.MessageAttributes {
		in.MessageAttributes[name] = types.MessageAttributeValue{StringValue: a.StringValue, BinaryValue: a.BinaryValue, DataType: aws.String(a.DataType)}
	}
	if strings.HasSuffix(q.DeadURL, ".fifo") {
		in.MessageGroupId, in.MessageDeduplicationId = aws.String(message.Attributes["MessageGroupId"]), &message.MessageId
	}
	if _, err := q.Client.SendMessage(ctx, in); err != nil {
		return fmt.Errorf("send to %s: %w", q.DeadURL, err)
	}
	return nil
}

// Delete deletes messages by their receipts.
func (q Queue) Delete(ctx context.Context, batch []events.SQSMessage) error {
	entries := make([]types.DeleteMessageBatchRequestEntry, 0, len(batch))
	for n, m := range batch {
		entries = append(entries, types.DeleteMessageBatchRequestEntry{Id: aws.String(strconv.Itoa(n)), ReceiptHandle: aws.String(m.ReceiptHandle)})
	}
	out, err := q.Client.DeleteMessageBatch(ctx, &sqs.DeleteMessageBatchInput{QueueUrl: &q.URL, Entries: entries})
	if err != nil {
		return fmt.Errorf("delete from %s: %w", q.URL, err)
	}
	if len(out.Failed) > 0 {
		return fmt.Errorf("delete from %s: %d of %d failed, the first with %s", q.URL, len(out.Failed), len(batch), aws.ToString(out.Failed[0].Code))
	}
	return nil
}
