package sqs

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/sqs"

	"github.com/mcp-events/mcpevents/shared/awsx"
	"github.com/mcp-events/mcpevents/shared/queue"
	"github.com/mcp-events/mcpevents/test/awslocal"
)

func TestMain(m *testing.M) { os.Exit(awslocal.Main(m)) }

var created atomic.Int64

// open makes queues of the test's own at the endpoint.
func open(t testing.TB, endpoint string, counter *awsx.Counter) *Queues {
	t.Helper()
	cfg := awslocal.Config(endpoint)
	if counter != nil {
		counter.Attach(&cfg)
	}
	client := sqs.NewFromConfig(cfg)
	urls, err := create(t.Context(), client, fmt.Sprintf("t%d-%d-", time.Now().UnixNano(), created.Add(1)))
	if err != nil {
		t.Fatal(err)
	}
	return New(client, urls, slog.New(slog.DiscardHandler))
}

// everywhere runs a test on both emulators: one of them may be kind.
func everywhere(t *testing.T, test func(t *testing.T, q *Queues)) {
	t.Parallel()
	ends := awslocal.Start(t, awslocal.SQS, awslocal.MiniStack)
	for name, endpoint := range map[string]string{"ElasticMQ": ends.SQS, "MiniStack": ends.MiniStack} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, open(t, endpoint, nil))
		})
	}
}

// handled are the calls of a handler: each message as BODY*RECEIVED, in order.
type handled struct {
	mu    sync.Mutex
	calls [][]string
	// fail names bodies and how often they fail.
	fail map[string]int
	// done is closed when enough messages were handled without failing.
	done chan struct{}
	want int
}

func (h *handled) handle(_ context.Context, batch []queue.Message) (failed []string, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	var call []string
	groups := map[string]bool{}
	for _, m := range batch {
		body := string(m.Body)
		call = append(call, fmt.Sprintf("%s*%d", body, m.Received))
		if h.fail[body] > 0 {
			h.fail[body]--
			groups[m.Group] = true
			failed = append(failed, m.ID)
		} else if m.Group == "" || !groups[m.Group] {
			if h.want--; h.want == 0 {
				close(h.done)
			}
		}
	}
	h.calls = append(h.calls, call)
	return failed, nil
}

// consume runs until the handler has handled want messages, and returns its calls.
func consume(t *testing.T, q *Queues, name queue.Name, want int, fail map[string]int, opts queue.ConsumeOptions) [][]string {
	t.Helper()
	h := &handled{fail: fail, done: make(chan struct{}), want: want}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- q.Consume(ctx, name, h.handle, opts) }()
	select {
	case <-h.done:
	case err := <-ended:
		t.Fatalf("consuming ended: %v", err)
	case <-time.After(30 * time.Second):
		t.Errorf("after 30 s %d messages are still to come", h.want)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	return h.calls
}

func send(t *testing.T, q *Queues, name queue.Name, group string, bodies ...string) {
	t.Helper()
	var msgs []queue.Outgoing
	for _, body := range bodies {
		msgs = append(msgs, queue.Outgoing{Body: []byte(body), Group: group})
	}
	if err := q.Send(t.Context(), name, msgs...); err != nil {
		t.Fatal(err)
	}
}

func TestAFailedMessageComesAgainAndTheOthersAreGone(t *testing.T) {
	everywhere(t, func(t *testing.T, q *Queues) {
		send(t, q, queue.Deliveries, "", "1", "2", "3")
		calls := consume(t, q, queue.Deliveries, 3, map[string]int{"2": 1}, queue.ConsumeOptions{})
		all := slices.Concat(calls...)
		slices.Sort(all)
		if got, want := fmt.Sprint(all), "[1*1 2*1 2*2 3*1]"; got != want {
			t.Errorf("handled %s, want %s", got, want)
		}
		empty(t, q, queue.Deliveries)
	})
}

// empty wants nothing left in a queue, neither visible nor hidden.
func empty(t *testing.T, q *Queues, name queue.Name) {
	t.Helper()
	depth, err := q.depth(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	if depth != (queue.Depth{}) {
		t.Errorf("%s: %+v, want nothing", name, depth)
	}
}

func TestAFailedMessageHoldsItsGroupAndNoOther(t *testing.T) {
	everywhere(t, func(t *testing.T, q *Queues) {
		send(t, q, queue.Events, "a", "a1", "a2", "a3")
		send(t, q, queue.Events, "b", "b1", "b2")
		calls := consume(t, q, queue.Events, 5, map[string]int{"a2": 2}, queue.ConsumeOptions{Concurrency: 2})
		var a, b []string
		for _, m := range slices.Concat(calls...) {
			if strings.HasPrefix(m, "a") {
				a = append(a, m)
			} else {
				b = append(b, m)
			}
		}
		// The handler fails only a2; a3 must not be taken for done before it.
		if got := fmt.Sprint(a); !strings.HasPrefix(got, "[a1*1 a2*1") || !strings.HasSuffix(got, "a2*3 a3*3]") {
			t.Errorf("group a: %s", got)
		}
		if got, want := fmt.Sprint(b), "[b1*1 b2*1]"; got != want {
			t.Errorf("group b: %s, want %s", got, want)
		}
		empty(t, q, queue.Events)
	})
}

func TestAnErrorOfTheHandlerBringsTheWholeBatchAgain(t *testing.T) {
	everywhere(t, func(t *testing.T, q *Queues) {
		send(t, q, queue.Inbox, "", "1", "2")
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var mu sync.Mutex
		seen := map[string]int{}
		err := q.Consume(ctx, queue.Inbox, func(_ context.Context, batch []queue.Message) ([]string, error) {
			mu.Lock()
			defer mu.Unlock()
			again := false
			for _, m := range batch {
				seen[string(m.Body)]++
				again = again || m.Received == 1
			}
			if again {
				return nil, errors.New("not yet")
			}
			if seen["1"] > 1 && seen["2"] > 1 {
				cancel()
			}
			return nil, nil
		}, queue.ConsumeOptions{})
		if err != nil {
			t.Fatal(err)
		}
		empty(t, q, queue.Inbox)
	})
}

func TestBodiesComeBackWithTheirMeaning(t *testing.T) {
	everywhere(t, func(t *testing.T, q *Queues) {
		bodies := map[string]string{
			`{"plain":1}`:                          `{"plain":1}`,
			"{\"noncharacters\":\"\ufffe\uffff\"}": `{"noncharacters":"\ufffe\uffff"}`,
			"\"\u007f\u0085\u2028\ue000\ufffd\U0001f600\U0010ffff<&>\t\"": "\"\u007f\u0085\u2028\ue000\ufffd\U0001f600\U0010ffff<&>\t\"",
			`"` + strings.Repeat("漢", queue.MaxBody/3-1) + `"`:            `"` + strings.Repeat("漢", queue.MaxBody/3-1) + `"`,
		}
		want := map[string]bool{}
		for body, safe := range bodies {
			want[safe+"*1"] = true
			send(t, q, queue.Inbox, "", body)
		}
		for _, m := range slices.Concat(consume(t, q, queue.Inbox, len(bodies), nil, queue.ConsumeOptions{})...) {
			if !want[m] {
				t.Errorf("got %.60q", m)
			}
		}
	})
}

func TestHowManyRequestsAMessageTakes(t *testing.T) {
	var counter awsx.Counter
	q := open(t, awslocal.Start(t, awslocal.SQS).SQS, &counter)
	before := counter.Snapshot()
	send(t, q, queue.Deliveries, "", "1", "2", "3", "4", "5", "6", "7", "8", "9", "10")
	consume(t, q, queue.Deliveries, 10, nil, queue.ConsumeOptions{})
	got := counter.Snapshot().Since(before)["SQS"]
	if got["SendMessageBatch"].Requests != 1 || got["DeleteMessageBatch"].Requests > int64(1+got["ReceiveMessage"].Requests) || len(got) != 3 {
		t.Errorf("got %+v", got)
	}
}

func BenchmarkSendAndConsume(b *testing.B) {
	q := open(b, awslocal.Start(b, awslocal.SQS).SQS, nil)
	body := []byte(`{"data":"` + strings.Repeat("x", 900) + `"}`)
	for b.Loop() {
		msgs := make([]queue.Outgoing, 10)
		for i := range msgs {
			msgs[i].Body = body
		}
		if err := q.Send(b.Context(), queue.Deliveries, msgs...); err != nil {
			b.Fatal(err)
		}
	}
	left := atomic.Int64{}
	left.Store(int64(10 * b.N))
	ctx, cancel := context.WithCancel(b.Context())
	defer cancel()
	err := q.Consume(ctx, queue.Deliveries, func(_ context.Context, batch []queue.Message) ([]string, error) {
		if left.Add(-int64(len(batch))) <= 0 {
			cancel()
		}
		return nil, nil
	}, queue.ConsumeOptions{Concurrency: 4})
	if err != nil {
		b.Fatal(err)
	}
}
