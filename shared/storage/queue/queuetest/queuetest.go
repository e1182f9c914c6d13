// Package queuetest is the suite that every adapter of [queue.Sender] and [queue.Consumer] passes.
//
// An adapter's test calls [Run] with a function that opens empty queues under all names of [queue.Names]. Cases run in
// parallel, each with its own queues, so that waiting for a delay or a visibility timeout costs the suite little. For queues
// in this process, [RunInBubbles] runs the cases in synctest bubbles, where waiting costs nothing.
package queuetest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mcp-events/mcpevents/shared/storage/queue"
)

// Backend is a set of queues under test.
type Backend interface {
	queue.Sender
	queue.Consumer
	// Grain is the shortest visibility timeout of the backend, for example one second on SQS. On a busy machine a message
	// may be redelivered because its handler or the answer to the queue takes longer.
	Grain() time.Duration
}

// Run tests the queues that open returns against the contract of package queue. open is called once for each case and
// returns empty queues that no other case uses. It closes what it opened by t.Cleanup.
func Run(t *testing.T, open func(t *testing.T) Backend) {
	run(t, func(t *testing.T, c testCase) { c.run(&bench{T: t, Backend: open(t)}) })
}

// RunInBubbles tests queues in this process like [Run]. Each case runs in a synctest bubble, so that delays take no time.
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

// deadline bounds every wait.
const deadline = 30 * time.Second

// bench is a test with the backend under test.
type bench struct {
	*testing.T
	Backend
}

// send sends messages and fails the test on an error.
func (b *bench) send(q queue.Name, msgs ...queue.Outgoing) {
	b.Helper()
	if err := b.Send(b.Context(), q, msgs...); err != nil {
		b.Fatalf("Send %d to %s: %v", len(msgs), q, err)
	}
}

// consume runs a consumer until the test ends or stop is called. stop waits for the consumer.
func (b *bench) consume(q queue.Name, opts queue.ConsumeOptions, h queue.Handler) (stop func()) {
	b.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- b.Consume(ctx, q, h, opts) }()
	stop = sync.OnceFunc(func() {
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
	b.Cleanup(stop)
	return stop
}

// text returns a message with only a body.
func text(body string) queue.Outgoing { return queue.Outgoing{Body: []byte(body)} }

// ordered returns a message for a FIFO queue.
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

// accept accepts all messages. It is a [queue.Handler].
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

// originals returns the bodies that dead letters had on their queue. A queue on AWS moves messages unchanged.
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

// largest returns the size of the largest batch.
func (r *record) largest() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Max(r.batches)
}

// count returns how often a body was received.
func (r *record) count(body string) (n int) {
	for _, seen := range r.bodies() {
		if seen == body {
			n++
		}
	}
	return n
}

// distinct returns the number of different bodies received.
func (r *record) distinct() int {
	set := map[string]bool{}
	for _, body := range r.bodies() {
		set[body] = true
	}
	return len(set)
}

// wait waits until holds reports true. Only one goroutine may wait for a record.
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
