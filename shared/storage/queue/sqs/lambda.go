package sqs

import (
	"context"
	"encoding/base64"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/aws/aws-lambda-go/events"
	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/storage/queue"
)

// Lambda returns a Lambda function that calls h with the batches of an SQS event source mapping. The mapping must have
// ReportBatchItemFailures. A panic of h fails the batch, but not the process, which may be handling other batches.
//
// The function makes failed messages visible after [queue.Backoff], because otherwise they would stay invisible for the queue's
// visibility timeout. It needs the permission sqs:ChangeMessageVisibility for that.
func (q *Queues) Lambda(h queue.Handler) func(context.Context, events.SQSEvent) (events.SQSEventResponse, error) {
	return func(ctx context.Context, event events.SQSEvent) (events.SQSEventResponse, error) {
		batch := messages(event)
		failed, err := h.Call(ctx, batch)
		if err != nil {
			q.backOff(ctx, event, batch, listIDs(batch))
			// Lambda treats the returned error as a failure of the function, so SQS redelivers the whole batch.
			return response(nil), fault.Wrap(fault.Internal, err, "handle %d messages", len(batch))
		}
		fifo := len(event.Records) > 0 && strings.HasSuffix(event.Records[0].EventSourceARN, ".fifo")
		failed = listFailed(batch, failed, fifo)
		q.backOff(ctx, event, batch, failed)
		return response(failed), nil
	}
}

func messages(event events.SQSEvent) []queue.Message {
	batch := make([]queue.Message, len(event.Records))
	for i, r := range event.Records {
		batch[i] = message(r.MessageId, r.Body, r.Attributes)
		for name, a := range r.MessageAttributes {
			addAttribute(&batch[i], name, a.StringValue, a.BinaryValue)
		}
	}
	return batch
}

// response returns the response of a Lambda function, which lists the failed messages. An empty list is written as [], because some
// emulators treat null as an error.
func response(failed []string) events.SQSEventResponse {
	r := events.SQSEventResponse{BatchItemFailures: make([]events.SQSBatchItemFailure, len(failed))}
	for i, id := range failed {
		r.BatchItemFailures[i].ItemIdentifier = id
	}
	return r
}

// Names of SQS system attributes.
const (
	attrReceived = "ApproximateReceiveCount"
	attrSent     = "SentTimestamp"
	attrGroup    = "MessageGroupId"
	attrDedup    = "MessageDeduplicationId"
	attrSource   = "DeadLetterQueueSourceArn"
)

func message(id, body string, attributes map[string]string) queue.Message {
	received, _ := strconv.Atoi(attributes[attrReceived])
	m := queue.Message{
		ID:       id,
		Outgoing: queue.Outgoing{Body: []byte(body), Group: attributes[attrGroup], Dedup: attributes[attrDedup]},
		Received: max(received, 1),
	}
	if sent, err := strconv.ParseInt(attributes[attrSent], 10, 64); err == nil {
		m.Sent = time.UnixMilli(sent).UTC()
	}
	return m
}

func addAttribute(m *queue.Message, name string, text *string, binary []byte) {
	if m.Attributes == nil {
		m.Attributes = map[string]string{}
	}
	if text != nil {
		m.Attributes[name] = *text
	} else {
		m.Attributes[name] = base64.StdEncoding.EncodeToString(binary)
	}
}

// listFailed returns the ids of all failed messages of a batch. On a FIFO queue, it adds the later messages of the same group, because
// they would otherwise overtake the failed one. An id that is not in the batch fails the whole batch, as on AWS.
func listFailed(batch []queue.Message, failed []string, fifo bool) []string {
	reported := make(map[string]bool, len(failed))
	for _, id := range failed {
		reported[id] = true
	}
	found := 0
	groups := map[string]bool{}
	var all []string
	for _, m := range batch {
		if reported[m.ID] {
			found++
			groups[m.Group] = true
		}
		if reported[m.ID] || fifo && groups[m.Group] {
			all = append(all, m.ID)
		}
	}
	if found < len(reported) {
		return listIDs(batch)
	}
	return all
}

func listIDs(batch []queue.Message) []string {
	all := make([]string, len(batch))
	for i, m := range batch {
		all[i] = m.ID
	}
	return all
}

const (
	// backOffTime limits how long [Queues.backOff] takes. A Lambda function ends its batch early enough to have this time left.
	backOffTime = 1500 * time.Millisecond
	// canceledBackOff is the shortest back-off of messages if the context of their batch ended. Writes of the handler may still take
	// effect then, so the pause lets the next attempt see them.
	canceledBackOff = 10 * time.Second
)

// backOff makes SQS redeliver the failed messages of an event after their back-off. If SQS returns an error, it redelivers them after
// their visibility timeout. On a FIFO queue, an invisible message blocks its whole group, so all failed messages of a group become
// visible together.
func (q *Queues) backOff(ctx context.Context, event events.SQSEvent, batch []queue.Message, failed []string) {
	if len(failed) == 0 {
		return
	}
	name, ok := q.findByARN(event.Records[0].EventSourceARN)
	if !ok {
		q.log.WarnContext(ctx, "back-off not set", "messages", len(failed), "error", "unknown queue "+event.Records[0].EventSourceARN)
		return
	}
	least := time.Duration(0)
	if ctx.Err() != nil {
		least = canceledBackOff
	}
	groups := map[string]time.Duration{}
	var entries []types.ChangeMessageVisibilityBatchRequestEntry
	for i, m := range batch {
		if !slices.Contains(failed, m.ID) {
			continue
		}
		after, known := groups[m.Group]
		if !known || !name.FIFO() {
			after = max(queue.Backoff(m.Received), least)
			groups[m.Group] = after
		}
		entries = append(entries, types.ChangeMessageVisibilityBatchRequestEntry{
			Id: aws.String(strconv.Itoa(i)), ReceiptHandle: &event.Records[i].ReceiptHandle, VisibilityTimeout: seconds(after),
		})
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), backOffTime)
	defer cancel()
	url := q.urls[name]
	for part := range slices.Chunk(entries, maxEntries) {
		out, err := q.client.ChangeMessageVisibilityBatch(ctx, &sqs.ChangeMessageVisibilityBatchInput{QueueUrl: &url, Entries: part})
		unchanged := len(part)
		if err == nil {
			unchanged = len(out.Failed)
		}
		if unchanged > 0 {
			q.log.WarnContext(ctx, "back-off not set", "queue", name, "messages", unchanged, "error", err)
		}
	}
}

// seconds returns d in seconds, rounded up, so that no message becomes visible too early.
func seconds(d time.Duration) int32 { return int32((d + time.Second - 1) / time.Second) }

const (
	// drainVisibility is how many seconds a message stays invisible after [Queues.Drain] has received it.
	drainVisibility = 30
	// finishTime limits how long a request to SQS may continue after the context of [Queues.Drain] has ended.
	finishTime = 10 * time.Second
)

// Drain calls h with the messages of the queue at a URL until the queue is empty. It deletes the messages that h accepts and returns
// their number. The parameter from is the value for [queue.Message.From] if SQS does not report from which queue it moved a message.
//
// Drain continues after a failed message. But it stops after a batch in which every message failed, because h may depend on something
// that is down. Drain uses short polls, which may miss a message until the next call.
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
		failed, err := h.Call(ctx, batch)
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

// rejectedError returns an error if the handler of [Queues.Drain] rejected n messages, and nil if n is 0.
func rejectedError(n int) error {
	if n == 0 {
		return nil
	}
	return fault.New(fault.Unavailable, "%d messages of a queue were not accepted", n)
}

// receive receives up to ten messages, and the receipt handles that are needed to delete them. It continues when ctx ends, because
// messages that SQS has already handed out would otherwise stay in flight until their visibility timeout.
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

// remove deletes up to ten messages. It continues when ctx ends, because SQS would otherwise deliver the messages again.
func (q *Queues) remove(ctx context.Context, url string, receipts []*string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), finishTime)
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
