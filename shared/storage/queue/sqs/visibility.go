package sqs

import (
	"context"
	"slices"
	"strconv"
	"time"

	"github.com/aws/aws-lambda-go/events"
	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/mcp-events/mcpevents/shared/storage/queue"
)

const (
	// backOffTime bounds the requests that make failed messages visible again. It is shorter than the time that a function
	// reserves after a batch.
	backOffTime = 1500 * time.Millisecond
	// canceledBackOff is the shortest back-off of a batch whose context has ended. The batch's last writes may still take
	// effect, and the next attempt should find them.
	canceledBackOff = 10 * time.Second
)

// backOff makes the failed records of an event visible after their back-off. If SQS returns an error, they are redelivered
// after their visibility timeout.
//
// On a FIFO queue an invisible message blocks its whole group. So the failed messages of a group become visible together,
// after the back-off of the first.
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

// seconds rounds d up to whole seconds, so that no message becomes visible too early.
func seconds(d time.Duration) int32 { return int32((d + time.Second - 1) / time.Second) }
