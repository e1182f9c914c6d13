package storetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/storage/store"
)

// listCases are the operations of the lists of the admin API, of manual retries and of erasures.
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
			if got := sorts(items); !slices.Equal(got, want) {
				b.Errorf("limit %d: got %v, want %v", limit, got, want)
			}
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
		if n := won.Load(); n != 1 {
			b.Errorf("got %d callers that deleted it, want 1", n)
		}
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
		if err := store.Scrub(b.ctx, b.db); err != nil {
			b.Fatal(err)
		}
		b.checkAbsent("after scrubbing", b.at("p", "gone"))
		if got := b.value(b.at("p", "stays")); got != "v" {
			b.Errorf("got %q in the other item, want v", got)
		}
		b.write(put(b.at("p", "later"), "v"))
	}},
}
