// Package storetest is the test suite for all implementations of [store.DB].
//
// The cases run in parallel and write little, because the emulator of DynamoDB is slow. Each case uses its own partitions, so that all
// cases may share one database, which need not be empty.
package storetest

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/storage/store"
	"github.com/mcp-events/mcpevents/test/expect"
)

// Run tests the stores that the function open returns. It calls open once for each case. The function open may return the same store
// every time, and closes it with t.Cleanup.
func Run(t *testing.T, open func(t *testing.T) store.DB) {
	for _, group := range []struct {
		name  string
		cases []testCase
	}{
		{"Items", itemCases},
		{"Limits", limitCases},
		{"Conditions", conditionCases},
		{"Transactions", transactionCases},
		{"Counts", countCases},
		{"Expiry", expiryCases},
		{"Query", queryCases},
		{"Lists", listCases},
		{"AtCommit", append(ifStamps(true, stampCases), ifStamps(false, noStampCases)...)},
		{"Watch", watchCases},
		{"Cancel", cancelCases},
		{"Model", modelCases},
	} {
		t.Run(group.name, func(t *testing.T) {
			for _, c := range group.cases {
				t.Run(c.name, func(t *testing.T) {
					t.Parallel()
					c.run(newBench(t, open(t)))
				})
			}
		})
	}
}

type testCase struct {
	name string
	run  func(b *bench)
}

// ifStamps returns cases that run only on stores whose [store.DB.Local] is equal to the parameter stamps, because only a local store has
// stamps (see [store.AtCommit]).
func ifStamps(stamps bool, cases []testCase) []testCase {
	var out []testCase
	for _, c := range cases {
		out = append(out, testCase{c.name, func(b *bench) {
			if b.db.Local() == stamps {
				c.run(b)
			}
		}})
	}
	return out
}

type bench struct {
	*testing.T
	db     store.DB
	ctx    context.Context
	prefix string
}

func newBench(t *testing.T, db store.DB) *bench {
	return &bench{T: t, db: db, ctx: t.Context(), prefix: rand.Text() + "#"}
}

// key returns the key of an item in a partition of this case. It adds a prefix to the partition, because the cases share a database.
func (b *bench) key(table store.Table, partition, sort string) store.Key {
	return store.Key{Table: table, Partition: b.prefix + partition, Sort: sort}
}

// at returns the key of an item in the table [store.Subscriptions], which most cases use.
func (b *bench) at(partition, sort string) store.Key {
	return b.key(store.Subscriptions, partition, sort)
}

func (b *bench) write(ops ...store.Op) {
	b.Helper()
	expect.OK(b, b.db.Write(b.ctx, ops...), "Write")
}

func (b *bench) writeAll(ops ...store.Op) {
	b.Helper()
	expect.OK(b, b.db.WriteAll(b.ctx, ops...), "WriteAll of", len(ops))
}

// checkConflict checks that a write returns [store.ErrConflict]. The error must have no kind, so that a caller can choose one with
// [fault.Wrap].
func (b *bench) checkConflict(what string, ops ...store.Op) {
	b.Helper()
	err := b.db.Write(b.ctx, ops...)
	if !errors.Is(err, store.ErrConflict) {
		b.Errorf("%s: got error %v, want ErrConflict", what, err)
		return
	}
	expect.Equal(b, what+": the kind of the error that the caller wraps", fault.KindOf(fault.Wrap(fault.Unavailable, err, "write")), fault.Unavailable)
}

func (b *bench) checkRefused(what string, err error, kinds ...fault.Kind) {
	b.Helper()
	if err == nil || errors.Is(err, store.ErrConflict) || !slices.Contains(kinds, fault.KindOf(err)) {
		b.Errorf("%s: got error %v (kind %v), want one of kind %v", what, err, fault.KindOf(err), kinds)
	}
}

func (b *bench) get(key store.Key) *store.Item {
	b.Helper()
	items := expect.Value(b.db.Get(b.ctx, key))(b)
	expect.MustLen(b, "the items of one key", items, 1)
	return items[0]
}

func (b *bench) value(key store.Key) string {
	b.Helper()
	item := b.get(key)
	expect.MustEqual(b, "the item "+key.Sort+" exists", item != nil, true)
	return string(item.Value)
}

func (b *bench) count(key store.Key, name string) int64 {
	b.Helper()
	item := b.get(key)
	expect.MustEqual(b, "the item "+key.Sort+" exists", item != nil, true)
	return item.Counts[name]
}

func (b *bench) checkAbsent(what string, keys ...store.Key) {
	b.Helper()
	for _, key := range keys {
		if item := b.get(key); item != nil {
			b.Errorf("%s: %s exists, with value %q", what, key.Sort, item.Value)
		}
	}
}

// pages reads all pages of a query and checks each page against the rules of [store.Page].
func (b *bench) pages(q store.Query) (all []store.Item, pages int) {
	b.Helper()
	limit := q.Limit
	if limit == 0 {
		limit = 100
	}
	for {
		page := expect.Value(b.db.Query(b.ctx, q))(b)
		pages++
		expect.AtMost(b, "the items of a page", len(page.Items), limit)
		all = append(all, page.Items...)
		if !page.More {
			return all, pages
		}
		switch last := len(page.Items) - 1; {
		case page.Last == "":
			b.Fatal("got a page with More but without Last")
		case last >= 0 && !q.Reverse && page.Last < page.Items[last].Sort,
			last >= 0 && q.Reverse && page.Last > page.Items[last].Sort:
			b.Fatalf("Last %q is before the page's last item %q", page.Last, page.Items[last].Sort)
		case q.Reverse && q.Before != "" && page.Last >= q.Before, !q.Reverse && page.Last <= q.After:
			b.Fatalf("paging does not advance beyond %q", page.Last)
		}
		if q.Reverse {
			q.Before = page.Last
		} else {
			q.After = page.Last
		}
		if pages > 10_000 {
			b.Fatal("paging does not end")
		}
	}
}

func sorts(items []store.Item) []string {
	keys := make([]string, len(items))
	for i, item := range items {
		keys[i] = item.Sort
	}
	return keys
}

func put(key store.Key, value string, cond ...store.Condition) store.Op {
	return store.Put(store.Item{Key: key, Value: []byte(value)}, cond...)
}

var countCases = []testCase{
	{"a_count_at_zero_expires_and_one_that_is_used_again_does_not", func(b *bench) {
		add := func(key store.Key, n int64, limits map[string]int64, expires time.Time) store.Op {
			op := store.Add(key, map[string]int64{"n": n}, limits)
			op.Item.Expires = expires
			return op
		}
		key, none := b.at("p", "s"), map[string]int64{"n": 0}
		stays, soon := time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC), time.Now().Add(time.Hour)
		b.write(add(key, 1, nil, stays))
		b.checkConflict("it is used", add(key, 0, none, soon))
		b.write(add(key, -1, nil, time.Time{}))
		b.write(add(key, 0, none, soon))
		if got := b.get(key); got == nil || got.Expires.Unix() != soon.Unix() {
			b.Errorf("at zero: got %+v, want one that expires at %v", got, soon)
		}
		b.write(add(key, 1, nil, stays))
		if got := b.get(key); got == nil || got.Expires.Unix() != stays.Unix() || got.Counts["n"] != 1 {
			b.Errorf("used again: got %+v, want a count of 1 until %v", got, stays)
		}
		b.write(add(key, -1, nil, time.Time{}))
		b.write(add(key, 0, none, time.Now().Add(-time.Second)))
		b.checkAbsent("after its expiry", key)
		b.write(add(key, 1, nil, stays))
		if got := b.get(key); got == nil || got.Expires.Unix() != stays.Unix() || got.Counts["n"] != 1 {
			b.Errorf("started again: got %+v, want a count of 1 until %v", got, stays)
		}
	}},
	{"a_limit_is_inclusive", func(b *bench) {
		key, limits := b.at("p", "s"), map[string]int64{"n": 3}
		b.write(store.Add(key, map[string]int64{"n": 2}, limits))
		b.checkConflict("over the limit", store.Add(key, map[string]int64{"n": 2}, limits))
		b.write(store.Add(key, map[string]int64{"n": 1}, limits))
		b.checkConflict("one over the limit", store.Add(key, map[string]int64{"n": 1}, limits))
		b.write(store.Add(key, map[string]int64{"n": -2}, limits))
		expect.Equal(b, "the count", b.count(key, "n"), 1)
	}},
	{"one_of_several_limits_suffices_to_conflict", func(b *bench) {
		key := b.at("p", "s")
		b.write(store.Add(key, map[string]int64{"a": 1, "b": 1}, nil))
		b.checkConflict("b is full", store.Add(key, map[string]int64{"a": 1, "b": 1}, map[string]int64{"a": 10, "b": 1}))
		expect.Equal(b, "the count a", b.count(key, "a"), 1)
	}},
	{"sums_are_exact_under_16_writers", func(b *bench) {
		const writers, each = 16, 20
		key := b.at("p", "s")
		var all sync.WaitGroup
		for range writers {
			all.Go(func() {
				for range each {
					if err := b.db.Write(b.ctx, store.Add(key, map[string]int64{"n": 1, "m": 2}, nil)); err != nil {
						b.Errorf("Add: %v", err)
					}
				}
			})
		}
		all.Wait()
		if n, m := b.count(key, "n"), b.count(key, "m"); n != writers*each || m != 2*writers*each {
			b.Errorf("got %d and %d, want %d and %d", n, m, writers*each, 2*writers*each)
		}
	}},
	{"a_limit_is_never_overrun_by_16_writers", func(b *bench) {
		const writers, each, limit = 16, 6, 40
		key := b.at("p", "s")
		var won atomic.Int64
		var all sync.WaitGroup
		for range writers {
			all.Go(func() {
				for range each {
					switch err := b.db.Write(b.ctx, store.Add(key, map[string]int64{"n": 1}, map[string]int64{"n": limit})); {
					case err == nil:
						won.Add(1)
					case !errors.Is(err, store.ErrConflict):
						b.Errorf("Add: %v", err)
					}
				}
			})
		}
		all.Wait()
		if n := b.count(key, "n"); n != limit || won.Load() != limit {
			b.Errorf("the count is %d and %d writes succeeded, want %d of both", n, won.Load(), limit)
		}
	}},
}

var expiryCases = []testCase{
	{"Add_to_an_expired_item_starts_from_zero", func(b *bench) {
		for _, with := range []string{"alone", "in a transaction"} {
			key := b.at("p", with)
			b.write(store.Put(store.Item{Key: key, Value: []byte("old"), Version: 3, Counts: map[string]int64{"n": 9, "m": 9}, Expires: time.Now().Add(-time.Hour)}))
			ops := []store.Op{store.Add(key, map[string]int64{"n": 1}, map[string]int64{"n": 5})}
			if with != "alone" {
				ops = append(ops, put(b.at("p", "companion"), "v"))
			}
			b.write(ops...)
			b.checkSame(*b.get(key), store.Item{Key: key, Counts: map[string]int64{"n": 1}})
		}
	}},
	{"paging_passes_over_expired_items", func(b *bench) {
		var ops []store.Op
		for i := range 60 {
			item := store.Item{Key: b.at("p", string(rune('0'+i)))}
			if i%10 != 9 {
				item.Expires = time.Now().Add(-time.Minute)
			}
			ops = append(ops, store.Put(item))
		}
		b.writeAll(ops...)
		for _, reverse := range []bool{false, true} {
			items, _ := b.pages(store.Query{Table: store.Subscriptions, Partition: b.prefix + "p", Limit: 4, Reverse: reverse})
			expect.Len(b, fmt.Sprintf("the items, reverse %v", reverse), items, 6)
		}
	}},
}
