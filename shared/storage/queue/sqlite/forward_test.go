package sqlite

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/shared/storage/queue"
	"github.com/mcp-events/mcpevents/test/expect"
)

func TestForwardedMessages(t *testing.T) {
	forward := func(t *testing.T, q *Queues, bodies ...string) (took time.Duration) {
		t.Helper()
		var msgs []queue.Outgoing
		for _, b := range bodies {
			msgs = append(msgs, queue.Outgoing{Body: []byte(b)})
		}
		start := time.Now()
		expect.OK(t, q.Forward(context.Background(), queue.Deliveries, msgs...))
		return time.Since(start)
	}
	t.Run("given a forwarded message, when it is accepted soon, then it is never written", func(t *testing.T) {
		inBubble(t, Options{}, func(t *testing.T, q *Queues) {
			defer run(q, queue.Deliveries, queue.ConsumeOptions{}, accept)()
			time.Sleep(time.Second) // until there are no other writes
			before := q.engine.Stats().Commits
			expect.Equal(t, "the time that the sender waited", forward(t, q, "a", "b"), 0)
			time.Sleep(time.Second)
			expect.Equal(t, "rows", rowsOf(t, q, queue.Deliveries), 0)
			if d := depth(t, q, queue.Deliveries); d.Visible+d.InFlight != 0 {
				t.Errorf("got depth %+v, want no messages", d)
			}
			if n := q.engine.Stats().Commits - before; n > 1 {
				t.Errorf("got %d commits, want at most 1", n)
			}
		})
	})
	t.Run("given a forwarded message, when its handler takes longer, then it has a row before the sender continues", func(t *testing.T) {
		inBubble(t, Options{}, func(t *testing.T, q *Queues) {
			time.Sleep(time.Second) // until there are no other writes
			release := make(chan struct{})
			defer run(q, queue.Deliveries, queue.ConsumeOptions{}, func(context.Context, []queue.Message) ([]string, error) {
				<-release
				return nil, nil
			})()
			expect.Equal(t, "the time that the sender waited", forward(t, q, "a"), forwardWithin)
			expect.Equal(t, "rows while the handler runs", rowsOf(t, q, queue.Deliveries), 1)
			close(release)
			time.Sleep(time.Second)
			expect.Equal(t, "rows in the end", rowsOf(t, q, queue.Deliveries), 0)
		})
	})
	t.Run("given a forwarded message, when it fails at first, then it is written and redelivered", func(t *testing.T) {
		inBubble(t, Options{}, func(t *testing.T, q *Queues) {
			calls := make(chan int, 10)
			defer run(q, queue.Deliveries, queue.ConsumeOptions{}, func(_ context.Context, batch []queue.Message) ([]string, error) {
				calls <- batch[0].Received
				if batch[0].Received < 3 {
					return []string{batch[0].ID}, nil
				}
				return nil, nil
			})()
			forward(t, q, "a")
			for want := 1; want <= 3; want++ {
				expect.Equal(t, "the receive", <-calls, want)
			}
			time.Sleep(time.Second)
			expect.Equal(t, "rows that are left", rowsOf(t, q, queue.Deliveries), 0)
		})
	})
	t.Run("given a forwarded message, when it cannot be written, then it keeps its body, also as a dead letter", func(t *testing.T) {
		inBubble(t, Options{MaxBytes: 10}, func(t *testing.T, q *Queues) {
			l := q.queues[queue.Deliveries]
			f := &forwarding{queue: l, done: make(chan struct{})}
			if !l.forward(f, []queue.Outgoing{{Body: []byte("forwarded")}}, 9) {
				t.Fatal("the message does not fit into memory")
			}
			f.Done(errors.New("disk full"))
			send(t, q, queue.Deliveries, queue.Outgoing{Body: []byte("another")}) // exceeds MaxBytes
			var bodies []string
			stop := run(q, queue.Deliveries, queue.ConsumeOptions{MaxReceives: 2}, func(_ context.Context, batch []queue.Message) (failed []string, _ error) {
				for _, m := range batch {
					if string(m.Body) != "another" {
						bodies = append(bodies, string(m.Body))
						failed = append(failed, m.ID)
					}
				}
				return failed, nil
			})
			time.Sleep(time.Minute)
			stop()
			expect.List(t, "the bodies that the handler got", bodies, []string{"forwarded", "forwarded"})
			var letter queue.DeadLetter
			stop = run(q, queue.Dead, queue.ConsumeOptions{}, func(_ context.Context, batch []queue.Message) ([]string, error) {
				return nil, json.Unmarshal(batch[0].Body, &letter)
			})
			time.Sleep(time.Minute)
			stop()
			expect.Equal(t, "the body of the dead letter", letter.Body, "forwarded")
		})
	})
	t.Run("given little memory, when messages are sent and forwarded, then each is delivered once", func(t *testing.T) {
		inBubble(t, Options{MaxReady: 10}, func(t *testing.T, q *Queues) {
			var mu sync.Mutex
			seen := map[string]int{}
			sending := make(chan struct{})
			go func() {
				defer close(sending)
				for i := range 40 {
					forward(t, q, fmt.Sprint("f", i))
					send(t, q, queue.Deliveries, queue.Outgoing{Body: fmt.Append(nil, "s", i)}, queue.Outgoing{Body: fmt.Append(nil, "t", i)})
				}
			}()
			time.Sleep(20 * time.Millisecond)
			defer run(q, queue.Deliveries, queue.ConsumeOptions{}, func(_ context.Context, batch []queue.Message) ([]string, error) {
				mu.Lock()
				for _, m := range batch {
					seen[string(m.Body)]++
				}
				mu.Unlock()
				time.Sleep(3 * time.Millisecond)
				return nil, nil
			})()
			<-sending
			time.Sleep(10 * time.Second)
			mu.Lock()
			defer mu.Unlock()
			expect.Equal(t, "messages", len(seen), 120)
			for body, n := range seen {
				expect.Equal(t, fmt.Sprintf("deliveries of %s", body), n, 1)
			}
			mq := q.queues[queue.Deliveries]
			n := rowsOf(t, q, queue.Deliveries)
			mq.mu.Lock()
			defer mq.mu.Unlock()
			if n != 0 || len(mq.window.early) != 0 {
				t.Errorf("got %d rows and %d early rows in the end, want none", n, len(mq.window.early))
			}
		})
	})
}
