package sqs

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/aws/aws-lambda-go/events"
	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
	"github.com/google/go-cmp/cmp"

	"github.com/mcp-events/mcpevents/shared/storage/queue"
	"github.com/mcp-events/mcpevents/shared/storage/queue/queuetest"
	"github.com/mcp-events/mcpevents/test/awslocal"
	"github.com/mcp-events/mcpevents/test/expect"
)

func TestMain(m *testing.M) {
	_ = flag.Set("test.parallel", "8") // the tests wait for emulators; -parallel asks for another number
	os.Exit(awslocal.Main(m))
}

var created atomic.Int64

// open makes queues of the test's own at the endpoint.
func open(t testing.TB, endpoint string) *Queues {
	t.Helper()
	client := sqs.NewFromConfig(awslocal.Config(endpoint))
	urls := expect.Value(create(t.Context(), client, fmt.Sprintf("t%d-%d-", time.Now().UnixNano(), created.Add(1))))(t)
	return New(client, urls, slog.New(slog.DiscardHandler))
}

func send(t *testing.T, q *Queues, name queue.Name, group string, bodies ...string) {
	t.Helper()
	var msgs []queue.Outgoing
	for _, body := range bodies {
		msgs = append(msgs, queue.Outgoing{Body: []byte(body), Group: group})
	}
	expect.OK(t, q.Send(t.Context(), name, msgs...))
}

func TestQueuesOnElasticMQ(t *testing.T) {
	t.Parallel()
	suite(t, awslocal.Start(t, awslocal.SQS).SQS)
}

// The local AWS mode runs on such an emulator, so the queues must work there too.
func TestQueuesOnMiniStack(t *testing.T) {
	t.Parallel()
	suite(t, awslocal.Start(t, awslocal.MiniStack).MiniStack)
}

func suite(t *testing.T, endpoint string) {
	queuetest.Run(t, func(t *testing.T) queuetest.Backend { return backend{open(t, endpoint)} })
}

type backend struct{ *Queues }

func (backend) Grain() time.Duration { return time.Second }

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

// ElasticMQ moves messages to dead-letter queues as SQS does; MiniStack ignores redrive policies.
func TestDrain(t *testing.T) {
	t.Parallel()
	q := open(t, awslocal.Start(t, awslocal.SQS).SQS)
	redrive(t, q, queue.Inbox)
	in := &sqs.SendMessageInput{
		QueueUrl: aws.String(q.urls[queue.Inbox]), MessageBody: aws.String("poison"),
		MessageAttributes: map[string]types.MessageAttributeValue{"team": {DataType: aws.String("String"), StringValue: aws.String("red")}},
	}
	expect.OK(t, expect.ErrOf(q.client.SendMessage(t.Context(), in)))
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
		expect.MustEqual(t, "the message is there", i >= 0, true)
		if m := got[i]; m.From != queue.Inbox || m.Attributes["team"] != "red" || time.Since(m.Sent) > time.Minute {
			t.Errorf("got %+v", m)
		}
		others := slices.DeleteFunc(slices.Clone(got), func(m queue.Message) bool { return m.From == "" })
		expect.Equal(t, "letters that say that SQS moved them", len(others), 1)
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
	t.Run("OPS-04 given a context that ends during a batch, then the accepted messages are deleted", func(t *testing.T) {
		send(t, q, queue.Slow, "", "one")
		ctx, cancel := context.WithCancel(t.Context())
		n, err := q.Drain(ctx, q.urls[queue.Slow], "", func(context.Context, []queue.Message) ([]string, error) {
			cancel()
			return nil, nil
		})
		expect.Equal(t, "the accepted messages", n, 1)
		expect.Is(t, "the error", err, context.Canceled)
		expect.Equal(t, "the messages in flight", expect.Value(q.depth(t.Context(), queue.Slow))(t).InFlight, 0)
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
	expect.OK(t, err)
	policy, _ := json.Marshal(map[string]string{"deadLetterTargetArn": out.Attributes["QueueArn"], "maxReceiveCount": "1"})
	_, err = q.client.SetQueueAttributes(t.Context(), &sqs.SetQueueAttributesInput{
		QueueUrl: aws.String(q.urls[name]), Attributes: map[string]string{string(types.QueueAttributeNameRedrivePolicy): string(policy)},
	})
	expect.OK(t, err)
}

// moved receives a message of a queue until SQS moves it.
func moved(t *testing.T, q *Queues, name queue.Name) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); {
		expect.OK(t, expect.ErrOf(q.client.ReceiveMessage(t.Context(), &sqs.ReceiveMessageInput{QueueUrl: aws.String(q.urls[name]), VisibilityTimeout: 1, WaitTimeSeconds: 1})))
		if depth, err := q.depth(t.Context(), queue.Dead); err == nil && depth.Visible == 1 {
			return
		}
	}
	t.Fatal("SQS does not move the message")
}

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
			expect.Is(t, "the error", err, tt.err)
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
			expect.OK(t, err)
			expect.Lacks(t, "the response", string(text), "null")
		})
	}
}

func TestAPanicOfAHandlerFailsItsBatch(t *testing.T) {
	f := &fake{}
	r := record("1", "")
	r.EventSourceARN = "arn:aws:sqs:us-east-1:0:" + string(queue.Slow)
	_, err := f.queues().Lambda(func(context.Context, []queue.Message) ([]string, error) { panic("a defect") })(t.Context(), events.SQSEvent{Records: []events.SQSMessage{r}})
	expect.Error(t, "the panic", err, "panic: a defect")
	if len(f.hidden) != 1 || f.hidden[0] > 2 {
		t.Errorf("AWS-05: got redeliveries after %v s, want one within 2 s", f.hidden)
	}
}
