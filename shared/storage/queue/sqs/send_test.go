package sqs

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"unicode/utf8"

	"github.com/aws/aws-lambda-go/events"
	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/storage/queue"
	"github.com/mcp-events/mcpevents/test/awslocal"
	"github.com/mcp-events/mcpevents/test/expect"
)

// fake is SQS as far as requests go; it refuses entries of a batch as told.
type fake struct {
	mu sync.Mutex
	// requests are the bodies of each request, in order.
	requests [][]string
	// refuse names bodies and how often they are refused.
	refuse map[string]int
	// fault is the SenderFault of a refusal.
	fault bool
	// hidden are the visibility timeouts that messages were given, in seconds.
	hidden []int
	// status, if not 0, answers every request.
	status int
	code   string
}

func (f *fake) queues() *Queues {
	client := sqs.NewFromConfig(awslocal.Config("http://127.0.0.1:1"), func(o *sqs.Options) {
		o.HTTPClient, o.DisableMessageChecksumValidation = f, true
	})
	return New(client, func(name queue.Name) string { return "http://127.0.0.1:1/" + string(name) }, slog.New(slog.DiscardHandler))
}

func (f *fake) Do(req *http.Request) (*http.Response, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var in struct {
		MessageBody string
		Entries     []struct {
			Id, MessageBody   string
			VisibilityTimeout *int
		}
	}
	if err := json.NewDecoder(req.Body).Decode(&in); err != nil {
		return nil, err
	}
	type result struct {
		Id, Code    string
		SenderFault bool
	}
	var bodies []string
	var ok, failed []result
	for _, e := range in.Entries {
		if e.VisibilityTimeout != nil {
			f.hidden = append(f.hidden, *e.VisibilityTimeout)
		}
		bodies = append(bodies, e.MessageBody)
		if f.refuse[e.MessageBody] > 0 {
			f.refuse[e.MessageBody]--
			failed = append(failed, result{e.Id, "InternalError", f.fault})
		} else {
			ok = append(ok, result{Id: e.Id})
		}
	}
	if in.Entries == nil {
		bodies = []string{in.MessageBody}
	}
	f.requests = append(f.requests, bodies)
	status := http.StatusOK
	if f.status != 0 {
		status = f.status
	}
	text, err := json.Marshal(map[string]any{"MessageId": "1", "Successful": ok, "Failed": failed, "__type": cmp.Or(f.code, "InternalError")})
	if err != nil {
		return nil, err
	}
	return &http.Response{
		StatusCode: status, Header: http.Header{"Content-Type": {"application/x-amz-json-1.0"}},
		Body: io.NopCloser(strings.NewReader(string(text))),
	}, nil
}

func outgoing(n, size int) []queue.Outgoing {
	msgs := make([]queue.Outgoing, n)
	for i := range msgs {
		body := fmt.Sprintf("%d", i)
		msgs[i] = queue.Outgoing{Body: []byte(body + strings.Repeat(" ", max(0, size-len(body)))), Group: "g"}
	}
	return msgs
}

func TestSendTakesFewRequests(t *testing.T) {
	tests := map[string]struct {
		msgs []queue.Outgoing
		want []int // messages per request
	}{
		"none":                  {outgoing(0, 1), nil},
		"one":                   {outgoing(1, 1), []int{1}},
		"ten":                   {outgoing(10, 1), []int{10}},
		"eleven":                {outgoing(11, 1), []int{10, 1}},
		"ten that just fit":     {outgoing(10, 26214), []int{10}},
		"ten that do not fit":   {outgoing(10, 26215), []int{9, 1}},
		"the largest":           {outgoing(3, queue.MaxBody), []int{1, 1, 1}},
		"large after small":     {append(outgoing(2, 1), outgoing(1, queue.MaxBody)...), []int{2, 1}},
		"counted after escapes": {slices.Repeat([]queue.Outgoing{{Body: []byte(`"` + strings.Repeat("\ufffe", 20000) + `"`), Group: "g"}}, 3), []int{2, 1}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			f := &fake{}
			expect.OK(t, f.queues().Send(t.Context(), queue.Events, tt.msgs...))
			var got []int
			for _, bodies := range f.requests {
				got = append(got, len(bodies))
			}
			expect.List(t, "messages by request", got, tt.want)
			if all := slices.Concat(f.requests...); len(tt.msgs) > 0 && strings.TrimSpace(all[0]) > strings.TrimSpace(all[len(all)-1]) && len(tt.msgs) < 10 {
				t.Errorf("out of order: %q", all)
			}
		})
	}
}

func TestRejectedEntriesOfABatchAreSentAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{refuse: map[string]int{"1": 2, "3": 1}}
		expect.OK(t, f.queues().Send(t.Context(), queue.Deliveries, outgoing(4, 1)...))
		want := "[[0 1 2 3] [1 3] [1]]"
		expect.Equal(t, "the requests", fmt.Sprint(f.requests), want)
	})
}

func TestSendGivesUp(t *testing.T) {
	tests := map[string]struct {
		fake *fake
		kind fault.Kind
	}{
		"when an entry is always rejected": {&fake{refuse: map[string]int{"1": 1000}}, fault.Unavailable},
		"when an entry is invalid for SQS": {&fake{refuse: map[string]int{"1": 1}, fault: true}, fault.Internal},
		"when SQS is down":                 {&fake{status: 500}, fault.Unavailable},
		"when SQS refuses the request":     {&fake{status: 400}, fault.Internal},
		"when SQS throttles the requests":  {&fake{status: 400, code: "RequestThrottled"}, fault.Unavailable},
		"when the balancer has no server":  {&fake{status: 503}, fault.Unavailable},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				err := tt.fake.queues().Send(t.Context(), queue.Deliveries, outgoing(30, 1)...)
				expect.Error(t, "the error", err)
				expect.Equal(t, "the kind of the error", fault.KindOf(err), tt.kind)
			})
		})
	}
}

// The suite has the limits of package queue. A message that breaks one of them keeps the whole call from sending anything.
func TestSendRefusesInvalidMessages(t *testing.T) {
	tests := map[string]struct {
		name queue.Name
		msg  queue.Outgoing
		kind fault.Kind
	}{
		"no such queue":             {"none", queue.Outgoing{Body: []byte("{}")}, fault.Invalid},
		"refused, not JSON":         {queue.Slow, queue.Outgoing{Body: []byte("\ufffe")}, fault.Invalid},
		"control character":         {queue.Slow, queue.Outgoing{Body: []byte("\"\x01\"")}, fault.Invalid},
		"too large escaped":         {queue.Slow, queue.Outgoing{Body: []byte(`"` + strings.Repeat("\uffff", queue.MaxBody/4) + `"`)}, fault.TooLarge},
		"a limit of every queue":    {queue.Slow, queue.Outgoing{Body: []byte("{}"), Delay: queue.MaxDelay + 1}, fault.Invalid},
		"a limit of the FIFO queue": {queue.Events, queue.Outgoing{Body: []byte("{}")}, fault.Invalid},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			f := &fake{}
			err := f.queues().Send(t.Context(), tt.name, queue.Outgoing{Body: []byte("{}"), Group: "g"}, tt.msg)
			expect.Fault(t, "the request", err, tt.kind)
			expect.Equal(t, "the requests", len(f.requests), 0)
		})
	}
}

func TestSendEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	expect.Fault(t, "the request", (&fake{}).queues().Send(ctx, queue.Slow, outgoing(100, 1)...), fault.Unavailable)
}

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
			expect.MustEqual(t, "the body", *e.MessageBody, string(body))
			return
		}
		var got, want any
		expect.OK(t, json.Unmarshal([]byte(*e.MessageBody), &got), *e.MessageBody)
		expect.OK(t, json.Unmarshal(body, &want))
		if !reflect.DeepEqual(got, want) {
			t.Fatalf("%q means something else than %q", *e.MessageBody, body)
		}
	})
}
