package queuetest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/storage/queue"
)

// fifoPause is the visibility timeout of the case in which the messages of other groups must be handled before a failed
// message is redelivered.
const fifoPause = 3 * time.Second

func (b *bench) checkRefused(what string, q queue.Name, m queue.Outgoing, kinds ...fault.Kind) {
	b.Helper()
	if err := b.Send(b.Context(), q, m); err == nil || !slices.Contains(kinds, fault.KindOf(err)) {
		b.Errorf("%s: got error %v (kind %v), want one of kind %v", what, err, fault.KindOf(err), kinds)
	}
}

var limitCases = []testCase{
	{"the_largest_body_arrives_and_one_byte_more_is_refused", func(b *bench) {
		largest := strings.Repeat("x", queue.MaxBody)
		b.checkRefused("one byte more", queue.Deliveries, text(largest+"x"), fault.TooLarge, fault.Invalid)
		b.send(queue.Deliveries, text(largest))
		r := newRecord()
		b.consume(queue.Deliveries, queue.ConsumeOptions{}, r.accept)
		b.wait(r, "the message", func() bool { return r.count(largest) == 1 })
	}},
	{"large_sends_are_split_into_batches", func(b *bench) {
		var msgs []queue.Outgoing
		for i := range 9 {
			msgs = append(msgs, text(fmt.Sprint(i)+strings.Repeat("x", 100<<10)))
		}
		msgs = append(msgs, texts("small", 47)...)
		r := newRecord()
		b.consume(queue.Deliveries, queue.ConsumeOptions{Concurrency: 2}, r.accept)
		b.send(queue.Deliveries, msgs...)
		b.wait(r, "all messages", func() bool { return r.distinct() == len(msgs) })
	}},
	{"large_FIFO_sends_keep_their_order", func(b *bench) {
		var msgs []queue.Outgoing
		var want []string
		for i := range 24 {
			body := fmt.Sprintf("%02d", i) + strings.Repeat("x", 40<<10)
			msgs = append(msgs, queue.Outgoing{Body: []byte(body), Group: "g", Dedup: body[:2]})
			want = append(want, body[:2])
		}
		r := newRecord()
		b.consume(queue.Events, queue.ConsumeOptions{Concurrency: 2}, r.accept)
		b.send(queue.Events, msgs...)
		b.wait(r, "all messages", func() bool { return len(r.bodies()) == len(msgs) })
		var got []string
		for _, body := range r.bodies() {
			got = append(got, body[:2])
		}
		if !slices.Equal(got, want) {
			b.Errorf("got %v", got)
		}
	}},
	{"bodies_are_text", func(b *bench) {
		for name, body := range map[string]string{"empty": "", "not UTF-8": "a\xff", "half a pair": "\xed\xa0\x80"} {
			b.checkRefused(name, queue.Deliveries, text(body), fault.Invalid)
		}
	}},
	{"JSON_with_characters_that_SQS_refuses_keeps_its_meaning", func(b *bench) {
		const want = "a\ufffeb\uffffc"
		r := newRecord()
		b.consume(queue.Deliveries, queue.ConsumeOptions{}, r.accept)
		b.send(queue.Deliveries, text(`"`+want+`"`))
		b.wait(r, "the message", func() bool { return len(r.bodies()) == 1 })
		var got string
		if err := json.Unmarshal([]byte(r.bodies()[0]), &got); err != nil || got != want {
			b.Errorf("got %q, %v", got, err)
		}
	}},
	{"groups_and_dedup_ids", func(b *bench) {
		for _, bad := range []string{"a b", "ä", "a#b", strings.Repeat("g", 129)} {
			b.checkRefused("group "+bad, queue.Slow, queue.Outgoing{Body: []byte("m"), Group: bad}, fault.Invalid)
			b.checkRefused("FIFO group "+bad, queue.Events, queue.Outgoing{Body: []byte("m"), Group: bad, Dedup: "d"}, fault.Invalid)
		}
		b.checkRefused("FIFO without a group", queue.Events, queue.Outgoing{Body: []byte("m"), Dedup: "d"}, fault.Invalid)
		b.checkRefused("a dedup id on a standard queue", queue.Slow, queue.Outgoing{Body: []byte("m"), Dedup: "d"}, fault.Invalid)
		b.checkRefused("a long dedup id", queue.Events, queue.Outgoing{Body: []byte("m"), Group: "g", Dedup: strings.Repeat("d", 129)}, fault.Invalid)
		b.send(queue.Slow, queue.Outgoing{Body: []byte("m"), Group: strings.Repeat("g", 128)})
	}},
	{"delays", func(b *bench) {
		b.checkRefused("negative", queue.Slow, queue.Outgoing{Body: []byte("m"), Delay: -time.Second}, fault.Invalid)
		b.checkRefused("too long", queue.Slow, queue.Outgoing{Body: []byte("m"), Delay: queue.MaxDelay + time.Second}, fault.Invalid)
		b.checkRefused("on a FIFO queue", queue.Events, queue.Outgoing{Body: []byte("m"), Group: "g", Dedup: "d", Delay: time.Second}, fault.Invalid)
		b.send(queue.Slow, queue.Outgoing{Body: []byte("m"), Delay: queue.MaxDelay})
	}},
	{"an_invalid_message_fails_the_whole_send", func(b *bench) {
		if err := b.Send(b.Context(), queue.Inbox, text("good"), text("bad\xff")); !fault.Is(err, fault.Invalid) {
			b.Errorf("got %v", err)
		}
		b.send(queue.Inbox, text("marker"))
		r := newRecord()
		b.consume(queue.Inbox, queue.ConsumeOptions{}, r.accept)
		b.wait(r, "the marker", func() bool { return r.count("marker") == 1 })
		if r.count("good") > 0 {
			b.Error("the good half was sent")
		}
	}},
	{"a_send_with_an_ended_context_fails", func(b *bench) {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		if err := b.Send(ctx, queue.Inbox, text("m")); !errors.Is(err, context.Canceled) {
			b.Errorf("got %v", err)
		}
	}},
}
