package sqs

import (
	"context"
	"slices"
	"time"

	"github.com/mcp-events/mcpevents/shared/fault"
	"github.com/mcp-events/mcpevents/shared/queue"
)

// drainVisibility is how long a message that was not accepted stays in flight.
const drainVisibility = 30 * time.Second

// Drain hands the messages of the dead-letter queue at a URL to a handler until there are none, and deletes those that it
// accepts. It returns how many these are. It does not wait for messages, so one that SQS does not find at once is for
// the next call.
//
// Their From is the queue that SQS moved them from. For those of which SQS does not say it, it is from, which may be "".
func (q *Queues) Drain(ctx context.Context, url string, from queue.Name, h queue.Handler) (done int, err error) {
	w := worker{Queues: q, name: queue.Dead, url: &url, opts: queue.ConsumeOptions{Visibility: drainVisibility}}
	for {
		batch, err := w.receive(ctx, maxEntries, 0)
		if err != nil || len(batch) == 0 {
			return done, failure(err, "draining a dead-letter queue")
		}
		messages := make([]queue.Message, len(batch))
		for i := range batch {
			if batch[i].From == "" {
				batch[i].From = from
			}
			messages[i] = batch[i].Message
		}
		failed, err := h(ctx, messages)
		if err != nil {
			return done, err
		}
		batch = slices.DeleteFunc(batch, func(m received) bool { return slices.Contains(failed, m.ID) })
		if err := w.remove(ctx, batch); err != nil {
			return done, failure(err, "deleting %d messages that were drained", len(batch))
		}
		done += len(batch)
		if len(failed) > 0 {
			return done, fault.New(fault.Unavailable, "%d messages of a dead-letter queue were not accepted", len(failed))
		}
		if ctx.Err() != nil {
			return done, ctx.Err()
		}
	}
}
