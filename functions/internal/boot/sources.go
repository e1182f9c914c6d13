package boot

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/aws/aws-lambda-go/events"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/storage/queue"
)

// margin is the time that a batch leaves unused at the end of its invocation, so that it can report its result before
// Lambda ends the process, and failed messages are redelivered soon. It is at most a third of the invocation's time,
// because local AWS runs functions with timeouts of a few seconds.
const margin = 2 * time.Second

// batchDeadline returns the time at which a batch must end if its invocation ends at the given time.
func batchDeadline(now, end time.Time) time.Time { return end.Add(-min(margin, end.Sub(now)/3)) }

// Batches returns the handler of a function that reads one queue.
func (p *Process) Batches(h queue.Handler) func(context.Context, events.SQSEvent) (events.SQSEventResponse, error) {
	handle := p.queues.Lambda(h)
	return func(ctx context.Context, event events.SQSEvent) (events.SQSEventResponse, error) {
		if deadline, ok := ctx.Deadline(); ok {
			var cancel context.CancelFunc
			ctx, cancel = context.WithDeadline(ctx, batchDeadline(time.Now(), deadline))
			defer cancel()
		}
		return handle(ctx, event)
	}
}

// Drain returns a job that passes the waiting messages of a queue to a handler.
func (p *Process) Drain(name queue.Name, h queue.Handler) func(context.Context) (int, error) {
	return func(ctx context.Context) (int, error) { return p.drainQueue(ctx, queueVariable(name), "", h) }
}

// Dead returns a job that passes the dead letters of all queues to a handler.
func (p *Process) Dead(h queue.Handler) func(context.Context) (int, error) {
	return func(ctx context.Context) (int, error) {
		n, err := p.drainQueue(ctx, queueVariable(queue.Dead), "", h)
		m, failed := p.drainQueue(ctx, envEventsDead, queue.Events, h)
		return n + m, errors.Join(err, failed)
	}
}

// drainQueue passes the waiting messages of the queue with the URL in a variable to a handler. If their attributes do not
// name the queue that gave them up, it is from.
func (p *Process) drainQueue(ctx context.Context, variable string, from queue.Name, h queue.Handler) (int, error) {
	url, err := p.Variable(variable)
	if err != nil {
		return 0, err
	}
	return p.queues.Drain(ctx, url, from, h)
}

// Sources returns the handler of a function that has a URL and reads queues. It selects the handler of a batch by the
// ARN of the queue.
func (p *Process) Sources(
	url func(context.Context, events.LambdaFunctionURLRequest) (events.LambdaFunctionURLResponse, error),
	batches func(arn string) queue.Handler,
) func(context.Context, json.RawMessage) (any, error) {
	return func(ctx context.Context, raw json.RawMessage) (any, error) {
		var kind struct {
			Records []struct {
				EventSourceARN string `json:"eventSourceARN"`
			} `json:"Records"`
			RequestContext json.RawMessage `json:"requestContext"`
		}
		if err := json.Unmarshal(raw, &kind); err != nil {
			return nil, fault.Wrap(fault.Invalid, err, "read the event")
		}
		switch {
		case len(kind.Records) > 0 && batches != nil:
			var event events.SQSEvent
			if err := json.Unmarshal(raw, &event); err != nil {
				return nil, fault.Wrap(fault.Invalid, err, "read the batch")
			}
			h := batches(kind.Records[0].EventSourceARN)
			if h == nil {
				return nil, fault.New(fault.Invalid, "a batch of a queue that is not for this function")
			}
			return p.Batches(h)(ctx, event)
		case kind.RequestContext != nil && url != nil:
			var event events.LambdaFunctionURLRequest
			if err := json.Unmarshal(raw, &event); err != nil {
				return nil, fault.Wrap(fault.Invalid, err, "read the request")
			}
			return url(ctx, event)
		}
		return nil, fault.New(fault.Invalid, "the event is not a batch or a request")
	}
}
