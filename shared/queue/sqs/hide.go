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
)

// hide keeps the messages of a batch hidden while their handler runs, by extending their visibility each time half
// of it is over. It ends with stop.
func (w worker) hide(ctx context.Context, batch []received) (stop func()) {
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
				w.extend(ctx, batch)
			}
		}
	})
	return func() {
		cancel()
		running.Wait()
	}
}

func (w worker) extend(ctx context.Context, batch []received) {
	for part := range slices.Chunk(batch, maxEntries) {
		entries := make([]types.ChangeMessageVisibilityBatchRequestEntry, len(part))
		for i, m := range part {
			entries[i] = types.ChangeMessageVisibilityBatchRequestEntry{
				Id: aws.String(strconv.Itoa(i)), ReceiptHandle: m.receipt, VisibilityTimeout: seconds(w.opts.Visibility),
			}
		}
		out, err := w.client.ChangeMessageVisibilityBatch(ctx, &sqs.ChangeMessageVisibilityBatchInput{QueueUrl: w.url, Entries: entries})
		if ctx.Err() != nil {
			return
		}
		if err != nil || len(out.Failed) > 0 {
			w.log.Warn("visibility not extended; messages may come again while they are handled", "queue", w.name, "error", err)
		}
	}
}
