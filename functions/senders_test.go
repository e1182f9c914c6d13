package functions_test

import (
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/mcp-events/mcpevents/test/expect"
)

// sender is a statement of a queue policy.
type sender struct {
	when      string // the template's condition for the statement
	service   string
	action    string
	resource  string
	condition string // as written in the template
}

// sendersOf returns the statements of a queue policy. Each must depend on a condition of the template.
func sendersOf(t *testing.T, doc *yaml.Node, policy string) (all []sender) {
	t.Helper()
	statements := at(doc, "Resources", policy, "Properties", "PolicyDocument", "Statement")
	if statements == nil {
		t.Fatalf("%s has no statements", policy)
	}
	for _, n := range statements.Content {
		if n.Tag != "!If" || n.Content[2].Value != "AWS::NoValue" {
			t.Errorf("%s: a statement without a condition", policy)
			continue
		}
		s := n.Content[1]
		all = append(all, sender{
			when: n.Content[0].Value, service: value(at(s, "Principal", "Service")), action: value(at(s, "Action")),
			resource: value(at(s, "Resource")), condition: conditionOf(t, s),
		})
	}
	return all
}

func conditionOf(t *testing.T, statement *yaml.Node) string {
	t.Helper()
	if at(statement, "Condition") == nil {
		return ""
	}
	return strings.Join(strings.Fields(written(t, *at(statement, "Condition"))), " ")
}

// SRC-01: AWS services may send to the inbox only if a parameter names them.
func TestWhoMaySendToTheInbox(t *testing.T) {
	doc := tree(t)
	const ofRule, ofTopic = `{ArnEquals: {"aws:SourceArn": !GetAtt SourceRule.Arn}}`, `{ArnEquals: {"aws:SourceArn": !Ref SourceTopicArn}}`
	t.Run("SRC-01 the policy names each sender", func(t *testing.T) {
		want := []sender{
			{"HasRule", "events.amazonaws.com", "sqs:SendMessage", "InboxQueue.Arn", ofRule},
			{"HasTopic", "sns.amazonaws.com", "sqs:SendMessage", "InboxQueue.Arn", ofTopic},
			{"HasBuckets", "s3.amazonaws.com", "sqs:SendMessage", "InboxQueue.Arn", `ArnEquals: {"aws:SourceArn": !Ref SourceBucketArns} StringEquals: {"aws:SourceAccount": !Ref 'AWS::AccountId'}`},
		}
		got := slices.DeleteFunc(sendersOf(t, doc, "InboxPolicy"), func(s sender) bool { return s.service == "" }) // only services, not principals
		expect.List(t, "the services that may send to the inbox", got, want)
		dead := []sender{
			{"HasRule", "events.amazonaws.com", "sqs:SendMessage", "DeadQueue.Arn", ofRule},
			{"HasTopic", "sns.amazonaws.com", "sqs:SendMessage", "DeadQueue.Arn", ofTopic},
		}
		expect.List(t, "the services that may send dead letters", sendersOf(t, doc, "DeadQueuePolicy"), dead)
	})
	t.Run("AWS-23 principals of other accounts may send, and do nothing else, if PublisherArns names them", func(t *testing.T) {
		statements := at(doc, "Resources", "InboxPolicy", "Properties", "PolicyDocument", "Statement").Content
		last := statements[len(statements)-1]
		if got := last.Content[0].Value; got != "HasPublishers" {
			t.Fatalf("the last statement has the condition %q, want HasPublishers", got)
		}
		s := last.Content[1]
		if p, action, resource := at(s, "Principal", "AWS"), value(at(s, "Action")), value(at(s, "Resource")); p.Tag != "!Ref" || p.Value != "PublisherArns" ||
			action != "sqs:SendMessage" || resource != "InboxQueue.Arn" {
			t.Errorf("got %s", written(t, *s))
		}
	})
	t.Run("SRC-01 resources for services exist only if a parameter asks for them", func(t *testing.T) {
		for id, want := range map[string]string{
			"InboxPolicy": "HasSenders", "DeadQueuePolicy": "HasRuleOrTopic", "SourceRule": "HasRule", "SourceSubscription": "HasTopic",
		} {
			expect.Equal(t, "the condition of "+id, value(at(doc, "Resources", id, "Condition")), want)
		}
		d, _ := readDeployment(t)
		for name, want := range map[string]string{
			"HasRule": `!Not [!Equals [!Ref SourceEventPattern, ""]]`, "HasTopic": `!Not [!Equals [!Ref SourceTopicArn, ""]]`,
			"HasBuckets":     `!Not [!Equals [!Join ["", !Ref SourceBucketArns], ""]]`,
			"HasRuleOrTopic": "!Or [!Condition HasRule, !Condition HasTopic]", "HasSenders": "!Or [!Condition HasRuleOrTopic, !Condition HasBuckets, !Condition HasPublishers]",
			"HasPublishers": `!Not [!Equals [!Join ["", !Ref PublisherArns], ""]]`,
		} {
			expect.Equal(t, "the condition "+name, written(t, *at(doc, "Conditions", name)), want)
		}
		for _, name := range []string{"SourceEventPattern", "SourceTopicArn", "SourceBucketArns", "PublisherArns"} {
			expect.Equal(t, "the default of "+name, *d.Parameters[name].Default, "")
		}
	})
	t.Run("SRC-01 the services can send to the queues, because they are not encrypted with a KMS key", func(t *testing.T) {
		for _, id := range []string{"InboxQueue", "DeadQueue"} {
			p := at(doc, "Resources", id, "Properties")
			if value(at(p, "SqsManagedSseEnabled")) != "true" || at(p, "KmsMasterKeyId") != nil {
				t.Errorf("%s: got %s", id, written(t, *p))
			}
		}
	})
	t.Run("SRC-01 messages that cannot be delivered are retried and then dead-lettered", func(t *testing.T) {
		target := at(doc, "Resources", "SourceRule", "Properties", "Targets").Content[0]
		if value(at(target, "Arn")) != "InboxQueue.Arn" || value(at(target, "DeadLetterConfig", "Arn")) != "DeadQueue.Arn" ||
			value(at(target, "RetryPolicy", "MaximumRetryAttempts")) != "185" || value(at(target, "RetryPolicy", "MaximumEventAgeInSeconds")) != "86400" {
			t.Errorf("got %s", written(t, *target))
		}
		s := at(doc, "Resources", "SourceSubscription", "Properties")
		if value(at(s, "RedrivePolicy", "deadLetterTargetArn")) != "DeadQueue.Arn" || value(at(s, "Endpoint")) != "InboxQueue.Arn" || value(at(s, "RawMessageDelivery")) != "false" {
			t.Errorf("got %s", written(t, *s))
		}
	})
}
