package sqlite

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mcp-events/mcpevents/shared/storage/queue"
	"github.com/mcp-events/mcpevents/shared/storage/queue/queuetest"
	store "github.com/mcp-events/mcpevents/shared/storage/store/sqlite"
	"github.com/mcp-events/mcpevents/shared/storage/store/sqlite/engine"
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
		bubble(t, name, tc.opts, func(t *testing.T, q *Queues) {
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
			expect.AtMost(t, "the time that the quiet group's message waited", (<-arrived).Sub(sent), 3*time.Second)
			time.Sleep(time.Duration(tc.each/8+10) * 3 * time.Second)
			mu.Lock()
			expect.Equal(t, "messages of slow groups", noisy, tc.each*tc.noisy)
			mu.Unlock()
			stop()
			if mq := q.queues[queue.Slow]; len(mq.window.spills) > 0 || mq.window.messages != 0 || mq.window.bytes != 0 || mq.window.depth() != (queue.Depth{}) {
				t.Errorf("got %d spilled groups, %d messages, %d bytes in memory, want none", len(mq.window.spills), mq.window.messages, mq.window.bytes)
			}
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
				expect.Equal(t, "the rows in the end", rowsOf(t, q, name), 0)
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
	bubble(t, "given a forwarded message, when it is accepted soon, then it is never written", Options{}, func(t *testing.T, q *Queues) {
		defer run(q, queue.Deliveries, queue.ConsumeOptions{}, accept)()
		time.Sleep(time.Second) // until there are no other writes
		before := q.engine.Stats().Commits
		expect.Equal(t, "the time that the sender waited", forward(t, q, "a", "b"), 0)
		time.Sleep(time.Second)
		expect.Equal(t, "rows", rowsOf(t, q, queue.Deliveries), 0)
		d := depth(t, q, queue.Deliveries)
		expect.Equal(t, "the messages", d.Visible+d.InFlight, 0)
		expect.AtMost(t, "the commits", q.engine.Stats().Commits-before, 1)
	})
	bubble(t, "given a forwarded message, when its handler takes longer, then it has a row before the sender continues", Options{}, func(t *testing.T, q *Queues) {
		time.Sleep(time.Second) // until there are no other writes
		release := make(chan struct{})
		defer run(q, queue.Deliveries, queue.ConsumeOptions{}, accepting(func([]queue.Message) { <-release }))()
		expect.Equal(t, "the time that the sender waited", forward(t, q, "a"), forwardWithin)
		expect.Equal(t, "rows while the handler runs", rowsOf(t, q, queue.Deliveries), 1)
		close(release)
		time.Sleep(time.Second)
		expect.Equal(t, "rows in the end", rowsOf(t, q, queue.Deliveries), 0)
	})
	bubble(t, "given a forwarded message with a value, when it fails at first, then it is written and redelivered without the value", Options{}, func(t *testing.T, q *Queues) {
		calls := make(chan string, 10)
		defer run(q, queue.Deliveries, queue.ConsumeOptions{}, func(_ context.Context, batch []queue.Message) ([]string, error) {
			calls <- fmt.Sprint(batch[0].Received, batch[0].Value)
			if batch[0].Received < 3 {
				return []string{batch[0].ID}, nil
			}
			return nil, nil
		})()
		expect.OK(t, q.Forward(context.Background(), queue.Deliveries, queue.Outgoing{Body: []byte("7"), Value: 7}))
		for _, want := range []string{"1 7", "2 <nil>", "3 <nil>"} {
			expect.Equal(t, "the receive and its value", <-calls, want)
		}
		time.Sleep(time.Second)
		expect.Equal(t, "rows that are left", rowsOf(t, q, queue.Deliveries), 0)
	})
	bubble(t, "given a forwarded message, when it cannot be written, then it keeps its body, also as a dead letter", Options{MaxBytes: 10}, func(t *testing.T, q *Queues) {
		repair := breakInserts(t, q, queue.Deliveries)
		expect.Error(t, "the sender", q.Forward(context.Background(), queue.Deliveries, queue.Outgoing{Body: []byte("forwarded")}))
		repair()
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
}

// breakInserts makes inserts into the table of a queue fail until repair is called.
func breakInserts(t *testing.T, q *Queues, name queue.Name) (repair func()) {
	t.Helper()
	exec := func(sql string) {
		t.Helper()
		expect.OK(t, q.engine.Do(context.Background(), execJob(sql)))
	}
	exec("CREATE TRIGGER broken BEFORE INSERT ON queue_" + string(name) + " BEGIN SELECT RAISE(ABORT, 'broken'); END")
	return func() { exec("DROP TRIGGER broken") }
}

type execJob string

func (sql execJob) Apply(tx *engine.Tx) error { return tx.Exec(string(sql)) }

func (execJob) Done(error) {}

// blockWriter keeps the engine's writer in a transaction until unblock is called.
func blockWriter(q *Queues) (unblock func()) {
	b := blockJob{began: make(chan struct{}), release: make(chan struct{})}
	go func() { _ = q.engine.Do(context.Background(), b) }()
	<-b.began
	return func() { close(b.release) }
}

type blockJob struct{ began, release chan struct{} }

func (b blockJob) Apply(*engine.Tx) error { close(b.began); <-b.release; return nil }

func (blockJob) Done(error) {}

// handled collects the bodies of messages.
type handled struct {
	mu   sync.Mutex
	list []string
}

func (h *handled) add(batch []queue.Message) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, m := range batch {
		h.list = append(h.list, string(m.Body))
	}
}

func (h *handled) bodies() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.list)
}

// A publisher gets its answer when its event is durable, and the event shares a commit with the writes of its handler.
func TestForwardedMessagesOfAFIFOQueue(t *testing.T) {
	event := func(id string) queue.Outgoing { return queue.Outgoing{Body: []byte(id), Group: "g", Dedup: id} }
	forward := func(q *Queues, ids ...string) error {
		var msgs []queue.Outgoing
		for _, id := range ids {
			msgs = append(msgs, event(id))
		}
		return q.Forward(context.Background(), queue.Events, msgs...)
	}
	// record runs a worker that records the messages it gets.
	record := func(q *Queues) (got *handled, stop func()) {
		got = &handled{}
		stop = run(q, queue.Events, queue.ConsumeOptions{Concurrency: 2}, accepting(got.add))
		time.Sleep(time.Second) // until the workers wait and there are no other writes
		return got, stop
	}
	bubble(t, "WHK-18 given an idle group, when a message is forwarded, then its row shares the commit of its handler", Options{}, func(t *testing.T, q *Queues) {
		release := make(chan struct{})
		defer run(q, queue.Events, queue.ConsumeOptions{}, func(_ context.Context, batch []queue.Message) ([]string, error) {
			expect.Equal(t, "Unwritten", batch[0].Unwritten, true)
			send(t, q, queue.Slow, queue.Outgoing{Body: []byte("own write")})
			expect.Equal(t, "rows after the handler's write", rowsOf(t, q, queue.Events), 1)
			<-release
			return nil, nil
		})()
		time.Sleep(time.Second)
		before, start := q.engine.Stats().Commits, time.Now()
		expect.OK(t, forward(q, "a"))
		expect.Equal(t, "the time that the sender waited", time.Since(start), 0)
		expect.Equal(t, "commits", q.engine.Stats().Commits-before, 1)
		close(release)
		time.Sleep(time.Second)
		expect.Equal(t, "rows in the end", rowsOf(t, q, queue.Events), 0)
	})
	bubble(t, "WHK-18 given a handler that is done, when its message is not committed yet, then the sender waits for the commit", Options{}, func(t *testing.T, q *Queues) {
		got, stop := record(q)
		defer stop()
		unblock := blockWriter(q)
		var answered atomic.Bool
		go func() { expect.OK(t, forward(q, "a")); answered.Store(true) }()
		time.Sleep(time.Minute)
		expect.Equal(t, "messages that were handled", len(got.bodies()), 1)
		expect.Equal(t, "the sender got its answer", answered.Load(), false)
		unblock()
		time.Sleep(time.Second)
		expect.Equal(t, "the sender got its answer", answered.Load(), true)
	})
	bubble(t, "given a handler that runs, when messages of its group are forwarded, then they stay in order", Options{}, func(t *testing.T, q *Queues) {
		got := &handled{}
		release := make(chan struct{})
		stop := run(q, queue.Events, queue.ConsumeOptions{Concurrency: 2, Batch: 3}, accepting(func(batch []queue.Message) {
			<-release
			got.add(batch)
		}))
		time.Sleep(time.Second)
		start := time.Now()
		for _, id := range []string{"a", "b", "c"} {
			expect.OK(t, forward(q, id))
		}
		expect.OK(t, forward(q, "d", "e", "f"))
		expect.OK(t, q.Send(context.Background(), queue.Events, event("g")))
		expect.AtMost(t, "the time of the senders", time.Since(start), 2*forwardEventWithin) // a and b: the worker has not written anything
		close(release)
		time.Sleep(time.Second)
		stop()
		expect.List(t, "the messages", got.bodies(), []string{"a", "b", "c", "d", "e", "f", "g"})
		expect.Equal(t, "rows in the end", rowsOf(t, q, queue.Events), 0)
	})
	bubble(t, "given a message that is being forwarded, when it is repeated, then the repetition waits for it and is dropped", Options{}, func(t *testing.T, q *Queues) {
		got, stop := record(q)
		defer stop()
		unblock := blockWriter(q)
		var answers atomic.Int64
		again := func(send func() error) { go func() { expect.OK(t, send()); answers.Add(1) }() }
		again(func() error { return forward(q, "a") })
		synctest.Wait()
		again(func() error { return forward(q, "a") })
		again(func() error { return forward(q, "a", "a") })
		again(func() error { return q.Send(context.Background(), queue.Events, event("a")) })
		time.Sleep(time.Second)
		expect.Equal(t, "answers before the commit", answers.Load(), 0)
		unblock()
		time.Sleep(time.Second)
		expect.Equal(t, "answers", answers.Load(), 4)
		expect.OK(t, forward(q, "a"))
		time.Sleep(time.Second)
		expect.List(t, "the messages", got.bodies(), []string{"a"})
		expect.Equal(t, "ids that are being forwarded", len(q.queues[queue.Events].dedup.forwarding), 0)
	})
	bubble(t, "given a message that is being sent, when it is forwarded, then the repetition is dropped", Options{}, func(t *testing.T, q *Queues) {
		got, stop := record(q)
		defer stop()
		d := q.queues[queue.Events].dedup
		b := blockJob{began: make(chan struct{}), release: make(chan struct{})}
		var sending sync.WaitGroup
		unblock := blockWriter(q)
		sending.Go(func() { expect.OK(t, q.Send(context.Background(), queue.Events, event("a"))) })
		synctest.Wait()
		sending.Go(func() { expect.OK(t, q.engine.Do(context.Background(), b)) })
		synctest.Wait()
		unblock() // the next transaction claims the id and then blocks
		<-b.began
		if f, err := q.queues[queue.Events].forward([]queue.Outgoing{event("a")}, 1); f != nil || err != nil {
			t.Errorf("got a message forwarded (%v), want it sent", err)
		}
		sending.Go(func() { expect.OK(t, forward(q, "a")) })
		close(b.release)
		sending.Wait()
		time.Sleep(time.Second)
		expect.List(t, "the messages", got.bodies(), []string{"a"})
		expect.Equal(t, "ids that are being forwarded", len(d.forwarding), 0)
	})
	bubble(t, "given a forwarded message, when it is repeated within and after five minutes, then only the later repetition is delivered", Options{}, func(t *testing.T, q *Queues) {
		got, stop := record(q)
		defer stop()
		for _, pause := range []time.Duration{0, dedupWindow - 2*time.Second, 3 * time.Second} {
			time.Sleep(pause)
			expect.OK(t, forward(q, "a"))
		}
		time.Sleep(time.Second)
		expect.List(t, "the messages", got.bodies(), []string{"a", "a"})
	})
	bubble(t, "given messages that cannot be written, when their handler fails, then none is delivered again, and they may be sent again", Options{}, func(t *testing.T, q *Queues) {
		got := &handled{}
		defer run(q, queue.Events, queue.ConsumeOptions{}, func(_ context.Context, batch []queue.Message) ([]string, error) {
			if err := q.Send(context.Background(), queue.Events, event("own")); err != nil {
				return nil, err // as fanout, whose entry in the log shares the commit
			}
			got.add(batch)
			return nil, nil
		})()
		time.Sleep(time.Second)
		repair := breakInserts(t, q, queue.Events)
		expect.Error(t, "messages that were not written", forward(q, "a", "b"))
		repair()
		time.Sleep(time.Hour)
		expect.List(t, "the messages that were not written", got.bodies(), []string{})
		expect.OK(t, forward(q, "a", "b"))
		time.Sleep(time.Second)
		expect.List(t, "all messages", got.bodies(), []string{"a", "b", "own"})
		d := depth(t, q, queue.Events)
		expect.Equal(t, "the messages", d.Visible+d.InFlight, 0)
	})
	bubble(t, "given a message behind another of its group, when it cannot be written, then only its repetition is delivered", Options{}, func(t *testing.T, q *Queues) {
		got := &handled{}
		release := make(chan struct{})
		defer run(q, queue.Events, queue.ConsumeOptions{Concurrency: 2}, accepting(func(batch []queue.Message) {
			<-release
			got.add(batch)
		}))()
		time.Sleep(time.Second)
		expect.OK(t, forward(q, "a"))
		time.Sleep(time.Second)
		repair := breakInserts(t, q, queue.Events)
		expect.Error(t, "a message that was not written", forward(q, "b"))
		repair()
		expect.OK(t, forward(q, "b"))
		close(release)
		time.Sleep(time.Minute)
		expect.List(t, "the messages", got.bodies(), []string{"a", "b"})
		d := depth(t, q, queue.Events)
		expect.Equal(t, "the messages", d.Visible+d.InFlight, 0)
	})
	t.Run("WHK-18 given a forwarded message, when the server restarts, then it was delivered once and a repetition is dropped", func(t *testing.T) {
		path := t.TempDir() + "/events.db"
		calls := make(chan string, 10)
		for _, id := range []string{"a", "b"} {
			q, end := start(t, path, store.Options{}, Options{})
			stop := run(q, queue.Events, queue.ConsumeOptions{}, accepting(func(batch []queue.Message) {
				for _, m := range batch {
					calls <- string(m.Body)
				}
			}))
			expect.OK(t, forward(q, "a"))
			expect.OK(t, forward(q, id))
			expect.Equal(t, "the message", <-calls, id)
			stop()
			end()
		}
		expect.Equal(t, "further messages", len(calls), 0)
	})
	t.Run("WHK-18 given an answered message, when the server dies before it is handled, then the next server delivers it", func(t *testing.T) {
		path := t.TempDir() + "/events.db"
		q, end := start(t, path, store.Options{}, Options{})
		stop := run(q, queue.Events, queue.ConsumeOptions{}, func(ctx context.Context, _ []queue.Message) ([]string, error) {
			<-ctx.Done() // until the queues close
			return nil, ctx.Err()
		})
		expect.OK(t, forward(q, "a", "b"))
		end()
		stop()
		q, end = start(t, path, store.Options{}, Options{})
		defer end()
		bodies := make(chan string, 10)
		defer run(q, queue.Events, queue.ConsumeOptions{}, accepting(func(batch []queue.Message) {
			for _, m := range batch {
				bodies <- string(m.Body)
			}
		}))()
		expect.Equal(t, "the first message", <-bodies, "a")
		expect.Equal(t, "the second message", <-bodies, "b")
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
