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
	// finishTime bounds requests that continue after the context of a drain has ended.
	finishTime = 10 * time.Second
)

// Drain calls h with the messages of the queue at a URL until the queue is empty. It deletes the messages that h accepts and
// returns their number. The queue may be a standard queue or a dead-letter queue.
//
// Drain does not wait for messages, so it may leave a message that SQS does not find immediately to the next call. A failed
// message does not hold up the others. But after a batch in which every message fails, Drain stops, because h may depend on
// something that is down.
//
// The From of a message is the queue from which SQS moved it. If SQS does not report that queue, From is the given one,
// which may be "".
func (q *Queues) Drain(ctx context.Context, url string, from queue.Name, h queue.Handler) (done int, err error) {
	rejected := 0
	for {
		batch, receipts, err := q.receive(ctx, url, from)
		if err != nil {
			return done, failure(err, "receive the messages of a queue")
		}
		if len(batch) == 0 {
			return done, rejectedError(rejected)
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
			return done, rejectedError(rejected)
		}
		if ctx.Err() != nil {
			return done, ctx.Err()
		}
	}
}

// rejectedError returns an error unless n is 0.
func rejectedError(n int) error {
	if n == 0 {
		return nil
	}
	return fault.New(fault.Unavailable, "%d messages of a queue were not accepted", n)
}

// receive receives up to ten messages, with the receipt handles to delete them. It does not end with ctx, because messages
// that it received at that moment would stay in flight.
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
			addAttribute(&m, name, a.StringValue, a.BinaryValue)
		}
		m.From = from
		if source, ok := q.findByARN(sent.Attributes[attrSource]); ok {
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
	return retryEntries(ctx, entries, id, func(entries []types.DeleteMessageBatchRequestEntry) ([]types.BatchResultErrorEntry, error) {
		out, err := q.client.DeleteMessageBatch(ctx, &sqs.DeleteMessageBatchInput{QueueUrl: &url, Entries: entries})
		if err != nil {
			return nil, err
		}
		return out.Failed, nil
	})
}
