package sqlite

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mcp-events/mcpevents/shared/storage/queue"
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
