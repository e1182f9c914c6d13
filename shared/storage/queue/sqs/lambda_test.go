package sqs

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-lambda-go/events"
	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/google/go-cmp/cmp"

	"github.com/mcp-events/mcpevents/shared/storage/queue"
	"github.com/mcp-events/mcpevents/test/expect"
)

func record(id, group string) events.SQSMessage {
	return events.SQSMessage{MessageId: id, Body: "{}", Attributes: map[string]string{attrGroup: group}}
}

func TestMessagesOfAnEvent(t *testing.T) {
	got := messages(events.SQSEvent{Records: []events.SQSMessage{
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

// TestWhenAFunctionFailedMessagesComeAgain: AWS-05. That SQS does as it is asked is shown by the suite.
func TestAFunctionSetsTheBackOffOfFailedMessages(t *testing.T) {
	over, cancel := context.WithCancel(t.Context())
	cancel()
	for name, tt := range map[string]struct {
		ctx         context.Context
		failed      []string
		err         error
		asked       int // for how many messages
		least, most int // seconds
	}{
		"no request if all messages were handled":     {ctx: t.Context()},
		"AWS-05 the failed messages of a batch, soon": {ctx: t.Context(), failed: []string{"2"}, asked: 1, least: 1, most: 2},
		"AWS-05 all messages after an error":          {ctx: t.Context(), err: errors.New("broken"), asked: 3, least: 1, most: 2},
		"AWS-05 later after the batch's context has ended, because its last writes may still take effect": {
			ctx: over, err: over.Err(), asked: 3, least: int(canceledBackOff.Seconds()), most: int(canceledBackOff.Seconds()),
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := &fake{}
			event := events.SQSEvent{Records: []events.SQSMessage{record("1", ""), record("2", ""), record("3", "")}}
			for i := range event.Records {
				event.Records[i].EventSourceARN = "arn:aws:sqs:us-east-1:0:" + string(queue.Slow)
			}
			_, err := f.queues().Lambda(func(context.Context, []queue.Message) ([]string, error) { return tt.failed, tt.err })(tt.ctx, event)
			if !errors.Is(err, tt.err) {
				t.Errorf("got %v, want %v", err, tt.err)
			}
			if len(f.hidden) != tt.asked || tt.asked > 0 && (slices.Min(f.hidden) < tt.least || slices.Max(f.hidden) > tt.most) {
				t.Errorf("they come again after %v s, want %d after %d to %d s", f.hidden, tt.asked, tt.least, tt.most)
			}
		})
	}
}

// What failed is reported, also when SQS does not take when it is to come again.
func TestAFunctionReportsFailedMessages(t *testing.T) {
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
				event.Records[i].EventSourceARN = "arn:aws:sqs:us-east-1:1:slow"
				if tt.fifo {
					event.Records[i].EventSourceARN += ".fifo"
				}
			}
			got := expect.Value((&fake{refuse: map[string]int{"": 100}}).queues().Lambda(func(_ context.Context, batch []queue.Message) ([]string, error) {
				expect.Equal(t, "the size of the batch", len(batch), len(records))
				return tt.failed, nil
			})(t.Context(), event))(t)
			if diff := cmp.Diff(response(tt.want), got); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
			text, err := json.Marshal(got)
			if err != nil || strings.Contains(string(text), "null") {
				t.Errorf("marshals as %s, %v", text, err)
			}
		})
	}
}

func TestAPanicOfAHandlerFailsItsBatch(t *testing.T) {
	f := &fake{}
	r := record("1", "")
	r.EventSourceARN = "arn:aws:sqs:us-east-1:0:" + string(queue.Slow)
	_, err := f.queues().Lambda(func(context.Context, []queue.Message) ([]string, error) { panic("a defect") })(t.Context(), events.SQSEvent{Records: []events.SQSMessage{r}})
	if err == nil || !strings.Contains(err.Error(), "panic: a defect") {
		t.Errorf("got %v, want the panic as an error", err)
	}
	if len(f.hidden) != 1 || f.hidden[0] > 2 {
		t.Errorf("AWS-05: got redeliveries after %v s, want one within 2 s", f.hidden)
	}
}
