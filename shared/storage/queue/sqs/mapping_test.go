package sqs

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"unicode/utf8"

	"github.com/aws/aws-lambda-go/events"
	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/mcp-events/mcpevents/shared/storage/queue"
	"github.com/mcp-events/mcpevents/test/expect"
)

// hidden is the visibility timeout of a mapping's queue in seconds. As on AWS it is longer than any call takes, so that
// only a back-off brings a message again within a test.
const hidden = 120

// Consume plays an event source mapping with ReportBatchItemFailures, and the redrive policy of its queue: it calls what
// [Queues.Lambda] makes of h.
func (q *Queues) Consume(ctx context.Context, name queue.Name, h queue.Handler, opts queue.ConsumeOptions) error {
	errs := make([]error, max(1, opts.Concurrency))
	var pollers sync.WaitGroup
	for i := range errs {
		pollers.Go(func() {
			for ctx.Err() == nil && errs[i] == nil {
				errs[i] = q.invoke(context.WithoutCancel(ctx), name, h, opts)
			}
		})
	}
	pollers.Wait()
	return errors.Join(errs...)
}

// invoke calls the function with the messages of a queue, and deletes the accepted ones.
func (q *Queues) invoke(ctx context.Context, name queue.Name, h queue.Handler, opts queue.ConsumeOptions) error {
	url := q.urls[name]
	var event events.SQSEvent
	for wait := int32(1); len(event.Records) < cmp.Or(opts.Batch, 10); wait = 0 {
		out, err := q.client.ReceiveMessage(ctx, &sqs.ReceiveMessageInput{
			QueueUrl: &url, MaxNumberOfMessages: int32(min(10, cmp.Or(opts.Batch, 10)-len(event.Records))), VisibilityTimeout: hidden, WaitTimeSeconds: wait,
			MessageSystemAttributeNames: []types.MessageSystemAttributeName{types.MessageSystemAttributeNameAll},
		})
		if err != nil {
			return err
		}
		for _, m := range out.Messages {
			event.Records = append(event.Records, events.SQSMessage{
				MessageId: *m.MessageId, Body: *m.Body, ReceiptHandle: *m.ReceiptHandle, Attributes: m.Attributes,
				EventSourceARN: "arn:aws:sqs:us-east-1:0:" + url[strings.LastIndexByte(url, '/')+1:],
			})
		}
		if len(out.Messages) == 0 {
			break
		}
	}
	if len(event.Records) == 0 {
		return nil
	}
	response, err := q.Lambda(h)(ctx, event)
	failed, groups := map[string]bool{}, map[string]bool{}
	for _, f := range response.BatchItemFailures {
		failed[f.ItemIdentifier] = true
	}
	var done []types.DeleteMessageBatchRequestEntry
	for i, m := range messages(event) {
		if err != nil || failed[m.ID] {
			own := !name.FIFO() || !groups[m.Group] // the others of the group wait for the first
			groups[m.Group] = true
			if !own || opts.MaxReceives == 0 || m.Received < opts.MaxReceives {
				continue
			}
			if err := q.Send(ctx, queue.Dead, queue.Outgoing{Body: m.Body, Group: m.Group}); err != nil {
				return err
			}
		}
		done = append(done, types.DeleteMessageBatchRequestEntry{Id: aws.String(strconv.Itoa(i)), ReceiptHandle: &event.Records[i].ReceiptHandle})
	}
	for part := range slices.Chunk(done, 10) {
		if _, err := q.client.DeleteMessageBatch(ctx, &sqs.DeleteMessageBatchInput{QueueUrl: &url, Entries: part}); err != nil {
			return err
		}
	}
	return nil
}

// depth returns SQS's approximate numbers of messages in a queue.
func (q *Queues) depth(ctx context.Context, name queue.Name) (queue.Depth, error) {
	const visible, invisible, delayed = types.QueueAttributeNameApproximateNumberOfMessages,
		types.QueueAttributeNameApproximateNumberOfMessagesNotVisible, types.QueueAttributeNameApproximateNumberOfMessagesDelayed
	out, err := q.client.GetQueueAttributes(ctx, &sqs.GetQueueAttributesInput{
		QueueUrl: aws.String(q.urls[name]), AttributeNames: []types.QueueAttributeName{visible, invisible, delayed},
	})
	if err != nil {
		return queue.Depth{}, err
	}
	count := func(name types.QueueAttributeName) int {
		n, _ := strconv.Atoi(out.Attributes[string(name)])
		return n
	}
	return queue.Depth{Visible: count(visible), InFlight: count(invisible), Delayed: count(delayed)}, nil
}

func TestBody(t *testing.T) {
	tests := map[string]struct{ body, want string }{ // want is empty for what is refused
		"nothing to do":          {`{"a":"é😀\ufffe"}`, `{"a":"é😀\ufffe"}`},
		"noncharacters":          {"{\"\ufffe\":\"a\uffffb\"}", `{"\ufffe":"a\uffffb"}`},
		"neighbours stay":        {"\"\ufffd\uffef\U0001fffe\ue000\ud7ff\"", "\"\ufffd\uffef\U0001fffe\ue000\ud7ff\""},
		"control characters":     {"\"\x00\x1f\"", ""},
		"white space stays":      {"{\t\"a\":\r\n1}", "{\t\"a\":\r\n1}"},
		"one after the other":    {"\"\ufffe\ufffe\uffff\"", `"\ufffe\ufffe\uffff"`},
		"after a backslash pair": {"\"\\\\\uffff\"", `"\\\uffff"`},
		"a cut character":        {"\"\xef\xbf\"", ""},
		"text":                   {"no JSON", "no JSON"},
		"text with one":          {"no JSON \uffff", ""},
		"empty":                  {"", ""},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			got := ""
			e, err := entry(queue.Inbox, queue.Outgoing{Body: []byte(tt.body)})
			if err == nil {
				got = *e.MessageBody
			}
			if got != tt.want {
				t.Errorf("got %q, %v, want %q", got, err, tt.want)
			}
		})
	}
}

// isAllowed reports whether SQS accepts a character: #x9 | #xA | #xD | #x20 to #xD7FF | #xE000 to #xFFFD | #x10000 to #x10FFFF
// (reference of SendMessage).
func isAllowed(r rune) bool {
	return r == 0x9 || r == 0xa || r == 0xd || 0x20 <= r && r <= 0xd7ff || 0xe000 <= r && r <= 0xfffd || 0x10000 <= r && r <= 0x10ffff
}

func FuzzBody(f *testing.F) {
	for _, seed := range []string{`{"a":[1,"é\ufffe"]}`, "\"\ufffe\\u005c\uffff\\\\\"", "\x00\xef\xbf\xbe\xef", "[\"\U0010ffff\"]"} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		e, err := entry(queue.Inbox, queue.Outgoing{Body: body})
		if err != nil {
			if json.Valid(body) && utf8.Valid(body) {
				t.Fatalf("JSON is refused: %v", err)
			}
			return
		}
		for _, r := range *e.MessageBody {
			if !isAllowed(r) {
				t.Fatalf("%q holds %U", *e.MessageBody, r)
			}
		}
		if !json.Valid(body) {
			if *e.MessageBody != string(body) {
				t.Fatalf("%q became %q", body, *e.MessageBody)
			}
			return
		}
		var got, want any
		if err := json.Unmarshal([]byte(*e.MessageBody), &got); err != nil {
			t.Fatalf("%q: %v", *e.MessageBody, err)
		}
		expect.OK(t, json.Unmarshal(body, &want))
		if !reflect.DeepEqual(got, want) {
			t.Fatalf("%q means something else than %q", *e.MessageBody, body)
		}
	})
}
