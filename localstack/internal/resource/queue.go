package resource

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"strconv"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/mcp-events/mcpevents/localstack/internal/template"
)

// Queue contains the properties of an AWS::SQS::Queue.
type Queue struct {
	QueueName                     string
	FifoQueue                     template.Bool
	ContentBasedDeduplication     *template.Bool
	DeduplicationScope            string
	FifoThroughputLimit           string
	DelaySeconds                  *template.Int
	MaximumMessageSize            *template.Int
	MessageRetentionPeriod        *template.Int
	ReceiveMessageWaitTimeSeconds *template.Int
	VisibilityTimeout             *template.Int

	RedrivePolicy *struct {
		DeadLetterTargetArn string       `json:"deadLetterTargetArn"`
		MaxReceiveCount     template.Int `json:"maxReceiveCount"`
	}

	RedriveAllowPolicy, SqsManagedSseEnabled, KmsMasterKeyId, KmsDataKeyReusePeriodSeconds, Tags ignored
}

// Visibility returns how long a received message is invisible.
func (q Queue) Visibility() time.Duration {
	if q.VisibilityTimeout == nil {
		return 30 * time.Second
	}
	return time.Duration(*q.VisibilityTimeout) * time.Second
}

// Create creates the queue, or sets the attributes of the existing one. It returns the queue's URL and ARN.
func (q Queue) Create(ctx context.Context, c Clients, name string) (url, arn string, err error) {
	attributes := q.attributes()
	url, err = q.createOrUpdate(ctx, c, name, attributes)
	if isCode(err, "InvalidAttributeName") {
		// Not every emulator supports the modes of FIFO queues. They affect only the throughput if deduplication ids
		// are unique within the queue.
		delete(attributes, "DeduplicationScope")
		delete(attributes, "FifoThroughputLimit")
		url, err = q.createOrUpdate(ctx, c, name, attributes)
	}
	if err != nil {
		return "", "", fmt.Errorf("create queue %s: %w", name, err)
	}
	got, err := c.SQS.GetQueueAttributes(ctx, &sqs.GetQueueAttributesInput{
		QueueUrl: &url, AttributeNames: []types.QueueAttributeName{types.QueueAttributeNameQueueArn},
	})
	if err != nil {
		return "", "", fmt.Errorf("read the attributes of queue %s: %w", name, err)
	}
	return url, got.Attributes["QueueArn"], nil
}

func (q Queue) createOrUpdate(ctx context.Context, c Clients, name string, attributes map[string]string) (url string, err error) {
	out, err := c.SQS.CreateQueue(ctx, &sqs.CreateQueueInput{QueueName: &name, Attributes: attributes})
	if err == nil {
		return aws.ToString(out.QueueUrl), nil
	}
	if !isCode(err, "QueueAlreadyExists", "QueueNameExists") {
		return "", err
	}
	// It exists with other attributes.
	found, err := c.SQS.GetQueueUrl(ctx, &sqs.GetQueueUrlInput{QueueName: &name})
	if err != nil {
		return "", err
	}
	settable := maps.Clone(attributes)
	delete(settable, "FifoQueue") // determined by the name, and cannot be changed
	if len(settable) > 0 {
		_, err = c.SQS.SetQueueAttributes(ctx, &sqs.SetQueueAttributesInput{QueueUrl: found.QueueUrl, Attributes: settable})
	}
	return aws.ToString(found.QueueUrl), err
}

// DeleteQueue removes a queue with its messages.
func DeleteQueue(ctx context.Context, c Clients, url string) error {
	if _, err := c.SQS.DeleteQueue(ctx, &sqs.DeleteQueueInput{QueueUrl: &url}); err != nil {
		return fmt.Errorf("delete queue %s: %w", url, err)
	}
	return nil
}

func (q Queue) attributes() map[string]string {
	a := map[string]string{}
	number := func(name string, v *template.Int) {
		if v != nil {
			a[name] = strconv.Itoa(int(*v))
		}
	}
	text := func(name, v string) {
		if v != "" {
			a[name] = v
		}
	}
	number("DelaySeconds", q.DelaySeconds)
	number("MaximumMessageSize", q.MaximumMessageSize)
	number("MessageRetentionPeriod", q.MessageRetentionPeriod)
	number("ReceiveMessageWaitTimeSeconds", q.ReceiveMessageWaitTimeSeconds)
	number("VisibilityTimeout", q.VisibilityTimeout)
	text("DeduplicationScope", q.DeduplicationScope)
	text("FifoThroughputLimit", q.FifoThroughputLimit)
	if q.FifoQueue {
		a["FifoQueue"] = "true"
	}
	if q.ContentBasedDeduplication != nil {
		a["ContentBasedDeduplication"] = strconv.FormatBool(bool(*q.ContentBasedDeduplication))
	}
	if r := q.RedrivePolicy; r != nil {
		b, err := json.Marshal(map[string]any{"deadLetterTargetArn": r.DeadLetterTargetArn, "maxReceiveCount": int(r.MaxReceiveCount)})
		if err != nil {
			panic(err) // a string and a number always encode
		}
		a["RedrivePolicy"] = string(b)
	}
	return a
}
