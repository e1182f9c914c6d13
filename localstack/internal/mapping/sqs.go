package mapping

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/aws/aws-lambda-go/events"
	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
)

// Queue is a [Source] in SQS.
type Queue struct {
	Client   *sqs.Client
	URL, ARN string
	// DeadURL is the URL of its dead-letter queue, or empty if it does not have one.
	DeadURL string
}

// Receive receives messages with all their attributes.
func (q Queue) Receive(ctx context.Context, limit int, wait time.Duration) ([]events.SQSMessage, error) {
	seconds := min(int32((wait+time.Second-1)/time.Second), 20) // rounded up, so a window may last slightly longer
	out, err := q.Client.ReceiveMessage(ctx, &sqs.ReceiveMessageInput{
		QueueUrl:                    &q.URL,
		MaxNumberOfMessages:         int32(limit),
		WaitTimeSeconds:             seconds,
		MessageSystemAttributeNames: []types.MessageSystemAttributeName{types.MessageSystemAttributeNameAll},
		MessageAttributeNames:       []string{"All"},
	})
	if err != nil {
		return nil, fmt.Errorf("receive from %s: %w", q.URL, err)
	}
	region := ""
	if parts := strings.Split(q.ARN, ":"); len(parts) > 3 {
		region = parts[3]
	}
	messages := make([]events.SQSMessage, 0, len(out.Messages))
	for _, m := range out.Messages {
		message := events.SQSMessage{
			MessageId:              aws.ToString(m.MessageId),
			ReceiptHandle:          aws.ToString(m.ReceiptHandle),
			Body:                   aws.ToString(m.Body),
			Md5OfBody:              aws.ToString(m.MD5OfBody),
			Md5OfMessageAttributes: aws.ToString(m.MD5OfMessageAttributes),
			Attributes:             m.Attributes,
			MessageAttributes:      map[string]events.SQSMessageAttribute{},
			EventSourceARN:         q.ARN,
			EventSource:            "aws:sqs",
			AWSRegion:              region,
		}
		for name, a := range m.MessageAttributes {
			message.MessageAttributes[name] = events.SQSMessageAttribute{
				StringValue: a.StringValue, BinaryValue: a.BinaryValue, DataType: aws.ToString(a.DataType),
			}
		}
		messages = append(messages, message)
	}
	return messages, nil
}

// Bury sends a message to the dead-letter queue, with its attributes.
func (q Queue) Bury(ctx context.Context, message events.SQSMessage) error {
	if q.DeadURL == "" {
		return nil
	}
	in := &sqs.SendMessageInput{QueueUrl: &q.DeadURL, MessageBody: &message.Body, MessageAttributes: map[string]types.MessageAttributeValue{}}
	for name, a := range message.MessageAttributes {
		in.MessageAttributes[name] = types.MessageAttributeValue{StringValue: a.StringValue, BinaryValue: a.BinaryValue, DataType: aws.String(a.DataType)}
	}
	if strings.HasSuffix(q.DeadURL, ".fifo") {
		in.MessageGroupId, in.MessageDeduplicationId = aws.String(message.Attributes["MessageGroupId"]), &message.MessageId
	}
	if _, err := q.Client.SendMessage(ctx, in); err != nil {
		return fmt.Errorf("send to %s: %w", q.DeadURL, err)
	}
	return nil
}

// Delete deletes messages by their receipts.
func (q Queue) Delete(ctx context.Context, batch []events.SQSMessage) error {
	entries := make([]types.DeleteMessageBatchRequestEntry, 0, len(batch))
	for n, m := range batch {
		entries = append(entries, types.DeleteMessageBatchRequestEntry{Id: aws.String(strconv.Itoa(n)), ReceiptHandle: aws.String(m.ReceiptHandle)})
	}
	out, err := q.Client.DeleteMessageBatch(ctx, &sqs.DeleteMessageBatchInput{QueueUrl: &q.URL, Entries: entries})
	if err != nil {
		return fmt.Errorf("delete from %s: %w", q.URL, err)
	}
	if len(out.Failed) > 0 {
		return fmt.Errorf("delete from %s: %d of %d failed, the first with %s", q.URL, len(out.Failed), len(batch), aws.ToString(out.Failed[0].Code))
	}
	return nil
}
