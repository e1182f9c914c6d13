package runner

import (
	"context"

	"github.com/mcp-events/mcpevents/localstack/internal/resource"
	"github.com/mcp-events/mcpevents/localstack/internal/template"
)

// senders are the types of the resources with which other services send to queues.
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
		remove := func(ctx context.Context) error { return rule.Delete(ctx, s.clients, name) }
		// A rule on a different bus is a different rule.
		return &made{ref: rule.EventBusName + "|" + name, attributes: map[string]string{"Arn": arn}, remove: remove}, err
	case "AWS::SNS::Subscription":
		var subscription resource.Subscription
		if err := s.tpl.Properties(r, s, &subscription); err != nil {
			return nil, err
		}
		arn, err := subscription.Create(s.ctx, s.clients)
		return &made{ref: arn, remove: func(ctx context.Context) error { return resource.Unsubscribe(ctx, s.clients, arn) }}, err
	default:
		var policy resource.QueuePolicy
		if err := s.tpl.Properties(r, s, &policy); err != nil {
			return nil, err
		}
		return &made{ref: name, remove: func(ctx context.Context) error { return policy.Delete(ctx, s.clients) }}, policy.Create(s.ctx, s.clients)
	}
}
