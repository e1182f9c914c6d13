package queuetest

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/mcp-events/mcpevents/shared/storage/queue"
)

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
			if !slices.Equal(got, want) {
				b.Errorf("%s was received %v, want %v", body, got, want)
			}
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
		const visibility = 2 * deadline // longer than the case waits
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
			if gap := times[i+1].Sub(times[i]); gap < least-50*time.Millisecond {
				b.Errorf("got a redelivery %v after failure %d, want at least %v", gap, i+1, least)
			}
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
		if n := r.count("long"); n != 1 {
			b.Errorf("got the message %d times, want once", n)
		}
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
		if n := r.count("poison"); n != 2 {
			b.Errorf("got the poison message %d times, want 2", n)
		}
		if got := dead.originals(); !slices.Equal(got, []string{"poison"}) {
			b.Errorf("got dead letters %q, want only the poison message", got)
		}
	}},
	{"an_error_counts_as_a_failure_of_every_message", func(b *bench) {
		r, dead := newRecord(), newRecord()
		b.consume(queue.Slow, queue.ConsumeOptions{Visibility: b.Grain(), MaxReceives: 1}, func(_ context.Context, batch []queue.Message) ([]string, error) {
			r.add(batch...)
			return nil, errors.New("never")
		})
		b.consume(queue.Dead, queue.ConsumeOptions{}, dead.accept)
		b.send(queue.Slow, texts("m", 7)...)
		b.wait(dead, "all dead letters", func() bool { return dead.distinct() == 7 })
	}},
}
