package resource_test

import (
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/eventbridge"
	"github.com/aws/aws-sdk-go-v2/service/eventbridge/types"
	"github.com/aws/aws-sdk-go-v2/service/sns"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	sqstypes "github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/mcp-events/mcpevents/localstack/internal/resource"
	"github.com/mcp-events/mcpevents/test/expect"
)

// policy sets the policy of a queue. Not all emulators store it.
func policy(t *testing.T, c resource.Clients, name string) {
	url, arn, err := resource.Queue{}.Create(t.Context(), c, name)
	expect.OK(t, err)
	document := `{"Version":"2012-10-17","Statement":[{"Effect":"Allow","Principal":{"Service":"sns.amazonaws.com"},"Action":"sqs:SendMessage","Resource":"` + arn + `"}]}`
	p := resource.QueuePolicy{Queues: []string{url}, PolicyDocument: []byte(document)}
	expect.OK(t, p.Create(t.Context(), c))
	got := expect.Value(c.SQS.GetQueueAttributes(t.Context(), &sqs.GetQueueAttributesInput{QueueUrl: &url, AttributeNames: []sqstypes.QueueAttributeName{sqstypes.QueueAttributeNameAll}}))(t)
	if kept := got.Attributes["Policy"]; c.Events != nil && kept != document {
		t.Errorf("got the policy %s", kept)
	}
}

// senders creates a rule and a subscription twice. Each must put a message into the queue once.
func senders(t *testing.T, c resource.Clients, prefix string) {
	url, arn, err := resource.Queue{}.Create(t.Context(), c, prefix+"inbox")
	expect.OK(t, err)
	topic := expect.Value(c.SNS.CreateTopic(t.Context(), &sns.CreateTopicInput{Name: aws.String(prefix + "topic")}))(t)
	// The pattern may be an object, as in a template, or a string, as in a parameter.
	for _, pattern := range []string{`{"source":["shop"]}`, `"{\"source\":[\"shop\"]}"`} {
		rule := resource.Rule{State: "ENABLED", EventBusName: "default", EventPattern: []byte(pattern), Targets: []resource.Target{{Id: "inbox", Arn: arn}}}
		got, err := rule.Create(t.Context(), c, prefix+"rule")
		if err != nil || !strings.HasSuffix(got, ":rule/"+prefix+"rule") {
			t.Fatalf("got %q, %v", got, err)
		}
		s := resource.Subscription{TopicArn: *topic.TopicArn, Protocol: "sqs", Endpoint: arn}
		if got, err = s.Create(t.Context(), c); err != nil || !strings.HasPrefix(got, *topic.TopicArn+":") {
			t.Fatalf("got %q, %v", got, err)
		}
	}
	for _, source := range []string{"other", "shop"} {
		sent, err := c.Events.PutEvents(t.Context(), &eventbridge.PutEventsInput{Entries: []types.PutEventsRequestEntry{
			{Source: &source, DetailType: aws.String("Order Placed"), Detail: aws.String(`{"order":7}`)},
		}})
		if err != nil || sent.FailedEntryCount > 0 {
			t.Fatalf("got %+v, %v", sent, err)
		}
	}
	expect.OK(t, expect.ErrOf(c.SNS.Publish(t.Context(), &sns.PublishInput{TopicArn: topic.TopicArn, Message: aws.String(`{"order":8}`)})))
	var bodies []string
	for until := time.Now().Add(10 * time.Second); len(bodies) < 2 && time.Now().Before(until); {
		out := expect.Value(c.SQS.ReceiveMessage(t.Context(), &sqs.ReceiveMessageInput{QueueUrl: &url, MaxNumberOfMessages: 10, WaitTimeSeconds: 1}))(t)
		for _, m := range out.Messages {
			bodies = append(bodies, *m.Body)
		}
	}
	all := strings.Join(bodies, "\n")
	if len(bodies) != 2 || !strings.Contains(all, `"Order Placed"`) || !strings.Contains(all, `"TopicArn"`) || strings.Contains(all, `"other"`) {
		t.Errorf("got %s", all)
	}
}
