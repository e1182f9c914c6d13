package queuetest

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/mcp-events/mcpevents/shared/storage/queue"
)

var fifoCases = []testCase{
	{"a_group_keeps_its_order_over_many_sends", func(b *bench) {
		r := newRecord()
		b.consume(queue.Events, queue.ConsumeOptions{Concurrency: 4}, r.accept)
		var want []string
		for i := range 12 {
			var msgs []queue.Outgoing
			for j := range 5 {
				body := fmt.Sprintf("%02d-%d", i, j)
				msgs = append(msgs, ordered("g", body))
				want = append(want, body)
			}
			b.send(queue.Events, msgs...)
		}
		b.wait(r, "all messages", func() bool { return len(r.bodies()) >= len(want) })
		if got := r.bodies(); !slices.Equal(got, want) {
			b.Errorf("got %v", got)
		}
	}},
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
		// The visibility timeout is long enough to handle all other messages before the failed one is redelivered.
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
			if !slices.Equal(got, want) {
				b.Errorf("group %s: got %v, want %v", group, got, want)
			}
		}
		if slices.Index(log, "again") < slices.Index(log, "b3") {
			b.Errorf("group b waited for group a: %v", log)
		}
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
		if got := len(r.bodies()); got != groups*each {
			b.Errorf("%d deliveries of %d messages", got, groups*each)
		}
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
		if got, want := r.bodies(), []string{"first", "marker-1", "marker-2", "marker-3"}; !slices.Equal(got, want) {
			b.Errorf("got %q, want %q", got, want)
		}
	}},
	{"messages_without_a_dedup_id_are_all_delivered", func(b *bench) {
		r := newRecord()
		same := queue.Outgoing{Body: []byte("same"), Group: "g"}
		b.send(queue.Events, same, same)
		b.send(queue.Events, same, ordered("g", "marker"))
		b.consume(queue.Events, queue.ConsumeOptions{}, r.accept)
		b.wait(r, "the marker", func() bool { return r.count("marker") == 1 })
		if n := r.count("same"); n != 3 {
			b.Errorf("got %d messages, want 3", n)
		}
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
		if got, want := r.bodies(), []string{"before", "poison", "poison", "after"}; !slices.Equal(got, want) {
			b.Errorf("got %q, want %q", got, want)
		}
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
		if got := dead.originals(); !slices.Equal(got, []string{"poison"}) {
			b.Errorf("got dead letters %q, want only the poison message", got)
		}
	}},
}
