package runner

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/mcp-events/mcpevents/localstack/internal/access"
	"github.com/mcp-events/mcpevents/localstack/internal/mapping"
	"github.com/mcp-events/mcpevents/localstack/internal/template"
)

const mappingType = "AWS::Lambda::EventSourceMapping"

// mappingProperties contains the properties of an event source mapping of a queue.
type mappingProperties struct {
	EventSourceArn                 string
	FunctionName                   string
	BatchSize                      template.Int
	MaximumBatchingWindowInSeconds template.Int
	Enabled                        *template.Bool
	FunctionResponseTypes          []string
	ScalingConfig                  struct{ MaximumConcurrency template.Int }
}

// mapping records an event source mapping. It starts when the stack is complete.
func (s *scope) mapping(r *template.Resource, name string) (*made, error) {
	var p mappingProperties
	if err := s.tpl.Properties(r, s, &p); err != nil {
		return nil, err
	}
	fn, q := s.stack.functionByName(p.FunctionName), s.stack.queueByARN(p.EventSourceArn)
	opts := mapping.Options{
		BatchSize:   int(p.BatchSize),
		Window:      time.Duration(p.MaximumBatchingWindowInSeconds) * time.Second,
		Concurrency: int(p.ScalingConfig.MaximumConcurrency),
		Log:         s.stack.opts.Log,
	}
	switch {
	case fn == nil:
		return nil, fmt.Errorf("the template has no function %q", p.FunctionName)
	case q == nil:
		return nil, fmt.Errorf("the template has no queue %q", p.EventSourceArn)
	case q.fifo && (opts.BatchSize > 10 || opts.Window > 0):
		return nil, errors.New("a FIFO queue has batches of at most 10 and no window")
	case opts.BatchSize > 10 && opts.Window == 0:
		return nil, errors.New("a batch of more than 10 needs a window")
	case opts.Concurrency == 1:
		return nil, errors.New("a MaximumConcurrency is at least 2")
	case fn.Timeout() > q.visibility:
		return nil, fmt.Errorf("the queue's visibility timeout (%v) is shorter than the function's (%v)", q.visibility, fn.Timeout())
	}
	opts.Patience = q.visibility
	for _, action := range []string{"sqs:ReceiveMessage", "sqs:DeleteMessage", "sqs:GetQueueAttributes"} {
		if want := (access.Request{Action: action, Resource: q.arn}); !s.stack.opts.Direct && !s.stack.gate.allows(fn.id, want) {
			return nil, fmt.Errorf("%s %s", fn.id, describe(want)) // AWS refuses such a mapping, too
		}
	}
	for _, t := range p.FunctionResponseTypes {
		if t != "ReportBatchItemFailures" {
			return nil, fmt.Errorf("response type %q is not supported", t)
		}
		opts.ReportFailures = true
	}
	// An update stops the old mapping, which finishes the batches that it has received.
	s.stack.mappings = slices.DeleteFunc(s.stack.mappings, func(m *mapped) bool {
		if m.id == r.ID {
			m.stop()
		}
		return m.id == r.ID
	})
	if p.Enabled == nil || bool(*p.Enabled) {
		m := &mapped{
			id: r.ID, fn: fn, opts: opts,
			source: mapping.Queue{Client: s.clients.SQS, URL: q.url, ARN: q.arn, DeadURL: s.stack.deadURL(q)},
		}
		s.stack.mappings = append(s.stack.mappings, m)
		s.stack.startMapping(m)
	}
	return &made{ref: name}, nil
}

// deadURL returns the URL of a queue's dead-letter queue. It returns "" for a queue without one.
func (s *Stack) deadURL(q *queue) string {
	if dead := s.queueByARN(q.deadARN); dead != nil {
		return dead.url
	}
	return ""
}
