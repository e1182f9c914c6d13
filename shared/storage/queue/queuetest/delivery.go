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
	"github.com/mcp-events/mcpevents/test/expect"
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
			expect.List(b, "the messages of "+string(q), r.bodies(), []string{string(q)})
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
			expect.Has(b, "the bodies", bodies, string(m.Body))
			expect.Equal(b, "the group", m.Group, "g_-9")
		}
	}},
	{"a_batch_is_never_larger_than_the_option", func(b *bench) {
		for batch, want := range map[int]int{0: 10, 1: 1, 4: 4} {
			q := []queue.Name{queue.Deliveries, queue.Inbox, queue.Events, queue.Slow, queue.Dead}[batch]
			b.send(q, texts("m", 23)...)
			r := newRecord()
			b.consume(q, queue.ConsumeOptions{Batch: batch, Concurrency: 2}, r.accept)
			b.wait(r, "all messages", func() bool { return r.distinct() == 23 })
			expect.AtMost(b, fmt.Sprintf("the messages in a call with batch %d", batch), r.largest(), want)
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
					close(all)
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
		expect.Equal(b, "the concurrent calls", most, concurrency)
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
		// Accept a slightly shorter delay than the message has, because the queue's server has its own clock and may count whole seconds.
		expect.AtLeast(b, "the time of the delayed message", arrived["late"].Sub(sent), delay-600*time.Millisecond)
		expect.True(b, "the delayed message arrived last", arrived["soon"].Before(arrived["late"]))
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
		case <-time.After(50 * time.Millisecond): // as it should, Consume still waits for the call
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
		expect.True(b, "the call has finished", finished)
	}},
}

var fifoCases = []testCase{
	{"a_failed_message_blocks_only_its_group", func(b *bench) {
		var mu sync.Mutex
		var log []string // accepted messages, and "again" when the failed message is redelivered
		r := newRecord()
		handler := func(_ context.Context, batch []queue.Message) (failed []string, err error) {
			mu.Lock()
			defer mu.Unlock()
			broken := map[string]bool{}
			for _, m := range batch {
				if string(m.Body) == "a2" && m.Received == 1 {
					broken[m.Group] = true
				} else if string(m.Body) == "a2" {
					log = append(log, "again")
				}
				if broken[m.Group] {
					failed = append(failed, m.ID)
					continue
				}
				log = append(log, string(m.Body))
				r.add(m)
			}
			return failed, nil
		}
		b.send(queue.Events, ordered("a", "a1"), ordered("a", "a2"), ordered("b", "b1"), ordered("a", "a3"), ordered("b", "b2"), ordered("a", "a4"))
		b.consume(queue.Events, queue.ConsumeOptions{Visibility: max(b.Grain(), fifoPause), Concurrency: 2}, handler)
		b.send(queue.Events, ordered("a", "a5"), ordered("b", "b3"))
		b.wait(r, "all messages", func() bool { return r.distinct() == 8 })
		mu.Lock()
		defer mu.Unlock()
		for group, want := range map[string][]string{"a": {"a1", "a2", "a3", "a4", "a5"}, "b": {"b1", "b2", "b3"}} {
			var got []string
			for _, body := range log {
				if strings.HasPrefix(body, group) && body != "again" {
					got = append(got, body)
				}
			}
			expect.List(b, "the messages of group "+group, got, want)
		}
		expect.True(b, fmt.Sprint("group b did not wait for group a in ", log), slices.Index(log, "again") > slices.Index(log, "b3"))
	}},
	{"a_group_is_in_one_batch_at_a_time", func(b *bench) {
		const groups, each = 20, 12
		var mu sync.Mutex
		busy, last := map[string]bool{}, map[string]string{}
		r := newRecord()
		for range 2 {
			b.consume(queue.Events, queue.ConsumeOptions{Concurrency: 3, Batch: 5}, func(ctx context.Context, batch []queue.Message) ([]string, error) {
				mu.Lock()
				mine := map[string]bool{}
				for _, m := range batch {
					if busy[m.Group] && !mine[m.Group] {
						b.Errorf("group %s is in two batches", m.Group)
					}
					if string(m.Body) <= last[m.Group] {
						b.Errorf("group %s: %s arrived after %s", m.Group, m.Body, last[m.Group])
					}
					mine[m.Group], busy[m.Group], last[m.Group] = true, true, string(m.Body)
				}
				mu.Unlock()
				r.add(batch...)
				mu.Lock()
				for group := range mine {
					busy[group] = false
				}
				mu.Unlock()
				return nil, nil
			})
		}
		for i := range each {
			var msgs []queue.Outgoing
			for g := range groups {
				msgs = append(msgs, ordered(fmt.Sprintf("g%02d", g), fmt.Sprintf("g%02d-%03d", g, i)))
			}
			b.send(queue.Events, msgs...)
		}
		b.wait(r, "all messages", func() bool { return r.distinct() == groups*each })
		expect.Equal(b, "the deliveries", len(r.bodies()), groups*each)
	}},
	{"a_second_message_with_the_same_dedup_id_is_dropped", func(b *bench) {
		r := newRecord()
		twice := func(body string) queue.Outgoing {
			return queue.Outgoing{Body: []byte(body), Group: "g", Dedup: "once"}
		}
		b.send(queue.Events, twice("first"), twice("in the same call"), ordered("g", "marker-1"))
		b.send(queue.Events, twice("in the next call"), ordered("g", "marker-2"))
		b.consume(queue.Events, queue.ConsumeOptions{}, r.accept)
		b.wait(r, "the second marker", func() bool { return r.count("marker-2") == 1 })
		b.send(queue.Events, twice("after the first was handled"), ordered("g", "marker-3"))
		b.wait(r, "the third marker", func() bool { return r.count("marker-3") == 1 })
		expect.List(b, "the messages", r.bodies(), []string{"first", "marker-1", "marker-2", "marker-3"})
	}},
	{"messages_without_a_dedup_id_are_all_delivered", func(b *bench) {
		r := newRecord()
		same := queue.Outgoing{Body: []byte("same"), Group: "g"}
		b.send(queue.Events, same, same)
		b.send(queue.Events, same, ordered("g", "marker"))
		b.consume(queue.Events, queue.ConsumeOptions{}, r.accept)
		b.wait(r, "the marker", func() bool { return r.count("marker") == 1 })
		expect.Equal(b, "the messages", r.count("same"), 3)
	}},
	{"WHK-19_a_poison_message_becomes_a_dead_letter_and_unblocks_its_group", func(b *bench) {
		r, dead := newRecord(), newRecord()
		b.send(queue.Events, ordered("g", "before"), ordered("g", "poison"), ordered("g", "after"))
		b.consume(queue.Events, queue.ConsumeOptions{Visibility: 2 * b.Grain(), MaxReceives: 2, Batch: 1}, func(ctx context.Context, batch []queue.Message) ([]string, error) {
			r.add(batch...)
			if string(batch[0].Body) == "poison" {
				return []string{batch[0].ID}, nil
			}
			return nil, nil
		})
		b.consume(queue.Dead, queue.ConsumeOptions{}, dead.accept)
		b.wait(dead, "the dead letter", func() bool { return slices.Equal(dead.originals(), []string{"poison"}) })
		b.wait(r, "the next message", func() bool { return r.count("after") == 1 })
		expect.List(b, "the messages", r.bodies(), []string{"before", "poison", "poison", "after"})
	}},
	{"WHK-19_messages_behind_a_poison_message_do_not_become_dead_letters", func(b *bench) {
		r, dead := newRecord(), newRecord()
		b.send(queue.Events, ordered("g", "poison"), ordered("g", "a"), ordered("g", "b"), ordered("other", "c"))
		b.consume(queue.Events, queue.ConsumeOptions{Visibility: 2 * b.Grain(), MaxReceives: 2}, func(_ context.Context, batch []queue.Message) (failed []string, err error) {
			broken := map[string]bool{}
			for _, m := range batch {
				if broken[m.Group] = broken[m.Group] || string(m.Body) == "poison"; broken[m.Group] {
					failed = append(failed, m.ID)
				} else {
					r.add(m)
				}
			}
			return failed, nil
		})
		b.consume(queue.Dead, queue.ConsumeOptions{}, dead.accept)
		b.wait(r, "the others", func() bool { return r.distinct() == 3 })
		b.wait(dead, "the dead letter", func() bool { return len(dead.bodies()) > 0 })
		expect.List(b, "the dead letters", dead.originals(), []string{"poison"})
	}},
}
