package storetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/storage/store"
	"github.com/mcp-events/mcpevents/test/expect"
)

const deadline = 30 * time.Second

// stamped returns a put at [store.AtCommit] with the given span. The item's value is the span as text.
func stamped(b *bench, partition string, span int) store.Op {
	op := put(b.key(store.Log, partition, store.AtCommit), fmt.Sprint(span))
	op.Span = span
	return op
}

// log returns the stamps (see [store.AtCommit]) of all items in a partition of the table [store.Log].
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
		expect.Equal(b, "the end", b.db.End(), 0)
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
		expect.Len(b, "the stamps after the conflict", b.log("p"), 2)
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
			expect.Equal(b, "the end", b.db.End(), stamps[i])
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
		expect.Len(b, "the different stamps", slices.Compact(stamps), 2*writers*each)
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
		if b.db.Local() {
			expect.Equal(b, "the stamp before the first one", written(), 0)
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
		for i := range 20 { // these writes must not wait for the watchers, which do not receive yet
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
			expect.Is(b, name, call(), context.Canceled)
		}
		b.checkAbsent("after the calls", key)
	}},
}

// mixed has sort keys whose order depends on whether they are compared as bytes, letters or numbers.
var mixed = []string{"a", "B", "10", "9", "Z", "z", "é", "e", "~", "!", "a#1", "a#10", "a#2", "😀", "￿", "A", "aa", "a\x00"}

var queryCases = []testCase{
	{"order_is_bytewise_in_both_directions", func(b *bench) {
		var ops []store.Op
		for _, sort := range mixed {
			ops = append(ops, put(b.at("p", sort), sort), put(b.at("another", sort), sort), put(b.key(store.Log, "p", sort), sort))
		}
		b.writeAll(ops...)
		want := slices.Sorted(slices.Values(mixed))
		for _, limit := range []int{0, 1, 2, 5, len(mixed), 1000} {
			for _, eventual := range []bool{false, true} {
				q := store.Query{Table: store.Subscriptions, Partition: b.prefix + "p", Limit: limit, Eventual: eventual}
				items, _ := b.pages(q)
				if got := sorts(items); !eventual && !slices.Equal(got, want) {
					b.Errorf("limit %d: got %q, want %q", limit, got, want)
				} else if !slices.IsSorted(got) {
					b.Errorf("limit %d, eventual: %q is not sorted", limit, got)
				}
				q.Reverse = true
				items, _ = b.pages(q)
				got := sorts(items)
				slices.Reverse(got)
				if !eventual && !slices.Equal(got, want) {
					b.Errorf("limit %d, reverse: got the reverse of %q, want of %q", limit, got, want)
				}
			}
		}
	}},
	{"ranges", func(b *bench) {
		all := []string{"b", "d", "f", "h", "j"}
		for _, sort := range all {
			b.write(put(b.at("p", sort), ""))
		}
		bounds := []string{"", "a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k"}
		for _, after := range bounds {
			for _, until := range bounds {
				for _, before := range []string{"", "d", "g", "h"} {
					var want []string
					for _, s := range all {
						if s > after && (until == "" || s <= until) && (before == "" || s < before) {
							want = append(want, s)
						}
					}
					q := store.Query{Table: store.Subscriptions, Partition: b.prefix + "p", After: after, Until: until, Before: before}
					items, _ := b.pages(q)
					expect.List(b, fmt.Sprintf("after %q until %q before %q", after, until, before), sorts(items), want)
					if before != "" && before != "g" {
						continue // in reverse order, the queries without Before and with Before "g" suffice
					}
					q.Reverse, q.Limit = true, 2
					items, _ = b.pages(q)
					got := sorts(items)
					slices.Reverse(got)
					expect.List(b, fmt.Sprintf("after %q until %q before %q, the reverse of the reverse", after, until, before), got, want)
				}
			}
		}
	}},
	{"the_default_limit_is_100", func(b *bench) {
		var ops []store.Op
		for i := range 130 {
			ops = append(ops, put(b.at("p", fmt.Sprintf("%03d", i)), ""))
		}
		b.writeAll(ops...)
		items, pages := b.pages(store.Query{Table: store.Subscriptions, Partition: b.prefix + "p"})
		if len(items) != 130 || pages < 2 {
			b.Errorf("got %d items in %d pages", len(items), pages)
		}
	}},
	{"large_items_are_paged_completely", func(b *bench) {
		const n, size = 14, 300 << 10 // 4 MB in one partition
		for i := range n {
			b.writeAll(store.Put(store.Item{
				Key: b.at("large", fmt.Sprintf("%02d", i)), Value: bytes.Repeat([]byte{byte(i)}, size),
			}))
		}
		for _, reverse := range []bool{false, true} {
			items, _ := b.pages(store.Query{Table: store.Subscriptions, Partition: b.prefix + "large", Limit: 1000, Reverse: reverse})
			if reverse {
				slices.Reverse(items)
			}
			expect.MustLen(b, fmt.Sprintf("the items, reverse %v", reverse), items, n)
			for i, item := range items {
				if item.Sort != fmt.Sprintf("%02d", i) || !bytes.Equal(item.Value, bytes.Repeat([]byte{byte(i)}, size)) {
					b.Errorf("reverse %v: item %d is %s with %d bytes", reverse, i, item.Sort, len(item.Value))
				}
			}
		}
	}},
}

// listCases has cases with the queries that the admin API's lists, manual retries and erasures make.
var listCases = []testCase{
	{"newest_first_within_a_span_among_expired_items", func(b *bench) {
		stamp := func(i int) string { return fmt.Sprintf("%016d", 1_800_000_000_000_000+i) }
		var ops []store.Op
		var want []string
		for i := range 40 {
			item := store.Item{Key: b.key(store.Deliveries, "x", stamp(i)+"#sub#evt"), Expires: time.Now().Add(time.Hour)}
			if i%3 == 0 {
				item.Expires = time.Now().Add(-time.Minute)
			} else if i >= 5 && i <= 30 {
				want = append(want, item.Sort)
			}
			ops = append(ops, store.Put(item))
		}
		b.writeAll(ops...)
		slices.Reverse(want)
		for _, limit := range []int{1, 4, 100} {
			items, _ := b.pages(store.Query{
				Table: store.Deliveries, Partition: b.prefix + "x", Reverse: true, Limit: limit, After: stamp(5), Until: stamp(30) + "~",
			})
			expect.List(b, fmt.Sprintf("the items with limit %d", limit), sorts(items), want)
		}
	}},
	{"an_item_under_several_keys_is_deleted_by_one_caller", func(b *bench) {
		keys := []store.Key{
			b.key(store.Deliveries, "x#sub", "1"), b.key(store.Deliveries, "xo#origin", "1"), b.key(store.Deliveries, "xe#type", "1"), b.key(store.Deliveries, "xa", "1"),
		}
		var letter, taken []store.Op
		for i, key := range keys {
			letter = append(letter, put(key, "v"))
			if i == 0 {
				taken = append(taken, store.Delete(key, store.Exists()))
			} else {
				taken = append(taken, store.Delete(key))
			}
		}
		b.write(append(letter, store.Put(store.Item{Key: b.key(store.Deliveries, "d#sub", "evt"), Version: 3}, store.Absent()))...)
		var takers sync.WaitGroup
		var won atomic.Int64
		for range 6 {
			takers.Go(func() {
				delivery := store.Put(store.Item{Key: b.key(store.Deliveries, "d#sub", "evt"), Version: 4}, store.VersionIs(3))
				switch err := b.db.Write(b.ctx, append(slices.Clone(taken), delivery)...); {
				case err == nil:
					won.Add(1)
				case !errors.Is(err, store.ErrConflict):
					b.Errorf("take: %v", err)
				}
			})
		}
		takers.Wait()
		expect.Equal(b, "the callers that deleted it", won.Load(), 1)
		b.checkAbsent("after the delete", keys...)
	}},
	{"each_visits_all_items_while_they_are_deleted", func(b *bench) {
		const n = 1003
		var ops []store.Op
		for i := range n {
			ops = append(ops, put(b.at("p", fmt.Sprintf("%04d", i)), ""))
		}
		b.writeAll(append(ops, put(b.at("p2", "other"), ""))...)
		var seen []string
		var gone []store.Op
		err := store.Each(b.ctx, b.db, b.at("p", ""), "list", func(it *store.Item) error {
			seen, gone = append(seen, it.Sort), append(gone, store.Delete(it.Key))
			if len(gone) == 100 {
				b.writeAll(gone...)
				gone = nil
			}
			return nil
		})
		b.writeAll(gone...)
		if err != nil || len(seen) != n || !slices.IsSorted(seen) {
			b.Errorf("visited %d items, %v, want %d in order", len(seen), err, n)
		}
		if items, _ := b.pages(store.Query{Table: store.Subscriptions, Partition: b.prefix + "p"}); len(items) > 0 {
			b.Errorf("got %v after the deletes, want no items", sorts(items))
		}
	}},
	{"each_ends_with_the_error_of_a_visit_or_of_the_store", func(b *bench) {
		b.write(put(b.at("p", "1"), ""), put(b.at("p", "2"), ""))
		enough, visits := errors.New("enough"), 0
		if err := store.Each(b.ctx, b.db, b.at("p", ""), "list", func(*store.Item) error { visits++; return enough }); err != enough || visits != 1 {
			b.Errorf("got %v after %d visits, want %v after 1", err, visits, enough)
		}
		ctx, cancel := context.WithCancel(b.ctx)
		cancel()
		err := store.Each(ctx, b.db, b.at("p", ""), "list", func(*store.Item) error { visits++; return nil })
		if !fault.Is(err, fault.Unavailable) || !errors.Is(err, context.Canceled) || visits != 1 {
			b.Errorf("got %v after %d visits, want a canceled context after 1", err, visits)
		}
	}},
	{"scrubbing_keeps_other_items", func(b *bench) {
		b.write(put(b.at("p", "gone"), "secret"), put(b.at("p", "stays"), "v"))
		b.write(store.Delete(b.at("p", "gone")))
		expect.OK(b, store.Scrub(b.ctx, b.db))
		b.checkAbsent("after scrubbing", b.at("p", "gone"))
		expect.Equal(b, "the other item", b.value(b.at("p", "stays")), "v")
		b.write(put(b.at("p", "later"), "v"))
	}},
}
