package sqs

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/sqs"

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
				if err == nil || fault.KindOf(err) != tt.kind {
					t.Errorf("got %v of kind %v, want %v", err, fault.KindOf(err), tt.kind)
				}
			})
		})
	}
}

func TestSendRefusesInvalidMessages(t *testing.T) {
	tests := map[string]struct {
		name queue.Name
		msg  queue.Outgoing
		kind fault.Kind
	}{
		"no such queue":       {"none", queue.Outgoing{Body: []byte("{}")}, fault.Invalid},
		"empty":               {queue.Slow, queue.Outgoing{}, fault.Invalid},
		"not UTF-8":           {queue.Slow, queue.Outgoing{Body: []byte("\xff")}, fault.Invalid},
		"refused, not JSON":   {queue.Slow, queue.Outgoing{Body: []byte("\ufffe")}, fault.Invalid},
		"control character":   {queue.Slow, queue.Outgoing{Body: []byte("\"\x01\"")}, fault.Invalid},
		"too large":           {queue.Slow, queue.Outgoing{Body: bytes.Repeat([]byte("1"), queue.MaxBody+1)}, fault.TooLarge},
		"too large escaped":   {queue.Slow, queue.Outgoing{Body: []byte(`"` + strings.Repeat("\uffff", queue.MaxBody/4) + `"`)}, fault.TooLarge},
		"delayed for long":    {queue.Slow, queue.Outgoing{Body: []byte("{}"), Delay: queue.MaxDelay + 1}, fault.Invalid},
		"delayed backwards":   {queue.Slow, queue.Outgoing{Body: []byte("{}"), Delay: -1}, fault.Invalid},
		"group":               {queue.Slow, queue.Outgoing{Body: []byte("{}"), Group: "a/b"}, fault.Invalid},
		"long group":          {queue.Slow, queue.Outgoing{Body: []byte("{}"), Group: strings.Repeat("g", 129)}, fault.Invalid},
		"dedup":               {queue.Slow, queue.Outgoing{Body: []byte("{}"), Dedup: "d"}, fault.Invalid},
		"FIFO without group":  {queue.Events, queue.Outgoing{Body: []byte("{}")}, fault.Invalid},
		"FIFO with a delay":   {queue.Events, queue.Outgoing{Body: []byte("{}"), Group: "g", Delay: time.Second}, fault.Invalid},
		"FIFO with bad dedup": {queue.Events, queue.Outgoing{Body: []byte("{}"), Group: "g", Dedup: "é"}, fault.Invalid},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			f := &fake{}
			err := f.queues().Send(t.Context(), tt.name, queue.Outgoing{Body: []byte("{}"), Group: "g"}, tt.msg)
			expect.Fault(t, "the request", err, tt.kind)
			if len(f.requests) > 0 {
				t.Error("something was sent")
			}
		})
	}
}

func TestSendEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	expect.Fault(t, "the request", (&fake{}).queues().Send(ctx, queue.Slow, outgoing(100, 1)...), fault.Unavailable)
}
