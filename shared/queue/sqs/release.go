package sqs

import (
	"context"
	"slices"
	"strconv"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/mcp-events/mcpevents/shared/queue"
)

// releaseTime bounds the request that makes failed messages visible again. It is
// shorter than what a function leaves of its time after a batch.
const releaseTime = 1500 * time.Millisecond

// cutOff is the shortest back-off of a batch whose time was over: what it was asking of the store
// then may still be carried out, and a second try should find it.
const cutOff = 10 * time.Second

// release lets failed messages come again after their back-off, ten a request. If
// SQS does not take that, they come when their visibility timeout is over.
//
// On a FIFO queue a message that is hidden holds back its whole group, so all that failed
// of a group become visible together, after the back-off of its first. A ctx that has ended cut
// the handler off.
func (q *Queues) release(ctx context.Context, name queue.Name, failed []received) {
	if len(failed) == 0 {
		return
	}
	least := time.Duration(0)
	if ctx.Err() != nil {
		least = cutOff
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseTime)
	defer cancel()
	groups := map[string]int32{}
	var late int
	var last error
	for part := range slices.Chunk(failed, maxEntries) {
		entries := make([]types.ChangeMessageVisibilityBatchRequestEntry, len(part))
		for i, m := range part {
			after, known := groups[m.Group]
			if !known || !name.FIFO() {
				after = seconds(max(queue.Backoff(m.Received), least))
				groups[m.Group] = after
			}
			entries[i] = types.ChangeMessageVisibilityBatchRequestEntry{
				Id: aws.String(strconv.Itoa(i)), ReceiptHandle: m.receipt, VisibilityTimeout: after,
			}
		}
		url := q.urls[name]
		out, err := q.client.ChangeMessageVisibilityBatch(ctx, &sqs.ChangeMessageVisibilityBatchInput{QueueUrl: &url, Entries: entries})
		switch {
		case err != nil:
			late, last = late+len(part), err
		case len(out.Failed) > 0:
			late += len(out.Failed)
		}
	}
	if late > 0 {
		q.log.WarnContext(ctx, "failed messages wait for the visibility timeout", "queue", name, "messages", late, "error", last)
	}
}
