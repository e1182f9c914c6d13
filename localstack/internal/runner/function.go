package runner

import (
	"encoding/json"
	"fmt"
	"time"

	"mcpevents/localstack/internal/furl"
	"mcpevents/localstack/internal/lambda"
	"mcpevents/localstack/internal/mapping"
	"mcpevents/localstack/internal/schedule"
	"mcpevents/localstack/internal/template"
)

const functionType = "AWS::Serverless::Function"

// functionProperties are those of an AWS::Serverless::Function that the
// deployment uses. Raw ones are accepted and not acted on: permissions, tags and logs
// are the account's business.
type functionProperties struct {
	FunctionName string
	CodeUri      string
	Handler      string
	Runtime      string
	MemorySize   template.Int
	Timeout      template.Int
	Environment  struct {
		Variables map[string]template.Text
	}
	ReservedConcurrentExecutions *template.Int
	FunctionUrlConfig            *struct {
		AuthType   string
		InvokeMode furl.Mode
	}
	Events map[string]struct {
		Type       string
		Properties json.RawMessage
	}

	Description, Architectures, Policies, LoggingConfig, Tracing, Tags, EventInvokeConfig, RuntimeManagementConfig json.RawMessage
}

type queueEvent struct {
	Queue                          string
	BatchSize                      template.Int
	MaximumBatchingWindowInSeconds template.Int
	Enabled                        *template.Bool
	FunctionResponseTypes          []string
	ScalingConfig                  struct{ MaximumConcurrency template.Int }
}

type scheduleEvent struct {
	Schedule           string // of type Schedule
	ScheduleExpression string // of type ScheduleV2
	Name, Description  string
	Enabled            *template.Bool
	State              string

	RetryPolicy, FlexibleTimeWindow json.RawMessage
}

// function makes a function and notes what is to run with it.
func (s *scope) function(r *template.Resource) (*made, error) {
	var p functionProperties
	if err := s.tpl.Properties(r, s, &p); err != nil {
		return nil, err
	}
	if p.Runtime != "provided.al2023" && p.Runtime != "provided.al2" {
		return nil, fmt.Errorf("resource %s: runtime %q is not supported, only provided.al2023", r.ID, p.Runtime)
	}
	st := s.stack
	name := given(p.FunctionName, st.opts.Name+"-"+r.ID)
	arn := fmt.Sprintf("arn:aws:lambda:%s:%s:function:%s", st.opts.Region, account, name)
	env := st.opts.environment(r.ID, st.endpoints, st.invokeURL())
	for k, v := range p.Environment.Variables {
		env[k] = string(v)
	}
	cfg := lambda.Config{
		Name: name, ARN: arn, Binary: st.binary(p.CodeUri), Env: over(env, st.opts.Env),
		Memory: int(p.MemorySize), Timeout: time.Duration(p.Timeout) * time.Second,
		Limit: st.unreserved, Grace: st.opts.Grace, Output: st.output, Log: st.opts.Log,
	}
	if n := p.ReservedConcurrentExecutions; n != nil {
		cfg.Limit = lambda.NewLimit(int(*n))
	}
	if st.opts.Visibility > 0 && hasQueue(p) {
		cfg.Timeout = min(cfg.Timeout, st.opts.Visibility/2)
	}
	m := &made{ref: name, attributes: map[string]string{"Arn": arn}}
	fn := &function{id: r.ID, code: p.CodeUri, Function: lambda.New(cfg)}
	st.functions = append(st.functions, fn)
	if u := p.FunctionUrlConfig; u != nil {
		if u.AuthType != "NONE" {
			return nil, fmt.Errorf("resource %s: Function URLs of AuthType %q are not supported, only NONE", r.ID, u.AuthType)
		}
		if u.InvokeMode == "" {
			u.InvokeMode = furl.Buffered
		}
		url, err := st.serveURL(fn, furl.Handler{Function: fn, Mode: u.InvokeMode, Log: st.opts.Log})
		if err != nil {
			return nil, err
		}
		m.attributes["FunctionUrl"] = url
	}
	for event, e := range p.Events {
		if err := s.event(fn, r, event, e.Type, e.Properties); err != nil {
			return nil, fmt.Errorf("resource %s: event %s: %w", r.ID, event, err)
		}
	}
	return m, nil
}

func hasQueue(p functionProperties) bool {
	for _, e := range p.Events {
		if e.Type == "SQS" {
			return true
		}
	}
	return false
}

// event notes a trigger of a function; it starts when the stack is complete.
func (s *scope) event(fn *function, r *template.Resource, event, kind string, properties json.RawMessage) error {
	switch kind {
	case "SQS":
		var e queueEvent
		if err := strict(properties, &e); err != nil {
			return err
		}
		if e.Enabled != nil && !bool(*e.Enabled) {
			return nil
		}
		q, ok := s.stack.queueByARN(e.Queue)
		if !ok {
			return fmt.Errorf("queue %q is none of the template's", e.Queue)
		}
		opts := mapping.Options{
			BatchSize:   int(e.BatchSize),
			Window:      time.Duration(e.MaximumBatchingWindowInSeconds) * time.Second,
			Concurrency: int(e.ScalingConfig.MaximumConcurrency),
			Log:         s.stack.opts.Log,
		}
		if q.fifo && (opts.BatchSize > 10 || opts.Window > 0) {
			return fmt.Errorf("a FIFO queue has batches of at most 10 and no window")
		}
		for _, t := range e.FunctionResponseTypes {
			if t != "ReportBatchItemFailures" {
				return fmt.Errorf("response type %q is not supported", t)
			}
			opts.ReportFailures = true
		}
		s.stack.mappings = append(s.stack.mappings, mapped{fn: fn, source: mapping.Queue{Client: s.clients.SQS, URL: q.url, ARN: q.arn}, opts: opts})
	case "Schedule", "ScheduleV2":
		var e scheduleEvent
		if err := strict(properties, &e); err != nil {
			return err
		}
		if e.Enabled != nil && !bool(*e.Enabled) || e.State == "DISABLED" {
			return nil
		}
		every, err := schedule.Parse(e.Schedule + e.ScheduleExpression)
		if err != nil {
			return err
		}
		s.stack.schedules = append(s.stack.schedules, scheduled{
			fn: fn, every: max(time.Duration(float64(every)/s.stack.opts.Speed), time.Millisecond),
			rule: fmt.Sprintf("arn:aws:events:%s:%s:rule/%s-%s", s.stack.opts.Region, account, r.ID, event),
		})
	default:
		return fmt.Errorf("type %q is not supported", kind)
	}
	return nil
}
