package storetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/storage/store"
)

// deadline bounds every wait.
const deadline = 30 * time.Second

// stamped returns a put that gets a stamp.
func stamped(b *bench, partition string, span int) store.Op {
	op := put(b.key(store.Log, partition, store.AtCommit), fmt.Sprint(span))
	op.Span = span
	return op
}

// log returns the stamps of a partition.
func (b *bench) log(partition string) []int64 {
	b.Helper()
	items, _ := b.pages(store.Query{Table: store.Log, Partition: b.prefix + partition})
	stamps := make([]int64, len(items))
	for i, item := range items {
		stamps[i] = b.stamp(item.Sort)
	}
	return stamps
}

func (b *bench) stamp(sort string) int64 {
	b.Helper()
	n, err := strconv.ParseInt(sort, 10, 64)
	if err != nil || len(sort) != 16 {
		b.Fatalf("got the sort key %q, want a stamp of 16 digits", sort)
	}
	return n
}

var noStampCases = []testCase{
	{"a_store_without_stamps_refuses_them_and_has_no_end", func(b *bench) {
		b.checkRefused("Write", b.db.Write(b.ctx, stamped(b, "p", 0)), fault.Invalid, fault.Unsupported)
		b.checkRefused("WriteAll", b.db.WriteAll(b.ctx, stamped(b, "p", 0)), fault.Invalid, fault.Unsupported)
		if end := b.db.End(); end != 0 {
			b.Errorf("got the end %d, want 0", end)
		}
	}},
}

var stampCases = []testCase{
	{"a_stamp_is_the_time_of_the_commit", func(b *bench) {
		before := time.Now().UnixMicro()
		b.write(stamped(b, "p", 0))
		after := time.Now().UnixMicro()
		stamps := b.log("p")
		if len(stamps) != 1 || stamps[0] < before || stamps[0] > after+int64(time.Second/time.Microsecond) {
			b.Errorf("got %v, want one of %d to %d", stamps, before, after)
		}
	}},
	{"stamps_grow_from_write_to_write_over_all_partitions", func(b *bench) {
		last := int64(0)
		for i := range 30 {
			partition, span := fmt.Sprint("p", i%3), i%4
			b.write(stamped(b, partition, span))
			stamps := b.log(partition)
			newest := stamps[len(stamps)-1]
			if newest-int64(max(span, 1)) < last {
				b.Fatalf("write %d of span %d got stamp %d after %d", i, span, newest, last)
			}
			last = newest
		}
	}},
	{"each_stamp_of_a_transaction_is_its_own", func(b *bench) {
		b.write(stamped(b, "p", 2), stamped(b, "p", 3), stamped(b, "q", 1), put(b.at("p", "s"), "v", store.Absent()))
		p, q := b.log("p"), b.log("q")
		if len(p) != 2 || len(q) != 1 || p[1]-3 < p[0] || q[0] <= p[1] {
			b.Errorf("got %v and %v", p, q)
		}
		b.checkConflict("a stamp in a transaction that does not happen", stamped(b, "p", 1), put(b.at("p", "s"), "v", store.Absent()))
		if got := b.log("p"); len(got) != 2 {
			b.Errorf("after the conflict: %v", got)
		}
	}},
	{"only_a_put_can_be_stamped", func(b *bench) {
		key := b.key(store.Log, "p", store.AtCommit)
		b.checkRefused("delete", b.db.Write(b.ctx, store.Delete(key)), fault.Invalid)
		b.checkRefused("add", b.db.Write(b.ctx, store.Add(key, map[string]int64{"n": 1}, nil)), fault.Invalid)
		b.checkRefused("a negative span", b.db.Write(b.ctx, stamped(b, "p", -2)), fault.Invalid)
		b.checkRefused("the same stamp without an earlier one", b.db.Write(b.ctx, stamped(b, "p", store.SameStamp)), fault.Invalid)
		b.checkRefused("the same stamp twice in a partition",
			b.db.Write(b.ctx, stamped(b, "p", 1), stamped(b, "p", store.SameStamp)), fault.Invalid)
	}},
	{"copies_share_a_stamp", func(b *bench) {
		b.write(stamped(b, "p", 3), stamped(b, "q", store.SameStamp), stamped(b, "r", store.SameStamp))
		b.write(stamped(b, "p", 1))
		p, q, r := b.log("p"), b.log("q"), b.log("r")
		if len(p) != 2 || len(q) != 1 || len(r) != 1 || q[0] != p[0] || r[0] != p[0] || p[1] <= p[0] {
			b.Errorf("got %v, %v and %v", p, q, r)
		}
	}},
	{"the_end_is_the_last_stamp", func(b *bench) {
		for i := range 3 {
			b.write(stamped(b, "p", i))
			stamps := b.log("p")
			if end := b.db.End(); end != stamps[i] {
				b.Errorf("got the end %d, want the last of %v", end, stamps)
			}
		}
	}},
	{"a_reader_that_follows_misses_no_item", func(b *bench) {
		const writers, each = 8, 25
		ctx, done := context.WithCancel(b.ctx)
		var all, reading sync.WaitGroup
		var seen []int64
		reading.Go(func() {
			after, ending := "", false
			for {
				page, err := b.db.Query(b.ctx, store.Query{Table: store.Log, Partition: b.prefix + "p", After: after})
				if err != nil {
					b.Errorf("Query: %v", err)
					return
				}
				for _, item := range page.Items {
					seen = append(seen, b.stamp(item.Sort))
					after = item.Sort
				}
				if ending && len(page.Items) == 0 {
					return
				}
				ending = ctx.Err() != nil
			}
		})
		for w := range writers {
			all.Go(func() {
				for i := range each {
					write := b.db.Write
					if i%2 == 0 {
						write = b.db.WriteAll
					}
					if err := write(b.ctx, stamped(b, "p", 1+(w+i)%3), stamped(b, "q", 1)); err != nil {
						b.Errorf("write: %v", err)
					}
				}
			})
		}
		all.Wait()
		done()
		reading.Wait()
		if len(seen) != writers*each || !slices.IsSorted(seen) {
			b.Errorf("got %d items, sorted: %v, want %d sorted ones", len(seen), slices.IsSorted(seen), writers*each)
		}
		stamps := slices.Sorted(slices.Values(append(b.log("q"), seen...)))
		if len(slices.Compact(stamps)) != 2*writers*each {
			b.Error("two items have the same stamp")
		}
	}},
}

var watchCases = []testCase{
	{"a_watcher_is_notified_of_every_commit_to_its_partition", func(b *bench) {
		watcher, ok := b.db.(store.Watcher)
		if !ok {
			return
		}
		changed, written, stop := watcher.Watch(b.prefix + "p")
		defer stop()
		other, _, stopOther := watcher.Watch(b.prefix + "other")
		defer stopOther()
		for i := range 5 {
			b.write(put(b.key(store.Log, "p", fmt.Sprint(i)), "v"))
			select {
			case <-changed:
			case <-time.After(deadline):
				b.Fatalf("the watcher was not notified of write %d", i)
			}
		}
		b.writeAll(store.Delete(b.key(store.Log, "p", "0")), put(b.key(store.Log, "p", "9"), "v"))
		select {
		case <-changed:
		case <-time.After(deadline):
			b.Fatal("the watcher was not notified of WriteAll")
		}
		if b.db.Stamps() {
			if n := written(); n != 0 {
				b.Errorf("got the stamp %d before the first one, want 0", n)
			}
			b.write(stamped(b, "p", 1))
			if n := written(); n == 0 || n != b.db.End() {
				b.Errorf("got the stamp %d, want the end %d", n, b.db.End())
			}
		}
		select {
		case <-other:
			b.Error("the watcher of another partition was notified")
		default:
		}
	}},
	{"notifications_coalesce_and_reach_all_watchers", func(b *bench) {
		watcher, ok := b.db.(store.Watcher)
		if !ok {
			return
		}
		first, _, stopFirst := watcher.Watch(b.prefix + "p")
		second, _, stopSecond := watcher.Watch(b.prefix + "p")
		defer stopSecond()
		for i := range 20 { // the writer does not wait for the watchers
			b.write(put(b.key(store.Log, "p", fmt.Sprint(i)), "v"))
		}
		for _, ch := range []<-chan struct{}{first, second} {
			select {
			case <-ch:
			case <-time.After(deadline):
				b.Fatal("a watcher was not notified")
			}
		}
		stopFirst()
		stopFirst() // a second time does nothing
		b.write(put(b.key(store.Log, "p", "x"), "v"))
		select {
		case <-second:
		case <-time.After(deadline):
			b.Fatal("the other watcher was not notified after the first had stopped")
		}
	}},
}

var cancelCases = []testCase{
	{"a_call_with_an_ended_context_has_no_effect", func(b *bench) {
		key := b.at("p", "s")
		ctx, cancel := context.WithCancel(b.ctx)
		cancel()
		calls := map[string]func() error{
			"Get": func() error { _, err := b.db.Get(ctx, key); return err },
			"Query": func() error {
				_, err := b.db.Query(ctx, store.Query{Table: store.Log, Partition: key.Partition})
				return err
			},
			"Write":    func() error { return b.db.Write(ctx, put(key, "v")) },
			"WriteAll": func() error { return b.db.WriteAll(ctx, put(key, "v")) },
			"a transaction": func() error {
				return b.db.Write(ctx, put(key, "v"), put(b.at("p", "t"), "v"))
			},
		}
		for name, call := range calls {
			if err := call(); !errors.Is(err, context.Canceled) {
				b.Errorf("%s: got error %v, want context.Canceled", name, err)
			}
		}
		b.checkAbsent("after the calls", key)
	}},
}
