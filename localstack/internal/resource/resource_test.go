package resource_test

import (
	"os"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/eventbridge"
	"github.com/aws/aws-sdk-go-v2/service/kms"
	"github.com/aws/aws-sdk-go-v2/service/sns"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
	"github.com/google/uuid"

	"github.com/mcp-events/mcpevents/localstack/internal/resource"
	"github.com/mcp-events/mcpevents/localstack/internal/template"
	"github.com/mcp-events/mcpevents/test/awslocal"
	"github.com/mcp-events/mcpevents/test/expect"
)

func TestMain(m *testing.M) { os.Exit(awslocal.Main(m)) }

// emulators lists the emulators that people use: one server for all services, or one for each.
func emulators(t *testing.T) map[string]resource.Clients {
	ends := awslocal.Start(t, awslocal.DynamoDB, awslocal.SQS, awslocal.MiniStack)
	return map[string]resource.Clients{
		"MiniStack": {
			DynamoDB: dynamodb.NewFromConfig(awslocal.Config(ends.MiniStack)),
			SQS:      sqs.NewFromConfig(awslocal.Config(ends.MiniStack)),
			KMS:      kms.NewFromConfig(awslocal.Config(ends.MiniStack)),
			Events:   eventbridge.NewFromConfig(awslocal.Config(ends.MiniStack)),
			SNS:      sns.NewFromConfig(awslocal.Config(ends.MiniStack)),
		},
		"DynamoDB Local and ElasticMQ": {
			DynamoDB: dynamodb.NewFromConfig(awslocal.Config(ends.DynamoDB)),
			SQS:      sqs.NewFromConfig(awslocal.Config(ends.SQS)),
		},
	}
}

func TestResourcesAreCreatedOnceAndFoundAgain(t *testing.T) {
	for name, c := range emulators(t) {
		t.Run(name, func(t *testing.T) {
			prefix := "t" + uuid.NewString()[:8] + "-"
			t.Run("table", func(t *testing.T) { table(t, c, prefix+"table") })
			t.Run("queues", func(t *testing.T) { queues(t, c, prefix) })
			t.Run("policy", func(t *testing.T) { policy(t, c, prefix+"policy") })
			if c.Events != nil {
				t.Run("rule and subscription", func(t *testing.T) { senders(t, c, prefix) })
			}
			if c.KMS != nil {
				t.Run("key", func(t *testing.T) { key(t, c, prefix+"key") })
			}
		})
	}
}

func table(t *testing.T, c resource.Clients, name string) {
	var props resource.Table
	props.AttributeDefinitions = []struct{ AttributeName, AttributeType string }{{"pk", "S"}, {"sk", "S"}}
	props.KeySchema = []struct{ AttributeName, KeyType string }{{"pk", "HASH"}, {"sk", "RANGE"}}
	props.TimeToLiveSpecification = &struct {
		AttributeName string
		Enabled       template.Bool
	}{"exp", true}
	var arns []string
	for range 2 {
		arn := expect.Value(props.Create(t.Context(), c, name))(t)
		arns = append(arns, arn)
	}
	if arns[0] != arns[1] || !strings.HasSuffix(arns[0], "table/"+name) {
		t.Errorf("got ARNs %v", arns)
	}
	ttl := expect.Value(c.DynamoDB.DescribeTimeToLive(t.Context(), &dynamodb.DescribeTimeToLiveInput{TableName: &name}))(t)
	expect.Equal(t, "the attribute with the time to live", *ttl.TimeToLiveDescription.AttributeName, "exp")
}

func queues(t *testing.T, c resource.Clients, prefix string) {
	yes := template.Bool(true)
	dead := resource.Queue{FifoQueue: true, ContentBasedDeduplication: &yes}
	_, deadARN, err := dead.Create(t.Context(), c, prefix+"dead.fifo")
	expect.OK(t, err)
	visibility := template.Int(90)
	props := resource.Queue{FifoQueue: true, VisibilityTimeout: &visibility, DeduplicationScope: "messageGroup", FifoThroughputLimit: "perMessageGroupId"}
	props.RedrivePolicy = &struct {
		DeadLetterTargetArn string       `json:"deadLetterTargetArn"`
		MaxReceiveCount     template.Int `json:"maxReceiveCount"`
	}{deadARN, 4}
	var urls []string
	for range 2 { // the second time with a different visibility timeout
		url, arn, err := props.Create(t.Context(), c, prefix+"events.fifo")
		expect.OK(t, err)
		if !strings.HasSuffix(arn, ":"+prefix+"events.fifo") {
			t.Errorf("got ARN %q", arn)
		}
		urls = append(urls, url)
		got := expect.Value(c.SQS.GetQueueAttributes(t.Context(), &sqs.GetQueueAttributesInput{QueueUrl: &url, AttributeNames: []types.QueueAttributeName{types.QueueAttributeNameAll}}))(t)
		want := map[int]string{90: "90", 120: "120"}[int(visibility)]
		if got.Attributes["VisibilityTimeout"] != want || !strings.Contains(got.Attributes["RedrivePolicy"], deadARN) {
			t.Errorf("got attributes %v, want visibility %s", got.Attributes, want)
		}
		visibility = 120
	}
	expect.Equal(t, "the URL of the second queue", urls[0], urls[1])
}

func key(t *testing.T, c resource.Clients, name string) {
	var ids []string
	for range 2 {
		id, arn, err := resource.Key{Description: "for tests"}.Create(t.Context(), c, name)
		expect.OK(t, err)
		if !strings.HasSuffix(arn, "key/"+id) {
			t.Errorf("got ARN %q of key %q", arn, id)
		}
		ids = append(ids, id)
	}
	expect.Equal(t, "the second key", ids[0], ids[1])
}

func TestWhatNeedsAnEndpoint(t *testing.T) {
	_, _, err := resource.Key{}.Create(t.Context(), resource.Clients{}, "x")
	expect.Error(t, "the key", err, "no endpoint for KMS")
	expect.Error(t, "the rule", expect.ErrOf(resource.Rule{}.Create(t.Context(), resource.Clients{}, "x")), "no endpoint for EventBridge")
	_, err = resource.Subscription{}.Create(t.Context(), resource.Clients{})
	expect.Error(t, "the error", err, "no endpoint for SNS")
}
