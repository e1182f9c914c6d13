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

	"github.com/mcp-events/mcpevents/shared/awsx"
	"github.com/mcp-events/mcpevents/shared/fault"
	"github.com/mcp-events/mcpevents/shared/queue"
)

const (
	defaultBatch      = 10
	defaultVisibility = 30 * time.Second
	// pollSeconds is how long a receive waits for a first message. It is short, because a receive is not canceled when
	// consuming ends: messages that it takes just then would stay in flight.
	pollSeconds = 1
	// finishTime bounds requests that go on after consuming has ended.
	finishTime = 10 * time.Second
)

// Consume polls with as many workers as there may be calls at once. A message
// that failed is redelivered after [queue.Backoff], as from [Queues.Lambda]; one that
// has failed opts.MaxReceives times is sent to [queue.Dead] and deleted here.
//
// A running call is not canceled when ctx ends; Consume waits for it and deletes
// what it handled.
func (q *Queues) Consume(ctx context.Context, name queue.Name, h queue.Handler, opts queue.ConsumeOptions) error {
	url, err := q.url(name)
	if err != nil {
		return err
	}
	if opts.Batch <= 0 {
		opts.Batch = defaultBatch
	}
	if opts.Visibility <= 0 {
		opts.Visibility = defaultVisibility
	}
	w := worker{Queues: q, name: name, url: url, handle: h, opts: opts}
	// A worker that finds that there is nothing to poll ends the others.
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	errs := make([]error, max(1, opts.Concurrency))
	var wg sync.WaitGroup
	for i := range errs {
		wg.Go(func() {
			if errs[i] = w.run(ctx); errs[i] != nil {
				stop()
			}
		})
	}
	wg.Wait()
	if i := slices.IndexFunc(errs, func(err error) bool { return err != nil }); i >= 0 {
		return failure(errs[i], "consuming %s", name)
	}
	return nil
}

// worker polls one queue and calls its handler. All goroutines share one value.
type worker struct {
	*Queues
	name   queue.Name
	url    *string
	handle queue.Handler
	opts   queue.ConsumeOptions
}

// received is a message with what deleting it takes.
type received struct {
	queue.Message
	receipt *string
}

// run polls until ctx ends. It returns an error when polling cannot ever work.
func (w worker) run(ctx context.Context) error {
	for try := 0; ctx.Err() == nil; {
		batch, err := w.collect(ctx)
		switch {
		case err == nil:
			try = 0
		case ctx.Err() != nil:
		case awsx.KindOf(err) == fault.Internal:
			return err
		default:
			w.log.Warn("receive failed", "queue", w.name, "error", err)
			_ = pause(ctx, try) // the loop looks at ctx
			try++
		}
		if len(batch) > 0 {
			w.process(ctx, batch)
		}
	}
	return nil
}

// collect receives a batch. SQS gives at most ten messages at once; a larger
// batch is what comes without further waiting.
func (w worker) collect(ctx context.Context) (batch []received, err error) {
	wait := int32(pollSeconds)
	for len(batch) < w.opts.Batch && (ctx.Err() == nil || len(batch) == 0) {
		want := min(w.opts.Batch-len(batch), maxEntries)
		part, err := w.receive(ctx, want, wait)
		batch = append(batch, part...)
		if err != nil || len(part) == 0 {
			return batch, err
		}
		wait = 0
	}
	return batch, nil
}

func (w worker) receive(ctx context.Context, want int, wait int32) ([]received, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), pollSeconds*time.Second+finishTime)
	defer cancel()
	out, err := w.client.ReceiveMessage(ctx, &sqs.ReceiveMessageInput{
		QueueUrl: w.url, MaxNumberOfMessages: int32(want), WaitTimeSeconds: wait,
		VisibilityTimeout: seconds(w.opts.Visibility),
		MessageSystemAttributeNames: []types.MessageSystemAttributeName{
			attrReceived, attrSent, attrGroup, attrDedup, attrSource,
		},
		MessageAttributeNames: []string{"All"},
	})
	if err != nil {
		return nil, err
	}
	batch := make([]received, len(out.Messages))
	for i, m := range out.Messages {
		batch[i] = received{message(aws.ToString(m.MessageId), aws.ToString(m.Body), m.Attributes), m.ReceiptHandle}
		batch[i].From, _ = w.named(m.Attributes[attrSource])
		for name, a := range m.MessageAttributes {
			attribute(&batch[i].Message, name, a.StringValue, a.BinaryValue)
		}
	}
	return batch, nil
}

// process handles a batch and deletes what must not be redelivered.
func (w worker) process(ctx context.Context, batch []received) {
	ctx = context.WithoutCancel(ctx)
	var done, dead, again []received
	batch = slices.DeleteFunc(batch, func(m received) bool {
		// Its last call was lost, and the failure was not reported. In a FIFO
		// group a message may also have waited for another's failures.
		lost := w.opts.MaxReceives > 0 && m.Received > w.opts.MaxReceives && !w.name.FIFO()
		if lost {
			dead = append(dead, m)
		}
		return lost
	})
	if len(batch) > 0 {
		stop := w.keepInFlight(ctx, batch)
		failed, exhausted := w.call(ctx, batch)
		stop()
		dead = append(dead, exhausted...)
		for _, m := range batch {
			switch {
			case !failed[m.ID]:
				done = append(done, m)
			case !slices.ContainsFunc(exhausted, func(e received) bool { return e.ID == m.ID }):
				again = append(again, m)
			}
		}
	}
	w.backOff(ctx, w.name, again)
	if len(dead) > 0 {
		done = append(done, w.deadLetter(ctx, dead)...)
	}
	if err := w.remove(ctx, done); err != nil {
		w.log.Warn("handled messages not deleted", "queue", w.name, "messages", len(done), "error", err)
	}
}

// call runs the handler and returns what failed, and of it what has failed too often.
func (w worker) call(ctx context.Context, batch []received) (failed map[string]bool, exhausted []received) {
	messages := make([]queue.Message, len(batch))
	for i, m := range batch {
		messages[i] = m.Message
	}
	reported, err := w.handle(ctx, messages)
	if err != nil {
		w.log.Warn("handler failed", "queue", w.name, "messages", len(batch), "error", err)
		reported = ids(messages)
	}
	failed = map[string]bool{}
	for _, id := range complete(messages, reported, w.name.FIFO()) {
		failed[id] = true
	}
	groups := map[string]bool{}
	for _, m := range batch {
		if !failed[m.ID] {
			continue
		}
		// On a FIFO queue only the first of a group has failed itself.
		own := !w.name.FIFO() || !groups[m.Group]
		groups[m.Group] = true
		if own && w.opts.MaxReceives > 0 && m.Received >= w.opts.MaxReceives {
			exhausted = append(exhausted, m)
		}
	}
	return failed, exhausted
}

// deadLetter sends messages to the dead queue and returns those that were sent.
func (w worker) deadLetter(ctx context.Context, dead []received) []received {
	if w.name == queue.Dead {
		return nil
	}
	out := make([]queue.Outgoing, len(dead))
	for i, m := range dead {
		out[i] = queue.Outgoing{Body: m.Body, Group: m.Group}
	}
	ctx, cancel := context.WithTimeout(ctx, finishTime)
	defer cancel()
	if err := w.Send(ctx, queue.Dead, out...); err != nil {
		w.log.Warn("dead letters not sent", "queue", w.name, "messages", len(dead), "error", err)
		return nil
	}
	return dead
}

// remove deletes messages, ten a request, and again those that SQS did not get to.
func (w worker) remove(ctx context.Context, done []received) error {
	ctx, cancel := context.WithTimeout(ctx, finishTime)
	defer cancel()
	for part := range slices.Chunk(done, maxEntries) {
		entries := make([]types.DeleteMessageBatchRequestEntry, len(part))
		for i, m := range part {
			entries[i] = types.DeleteMessageBatchRequestEntry{Id: aws.String(strconv.Itoa(i)), ReceiptHandle: m.receipt}
		}
		for try := 0; len(entries) > 0; try++ {
			out, err := w.client.DeleteMessageBatch(ctx, &sqs.DeleteMessageBatchInput{QueueUrl: w.url, Entries: entries})
			if err != nil {
				return err
			}
			entries, err = remaining(entries, out.Failed, func(e types.DeleteMessageBatchRequestEntry) string { return *e.Id })
			if err != nil || len(entries) == 0 {
				if err != nil {
					return err
				}
				break
			}
			if try+1 == maxTries {
				return fault.New(fault.Unavailable, "%d messages were not deleted", len(entries))
			}
			if err := pause(ctx, try); err != nil {
				return err
			}
		}
	}
	return nil
}

func seconds(d time.Duration) int32 { return int32((d + time.Second - 1) / time.Second) }
