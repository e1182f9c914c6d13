package sqlite

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mcp-events/mcpevents/shared/storage/queue"
	store "github.com/mcp-events/mcpevents/shared/storage/store/sqlite"
	"github.com/mcp-events/mcpevents/shared/storage/store/sqlite/engine"
	"github.com/mcp-events/mcpevents/test/expect"
)

// inBubble runs a test in a synctest bubble, with queues in memory.
func inBubble(t *testing.T, opts Options, test func(t *testing.T, q *Queues)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { test(t, open(t, store.Memory, opts)) })
}

// bubble runs a subtest in a synctest bubble.
func bubble(t *testing.T, name string, opts Options, test func(t *testing.T, q *Queues)) {
	t.Run(name, func(t *testing.T) { inBubble(t, opts, test) })
}

func send(t *testing.T, q *Queues, name queue.Name, msgs ...queue.Outgoing) {
	t.Helper()
	expect.OK(t, q.Send(context.Background(), name, msgs...))
}

// arrivals collects bodies with the time since the test began.
type arrivals struct {
	mu    sync.Mutex
	start time.Time
	list  []string
}

func (a *arrivals) add(batch []queue.Message) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, m := range batch {
		a.list = append(a.list, fmt.Sprintf("%s@%v#%d", m.Body, time.Since(a.start).Truncate(time.Second), m.Received))
	}
}

func (a *arrivals) want(t *testing.T, want ...string) {
	t.Helper()
	a.mu.Lock()
	defer a.mu.Unlock()
	expect.List(t, "the arrivals", a.list, want)
}

func run(q *Queues, name queue.Name, opts queue.ConsumeOptions, h queue.Handler) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = q.Consume(ctx, name, h, opts)
	}()
	return func() { cancel(); <-done }
}

// accepting returns a handler that calls add with each batch and accepts its messages.
func accepting(add func(batch []queue.Message)) queue.Handler {
	return func(_ context.Context, batch []queue.Message) ([]string, error) {
		add(batch)
		return nil, nil
	}
}

func text(body string, delay time.Duration) queue.Outgoing {
	return queue.Outgoing{Body: []byte(body), Delay: delay}
}

func TestTimes(t *testing.T) {
	bubble(t, "delayed_messages_arrive_on_time", Options{}, func(t *testing.T, q *Queues) {
		a := arrivals{start: time.Now()}
		defer run(q, queue.Slow, queue.ConsumeOptions{}, accepting(a.add))()
		send(t, q, queue.Slow, text("longest", queue.MaxDelay), text("hour's third", 10*time.Minute), text("now", 0))
		time.Sleep(time.Minute)
		send(t, q, queue.Slow, text("sooner", 5*time.Second))
		time.Sleep(20 * time.Minute)
		a.want(t, "now@0s#1", "sooner@1m5s#1", "hour's third@10m0s#1", "longest@15m0s#1")
	})
	bubble(t, "AWS-05_a_failing_message_is_redelivered_after_a_growing_back-off_and_becomes_a_dead_letter", Options{}, func(t *testing.T, q *Queues) {
		start := time.Now()
		var times []time.Time
		stop := run(q, queue.Slow, queue.ConsumeOptions{MaxReceives: 12}, func(context.Context, []queue.Message) ([]string, error) {
			times = append(times, time.Now())
			return nil, errors.New("no")
		})
		send(t, q, queue.Slow, queue.Outgoing{Body: []byte(`m "quoted" ä`), Group: "g"})
		time.Sleep(2 * time.Hour)
		stop()
		for i, want := range []time.Duration{1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300} {
			want *= time.Second
			if gap := times[i+1].Sub(times[i]); gap < want*4/5 || gap > want*6/5+time.Millisecond {
				t.Errorf("got a redelivery %v after failure %d, want about %v", gap, i+1, want)
			}
		}
		dead := make(chan queue.Message, 1)
		defer run(q, queue.Dead, queue.ConsumeOptions{}, accepting(func(batch []queue.Message) { dead <- batch[0] }))()
		m := <-dead
		if m.Group != "g" || !m.Sent.Equal(start.Truncate(time.Microsecond)) || m.Received != 1 || len(times) != 12 {
			t.Errorf("got %+v after %d calls, want a dead letter in group g after 12", m, len(times))
		}
		var l queue.DeadLetter
		expect.OK(t, json.Unmarshal(m.Body, &l))
		want := queue.DeadLetter{
			V: 2, Queue: queue.Slow, Reason: queue.ReasonReceives, Message: "1", Sent: m.Sent, Dead: l.Dead, Received: 12, Group: "g", Body: `m "quoted" ä`,
		}
		expect.Deep(t, "AWS-07 the dead letter", l, want)
	})
	bubble(t, "a_call_keeps_its_messages_until_it_returns", Options{}, func(t *testing.T, q *Queues) {
		a := arrivals{start: time.Now()}
		defer run(q, queue.Slow, queue.ConsumeOptions{Concurrency: 2}, func(ctx context.Context, batch []queue.Message) ([]string, error) {
			a.add(batch)
			<-ctx.Done()
			expect.Equal(t, "the time until the context ended", time.Since(a.start), 30*time.Second)
			time.Sleep(time.Hour)
			return nil, nil // late, but still the result
		})()
		send(t, q, queue.Slow, text("m", 0))
		time.Sleep(3 * time.Hour)
		a.want(t, "m@0s#1")
		expect.Equal(t, "rows", rowsOf(t, q, queue.Slow), 0)
	})
	bubble(t, "a_message_that_failed_with_others_is_redelivered_alone", Options{}, func(t *testing.T, q *Queues) {
		var good, bad int
		stop := run(q, queue.Inbox, queue.ConsumeOptions{MaxReceives: 3}, func(_ context.Context, batch []queue.Message) ([]string, error) {
			for _, m := range batch {
				if string(m.Body) == "poison" {
					bad++
					panic("poison")
				}
			}
			good += len(batch)
			return nil, nil
		})
		send(t, q, queue.Inbox, text("a", 0), text("poison", 0), text("b", 0))
		time.Sleep(time.Minute)
		stop()
		if d := depth(t, q, queue.Dead); d.Visible != 1 || good != 2 || bad != 3 {
			t.Errorf("got %d dead letters, %d good calls and %d bad calls, want 1, 2 and 3", d.Visible, good, bad)
		}
	})
	bubble(t, "a_deduplication_id_counts_for_five_minutes", Options{}, func(t *testing.T, q *Queues) {
		a := arrivals{start: time.Now()}
		defer run(q, queue.Events, queue.ConsumeOptions{}, accepting(a.add))()
		for i := range 14 {
			send(t, q, queue.Events, queue.Outgoing{Body: fmt.Appendf(nil, "%d", i), Group: "g", Dedup: "d"})
			time.Sleep(59 * time.Second)
		}
		// One message is accepted every 5 m 54 s, because dropped messages do not extend the window.
		a.want(t, "0@0s#1", "6@5m54s#1", "12@11m48s#1")
	})
	bubble(t, "results_whose_transaction_did_not_begin_are_written_later", Options{}, func(t *testing.T, q *Queues) {
		defer run(q, queue.Slow, queue.ConsumeOptions{}, accept)()
		mq := q.queues[queue.Slow]
		mq.mu.Lock()
		mq.submitted = true // as if a job were submitted that finds the file locked
		mq.mu.Unlock()
		send(t, q, queue.Slow, text("m", 0))
		synctest.Wait()
		(&settling{queue: mq}).Done(errors.New("the database is locked"))
		time.Sleep(retryAfter + time.Second)
		expect.Equal(t, "rows", rowsOf(t, q, queue.Slow), 0)
	})
	bubble(t, "results_that_could_not_be_written_are_written_later", Options{}, func(t *testing.T, q *Queues) {
		defer run(q, queue.Slow, queue.ConsumeOptions{}, accept)()
		mq := q.queues[queue.Slow]
		mq.mu.Lock()
		mq.submitted = true // as if a job were submitted
		mq.mu.Unlock()
		send(t, q, queue.Slow, text("m", 0))
		synctest.Wait()
		job := &settling{queue: mq}
		mq.mu.Lock()
		job.taken.append(&mq.settled)
		mq.submitted = false
		mq.mu.Unlock()
		expect.MustLen(t, "the messages to delete", job.taken.accepted, 1)
		job.Done(errors.New("disk full"))
		expect.Equal(t, "rows before", rowsOf(t, q, queue.Slow), 1)
		time.Sleep(retryAfter + time.Second)
		expect.Equal(t, "rows after", rowsOf(t, q, queue.Slow), 0)
	})
}

// TestDelaysAfterTheClockWentBack sets the clock of the machine back by a day and by some minutes. Timers continue, as they do
// on a machine.
func TestDelaysAfterTheClockWentBack(t *testing.T) {
	for name, back := range map[string]time.Duration{"by a day": 24 * time.Hour, "by ten minutes": 10 * time.Minute} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var ahead atomic.Int64
				ahead.Store(int64(back))
				now := func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }
				q, end := start(t, store.Memory, store.Options{SweepEvery: -1, Engine: engine.Options{Now: now}}, Options{})
				defer end()
				arrived := map[string]time.Duration{}
				var stop func()
				start := time.Now()
				read := func() {
					stop = run(q, queue.Slow, queue.ConsumeOptions{}, accepting(func(batch []queue.Message) {
						for _, m := range batch {
							if _, again := arrived[string(m.Body)]; again {
								t.Errorf("got %s twice, want it once", m.Body)
							}
							arrived[string(m.Body)] = time.Since(start)
						}
					}))
				}
				read()
				send(t, q, queue.Slow, text("before", time.Second))
				time.Sleep(2 * time.Second)
				stop()
				expect.MustEqual(t, "the time of the first message after it", arrived["before"], time.Second)
				send(t, q, queue.Slow, text("in memory", time.Second)) // becomes ready while there is no consumer
				time.Sleep(2 * time.Second)
				send(t, q, queue.Slow, text("waiting", 5*time.Second))

				ahead.Store(0)
				start = time.Now()
				send(t, q, queue.Slow, text("after", 5*time.Second))
				read()
				time.Sleep(20 * time.Minute)
				stop()
				for body, want := range map[string][2]time.Duration{
					"in memory": {0, 0},
					"after":     {5 * time.Second, 5 * time.Second},
					"waiting":   {0, min(back, 2*time.Minute) + queue.MaxDelay}, // at most the longest delay, if the step of the clock is too small to be noticed
				} {
					if got, ok := arrived[body]; !ok || got < want[0] || got > want[1] {
						t.Errorf("got %q after %v (%v), want %v to %v", body, got, ok, want[0], want[1])
					}
				}
				if got := arrived["waiting"]; back > queue.MaxDelay && got > time.Minute {
					t.Errorf("got the message that was due in a day after %v, want it within a minute", got)
				}
				expect.Equal(t, "rows in the end", rowsOf(t, q, queue.Slow), 0)
			})
		})
	}
}

// A clock that was ahead must not make deduplication ids count until it has caught up, nor keep their rows until then.
func TestDeduplicationAfterTheClockWentBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var ahead atomic.Int64
		ahead.Store(int64(24 * time.Hour))
		options := store.Options{SweepEvery: -1, Engine: engine.Options{Now: func() time.Time {
			return time.Unix(0, time.Now().UnixNano()+ahead.Load()) // a time of the wall clock only
		}}}
		path := filepath.Join(t.TempDir(), "events.db")
		q, end := start(t, path, options, Options{})
		restart := func() {
			end()
			q, end = start(t, path, options, Options{})
			synctest.Wait() // until the start has deleted the rows that do not count
		}
		defer func() { end() }()
		publish := func(id string, want int) {
			t.Helper()
			before := depth(t, q, queue.Events).Visible
			send(t, q, queue.Events, queue.Outgoing{Body: []byte(id), Group: "g", Dedup: id})
			expect.Equal(t, "accepted messages with the id "+id, depth(t, q, queue.Events).Visible-before, want)
		}
		for _, id := range []string{"a", "b", "c"} {
			publish(id, 1)
		}
		ahead.Store(0)
		publish("a", 0)
		time.Sleep(dedupWindow + time.Second)
		publish("a", 1)
		publish("a", 0)

		restart()
		publish("a", 0)
		time.Sleep(dedupWindow + 2*maxSleep)
		publish("b", 1)
		for i := range 20 {
			publish(fmt.Sprint(i), 1)
			time.Sleep(time.Minute)
		}
		var rows int64
		expect.OK(t, q.engine.Read(context.Background(), func(c *engine.Conn) (err error) {
			rows, err = c.Int("SELECT count(*) FROM queue_events_dedup")
			return err
		}))
		expect.AtMost(t, "the rows after one message per minute", rows, 7)

		ahead.Store(int64(24 * time.Hour))
		publish("c", 1)
		restart()
		ahead.Store(0)
		restart()
		publish("c", 0)
		publish("d", 1)
		time.Sleep(dedupWindow - time.Minute)
		restart() // the row of d must not be much later than the clock, or the id would count for longer
		time.Sleep(time.Minute + dedupStepBack + time.Second)
		publish("c", 1)
		publish("d", 1)

		ahead.Store(-int64(24 * time.Hour))
		time.Sleep(dedupWindow + maxSleep + time.Second) // without messages
		publish("d", 1)
	})
}

func TestDiscard(t *testing.T) {
	const rows = discardRows + 10
	delayed := func(i int) queue.Outgoing {
		return queue.Outgoing{Body: fmt.Appendf(nil, `{"sub":"sub_%032d","n":2}`, i), Delay: time.Minute}
	}
	bubble(t, "given delayed messages, when some texts are discarded, the messages with them are never delivered", Options{}, func(t *testing.T, q *Queues) {
		var msgs []queue.Outgoing
		for i := range rows {
			msgs = append(msgs, delayed(i))
		}
		send(t, q, queue.Slow, msgs...)
		send(t, q, queue.Slow, queue.Outgoing{Body: msgs[3].Body}) // due, so it stays
		texts := []string{"text that no message has", "x"}
		for i := range rows - 5 {
			texts = append(texts, fmt.Sprintf("sub_%032d", i))
		}
		expect.OK(t, q.Discard(t.Context(), queue.Slow, texts...))
		if d := depth(t, q, queue.Slow); d.Delayed != 5 || d.Visible != 1 {
			t.Errorf("got depth %+v, want 5 delayed and 1 visible", d)
		}
		got := map[string]int{}
		stop := run(q, queue.Slow, queue.ConsumeOptions{}, accepting(func(batch []queue.Message) {
			for _, m := range batch {
				got[string(m.Body)]++
			}
		}))
		time.Sleep(2 * time.Minute)
		stop()
		if len(got) != 6 || got[string(msgs[3].Body)] != 1 || got[string(msgs[rows-1].Body)] != 1 {
			t.Errorf("got %v, want the last five and the one that was due", got)
		}
	})
	t.Run("given a busy writer, when texts are discarded that no message has, the search does not wait for it", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			q := open(t, filepath.Join(t.TempDir(), "q.db"), Options{})
			send(t, q, queue.Slow, delayed(1), delayed(2))
			unblock := blockWriter(q)
			var err error
			done := false
			go func() { err = q.Discard(context.Background(), queue.Slow, "sub_other"); done = true }()
			synctest.Wait()
			if !done || err != nil {
				t.Errorf("got done %v, %v while the writer was busy, want it done", done, err)
			}
			unblock()
			synctest.Wait()
		})
	})
}
