package sqs

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/mcp-events/mcpevents/shared/storage/queue"
	"github.com/mcp-events/mcpevents/test/awslocal"
)

// ElasticMQ moves messages to dead-letter queues as SQS does; MiniStack ignores redrive policies.
func TestDrain(t *testing.T) {
	t.Parallel()
	q := open(t, awslocal.Start(t, awslocal.SQS).SQS)
	redrive(t, q, queue.Inbox)
	in := &sqs.SendMessageInput{
		QueueUrl: aws.String(q.urls[queue.Inbox]), MessageBody: aws.String("poison"),
		MessageAttributes: map[string]types.MessageAttributeValue{"team": {DataType: aws.String("String"), StringValue: aws.String("red")}},
	}
	if _, err := q.client.SendMessage(t.Context(), in); err != nil {
		t.Fatal(err)
	}
	moved(t, q, queue.Inbox)
	send(t, q, queue.Dead, "", texts(24)...)

	var got []queue.Message
	accept := func(_ context.Context, batch []queue.Message) ([]string, error) {
		got = append(got, batch...)
		return nil, nil
	}
	t.Run("OPS-04 given a message that fails, then it stays and all others are accepted and deleted", func(t *testing.T) {
		fails := ""
		n, err := q.Drain(t.Context(), q.urls[queue.Dead], "", func(_ context.Context, batch []queue.Message) (failed []string, err error) {
			if fails == "" {
				fails = batch[len(batch)-1].ID // not the message that SQS moved, which is the oldest
			}
			for _, m := range batch {
				if m.ID == fails {
					failed = append(failed, m.ID)
				} else {
					got = append(got, m)
				}
			}
			return failed, nil
		})
		if err == nil || n != 24 || len(got) != 24 {
			t.Errorf("accepted %d messages, handled %d, %v; want 24 and an error", n, len(got), err)
		}
		if depth, err := q.depth(t.Context(), queue.Dead); err != nil || depth.InFlight != 1 || depth.Visible != 0 {
			t.Errorf("got %+v, %v, want the failed message in flight", depth, err)
		}
	})
	t.Run("AWS-07 a message that SQS moved has its queue, its attributes and when it was sent", func(t *testing.T) {
		i := slices.IndexFunc(got, func(m queue.Message) bool { return string(m.Body) == "poison" })
		if i < 0 {
			t.Fatal("it is not there")
		}
		if m := got[i]; m.From != queue.Inbox || m.Attributes["team"] != "red" || time.Since(m.Sent) > time.Minute {
			t.Errorf("got %+v", m)
		}
		others := slices.DeleteFunc(slices.Clone(got), func(m queue.Message) bool { return m.From == "" })
		if len(others) != 1 {
			t.Errorf("%d say that SQS moved them", len(others))
		}
	})
	t.Run("OPS-04 a queue's own dead-letter queue stands for what SQS does not say", func(t *testing.T) {
		send(t, q, queue.Dead, "", "one")
		got = nil
		if _, err := q.Drain(t.Context(), q.urls[queue.Dead], queue.Events, accept); err != nil || len(got) != 1 || got[0].From != queue.Events {
			t.Errorf("got %+v, %v", got, err)
		}
	})
	t.Run("OPS-04 given a batch of which all messages fail, then the others wait for the next call", func(t *testing.T) {
		send(t, q, queue.Dead, "", texts(24)...)
		calls := 0
		n, err := q.Drain(t.Context(), q.urls[queue.Dead], "", func(_ context.Context, batch []queue.Message) ([]string, error) {
			calls++
			return listIDs(batch), nil
		})
		if err == nil || n != 0 || calls != 1 {
			t.Errorf("accepted %d messages in %d batches, %v; want an error after the first batch", n, calls, err)
		}
	})
}

func texts(n int) (bodies []string) {
	for i := range n {
		bodies = append(bodies, fmt.Sprint("letter ", i))
	}
	return bodies
}

// redrive has SQS move messages of a queue to the dead queue after one receive.
func redrive(t *testing.T, q *Queues, name queue.Name) {
	t.Helper()
	out, err := q.client.GetQueueAttributes(t.Context(), &sqs.GetQueueAttributesInput{
		QueueUrl: aws.String(q.urls[queue.Dead]), AttributeNames: []types.QueueAttributeName{types.QueueAttributeNameQueueArn},
	})
	if err != nil {
		t.Fatal(err)
	}
	policy, _ := json.Marshal(map[string]string{"deadLetterTargetArn": out.Attributes["QueueArn"], "maxReceiveCount": "1"})
	_, err = q.client.SetQueueAttributes(t.Context(), &sqs.SetQueueAttributesInput{
		QueueUrl: aws.String(q.urls[name]), Attributes: map[string]string{string(types.QueueAttributeNameRedrivePolicy): string(policy)},
	})
	if err != nil {
		t.Fatal(err)
	}
}

// moved receives a message of a queue until SQS moves it.
func moved(t *testing.T, q *Queues, name queue.Name) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); {
		_, err := q.client.ReceiveMessage(t.Context(), &sqs.ReceiveMessageInput{QueueUrl: aws.String(q.urls[name]), VisibilityTimeout: 1, WaitTimeSeconds: 1})
		if err != nil {
			t.Fatal(err)
		}
		if depth, err := q.depth(t.Context(), queue.Dead); err == nil && depth.Visible == 1 {
			return
		}
	}
	t.Fatal("SQS does not move the message")
}
