package sqs

import (
	"context"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/mcp-events/mcpevents/shared/queue"
)

const (
	// backOffTime bounds the requests that make failed messages visible again. It is
	// shorter than what a function leaves of its time after a batch.
	backOffTime = 1500 * time.Millisecond
	// canceledBackOff is the shortest back-off of a batch whose context has ended: its last
	// writes may still be carried out, and a second attempt should find them.
	canceledBackOff = 10 * time.Second
)

// changeVisibility sets the visibility timeout of each message, ten a request. It returns how
// many messages SQS did not change, and the last error of a request.
func (q *Queues) changeVisibility(ctx context.Context, name queue.Name, msgs []received, timeout func(received) time.Duration) (unchanged int, err error) {
	url := q.urls[name]
	for part := range slices.Chunk(msgs, maxEntries) {
		entries := make([]types.ChangeMessageVisibilityBatchRequestEntry, len(part))
		for i, m := range part {
			entries[i] = types.ChangeMessageVisibilityBatchRequestEntry{
				Id: aws.String(strconv.Itoa(i)), ReceiptHandle: m.receipt, VisibilityTimeout: seconds(timeout(m)),
			}
		}
		out, failed := q.client.ChangeMessageVisibilityBatch(ctx, &sqs.ChangeMessageVisibilityBatchInput{QueueUrl: &url, Entries: entries})
		if failed != nil {
			unchanged, err = unchanged+len(part), failed
		} else {
			unchanged += len(out.Failed)
		}
	}
	return unchanged, err
}

// keepInFlight extends the visibility timeout of a batch each time half of it has passed,
// until stop is called.
func (w worker) keepInFlight(ctx context.Context, batch []received) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	running.Go(func() {
		tick := time.NewTicker(w.opts.Visibility / 2)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			unchanged, err := w.changeVisibility(ctx, w.name, batch, func(received) time.Duration { return w.opts.Visibility })
			if unchanged > 0 && ctx.Err() == nil {
				w.log.WarnContext(ctx, "visibility not extended", "queue", w.name, "messages", unchanged, "error", err)
			}
		}
	})
	return func() {
		cancel()
		running.Wait()
	}
}

// backOff makes failed messages visible after their back-off. If SQS refuses, they are
// redelivered after their visibility timeout.
//
// On a FIFO queue an invisible message blocks its whole group, so all messages of a group that
// failed become visible together, after the back-off of the first.
func (q *Queues) backOff(ctx context.Context, name queue.Name, failed []received) {
	if len(failed) == 0 {
		return
	}
	least := time.Duration(0)
	if ctx.Err() != nil {
		least = canceledBackOff
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), backOffTime)
	defer cancel()
	groups := map[string]time.Duration{}
	unchanged, err := q.changeVisibility(ctx, name, failed, func(m received) time.Duration {
		after, known := groups[m.Group]
		if !known || !name.FIFO() {
			after = max(queue.Backoff(m.Received), least)
			groups[m.Group] = after
		}
		return after
	})
	if unchanged > 0 {
		q.log.WarnContext(ctx, "back-off not set", "queue", name, "messages", unchanged, "error", err)
	}
}
