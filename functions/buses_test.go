package functions_test

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/eventbridge"
	"github.com/aws/aws-sdk-go-v2/service/eventbridge/types"
	"github.com/aws/aws-sdk-go-v2/service/sns"
	"github.com/google/uuid"
	"go.yaml.in/yaml/v3"

	"github.com/mcp-events/mcpevents/localstack/runner"
	"github.com/mcp-events/mcpevents/shared/app/apply"
	"github.com/mcp-events/mcpevents/shared/app/config"
	"github.com/mcp-events/mcpevents/test/awslocal"
	"github.com/mcp-events/mcpevents/test/expect"
)

// busSources are sources for the three AWS services, with event types of the project's catalog.
const busSources = `sources:
  - name: orders
    from: eventbridge
    events:
      - {match: {source: [shop]}, name: incident.created, variables: {service: shop}, id: /id, time: /time, data: {id: /detail/order, title: /detail-type, severity: info}}
  - name: builds
    from: sns
    events:
      - {name: ci.build_finished, id: /MessageId, time: /Timestamp, data: {build: /Message/build, status: /Message/status}}
  - name: uploads
    from: s3
    events:
      - {match: {eventName: [{prefix: "ObjectCreated:"}]}, name: storage.object_created, variables: {bucket: /s3/bucket/name}, time: /eventTime, data: {key: /s3/object/key, size: /s3/object/size}}
`

// sourced sends a webhook to a source whose secret is in Parameter Store.
func sourced(t *testing.T, stack *runner.Stack) {
	const body, key = `{"build":7,"status":"failed"}`, "a-secret-of-at-least-16-bytes"
	secret(t, "/mcp-events/Test/s", key)
	configureStack(t, stack, `
sources:
  - name: builds
    verify: {scheme: hmac, header: X-Signature, secrets: ["ssm:/mcp-events/Test/s"]}
    events:
      - {name: ci.build_finished, data: {build: /body/build, status: /body/status}}
`)
	mac := hmac.New(sha256.New, []byte(key))
	mac.Write([]byte(body))
	header := map[string]string{"X-Signature": hex.EncodeToString(mac.Sum(nil))}
	eventually(t, "the source accepts its webhook", func() bool {
		return post(t, stack.URL()+"/sources/builds", body, header, nil).StatusCode == http.StatusAccepted
	})
}

// TestServicesSendToTheInbox (SRC-01): with the template's parameters set, an EventBridge event, an SNS message and
// an S3 notification reach a polling client. The emulator provides EventBridge, SNS, S3 and SQS.
func TestServicesSendToTheInbox(t *testing.T) {
	t.Parallel()
	ends := awslocal.Start(t, awslocal.DynamoDB, awslocal.SQS, awslocal.MiniStack)
	cfg := awslocal.Config(ends.MiniStack)
	topics, bus := sns.NewFromConfig(cfg), eventbridge.NewFromConfig(cfg)
	name := "t" + uuid.NewString()[:8]
	topic := expect.Value(topics.CreateTopic(t.Context(), &sns.CreateTopicInput{Name: &name}))(t)
	bucket := ends.MiniStack + "/" + name
	put(t, bucket, "")
	stack := deploy(t, func(o *runner.Options) {
		o.Endpoints.SQS, o.Endpoints.EventBridge, o.Endpoints.SNS = ends.MiniStack, ends.MiniStack, ends.MiniStack
		o.Parameters["InboxConcurrency"] = "2"
		o.Parameters["SourceEventPattern"] = `{"source":["shop"]}`
		o.Parameters["SourceTopicArn"] = *topic.TopicArn
		o.Parameters["SourceBucketArns"] = "arn:aws:s3:::" + name
	})
	c := expect.Value(config.Parse([]byte(busSources)))(t)
	expect.OK(t, expect.ErrOf((&apply.Target{DB: database(t, stack)}).Apply(t.Context(), apply.Files{Config: c})))
	// polled waits for the single event of a type and returns its data.
	polled := func(t *testing.T, name, cursor string) string {
		t.Helper()
		var found []struct{ Data json.RawMessage }
		eventually(t, "the event is polled", func() bool {
			var page struct {
				Events []struct{ Data json.RawMessage }
				Cursor string
			}
			expect.OK(t, json.Unmarshal(rpc(t, stack.URL(), "events/poll", `"name":"`+name+`","arguments":{},"cursor":"`+cursor+`"`), &page))
			found, cursor = append(found, page.Events...), page.Cursor
			return len(found) > 0
		})
		return string(found[0].Data)
	}
	begin := func(t *testing.T, name string) (cursor string) {
		t.Helper()
		var page struct{ Cursor string }
		expect.OK(t, json.Unmarshal(rpc(t, stack.URL(), "events/poll", `"name":"`+name+`","arguments":{},"cursor":null`), &page))
		return page.Cursor
	}
	t.Run("SRC-01 put-events", func(t *testing.T) {
		cursor := begin(t, "incident.created")
		entry := types.PutEventsRequestEntry{Source: aws.String("shop"), DetailType: aws.String("Order Placed"), Detail: aws.String(`{"order":"o-7"}`)}
		other := entry
		other.Source = aws.String("stock")
		out, err := bus.PutEvents(t.Context(), &eventbridge.PutEventsInput{Entries: []types.PutEventsRequestEntry{other, entry}})
		if err != nil || out.FailedEntryCount > 0 {
			t.Fatalf("got %+v, %v", out, err)
		}
		expect.Equal(t, "the event", polled(t, "incident.created", cursor), `{"id":"o-7","severity":"info","title":"Order Placed"}`)
	})
	t.Run("SRC-01 publish to a topic", func(t *testing.T) {
		cursor := begin(t, "ci.build_finished")
		expect.OK(t, expect.ErrOf(topics.Publish(t.Context(), &sns.PublishInput{TopicArn: topic.TopicArn, Message: aws.String(`{"build":8,"status":"failed"}`)})))
		expect.Equal(t, "the event", polled(t, "ci.build_finished", cursor), `{"build":8,"status":"failed"}`)
	})
	t.Run("SRC-01 put-object", func(t *testing.T) {
		cursor := begin(t, "storage.object_created")
		put(t, bucket+"?notification", `<NotificationConfiguration xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><QueueConfiguration><Queue>`+
			stack.Outputs()["InboxQueueArn"]+`</Queue><Event>s3:ObjectCreated:*</Event></QueueConfiguration></NotificationConfiguration>`)
		put(t, bucket+"/a/b.csv", "x,y\n")
		expect.Equal(t, "the event", polled(t, "storage.object_created", cursor), `{"key":"a/b.csv","size":4}`)
	})
	expect.AtMost(t, "the dead letters", letters(t, stack, ""), 0)
}

// put sends an S3 request, which the emulator accepts without a signature.
func put(t *testing.T, url, body string) {
	t.Helper()
	req := expect.Value(http.NewRequestWithContext(t.Context(), http.MethodPut, url, strings.NewReader(body)))(t)
	resp := expect.Value(http.DefaultClient.Do(req))(t)
	defer resp.Body.Close()
	if answer, _ := io.ReadAll(resp.Body); resp.StatusCode != http.StatusOK {
		t.Fatalf("PUT %s: %d %s", url, resp.StatusCode, answer)
	}
}

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
		expect.MustEqual(t, "the condition of the last statement", last.Content[0].Value, "HasPublishers")
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
