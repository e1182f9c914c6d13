package queuetest

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"mcpevents/shared/queue"
)

var failureCases = []testCase{
	{"WHK-19_only_the_failed_messages_of_a_batch_come_again", func(b *bench) {
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
	{"a_failed_message_waits_for_the_visibility_timeout", func(b *bench) {
		var mu sync.Mutex
		var times []time.Time
		r := newRecord()
		b.consume(queue.Deliveries, queue.ConsumeOptions{Visibility: b.Grain()}, func(_ context.Context, batch []queue.Message) ([]string, error) {
			mu.Lock()
			times = append(times, time.Now())
			mu.Unlock()
			r.add(batch...)
			if batch[0].Received == 1 {
				return []string{batch[0].ID}, nil
			}
			return nil, nil
		})
		b.send(queue.Deliveries, text("m"))
		b.wait(r, "the second time", func() bool { return r.count("m") >= 2 })
		if gap := times[1].Sub(times[0]); gap < b.Grain()/2 {
			b.Errorf("it came again after %v; the timeout is %v", gap, b.Grain())
		}
	}},
	{"a_message_whose_handler_hangs_goes_to_another", func(b *bench) {
		release := make(chan struct{})
		r := newRecord()
		b.consume(queue.Deliveries, queue.ConsumeOptions{Visibility: b.Grain(), Concurrency: 2}, func(_ context.Context, batch []queue.Message) ([]string, error) {
			r.add(batch...)
			if batch[0].Received == 1 {
				<-release // long beyond the visibility timeout
			}
			return nil, nil
		})
		defer close(release)
		b.send(queue.Deliveries, text("m"))
		b.wait(r, "the second delivery", func() bool { return r.count("m") >= 2 })
		if all := r.all(); all[1].Received < 2 {
			b.Errorf("the second delivery counts as %d", all[1].Received)
		}
	}},
	{"a_message_that_failed_often_enough_is_dead", func(b *bench) {
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
		b.wait(dead, "the dead letter", func() bool { return dead.count("poison") == 1 })
		b.wait(r, "the good message", func() bool { return r.count("good") == 1 })
		if n := r.count("poison"); n != 2 {
			b.Errorf("the poison was handled %d times, want 2", n)
		}
		if got := dead.bodies(); len(got) != 1 {
			b.Errorf("dead: %q", got)
		}
	}},
	{"an_error_counts_as_a_failure_of_each", func(b *bench) {
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
