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
	t.Run("OPS-04 what is not accepted stays", func(t *testing.T) {
		n, err := q.Drain(t.Context(), q.urls[queue.Dead], "", func(_ context.Context, batch []queue.Message) ([]string, error) {
			last := batch[len(batch)-1] // not the one that SQS moved, which is the oldest
			got = append(got, batch[:len(batch)-1]...)
			return []string{last.ID}, nil
		})
		if err == nil || n != len(got) || n == 0 {
			t.Errorf("%d were accepted of %d, %v", n, len(got), err)
		}
		if depth, err := q.depth(t.Context(), queue.Dead); err != nil || depth.InFlight != 1 {
			t.Errorf("got %+v, %v", depth, err)
		}
	})
	t.Run("OPS-04 all the others are handed over, and gone", func(t *testing.T) {
		n, err := q.Drain(t.Context(), q.urls[queue.Dead], "", accept)
		if err != nil || len(got) != 24 {
			t.Errorf("%d were accepted, %d in all, %v", n, len(got), err)
		}
		if depth, err := q.depth(t.Context(), queue.Dead); err != nil || depth.Visible != 0 {
			t.Errorf("got %+v, %v", depth, err)
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
