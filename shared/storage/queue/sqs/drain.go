package sqs

import (
	"context"
	"slices"
	"strconv"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/storage/queue"
)

const (
	// drainVisibility is how long a message that was not accepted stays in flight, in seconds.
	drainVisibility = 30
	// finishTime bounds requests that go on after the context of a drain has ended.
	finishTime = 10 * time.Second
)

// Drain hands the messages of the standard or dead-letter queue at a URL to a handler until the queue is empty, and deletes the
// messages that it accepts. It returns their number. It does not wait for messages, so a message that SQS does not find
// immediately is for the next call. A failed message does not hold up the others, but after a batch of which all fail, Drain
// stops, because the handler may depend on something that is down.
//
// Their From is the queue that SQS moved them from. For those of which SQS does not say it, it is from, which may be "".
func (q *Queues) Drain(ctx context.Context, url string, from queue.Name, h queue.Handler) (done int, err error) {
	rejected := 0
	for {
		batch, receipts, err := q.receive(ctx, url, from)
		if err != nil {
			return done, failure(err, "receive the messages of a queue")
		}
		if len(batch) == 0 {
			return done, unaccepted(rejected)
		}
		failed, err := h(ctx, batch)
		if err != nil {
			return done, err
		}
		var accepted []*string
		for i, m := range batch {
			if !slices.Contains(failed, m.ID) {
				accepted = append(accepted, receipts[i])
			}
		}
		if err := q.remove(ctx, url, accepted); err != nil {
			return done, failure(err, "delete %d handled messages", len(accepted))
		}
		done += len(accepted)
		rejected += len(failed)
		if len(accepted) == 0 {
			return done, unaccepted(rejected)
		}
		if ctx.Err() != nil {
			return done, ctx.Err()
		}
	}
}

// unaccepted returns an error unless a handler accepted all messages.
func unaccepted(n int) error {
	if n == 0 {
		return nil
	}
	return fault.New(fault.Unavailable, "%d messages of a queue were not accepted", n)
}

// receive takes up to ten messages, with what deleting each takes. It is not canceled: messages that it takes just then
// would stay in flight.
func (q *Queues) receive(ctx context.Context, url string, from queue.Name) (batch []queue.Message, receipts []*string, err error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), finishTime)
	defer cancel()
	out, err := q.client.ReceiveMessage(ctx, &sqs.ReceiveMessageInput{
		QueueUrl: &url, MaxNumberOfMessages: maxEntries, VisibilityTimeout: drainVisibility,
		MessageSystemAttributeNames: []types.MessageSystemAttributeName{
			attrReceived, attrSent, attrGroup, attrDedup, attrSource,
		},
		MessageAttributeNames: []string{"All"},
	})
	if err != nil {
		return nil, nil, err
	}
	for _, sent := range out.Messages {
		m := message(aws.ToString(sent.MessageId), aws.ToString(sent.Body), sent.Attributes)
		for name, a := range sent.MessageAttributes {
			attribute(&m, name, a.StringValue, a.BinaryValue)
		}
		m.From = from
		if source, ok := q.named(sent.Attributes[attrSource]); ok {
			m.From = source
		}
		batch, receipts = append(batch, m), append(receipts, sent.ReceiptHandle)
	}
	return batch, receipts, nil
}

// remove deletes up to ten messages.
func (q *Queues) remove(ctx context.Context, url string, receipts []*string) error {
	ctx, cancel := context.WithTimeout(ctx, finishTime)
	defer cancel()
	entries := make([]types.DeleteMessageBatchRequestEntry, len(receipts))
	for i, receipt := range receipts {
		entries[i] = types.DeleteMessageBatchRequestEntry{Id: aws.String(strconv.Itoa(i)), ReceiptHandle: receipt}
	}
	id := func(e types.DeleteMessageBatchRequestEntry) string { return *e.Id }
	return untilTaken(ctx, entries, id, func(entries []types.DeleteMessageBatchRequestEntry) ([]types.BatchResultErrorEntry, error) {
		out, err := q.client.DeleteMessageBatch(ctx, &sqs.DeleteMessageBatchInput{QueueUrl: &url, Entries: entries})
		if err != nil {
			return nil, err
		}
		return out.Failed, nil
	})
}
