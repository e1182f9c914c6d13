package resource

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/eventbridge"
	"github.com/aws/aws-sdk-go-v2/service/eventbridge/types"
	"github.com/aws/aws-sdk-go-v2/service/sns"
	"github.com/aws/aws-sdk-go-v2/service/sqs"

	"github.com/mcp-events/mcpevents/localstack/internal/template"
)

// This file contains the resources that let other services send to queues.

// QueuePolicy contains the properties of an AWS::SQS::QueuePolicy.
type QueuePolicy struct {
	Queues         []string
	PolicyDocument json.RawMessage
}

// Create sets the policy of the queues. Emulators without policies allow everyone to send.
func (p QueuePolicy) Create(ctx context.Context, c Clients) error {
	for _, url := range p.Queues {
		_, err := c.SQS.SetQueueAttributes(ctx, &sqs.SetQueueAttributesInput{
			QueueUrl: &url, Attributes: map[string]string{"Policy": string(p.PolicyDocument)},
		})
		if err != nil && !isCode(err, "InvalidAttributeName") {
			return fmt.Errorf("set the policy of queue %s: %w", url, err)
		}
	}
	return nil
}

// Delete removes the policy from the queues.
func (p QueuePolicy) Delete(ctx context.Context, c Clients) error {
	return QueuePolicy{Queues: p.Queues}.Create(ctx, c)
}

// Rule contains the properties of an AWS::Events::Rule with a pattern.
type Rule struct {
	Description, EventBusName, State string
	// EventPattern is a JSON object, or a string that contains one.
	EventPattern json.RawMessage
	Targets      []Target
}

// Target is the destination of a [Rule].
type Target struct {
	Id, Arn string

	RetryPolicy *struct {
		MaximumEventAgeInSeconds, MaximumRetryAttempts template.Int
	}
	DeadLetterConfig *struct{ Arn string }
}

// Create creates the rule, or changes the existing one.
func (r Rule) Create(ctx context.Context, c Clients, name string) (arn string, err error) {
	if c.Events == nil {
		return "", errors.New("the template has an EventBridge rule, but there is no endpoint for EventBridge")
	}
	pattern := string(r.EventPattern)
	var text string
	if json.Unmarshal(r.EventPattern, &text) == nil {
		pattern = text
	}
	made, err := c.Events.PutRule(ctx, &eventbridge.PutRuleInput{
		Name: &name, Description: &r.Description, EventBusName: &r.EventBusName, EventPattern: &pattern, State: types.RuleState(r.State),
	})
	if err != nil {
		return "", fmt.Errorf("create rule %s: %w", name, err)
	}
	in := &eventbridge.PutTargetsInput{Rule: &name, EventBusName: &r.EventBusName}
	for _, t := range r.Targets {
		in.Targets = append(in.Targets, t.input())
	}
	out, err := c.Events.PutTargets(ctx, in)
	if err == nil && out.FailedEntryCount > 0 {
		err = errors.New(aws.ToString(out.FailedEntries[0].ErrorMessage))
	}
	if err != nil {
		return "", fmt.Errorf("set the targets of rule %s: %w", name, err)
	}
	return aws.ToString(made.RuleArn), nil
}

// Delete removes the rule and its targets.
func (r Rule) Delete(ctx context.Context, c Clients, name string) error {
	out := &eventbridge.RemoveTargetsInput{Rule: &name, EventBusName: &r.EventBusName}
	for _, t := range r.Targets {
		out.Ids = append(out.Ids, t.Id)
	}
	_, err := c.Events.RemoveTargets(ctx, out)
	if err == nil {
		_, err = c.Events.DeleteRule(ctx, &eventbridge.DeleteRuleInput{Name: &name, EventBusName: &r.EventBusName})
	}
	if err != nil {
		return fmt.Errorf("delete rule %s: %w", name, err)
	}
	return nil
}

func (t Target) input() types.Target {
	in := types.Target{Id: &t.Id, Arn: &t.Arn}
	if p := t.RetryPolicy; p != nil {
		in.RetryPolicy = &types.RetryPolicy{
			MaximumEventAgeInSeconds: aws.Int32(int32(p.MaximumEventAgeInSeconds)), MaximumRetryAttempts: aws.Int32(int32(p.MaximumRetryAttempts)),
		}
	}
	if d := t.DeadLetterConfig; d != nil {
		in.DeadLetterConfig = &types.DeadLetterConfig{Arn: &d.Arn}
	}
	return in
}

// Subscription contains the properties of an AWS::SNS::Subscription.
type Subscription struct {
	TopicArn, Protocol, Endpoint string
	RawMessageDelivery           template.Bool
	RedrivePolicy                json.RawMessage
}

// Create creates the subscription, or finds the existing one.
func (s Subscription) Create(ctx context.Context, c Clients) (arn string, err error) {
	if c.SNS == nil {
		return "", errors.New("the template has an SNS subscription, but there is no endpoint for SNS")
	}
	in := &sns.SubscribeInput{
		TopicArn: &s.TopicArn, Protocol: &s.Protocol, Endpoint: &s.Endpoint, ReturnSubscriptionArn: true,
		Attributes: map[string]string{"RawMessageDelivery": strconv.FormatBool(bool(s.RawMessageDelivery))},
	}
	if s.RedrivePolicy != nil {
		in.Attributes["RedrivePolicy"] = string(s.RedrivePolicy)
	}
	out, err := c.SNS.Subscribe(ctx, in)
	if err != nil {
		return "", fmt.Errorf("subscribe to topic %s: %w", s.TopicArn, err)
	}
	return aws.ToString(out.SubscriptionArn), nil
}

// Unsubscribe removes a subscription.
func Unsubscribe(ctx context.Context, c Clients, arn string) error {
	if _, err := c.SNS.Unsubscribe(ctx, &sns.UnsubscribeInput{SubscriptionArn: &arn}); err != nil {
		return fmt.Errorf("remove subscription %s: %w", arn, err)
	}
	return nil
}
