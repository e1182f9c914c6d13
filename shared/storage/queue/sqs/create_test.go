package sqs

import (
	"context"
	"maps"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/mcp-events/mcpevents/shared/storage/queue"
)

// create makes the queues, as template.yaml does on AWS, with names that start with prefix, and returns their URLs for
// [New].
func create(ctx context.Context, client *sqs.Client, prefix string) (func(queue.Name) string, error) {
	urls := map[queue.Name]string{}
	for _, name := range queue.Names() {
		full, attributes := prefix+string(name), map[string]string{}
		if name.FIFO() {
			full += ".fifo"
			maps.Copy(attributes, map[string]string{
				string(types.QueueAttributeNameFifoQueue):           "true",
				string(types.QueueAttributeNameDeduplicationScope):  "messageGroup",
				string(types.QueueAttributeNameFifoThroughputLimit): "perMessageGroupId",
			})
		}
		out, err := client.CreateQueue(ctx, &sqs.CreateQueueInput{QueueName: aws.String(full), Attributes: attributes})
		if err != nil {
			return nil, failure(err, "creating queue %s", full)
		}
		urls[name] = *out.QueueUrl
	}
	return func(name queue.Name) string { return urls[name] }, nil
}
