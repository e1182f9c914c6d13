package mapping_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-lambda-go/events"

	"github.com/mcp-events/mcpevents/localstack/internal/lambda"
	"github.com/mcp-events/mcpevents/localstack/internal/mapping"
	"github.com/mcp-events/mcpevents/test/expect"
)

// memory is a standard queue in memory that does not redeliver messages by itself.
type memory struct {
	mu      sync.Mutex
	ready   []events.SQSMessage
	sent    chan struct{} // has a value when messages may be available
	deleted []string
	buried  []string
	fail    error
}

func newMemory(bodies ...string) *memory {
	m := &memory{sent: make(chan struct{}, 1)}
	m.send(bodies...)
	return m
}

func (m *memory) send(bodies ...string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, body := range bodies {
		m.ready = append(m.ready, events.SQSMessage{MessageId: body, ReceiptHandle: body, Body: body})
	}
	m.signal()
}

func (m *memory) signal() {
	select {
	case m.sent <- struct{}{}:
	default:
	}
}

func (m *memory) Receive(ctx context.Context, limit int, wait time.Duration) ([]events.SQSMessage, error) {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	for {
		m.mu.Lock()
		n := min(limit, len(m.ready))
		got := slices.Clone(m.ready[:n])
		m.ready = m.ready[n:]
		err := m.fail
		m.fail = nil
		m.mu.Unlock()
		if n > 0 || err != nil {
			return got, err
		}
		select {
		case <-m.sent:
		case <-timer.C:
			return nil, nil
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

func (m *memory) Delete(_ context.Context, batch []events.SQSMessage) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(batch) > 10 {
		return errors.New("more than 10")
	}
	for _, message := range batch {
		m.deleted = append(m.deleted, message.MessageId)
	}
	return nil
}

func (m *memory) Bury(_ context.Context, message events.SQSMessage) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.buried = append(m.buried, message.MessageId)
	return nil
}

func (m *memory) gone() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	gone := slices.Clone(m.deleted)
	slices.Sort(gone)
	return gone
}

// function calls handle with the ids of each batch.
type function struct {
	handle  func(ids []string) (response string, functionError string, err error)
	mu      sync.Mutex
	batches [][]string
}

func (f *function) Name() string { return "fn" }

// Loops treats a message with a long trace as the end of a loop.
func (f *function) Loops(trace string) bool { return trace == "long" }

func (f *function) Chained(trace string) int { return len(trace) }

func (f *function) Invoke(_ context.Context, inv lambda.Invocation) (*lambda.Response, error) {
	var event events.SQSEvent
	if err := json.Unmarshal(inv.Payload, &event); err != nil {
		return nil, err
	}
	var ids []string
	for _, r := range event.Records {
		ids = append(ids, r.MessageId)
	}
	f.mu.Lock()
	f.batches = append(f.batches, ids)
	f.mu.Unlock()
	response, functionError, err := f.handle(ids)
	if err != nil {
		return nil, err
	}
	return &lambda.Response{FunctionError: functionError, Body: io.NopCloser(bytes.NewReader([]byte(response)))}, nil
}

func (f *function) sizes() []int {
	f.mu.Lock()
	defer f.mu.Unlock()
	var sizes []int
	for _, b := range f.batches {
		sizes = append(sizes, len(b))
	}
	return sizes
}

func TestWhatAResponseAccepts(t *testing.T) {
	all := []string{"a", "b", "c"}
	tests := map[string]struct {
		response, functionError string
		err                     error
		without                 bool // without ReportBatchItemFailures
		want                    []string
	}{
		"an empty list accepts all":                    {response: `{"batchItemFailures":[]}`, want: all},
		"nothing accepts all":                          {response: ``, want: all},
		"the null of a handler without result accepts": {response: `null`, want: all},
		"a failure leaves its message":                 {response: `{"batchItemFailures":[{"itemIdentifier":"b"}]}`, want: []string{"a", "c"}},
		"all may fail":                                 {response: `{"batchItemFailures":[{"itemIdentifier":"c"},{"itemIdentifier":"a"},{"itemIdentifier":"b"}]}`},
		"an unknown id fails all":                      {response: `{"batchItemFailures":[{"itemIdentifier":"x"}]}`},
		"no JSON fails all":                            {response: `ok`},
		"an error of the function fails all":           {response: `{"errorMessage":"x"}`, functionError: "Unhandled"},
		"an invocation that failed fails all":          {err: lambda.ErrThrottled},
		"without the option any response accepts all":  {response: `{"batchItemFailures":[{"itemIdentifier":"b"}]}`, without: true, want: all},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				queue := newMemory(all...)
				f := &function{handle: func([]string) (string, string, error) { return tc.response, tc.functionError, tc.err }}
				stop := run(t, queue, f, mapping.Options{ReportFailures: !tc.without})
				synctest.Wait()
				stop()
				expect.List(t, "the deleted messages", queue.gone(), tc.want)
			})
		})
	}
}

// run starts a mapping and returns a function that stops it.
func run(t *testing.T, s mapping.Source, f mapping.Invoker, opts mapping.Options) (stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		mapping.Run(ctx, s, f, opts)
	}()
	return func() {
		cancel()
		<-done
	}
}

func accept([]string) (string, string, error) { return `{"batchItemFailures":[]}`, "", nil }

func names(n int) []string {
	var out []string
	for i := range n {
		out = append(out, fmt.Sprintf("m%03d", i))
	}
	return out
}

func TestBatches(t *testing.T) {
	for name, tc := range map[string]struct {
		messages int
		options  mapping.Options
		want     []int
	}{
		"have at most their size":        {7, mapping.Options{BatchSize: 3, Concurrency: 1}, []int{3, 3, 1}},
		"do not wait when they are full": {20, mapping.Options{BatchSize: 20, Window: time.Hour}, []int{20}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := &function{handle: accept}
				stop := run(t, newMemory(names(tc.messages)...), f, tc.options)
				synctest.Wait()
				stop()
				expect.List(t, "the sizes of the batches", f.sizes(), tc.want)
			})
		})
	}
	t.Run("are collected for the window", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			queue, f := newMemory("a"), &function{handle: accept}
			stop := run(t, queue, f, mapping.Options{BatchSize: 100, Window: 2 * time.Second})
			time.Sleep(time.Second)
			queue.send(names(30)...)
			time.Sleep(900 * time.Millisecond)
			synctest.Wait()
			expect.Len(t, "the batches before the end of the window", f.sizes(), 0)
			time.Sleep(200 * time.Millisecond)
			synctest.Wait()
			stop()
			expect.List(t, "the sizes of the batches", f.sizes(), []int{31})
			expect.Equal(t, "the deleted messages", len(queue.gone()), 31)
		})
	})
}

func TestAsManyBatchesRunAtOnceAsMay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		queue := newMemory(names(50)...)
		f := &function{handle: func(ids []string) (string, string, error) {
			<-release
			return accept(ids)
		}}
		stop := run(t, queue, f, mapping.Options{BatchSize: 10, Concurrency: 2})
		synctest.Wait()
		expect.Equal(t, "the running batches", len(f.sizes()), 2)
		close(release)
		synctest.Wait()
		stop()
		expect.Equal(t, "the deleted messages", len(queue.gone()), 50)
	})
}

func TestABatchInHandIsSeenThroughWhenTheMappingEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		queue := newMemory("a")
		f := &function{handle: func(ids []string) (string, string, error) {
			<-release
			return accept(ids)
		}}
		stop := run(t, queue, f, mapping.Options{})
		synctest.Wait()
		stopped := make(chan struct{})
		go func() { stop(); close(stopped) }()
		synctest.Wait()
		select {
		case <-stopped:
			t.Error("the mapping ended before its batch")
		default:
		}
		close(release)
		<-stopped
		expect.List(t, "the deleted messages", queue.gone(), []string{"a"})
	})
}

func TestAFailedReceiveIsTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		queue, f := newMemory(), &function{handle: accept}
		queue.fail = errors.New("connection reset")
		stop := run(t, queue, f, mapping.Options{})
		synctest.Wait()
		queue.send("a")
		time.Sleep(time.Second)
		synctest.Wait()
		stop()
		expect.List(t, "the deleted messages", queue.gone(), []string{"a"})
	})
}

func TestAThrottledBatchIsTriedAgainForAWhile(t *testing.T) {
	for name, tc := range map[string]struct {
		throttles int
		want      []string
	}{
		"as long as it takes":                     {6, []string{"a"}},
		"and left to its visibility timeout then": {1000, nil},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				queue := newMemory("a")
				tries := 0
				fn := &function{handle: func([]string) (string, string, error) {
					if tries++; tries <= tc.throttles {
						return "", "", lambda.ErrThrottled
					}
					return "{}", "", nil
				}}
				stop := run(t, queue, fn, mapping.Options{Concurrency: 2, ReportFailures: true, Patience: time.Minute})
				time.Sleep(5 * time.Minute)
				stop()
				expect.List(t, "the deleted messages", queue.gone(), tc.want)
				expect.AtMost(t, "the tries in a minute", tries, 30)
			})
		})
	}
}

func TestAMessageAtTheEndOfALoopIsADeadLetter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		queue := newMemory("a", "b", "c")
		queue.ready[1].Attributes = map[string]string{lambda.AWSTraceHeader: "long"}
		fn := &function{handle: func([]string) (string, string, error) { return "{}", "", nil }}
		stop := run(t, queue, fn, mapping.Options{Concurrency: 2})
		time.Sleep(time.Second)
		stop()
		expect.Equal(t, "the handled, buried and deleted messages", fmt.Sprint(fn.batches, queue.buried, queue.gone()), "[[a c]] [b] [a b c]")
	})
}
