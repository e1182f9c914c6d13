package runner

import (
	"github.com/mcp-events/mcpevents/localstack/internal/resource"
	"github.com/mcp-events/mcpevents/localstack/internal/template"
)

// senders are the types of what other services send to queues by.
var senders = []string{"AWS::SQS::QueuePolicy", "AWS::Events::Rule", "AWS::SNS::Subscription"}

func (s *scope) sender(r *template.Resource, name string) (*made, error) {
	switch r.Type {
	case "AWS::Events::Rule":
		var rule resource.Rule
		if err := s.tpl.Properties(r, s, &rule); err != nil {
			return nil, err
		}
		s.stack.progress("rule   %s", name)
		arn, err := rule.Create(s.ctx, s.clients, name)
		return &made{ref: name, attributes: map[string]string{"Arn": arn}}, err
	case "AWS::SNS::Subscription":
		var subscription resource.Subscription
		if err := s.tpl.Properties(r, s, &subscription); err != nil {
			return nil, err
		}
		arn, err := subscription.Create(s.ctx, s.clients)
		return &made{ref: arn}, err
	default:
		var policy resource.QueuePolicy
		if err := s.tpl.Properties(r, s, &policy); err != nil {
			return nil, err
		}
		return &made{ref: name}, policy.Create(s.ctx, s.clients)
	}
}
