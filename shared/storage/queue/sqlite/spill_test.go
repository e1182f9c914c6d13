package sqlite

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"path/filepath"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mcp-events/mcpevents/shared/storage/queue"
	"github.com/mcp-events/mcpevents/shared/storage/queue/queuetest"
	store "github.com/mcp-events/mcpevents/shared/storage/store/sqlite"
	"github.com/mcp-events/mcpevents/test/expect"
)

func TestAGroupDoesNotFillTheMemory(t *testing.T) {
	for name, tc := range map[string]struct {
		opts  Options
		noisy int // groups
		each  int
	}{
		"WHK-16 given one slow group with more messages than fit, another group's message is handled immediately":   {Options{MaxReady: 100}, 1, 1000},
		"WHK-16 given many slow groups with more messages than fit, another group's message is handled immediately": {Options{MaxReady: 1000}, 40, 100},
		"WHK-16 given a slow group with more bytes than fit, another group's message is handled immediately":        {Options{MaxBytes: 100_000}, 1, 1000},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, tc.opts, func(t *testing.T, q *Queues) {
				var msgs []queue.Outgoing
				for i := range tc.each {
					for g := range tc.noisy {
						msgs = append(msgs, queue.Outgoing{Body: fmt.Appendf(nil, "noisy %0300d", i), Group: fmt.Sprint("noisy", g)})
					}
				}
				send(t, q, queue.Slow, msgs...)
				arrived := make(chan time.Time, 1)
				var mu sync.Mutex
				noisy := 0
				stop := run(q, queue.Slow, queue.ConsumeOptions{Batch: 1, Concurrency: 512, PerGroup: 8}, func(_ context.Context, batch []queue.Message) ([]string, error) {
					if batch[0].Group == "quiet" {
						arrived <- time.Now()
						return nil, nil
					}
					time.Sleep(3 * time.Second)
					mu.Lock()
					defer mu.Unlock()
					noisy++
					return nil, nil
				})
				time.Sleep(10 * time.Second)
				sent := time.Now()
				send(t, q, queue.Slow, queue.Outgoing{Body: []byte("quiet"), Group: "quiet"})
				if waited := (<-arrived).Sub(sent); waited > 3*time.Second {
					t.Errorf("the quiet group's message waited %v, want less than one slow message takes", waited)
				}
				time.Sleep(time.Duration(tc.each/8+10) * 3 * time.Second)
				mu.Lock()
				expect.Equal(t, "messages of slow groups", noisy, tc.each*tc.noisy)
				mu.Unlock()
				stop()
				if mq := q.queues[queue.Slow]; len(mq.window.spills) > 0 || mq.window.messages != 0 || mq.window.bytes != 0 || mq.window.depth() != (queue.Depth{}) {
					t.Errorf("got %d spilled groups, %d messages, %d bytes in memory, want none", len(mq.window.spills), mq.window.messages, mq.window.bytes)
				}
			})
		})
	}
}

// TestSpilledMessagesAreHandledOnce sends, delays and forwards messages of few groups to a queue with little memory. A message
// is never with two handlers, every message is accepted once, and a FIFO group keeps its order.
func TestSpilledMessagesAreHandledOnce(t *testing.T) {
	for seed := range uint64(20) {
		for _, name := range []queue.Name{queue.Slow, queue.Events} {
			inBubble(t, Options{MaxReady: 24}, func(t *testing.T, q *Queues) {
				r, handler := rand.New(rand.NewPCG(seed, 1)), rand.New(rand.NewPCG(seed, 2))
				var mu sync.Mutex
				handling, accepted, order := map[string]bool{}, map[string]int{}, map[string][]string{}
				stop := run(q, name, queue.ConsumeOptions{Batch: 4, Concurrency: 16, PerGroup: 3}, func(_ context.Context, batch []queue.Message) (failed []string, err error) {
					mu.Lock()
					for _, m := range batch {
						if handling[m.ID] {
							t.Errorf("seed %d: %s has two handlers", seed, m.Body)
						}
						handling[m.ID] = true
					}
					pause := time.Duration(handler.IntN(2000)) * time.Millisecond
					fails := handler.IntN(10) == 0
					mu.Unlock()
					time.Sleep(pause)
					mu.Lock()
					defer mu.Unlock()
					for _, m := range batch {
						delete(handling, m.ID)
						if fails && !name.FIFO() {
							failed = append(failed, m.ID)
							continue
						}
						accepted[string(m.Body)]++
						order[m.Group] = append(order[m.Group], string(m.Body))
					}
					return failed, nil
				})
				sent := map[string][]string{}
				n := 0
				for range 60 {
					var msgs []queue.Outgoing
					forward := !name.FIFO() && r.IntN(3) == 0
					for range r.IntN(30) {
						n++
						m := queue.Outgoing{Body: fmt.Appendf(nil, "%05d", n), Group: fmt.Sprint("g", r.IntN(4)*r.IntN(2))}
						switch {
						case name.FIFO():
							m.Dedup = string(m.Body)
						case m.Group == "g0" && r.IntN(2) == 0:
							m.Group = "" // never spilled, so these fill the memory
						case !forward && r.IntN(3) == 0:
							m.Delay = time.Duration(1+r.IntN(20)) * time.Second
						}
						sent[m.Group] = append(sent[m.Group], string(m.Body))
						msgs = append(msgs, m)
					}
					var err error
					if forward {
						err = q.Forward(t.Context(), name, msgs...)
					} else {
						err = q.Send(t.Context(), name, msgs...)
					}
					expect.OK(t, err)
					time.Sleep(time.Duration(r.IntN(1500)) * time.Millisecond)
				}
				time.Sleep(time.Hour)
				synctest.Wait()
				mu.Lock()
				for group, bodies := range sent {
					for i, body := range bodies {
						expect.Equal(t, fmt.Sprintf("seed %d: how often %s of %s was accepted", seed, body, group), accepted[body], 1)
						if name.FIFO() && (i >= len(order[group]) || order[group][i] != body) {
							t.Fatalf("seed %d: the order of %s is %v, want %v", seed, group, order[group], bodies)
						}
					}
				}
				mu.Unlock()
				stop()
				mq := q.queues[name]
				if len(mq.window.spills) > 0 || len(mq.window.early) > 0 || mq.window.depth() != (queue.Depth{}) || mq.window.messages != 0 {
					t.Errorf("seed %d: got %d spilled groups, %d early rows, %+v, want none", seed, len(mq.window.spills), len(mq.window.early), mq.window.depth())
				}
			})
		}
	}
}

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

// backend is a [Queues] with its file.
type backend struct{ *Queues }

func (backend) Grain() time.Duration { return 200 * time.Millisecond }

// open opens the queues of a file, or of [store.Memory], until the test ends.
func open(t testing.TB, path string, opts Options) *Queues {
	t.Helper()
	q, end := start(t, path, store.Options{}, opts)
	t.Cleanup(end)
	return q
}

// start opens queues for a test that closes them itself.
func start(t testing.TB, path string, file store.Options, opts Options) (q *Queues, end func()) {
	t.Helper()
	db := expect.Value(store.Open(path, file))(t)
	opts.Log = slog.New(slog.DiscardHandler)
	q = expect.Value(Open(db.Engine(), opts))(t)
	return q, func() {
		if err := q.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
		if err := db.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	}
}

func TestQueue(t *testing.T) {
	for name, opts := range map[string]Options{"roomy": {}, "few_messages_and_bytes_in_memory": {MaxReady: 6, MaxBytes: 100}} {
		t.Run(name, func(t *testing.T) {
			queuetest.RunInBubbles(t, func(t *testing.T) queuetest.Backend {
				return backend{open(t, filepath.Join(t.TempDir(), "events.db"), opts)}
			})
		})
	}
	t.Run("memory", func(t *testing.T) {
		queuetest.RunInBubbles(t, func(t *testing.T) queuetest.Backend { return backend{open(t, store.Memory, Options{})} })
	})
}
