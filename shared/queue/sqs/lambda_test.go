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
	"github.com/google/go-cmp/cmp"

	"mcpevents/shared/queue"
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
		},
		{MessageId: "2", Body: "{}"},
	}})
	want := []queue.Message{
		{
			ID: "1", Outgoing: queue.Outgoing{Body: []byte(`{"n":1}`), Group: "g", Dedup: "d"},
			Received: 3, Sent: time.UnixMilli(1750000000123).UTC(),
		},
		{ID: "2", Outgoing: queue.Outgoing{Body: []byte("{}")}, Received: 1},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
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
			got, err := Lambda(func(_ context.Context, batch []queue.Message) ([]string, error) {
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
	_, err := Lambda(func(context.Context, []queue.Message) ([]string, error) { return nil, broken })(
		t.Context(), events.SQSEvent{Records: []events.SQSMessage{record("1", "")}})
	if !errors.Is(err, broken) {
		t.Errorf("got %v, want %v", err, broken)
	}
}
