// Package queuetest is the test suite for all implementations of [queue.Sender] and [queue.Consumer]. The cases run in parallel, each
// with its own queues, so that their waits for delays and visibility timeouts overlap.
package queuetest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/storage/queue"
	"github.com/mcp-events/mcpevents/test/expect"
)

// Backend is a set of queues under test.
type Backend interface {
	queue.Sender
	queue.Consumer
	// Grain is the shortest visibility timeout that a case can use on this backend, for example one second on SQS. With a shorter
	// one, the queue could redeliver a message before a handler on a busy machine returns.
	Grain() time.Duration
}

// Run tests the queues that the function open returns. It calls open once for each case. The function open must close the queues with
// t.Cleanup.
func Run(t *testing.T, open func(t *testing.T) Backend) {
	run(t, func(t *testing.T, c testCase) { c.run(&bench{T: t, Backend: open(t)}) })
}

// RunInBubbles tests queues that run in this process, like [Run]. Each case runs in a synctest bubble, where delays take no time.
func RunInBubbles(t *testing.T, open func(t *testing.T) Backend) {
	run(t, func(t *testing.T, c testCase) {
		synctest.Test(t, func(t *testing.T) { c.run(&bench{T: t, Backend: open(t)}) })
	})
}

func run(t *testing.T, try func(t *testing.T, c testCase)) {
	for _, group := range []struct {
		name  string
		cases []testCase
	}{
		{"Delivery", deliveryCases},
		{"Failure", failureCases},
		{"FIFO", fifoCases},
		{"Limits", limitCases},
	} {
		t.Run(group.name, func(t *testing.T) {
			for _, c := range group.cases {
				t.Run(c.name, func(t *testing.T) {
					t.Parallel()
					try(t, c)
				})
			}
		})
	}
}

type testCase struct {
	name string
	run  func(b *bench)
}

const deadline = 30 * time.Second

type bench struct {
	*testing.T
	Backend
}

func (b *bench) send(q queue.Name, msgs ...queue.Outgoing) {
	b.Helper()
	expect.OK(b, b.Send(b.Context(), q, msgs...), "send to", q)
}

func (b *bench) consume(q queue.Name, opts queue.ConsumeOptions, h queue.Handler) {
	b.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- b.Consume(ctx, q, h, opts) }()
	b.Cleanup(func() {
		cancel()
		select {
		case err := <-done:
			if err != nil && !errors.Is(err, context.Canceled) {
				b.Errorf("Consume %s: %v", q, err)
			}
		case <-time.After(deadline):
			b.Errorf("Consume %s does not end with its context", q)
		}
	})
}

func text(body string) queue.Outgoing { return queue.Outgoing{Body: []byte(body)} }

// ordered returns a message for a FIFO queue. Its deduplication id is its body.
func ordered(group, body string) queue.Outgoing {
	return queue.Outgoing{Body: []byte(body), Group: group, Dedup: body}
}

func texts(prefix string, n int) []queue.Outgoing {
	msgs := make([]queue.Outgoing, n)
	for i := range msgs {
		msgs[i] = text(fmt.Sprintf("%s%d", prefix, i))
	}
	return msgs
}

// record collects the messages that handlers received, in the order of their calls.
type record struct {
	mu      sync.Mutex
	seen    []queue.Message
	batches []int
	changed chan struct{}
}

func newRecord() *record { return &record{changed: make(chan struct{}, 1)} }

func (r *record) add(batch ...queue.Message) {
	r.mu.Lock()
	r.seen = append(r.seen, batch...)
	r.batches = append(r.batches, len(batch))
	r.mu.Unlock()
	select {
	case r.changed <- struct{}{}:
	default:
	}
}

func (r *record) accept(_ context.Context, batch []queue.Message) ([]string, error) {
	r.add(batch...)
	return nil, nil
}

func (r *record) bodies() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := make([]string, len(r.seen))
	for i, m := range r.seen {
		out[i] = string(m.Body)
	}
	return out
}

// originals returns the original bodies of the recorded messages on [queue.Dead]. It takes them out of the dead letters. A message that
// SQS itself moved to [queue.Dead] is no [queue.DeadLetter], and still has its original body.
func (r *record) originals() []string {
	out := r.bodies()
	for i, body := range out {
		var l queue.DeadLetter
		if json.Unmarshal([]byte(body), &l) == nil {
			out[i] = l.Body
		}
	}
	return out
}

func (r *record) all() []queue.Message {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]queue.Message(nil), r.seen...)
}

func (r *record) largest() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Max(r.batches)
}

func (r *record) count(body string) (n int) {
	for _, seen := range r.bodies() {
		if seen == body {
			n++
		}
	}
	return n
}

func (r *record) distinct() int {
	set := map[string]bool{}
	for _, body := range r.bodies() {
		set[body] = true
	}
	return len(set)
}

// wait blocks until a call of the function holds returns true. It calls the function again after each batch that r records. Only one
// goroutine may wait for a record.
func (b *bench) wait(r *record, what string, holds func() bool) {
	b.Helper()
	timeout := time.NewTimer(deadline)
	defer timeout.Stop()
	for !holds() {
		select {
		case <-r.changed:
		case <-timeout.C:
			got := r.bodies()
			b.Fatalf("%s did not arrive within %v; got %d messages, the last %q", what, deadline, len(got), got[max(0, len(got)-20):])
		}
	}
}

var failureCases = []testCase{
	{"WHK-19_only_the_failed_messages_of_a_batch_are_redelivered", func(b *bench) {
		bad := []string{"m1", "m4", "m7"}
		r := newRecord()
		b.send(queue.Deliveries, texts("m", 10)...)
		b.consume(queue.Deliveries, queue.ConsumeOptions{Visibility: 2 * b.Grain()}, func(_ context.Context, batch []queue.Message) (failed []string, err error) {
			for _, m := range batch {
				if m.Received == 1 && slices.Contains(bad, string(m.Body)) {
					failed = append(failed, m.ID)
				}
			}
			r.add(batch...)
			return failed, nil
		})
		b.wait(r, "the failed ones again", func() bool {
			return r.distinct() == 10 && r.count(bad[0]) == 2 && r.count(bad[1]) == 2 && r.count(bad[2]) == 2
		})
		received := map[string][]int{}
		for _, m := range r.all() {
			received[string(m.Body)] = append(received[string(m.Body)], m.Received)
		}
		for body, got := range received {
			want := []int{1}
			if slices.Contains(bad, body) {
				want = []int{1, 2}
			}
			expect.List(b, "the receives of "+body, got, want)
		}
	}},
	{"an_error_fails_the_whole_batch", func(b *bench) {
		r := newRecord()
		b.send(queue.Deliveries, texts("m", 5)...)
		b.consume(queue.Deliveries, queue.ConsumeOptions{Visibility: b.Grain()}, func(_ context.Context, batch []queue.Message) ([]string, error) {
			r.add(batch...)
			if batch[0].Received == 1 {
				return nil, errors.New("not yet")
			}
			return nil, nil
		})
		b.wait(r, "all a second time", func() bool {
			for _, body := range texts("m", 5) {
				if r.count(string(body.Body)) < 2 {
					return false
				}
			}
			return true
		})
	}},
	{"AWS-05_a_failed_message_is_redelivered_after_seconds", func(b *bench) {
		const visibility = 2 * deadline // so that a redelivery after this time is too late for the case
		var mu sync.Mutex
		var times []time.Time
		r := newRecord()
		b.consume(queue.Deliveries, queue.ConsumeOptions{Visibility: visibility}, func(_ context.Context, batch []queue.Message) ([]string, error) {
			mu.Lock()
			times = append(times, time.Now())
			mu.Unlock()
			r.add(batch...)
			if batch[0].Received < 3 {
				return []string{batch[0].ID}, nil
			}
			return nil, nil
		})
		b.send(queue.Deliveries, text("m"))
		b.wait(r, "the third time", func() bool { return r.count("m") == 3 })
		mu.Lock()
		defer mu.Unlock()
		for i, least := range []time.Duration{800 * time.Millisecond, 1600 * time.Millisecond} {
			expect.AtLeast(b, fmt.Sprintf("the time of the redelivery after failure %d", i+1), times[i+1].Sub(times[i]), least-50*time.Millisecond)
		}
	}},
	{"a_message_is_not_redelivered_while_its_handler_runs", func(b *bench) {
		r, ended := newRecord(), make(chan struct{})
		end := sync.OnceFunc(func() { close(ended) })
		b.consume(queue.Deliveries, queue.ConsumeOptions{Visibility: b.Grain(), Concurrency: 2}, func(_ context.Context, batch []queue.Message) ([]string, error) {
			r.add(batch...)
			if string(batch[0].Body) == "long" {
				defer end()
				time.Sleep(3 * b.Grain())
			}
			return nil, nil
		})
		b.send(queue.Deliveries, text("long"))
		<-ended
		b.send(queue.Deliveries, text("marker"))
		b.wait(r, "the marker", func() bool { return r.count("marker") == 1 })
		expect.Equal(b, "the receives of the message", r.count("long"), 1)
	}},
	{"a_message_becomes_a_dead_letter_after_MaxReceives_failures", func(b *bench) {
		r, dead := newRecord(), newRecord()
		b.consume(queue.Deliveries, queue.ConsumeOptions{Visibility: 2 * b.Grain(), MaxReceives: 2}, func(_ context.Context, batch []queue.Message) (failed []string, err error) {
			r.add(batch...)
			for _, m := range batch {
				if string(m.Body) == "poison" {
					failed = append(failed, m.ID)
				}
			}
			return failed, nil
		})
		b.consume(queue.Dead, queue.ConsumeOptions{}, dead.accept)
		b.send(queue.Deliveries, queue.Outgoing{Body: []byte("poison"), Group: "g"}, text("good"))
		b.wait(dead, "the dead letter", func() bool { return len(dead.bodies()) == 1 })
		b.wait(r, "the good message", func() bool { return r.count("good") == 1 })
		expect.Equal(b, "the receives of the poison message", r.count("poison"), 2)
		expect.List(b, "the dead letters", dead.originals(), []string{"poison"})
	}},
}

// fifoPause is long enough to handle the messages of other groups before a failed message is redelivered.
const fifoPause = 3 * time.Second

func (b *bench) checkRefused(what string, q queue.Name, m queue.Outgoing, kinds ...fault.Kind) {
	b.Helper()
	if err := b.Send(b.Context(), q, m); err == nil || !slices.Contains(kinds, fault.KindOf(err)) {
		b.Errorf("%s: got error %v (kind %v), want one of kind %v", what, err, fault.KindOf(err), kinds)
	}
}

var limitCases = []testCase{
	{"the_largest_body_arrives_and_one_byte_more_is_refused", func(b *bench) {
		largest := strings.Repeat("x", queue.MaxBody)
		b.checkRefused("one byte more", queue.Deliveries, text(largest+"x"), fault.TooLarge, fault.Invalid)
		b.send(queue.Deliveries, text(largest))
		r := newRecord()
		b.consume(queue.Deliveries, queue.ConsumeOptions{}, r.accept)
		b.wait(r, "the message", func() bool { return r.count(largest) == 1 })
	}},
	{"large_sends_are_split_into_batches", func(b *bench) {
		var msgs []queue.Outgoing
		for i := range 9 {
			msgs = append(msgs, text(fmt.Sprint(i)+strings.Repeat("x", 100<<10)))
		}
		msgs = append(msgs, texts("small", 47)...)
		r := newRecord()
		b.consume(queue.Deliveries, queue.ConsumeOptions{Concurrency: 2}, r.accept)
		b.send(queue.Deliveries, msgs...)
		b.wait(r, "all messages", func() bool { return r.distinct() == len(msgs) })
	}},
	{"large_FIFO_sends_keep_their_order", func(b *bench) {
		var msgs []queue.Outgoing
		var want []string
		for i := range 24 {
			body := fmt.Sprintf("%02d", i) + strings.Repeat("x", 40<<10)
			msgs = append(msgs, queue.Outgoing{Body: []byte(body), Group: "g", Dedup: body[:2]})
			want = append(want, body[:2])
		}
		r := newRecord()
		b.consume(queue.Events, queue.ConsumeOptions{Concurrency: 2}, r.accept)
		b.send(queue.Events, msgs...)
		b.wait(r, "all messages", func() bool { return len(r.bodies()) == len(msgs) })
		var got []string
		for _, body := range r.bodies() {
			got = append(got, body[:2])
		}
		expect.List(b, "the messages", got, want)
	}},
	{"bodies_are_text", func(b *bench) {
		for name, body := range map[string]string{"empty": "", "not UTF-8": "a\xff", "half a pair": "\xed\xa0\x80"} {
			b.checkRefused(name, queue.Deliveries, text(body), fault.Invalid)
		}
	}},
	{"JSON_with_characters_that_SQS_refuses_keeps_its_meaning", func(b *bench) {
		const want = "a\ufffeb\uffffc"
		r := newRecord()
		b.consume(queue.Deliveries, queue.ConsumeOptions{}, r.accept)
		b.send(queue.Deliveries, text(`"`+want+`"`))
		b.wait(r, "the message", func() bool { return len(r.bodies()) == 1 })
		var got string
		if err := json.Unmarshal([]byte(r.bodies()[0]), &got); err != nil || got != want {
			b.Errorf("got %q, %v", got, err)
		}
	}},
	{"groups_and_dedup_ids", func(b *bench) {
		for _, bad := range []string{"a b", "ä", "a#b", strings.Repeat("g", 129)} {
			b.checkRefused("group "+bad, queue.Slow, queue.Outgoing{Body: []byte("m"), Group: bad}, fault.Invalid)
			b.checkRefused("FIFO group "+bad, queue.Events, queue.Outgoing{Body: []byte("m"), Group: bad, Dedup: "d"}, fault.Invalid)
			b.checkRefused("owner "+bad, queue.Slow, queue.Outgoing{Body: []byte("m"), Group: "g", Owner: bad}, fault.Invalid)
			b.checkRefused("dedup id "+bad, queue.Events, queue.Outgoing{Body: []byte("m"), Group: "g", Dedup: bad}, fault.Invalid)
		}
		b.checkRefused("FIFO with an owner", queue.Events, queue.Outgoing{Body: []byte("m"), Group: "g", Owner: "o"}, fault.Invalid)
		b.checkRefused("an owner without a group", queue.Slow, queue.Outgoing{Body: []byte("m"), Owner: "o"}, fault.Invalid)
		b.checkRefused("FIFO without a group", queue.Events, queue.Outgoing{Body: []byte("m"), Dedup: "d"}, fault.Invalid)
		b.checkRefused("a dedup id on a standard queue", queue.Slow, queue.Outgoing{Body: []byte("m"), Dedup: "d"}, fault.Invalid)
		b.send(queue.Slow, queue.Outgoing{Body: []byte("m"), Group: strings.Repeat("g", 128), Owner: strings.Repeat("o", 128)})
	}},
	{"delays", func(b *bench) {
		b.checkRefused("negative", queue.Slow, queue.Outgoing{Body: []byte("m"), Delay: -time.Second}, fault.Invalid)
		b.checkRefused("too long", queue.Slow, queue.Outgoing{Body: []byte("m"), Delay: queue.MaxDelay + time.Second}, fault.Invalid)
		b.checkRefused("on a FIFO queue", queue.Events, queue.Outgoing{Body: []byte("m"), Group: "g", Dedup: "d", Delay: time.Second}, fault.Invalid)
		b.send(queue.Slow, queue.Outgoing{Body: []byte("m"), Delay: queue.MaxDelay})
	}},
	{"an_invalid_message_fails_the_whole_send", func(b *bench) {
		expect.Fault(b, "the send", b.Send(b.Context(), queue.Inbox, text("good"), text("bad\xff")), fault.Invalid)
		b.send(queue.Inbox, text("marker"))
		r := newRecord()
		b.consume(queue.Inbox, queue.ConsumeOptions{}, r.accept)
		b.wait(r, "the marker", func() bool { return r.count("marker") == 1 })
		expect.Equal(b, "the receives of the good half", r.count("good"), 0)
	}},
	{"a_send_with_an_ended_context_fails", func(b *bench) {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		expect.Is(b, "the send", b.Send(ctx, queue.Inbox, text("m")), context.Canceled)
	}},
}
