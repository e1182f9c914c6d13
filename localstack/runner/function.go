package runner

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/mcp-events/mcpevents/localstack/internal/access"
	"github.com/mcp-events/mcpevents/localstack/internal/furl"
	"github.com/mcp-events/mcpevents/localstack/internal/lambda"
	"github.com/mcp-events/mcpevents/localstack/internal/schedule"
	"github.com/mcp-events/mcpevents/localstack/internal/template"
)

const functionType = "AWS::Serverless::Function"

// functionProperties are those of an AWS::Serverless::Function that the
// deployment uses. Those at the end are accepted and not acted on: tags and logs are
// the account's business.
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
	RecursiveLoop                string
	FunctionUrlConfig            *struct {
		AuthType   string
		InvokeMode furl.Mode
	}
	Events map[string]struct {
		Type       string
		Properties json.RawMessage
	}

	// Policies are checked by the gate.
	Policies json.RawMessage

	Description, Architectures, LoggingConfig, Tracing, Tags, EventInvokeConfig, RuntimeManagementConfig json.RawMessage
	// A function has one version here, and nothing that moves traffic.
	AutoPublishAlias, AutoPublishAliasAllProperties, VersionDescription, DeploymentPreference json.RawMessage
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
	if m := st.opts.Managed[r.ID]; m.AtOnce > 0 {
		cfg.Env[lambda.MaxConcurrency], cfg.Instances = strconv.Itoa(m.AtOnce), m.Instances
	}
	if n := p.ReservedConcurrentExecutions; n != nil {
		if err := st.unreserved.Reserve(int(*n)); err != nil {
			return nil, fmt.Errorf("resource %s: %w", r.ID, err)
		}
		cfg.Limit = lambda.NewLimit(int(*n))
	}
	switch p.RecursiveLoop {
	case "", "Terminate", "Allow":
		cfg.AllowLoops = st.opts.AllowLoops || p.RecursiveLoop == "Allow"
	default:
		return nil, fmt.Errorf("resource %s: RecursiveLoop %q is neither Allow nor Terminate", r.ID, p.RecursiveLoop)
	}
	streams := p.FunctionUrlConfig != nil && p.FunctionUrlConfig.InvokeMode == furl.Stream
	if st.opts.Visibility > 0 && !streams && len(p.Events) == 0 {
		cfg.Timeout = min(cfg.Timeout, st.opts.Visibility/2)
	}
	if limit := st.opts.Timeouts[r.ID]; limit > 0 {
		cfg.Timeout = limit
	}
	policy, err := access.Parse(p.Policies)
	if err != nil {
		return nil, fmt.Errorf("resource %s: %w", r.ID, err)
	}
	st.gate.grant(r.ID, policy)
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

// event notes a trigger of a function; it starts when the stack is complete.
func (s *scope) event(fn *function, r *template.Resource, event, kind string, properties json.RawMessage) error {
	switch kind {
	case "SQS":
		// SAM would let the function read every queue of the account.
		return errors.New("type SQS is not supported, only AWS::Lambda::EventSourceMapping with permissions of the function's own")
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
