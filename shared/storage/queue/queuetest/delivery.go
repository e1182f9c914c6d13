package queuetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/mcp-events/mcpevents/shared/storage/queue"
)

var deliveryCases = []testCase{
	{"every_message_arrives_with_several_consumers", func(b *bench) {
		const n = 1000
		r := newRecord()
		for range 3 {
			b.consume(queue.Deliveries, queue.ConsumeOptions{Concurrency: 2}, r.accept)
		}
		start := time.Now()
		var sending sync.WaitGroup
		for s := range 4 {
			sending.Go(func() { b.send(queue.Deliveries, texts(fmt.Sprintf("%d-", s), n/4)...) })
		}
		sending.Wait()
		b.wait(r, "all messages", func() bool { return r.distinct() == n })
		ids := map[string]string{}
		for _, m := range r.all() {
			if m.ID == "" || m.Received < 1 {
				b.Fatalf("message %+v", m)
			}
			if age := m.Sent.Sub(start); age < -time.Minute || age > time.Minute {
				b.Fatalf("sent %v after the test began", age)
			}
			if other, taken := ids[m.ID]; taken && other != string(m.Body) {
				b.Fatalf("%q and %q have the same id", other, m.Body)
			}
			ids[m.ID] = string(m.Body)
		}
	}},
	{"a_message_sent_before_there_is_a_consumer_waits", func(b *bench) {
		b.send(queue.Inbox, text("early"))
		r := newRecord()
		b.consume(queue.Inbox, queue.ConsumeOptions{}, r.accept)
		b.wait(r, "the message", func() bool { return r.count("early") == 1 })
	}},
	{"nothing_to_send", func(b *bench) { b.send(queue.Deliveries) }},
	{"queues_are_separate", func(b *bench) {
		records := map[queue.Name]*record{}
		for _, q := range queue.Names() {
			m := text(string(q))
			if q.FIFO() {
				m = ordered("g", string(q))
			}
			b.send(q, m)
		}
		for _, q := range queue.Names() {
			records[q] = newRecord()
			b.consume(q, queue.ConsumeOptions{}, records[q].accept)
		}
		for q, r := range records {
			b.wait(r, "the message of "+string(q), func() bool { return len(r.bodies()) > 0 })
			if got := r.bodies(); !slices.Equal(got, []string{string(q)}) {
				b.Errorf("%s delivered %q", q, got)
			}
		}
	}},
	{"bodies_and_groups_arrive_unchanged", func(b *bench) {
		bodies := []string{"{}", "ä€😀\t\n\r", strings.Repeat("x", 10_000), `"quoted" <&> \ text`, " ", "�"}
		var msgs []queue.Outgoing
		for _, body := range bodies {
			msgs = append(msgs, queue.Outgoing{Body: []byte(body), Group: "g_-9"})
		}
		b.send(queue.Slow, msgs...)
		r := newRecord()
		b.consume(queue.Slow, queue.ConsumeOptions{}, r.accept)
		b.wait(r, "all bodies", func() bool { return r.distinct() == len(bodies) })
		for _, m := range r.all() {
			if !slices.Contains(bodies, string(m.Body)) {
				b.Errorf("got %q", m.Body)
			}
			if m.Group != "g_-9" {
				b.Errorf("got group %q", m.Group)
			}
		}
	}},
	{"a_batch_is_never_larger_than_the_option", func(b *bench) {
		for batch, want := range map[int]int{0: 10, 1: 1, 4: 4} {
			q := []queue.Name{queue.Deliveries, queue.Inbox, queue.Events, queue.Slow, queue.Dead}[batch]
			b.send(q, texts("m", 23)...)
			r := newRecord()
			b.consume(q, queue.ConsumeOptions{Batch: batch, Concurrency: 2}, r.accept)
			b.wait(r, "all messages", func() bool { return r.distinct() == 23 })
			if largest := r.largest(); largest > want {
				b.Errorf("batch %d: a call with %d messages", batch, largest)
			}
		}
	}},
	{"as_many_concurrent_calls_as_the_option", func(b *bench) {
		const concurrency = 3
		b.send(queue.Deliveries, texts("m", 12)...)
		r, all := newRecord(), make(chan struct{})
		var mu sync.Mutex
		running, most := 0, 0
		b.consume(queue.Deliveries, queue.ConsumeOptions{Batch: 1, Concurrency: concurrency}, func(ctx context.Context, batch []queue.Message) ([]string, error) {
			mu.Lock()
			running++
			most = max(most, running)
			if running == concurrency {
				select {
				case <-all:
				default:
					close(all) // all calls run concurrently, so let them continue
				}
			}
			mu.Unlock()
			select {
			case <-all:
			case <-time.After(deadline):
			}
			mu.Lock()
			running--
			mu.Unlock()
			return r.accept(ctx, batch)
		})
		b.wait(r, "all messages", func() bool { return r.distinct() == 12 })
		if most != concurrency {
			b.Errorf("got %d concurrent calls, want %d", most, concurrency)
		}
	}},
	{"a_delayed_message_arrives_later", func(b *bench) {
		const delay = 2 * time.Second
		var mu sync.Mutex
		arrived := map[string]time.Time{}
		r := newRecord()
		b.consume(queue.Slow, queue.ConsumeOptions{}, func(ctx context.Context, batch []queue.Message) ([]string, error) {
			mu.Lock()
			for _, m := range batch {
				arrived[string(m.Body)] = time.Now()
			}
			mu.Unlock()
			return r.accept(ctx, batch)
		})
		sent := time.Now()
		b.send(queue.Slow, queue.Outgoing{Body: []byte("late"), Delay: delay, Group: "g"}, queue.Outgoing{Body: []byte("soon"), Group: "g"})
		b.wait(r, "both", func() bool { return r.distinct() == 2 })
		// Clocks and whole seconds of other machines allow for a little less.
		if after := arrived["late"].Sub(sent); after < delay-600*time.Millisecond {
			b.Errorf("got the delayed message after %v, want %v", after, delay)
		}
		if !arrived["soon"].Before(arrived["late"]) {
			b.Error("the delayed message arrived first")
		}
	}},
	{"a_handler_may_send", func(b *bench) {
		r := newRecord()
		b.consume(queue.Inbox, queue.ConsumeOptions{}, func(ctx context.Context, batch []queue.Message) ([]string, error) {
			for _, m := range batch {
				if err := b.Send(ctx, queue.Deliveries, text("on-"+string(m.Body))); err != nil {
					return nil, err
				}
			}
			return nil, nil
		})
		b.consume(queue.Deliveries, queue.ConsumeOptions{}, r.accept)
		b.send(queue.Inbox, texts("m", 5)...)
		b.wait(r, "all messages", func() bool { return r.distinct() == 5 && r.count("on-m4") > 0 })
	}},
	{"consuming_ends_with_its_context_after_the_running_calls", func(b *bench) {
		b.send(queue.Deliveries, text("m"))
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		entered, release, done := make(chan struct{}), make(chan struct{}), make(chan error, 1)
		var finished bool
		go func() {
			done <- b.Consume(ctx, queue.Deliveries, func(context.Context, []queue.Message) ([]string, error) {
				close(entered)
				<-release
				finished = true
				return nil, nil
			}, queue.ConsumeOptions{})
		}()
		<-entered
		cancel()
		select {
		case err := <-done:
			b.Fatalf("Consume returned %v while a call was running", err)
		case <-time.After(50 * time.Millisecond): // Consume still waits for the call
		}
		close(release)
		select {
		case err := <-done:
			if err != nil && !errors.Is(err, context.Canceled) {
				b.Errorf("Consume: %v", err)
			}
		case <-time.After(deadline):
			b.Fatal("Consume did not return after its context ended")
		}
		if !finished {
			b.Error("the call had not finished")
		}
	}},
}
