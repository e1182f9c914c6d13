// Package mapping is the event source mapping between a queue and a function:
// it receives batches, invokes the function with them, and deletes what the
// function accepted.
//
// What it does not delete comes again when the queue says so. The order within a
// group of a FIFO queue is the queue's doing: it gives out no message of a group of which
// another one is in flight.
package mapping

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/aws/aws-lambda-go/events"

	"github.com/mcp-events/mcpevents/localstack/internal/lambda"
)

// Source is the queue.
type Source interface {
	// Receive returns up to limit (1 to 10) messages, and waits for the first one.
	Receive(ctx context.Context, limit int, wait time.Duration) ([]events.SQSMessage, error)
	// Delete removes up to 10 received messages.
	Delete(ctx context.Context, batch []events.SQSMessage) error
	// Bury moves a message to the queue's dead letters, if it has such a queue; else it does nothing.
	Bury(ctx context.Context, message events.SQSMessage) error
}

// Invoker is the function.
type Invoker interface {
	Name() string
	Invoke(ctx context.Context, inv lambda.Invocation) (*lambda.Response, error)
	// Loops reports whether an invocation with a trace would be refused, and Chained how
	// often the function was invoked in its chain.
	Loops(trace string) bool
	Chained(trace string) int
}

// Options are those of an event source mapping.
type Options struct {
	// BatchSize is the largest number of messages per invocation; 0 is 10.
	BatchSize int
	// Window is how long a batch may be collected; 0 sends what one request returned.
	Window time.Duration
	// Concurrency is how many invocations run at once; 0 is 5, which Lambda
	// begins with.
	Concurrency int
	// ReportFailures makes the response name the messages that failed
	// (ReportBatchItemFailures). Without it a response accepts all.
	ReportFailures bool
	// Patience is how long a batch that is throttled is held on to; 0 is 30 s. Then it comes
	// again when its visibility timeout is over.
	Patience time.Duration
	// Poll is how long one request waits for a message; 0 is 10 s.
	Poll time.Duration
	// Log is of failed batches; nil discards it.
	Log *slog.Logger
}

// perRequest is the most messages that one request to SQS receives or deletes.
const perRequest = 10

// maxBodies bounds the bodies of a batch in bytes, so that the event, with its
// escapes, stays under [lambda.MaxPayload].
const maxBodies = 3 << 20

// ackTime bounds the deletion of a batch.
const ackTime = 10 * time.Second

// Run maps source to fn until ctx ends, then waits for running invocations.
func Run(ctx context.Context, source Source, fn Invoker, opts Options) {
	if opts.BatchSize == 0 {
		opts.BatchSize = perRequest
	}
	if opts.Concurrency == 0 {
		opts.Concurrency = 5
	}
	if opts.Patience == 0 {
		opts.Patience = 30 * time.Second
	}
	if opts.Poll == 0 {
		opts.Poll = 10 * time.Second
	}
	if opts.Log == nil {
		opts.Log = slog.New(slog.DiscardHandler)
	}
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
			// A batch in hand is seen through although the mapping ends.
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

// collect returns a batch. With an error it returns what it has received so far.
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
			end = time.Now().Add(m.opts.Window) // runs from the first message
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

// handle invokes the function with a batch and deletes what it accepted.
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
			// They come again; the function must bear that on AWS too.
			m.opts.Log.Warn("delete failed", "function", m.fn.Name(), "messages", n, "error", err)
		}
		messages = messages[n:]
	}
}

// breakLoops takes the messages out of a batch that end too long a chain: they are dead
// letters, or without a queue for them gone.
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
			continue // it comes again
		}
		broken = append(broken, message)
	}
	m.remove(ctx, broken)
	return rest
}

// call invokes the function. While it is throttled it backs off and tries again.
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
	// The invocation goes on with the longest chain of the batch.
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

// failures reads a response of ReportBatchItemFailures. As on Lambda, an empty
// response or list is success, and a response that cannot be read, or names an
// unknown message, fails the whole batch.
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
		return nil, fmt.Errorf("the response is no list of failures: %w", err)
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
