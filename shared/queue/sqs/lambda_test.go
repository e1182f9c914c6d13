package sqs

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-lambda-go/events"
	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
	"github.com/google/go-cmp/cmp"

	"github.com/mcp-events/mcpevents/shared/awsx"
	"github.com/mcp-events/mcpevents/shared/queue"
	"github.com/mcp-events/mcpevents/test/awslocal"
)

func record(id, group string) events.SQSMessage {
	return events.SQSMessage{MessageId: id, Body: "{}", Attributes: map[string]string{attrGroup: group}}
}

func TestMessagesOfAnEvent(t *testing.T) {
	got := Messages(events.SQSEvent{Records: []events.SQSMessage{
		{
			MessageId: "1", Body: `{"n":1}`, Attributes: map[string]string{
				"ApproximateReceiveCount": "3", "SentTimestamp": "1750000000123", "MessageGroupId": "g", "MessageDeduplicationId": "d",
			},
			MessageAttributes: map[string]events.SQSMessageAttribute{
				"from": {DataType: "String", StringValue: aws.String("orders")}, "mark": {DataType: "Binary", BinaryValue: []byte{0xff}},
			},
		},
		{MessageId: "2", Body: "{}"},
	}})
	want := []queue.Message{
		{
			ID: "1", Outgoing: queue.Outgoing{Body: []byte(`{"n":1}`), Group: "g", Dedup: "d"},
			Received: 3, Sent: time.UnixMilli(1750000000123).UTC(), Attributes: map[string]string{"from": "orders", "mark": "/w=="},
		},
		{ID: "2", Outgoing: queue.Outgoing{Body: []byte("{}")}, Received: 1},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

// unreachable are queues that nothing answers for: what failed is reported all the same.
func unreachable(t *testing.T) *Queues {
	t.Helper()
	cfg := awslocal.Config("http://127.0.0.1:1")
	cfg.RetryMaxAttempts = 1
	return New(sqs.NewFromConfig(cfg), func(queue.Name) string { return "http://127.0.0.1:1/0/q" }, slog.New(slog.DiscardHandler))
}

// receive takes all messages of a queue as an event source mapping gives them to a function.
func receive(t *testing.T, q *Queues, name queue.Name, want int) (event events.SQSEvent) {
	t.Helper()
	url := q.urls[name]
	deadline := time.Now().Add(30 * time.Second)
	for len(event.Records) < want && time.Now().Before(deadline) {
		out, err := q.client.ReceiveMessage(t.Context(), &sqs.ReceiveMessageInput{
			QueueUrl: &url, MaxNumberOfMessages: 10, VisibilityTimeout: 600, WaitTimeSeconds: 1,
			MessageSystemAttributeNames: []types.MessageSystemAttributeName{types.MessageSystemAttributeNameAll},
		})
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range out.Messages {
			event.Records = append(event.Records, events.SQSMessage{
				MessageId: *m.MessageId, Body: *m.Body, ReceiptHandle: *m.ReceiptHandle, Attributes: m.Attributes,
				EventSourceARN: "arn:aws:sqs:us-east-1:0:" + url[strings.LastIndexByte(url, '/')+1:],
			})
		}
	}
	if len(event.Records) != want {
		t.Fatalf("received %d messages of %s, want %d", len(event.Records), name, want)
	}
	return event
}

// TestWhatAFunctionWasCutOffOverComesAgainLater: AWS-05. The messages are hidden for ten minutes otherwise, so a second
// receive shows that they became visible. What a function fails while it has time is in the suite.
func TestWhatAFunctionWasCutOffOverComesAgainLater(t *testing.T) {
	everywhere(t, func(t *testing.T, q *Queues) {
		send(t, q, queue.Slow, "", "s1", "s2")
		event := receive(t, q, queue.Slow, 2)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := q.Lambda(func(context.Context, []queue.Message) ([]string, error) { return nil, ctx.Err() })(ctx, event); err == nil {
			t.Error("no error")
		}
		began := time.Now()
		receive(t, q, queue.Slow, 2)
		if took := time.Since(began); took < canceledBackOff-time.Second {
			t.Errorf("AWS-05: they came again after %v, when what was cut off may still be carried out", took)
		}
	})
}

func TestAFunctionThatSucceedsAsksNothingMore(t *testing.T) {
	var counter awsx.Counter
	q := open(t, awslocal.Start(t, awslocal.SQS).SQS, &counter)
	send(t, q, queue.Deliveries, "", "1", "2")
	event := receive(t, q, queue.Deliveries, 2)
	if _, err := q.Lambda(func(context.Context, []queue.Message) ([]string, error) { return nil, nil })(t.Context(), event); err != nil {
		t.Fatal(err)
	}
	if n := counter.Snapshot()["SQS"]["ChangeMessageVisibilityBatch"].Requests; n != 0 {
		t.Errorf("asked %d times for another visibility", n)
	}
}

func TestAFunctionReportsWhatFailed(t *testing.T) {
	records := []events.SQSMessage{record("1", "a"), record("2", "b"), record("3", "a"), record("4", "b")}
	tests := map[string]struct {
		failed []string
		fifo   bool
		want   []string
	}{
		"nothing":                                {want: []string{}},
		"one":                                    {failed: []string{"1"}, want: []string{"1"}},
		"all":                                    {failed: []string{"4", "3", "2", "1"}, want: []string{"1", "2", "3", "4"}},
		"twice the same":                         {failed: []string{"3", "3"}, want: []string{"3"}},
		"FIFO: later messages of the group too":  {failed: []string{"1"}, fifo: true, want: []string{"1", "3"}},
		"FIFO: earlier ones not":                 {failed: []string{"3"}, fifo: true, want: []string{"3"}},
		"an id of no message fails all":          {failed: []string{"5"}, want: []string{"1", "2", "3", "4"}},
		"an id of no message fails all, with it": {failed: []string{"1", "5"}, want: []string{"1", "2", "3", "4"}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			event := events.SQSEvent{Records: slices.Clone(records)}
			for i := range event.Records {
				event.Records[i].EventSourceARN = "arn:aws:sqs:us-east-1:1:q"
				if tt.fifo {
					event.Records[i].EventSourceARN += ".fifo"
				}
			}
			got, err := unreachable(t).Lambda(func(_ context.Context, batch []queue.Message) ([]string, error) {
				if len(batch) != len(records) {
					t.Errorf("a batch of %d", len(batch))
				}
				return tt.failed, nil
			})(t.Context(), event)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(Response(tt.want), got); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
			text, err := json.Marshal(got)
			if err != nil || strings.Contains(string(text), "null") {
				t.Errorf("marshals as %s, %v", text, err)
			}
		})
	}
}

func TestAnErrorOfTheHandlerFailsTheInvocation(t *testing.T) {
	broken := errors.New("broken")
	_, err := unreachable(t).Lambda(func(context.Context, []queue.Message) ([]string, error) { return nil, broken })(
		t.Context(), events.SQSEvent{Records: []events.SQSMessage{record("1", "")}})
	if !errors.Is(err, broken) {
		t.Errorf("got %v, want %v", err, broken)
	}
}
