package storetest

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/storage/store"
	"github.com/mcp-events/mcpevents/test/expect"
)

var itemCases = []testCase{
	{"Get_returns_items_in_the_order_of_the_keys", func(b *bench) {
		one := store.Item{
			Key: b.at("p", "one"), Value: []byte("first"), Version: -1 << 63,
			Counts:  map[string]int64{"a": 1<<63 - 1, "b_-9": -5},
			Expires: time.Now().Add(time.Hour).Truncate(time.Second),
		}
		two := store.Item{Key: b.key(store.Log, "p", "two"), Value: []byte("second")}
		b.write(store.Put(one), store.Put(two))

		got := expect.Value(b.db.Get(b.ctx, two.Key, b.at("p", "absent"), one.Key, b.at("q", "one")))(b)
		if len(got) != 4 || got[0] == nil || got[1] != nil || got[2] == nil || got[3] != nil {
			b.Fatalf("got %v, want the second, nil, the first, nil", got)
		}
		b.checkSame(*got[0], two)
		b.checkSame(*got[2], one)
	}},
	{"calls_without_keys_or_operations_succeed", func(b *bench) {
		expect.Len(b, "the items", expect.Value(b.db.Get(b.ctx))(b), 0)
		expect.OK(b, b.db.Write(b.ctx), "Write without operations")
		expect.OK(b, b.db.WriteAll(b.ctx), "WriteAll without operations")
	}},
	{"Get_returns_an_item_twice_for_the_same_key_twice", func(b *bench) {
		b.write(put(b.at("p", "s"), "v"))
		got, err := b.db.Get(b.ctx, b.at("p", "s"), b.at("p", "s"))
		if err != nil || len(got) != 2 || got[0] == nil || got[1] == nil {
			b.Errorf("got %v, %v", got, err)
		}
	}},
	{"values_are_binary", func(b *bench) {
		all := make([]byte, 0, 512)
		for i := range 256 {
			all = append(all, byte(i))
		}
		all = append(all, 0, 0xff, 0xfe, 0)
		b.write(store.Put(store.Item{Key: b.at("p", "s"), Value: all}))
		if got := b.get(b.at("p", "s")); got == nil || !bytes.Equal(got.Value, all) {
			b.Error("the bytes came back changed")
		}
	}},
	{"keys_may_be_any_text", func(b *bench) {
		for _, text := range []string{"a#b/c:d", "ä€😀", "tab\there", "quote'\"\\%_*", " ", "a\x00b"} {
			key := b.at(text, text)
			b.write(put(key, text))
			expect.Equal(b, fmt.Sprintf("the value of %q", text), b.value(key), text)
		}
		b.checkAbsent("a key that differs after a zero byte", b.at("a\x00b", "a\x00c"), b.at("a", "a"))
	}},
	{"tables_and_partitions_are_separate", func(b *bench) {
		for i, table := range store.Tables() {
			b.write(put(b.key(table, "p", "s"), fmt.Sprint(i)))
		}
		for i, table := range store.Tables() {
			expect.Equal(b, fmt.Sprintf("the value in table %s", table), b.value(b.key(table, "p", "s")), fmt.Sprint(i))
		}
		b.checkAbsent("another partition", b.at("P", "s"), b.at("p ", "s"))
	}},
	{"WriteAll_accepts_any_number_of_operations", func(b *bench) {
		const n = 260
		var ops []store.Op
		for i := range n {
			ops = append(ops, put(b.at("many", fmt.Sprintf("%04d", i)), fmt.Sprint(i)))
		}
		b.writeAll(ops...)
		items, _ := b.pages(store.Query{Table: store.Subscriptions, Partition: b.prefix + "many", Limit: 1000})
		expect.MustLen(b, "the items", items, n)
		for i := range ops {
			ops[i] = store.Delete(ops[i].Item.Key)
		}
		ops[17] = put(b.at("many", "0017"), "kept")
		b.writeAll(ops...)
		items, _ = b.pages(store.Query{Table: store.Subscriptions, Partition: b.prefix + "many"})
		if len(items) != 1 || string(items[0].Value) != "kept" {
			b.Errorf("left over: %v", sorts(items))
		}
	}},
	{"WriteAll_refuses_conditions_and_counts", func(b *bench) {
		key := b.at("p", "s")
		for name, op := range map[string]store.Op{
			"a condition": put(key, "v", store.Absent()),
			"Add":         store.Add(key, map[string]int64{"n": 1}, nil),
			"Check":       store.Check(key, store.Exists()),
		} {
			b.checkRefused(name, b.db.WriteAll(b.ctx, op), fault.Invalid)
		}
		b.checkAbsent("after the refusals", key)
	}},
}

func (b *bench) checkSame(got, want store.Item) {
	b.Helper()
	if !isSame(got, want) {
		b.Errorf("got  %+v\nwant %+v", got, want)
	}
}

// isSame reports whether two items are equal. It compares expiries in whole seconds, and treats nil and empty values as equal.
func isSame(got, want store.Item) bool {
	return got.Key == want.Key && bytes.Equal(got.Value, want.Value) && got.Version == want.Version && maps.Equal(got.Counts, want.Counts) &&
		got.Expires.IsZero() == want.Expires.IsZero() && (want.Expires.IsZero() || got.Expires.Unix() == want.Expires.Unix())
}

var limitCases = []testCase{
	{"the_largest_item_fits_and_one_byte_more_does_not", func(b *bench) {
		key := b.at("p", "s")
		largest := bytes.Repeat([]byte{0xa5}, store.MaxItem)
		b.write(store.Put(store.Item{Key: key, Value: largest}))
		if got := b.get(key); got == nil || !bytes.Equal(got.Value, largest) {
			b.Error("the largest value came back changed")
		}
		over := store.Put(store.Item{Key: b.at("p", "over"), Value: append(largest, 0)})
		b.checkRefused("Write", b.db.Write(b.ctx, over), fault.TooLarge, fault.Invalid)
		b.checkRefused("WriteAll", b.db.WriteAll(b.ctx, over), fault.TooLarge, fault.Invalid)
		b.checkAbsent("after the refusals", over.Item.Key)
	}},
	{"MaxTransaction", func(b *bench) {
		var ops []store.Op
		for i := range store.MaxTransaction + 1 {
			ops = append(ops, put(b.at("p", fmt.Sprintf("%03d", i)), "v"))
		}
		b.checkRefused("one too many", b.db.Write(b.ctx, ops...), fault.Invalid, fault.TooLarge)
		b.checkAbsent("after the refusal", ops[0].Item.Key)
		b.write(ops[:store.MaxTransaction]...)
		expect.Equal(b, "the last item of the largest transaction", b.value(ops[store.MaxTransaction-1].Item.Key), "v")
	}},
	{"MaxWrite", func(b *bench) {
		var ops []store.Op
		for size := store.MaxWrite; size > 0; size -= store.MaxItem {
			value := make([]byte, min(size, store.MaxItem))
			ops = append(ops, store.Put(store.Item{Key: b.at("p", fmt.Sprintf("%03d", len(ops))), Value: value}))
		}
		b.checkRefused("one byte more", b.db.Write(b.ctx, append(slices.Clone(ops), put(b.at("p", "more"), "v"))...), fault.TooLarge)
		b.checkAbsent("after the refusal", b.at("p", "more"))
		b.write(ops...)
	}},
	{"MaxGet", func(b *bench) {
		var keys []store.Key
		for i := range store.MaxGet + 1 {
			keys = append(keys, b.at("p", fmt.Sprintf("%03d", i)))
		}
		b.write(put(keys[3], "three"))
		got, err := b.db.Get(b.ctx, keys[:store.MaxGet]...)
		if err != nil || len(got) != store.MaxGet || got[3] == nil || got[4] != nil {
			b.Errorf("the largest Get: %d items, %v", len(got), err)
		}
		_, err = b.db.Get(b.ctx, keys...)
		b.checkRefused("one too many", err, fault.Invalid, fault.TooLarge)
	}},
	{"keys_of_the_largest_size", func(b *bench) {
		partition := strings.Repeat("p", 2048-len(b.prefix))
		key := b.at(partition, strings.Repeat("s", 1024))
		b.write(put(key, "v"))
		expect.Equal(b, "the value", b.value(key), "v")
	}},
	{"pages_end_at_the_largest_sort_key", func(b *bench) {
		large := strings.Repeat("s", 1023)
		want := []string{"a", large + "a", large + "b", large + "c", "z"}
		for _, sort := range want {
			b.write(put(b.at("p", sort), "v"))
		}
		in := b.at("p", "a")
		for name, q := range map[string]store.Query{
			"all":         {},
			"until":       {Until: "z"},
			"before":      {Before: "zz"},
			"a half page": {Limit: 2, Before: "zz"},
			"reverse":     {Reverse: true},
			"after":       {After: large + "`", Reverse: true},
		} {
			q.Table, q.Partition, q.Limit = in.Table, in.Partition, max(q.Limit, 1)
			all, _ := b.pages(q)
			got := sorts(all)
			if q.Reverse {
				slices.Reverse(got)
			}
			if wanted := want[len(q.After)/1024:]; !slices.Equal(got, wanted) {
				b.Errorf("%s: got %d items, want %d", name, len(got), len(wanted))
			}
		}
		for name, q := range map[string]store.Query{
			"between neighbors":    {After: large + "a", Before: large + "b"},
			"before the same":      {After: large + "a", Before: large + "a"},
			"until the same":       {After: large + "a", Until: large + "a"},
			"after the last":       {After: large + "c", Until: large + "z"},
			"after a larger bound": {After: large + "b", Until: large + "a"},
		} {
			q.Table, q.Partition = in.Table, in.Partition
			if all, _ := b.pages(q); len(all) != 0 {
				b.Errorf("%s: got %d items, want none", name, len(all))
			}
		}
	}},
	{"invalid_keys_are_refused", func(b *bench) {
		for name, key := range map[string]store.Key{
			"empty partition":      {Table: store.Log, Sort: "s"},
			"empty sort key":       {Table: store.Log, Partition: "p"},
			"no table":             {Partition: "p", Sort: "s"},
			"unknown table":        {Table: "nowhere", Partition: "p", Sort: "s"},
			"partition over 2,048": {Table: store.Log, Partition: strings.Repeat("p", 2049), Sort: "s"},
			"sort key over 1,024":  {Table: store.Log, Partition: "p", Sort: strings.Repeat("s", 1025)},
			"partition not UTF-8":  {Table: store.Log, Partition: "p\xff", Sort: "s"},
			"sort key not UTF-8":   {Table: store.Log, Partition: "p", Sort: "\xc3("},
		} {
			b.checkRefused("Write: "+name, b.db.Write(b.ctx, put(key, "v")), fault.Invalid, fault.TooLarge)
			b.checkRefused("WriteAll: "+name, b.db.WriteAll(b.ctx, put(key, "v")), fault.Invalid, fault.TooLarge)
			_, err := b.db.Get(b.ctx, key)
			b.checkRefused("Get: "+name, err, fault.Invalid, fault.TooLarge)
		}
	}},
	{"count_names", func(b *bench) {
		for _, name := range []string{"", "a.b", "ä", "a b", "#x"} {
			b.checkRefused("Add "+name, b.db.Write(b.ctx, store.Add(b.at("p", "s"), map[string]int64{name: 1}, nil)), fault.Invalid)
			b.checkRefused("Put "+name, b.db.Write(b.ctx, store.Put(store.Item{Key: b.at("p", "s"), Counts: map[string]int64{name: 1}})), fault.Invalid)
		}
	}},
	{"an_item_at_most_once_in_a_write", func(b *bench) {
		key := b.at("p", "s")
		b.checkRefused("put and delete", b.db.Write(b.ctx, put(key, "v"), store.Delete(key)), fault.Invalid)
		b.checkRefused("check and put", b.db.Write(b.ctx, store.Check(key, store.Absent()), put(key, "v")), fault.Invalid)
		b.checkAbsent("after the refusals", key)
	}},
	{"query_limits", func(b *bench) {
		for _, limit := range []int{-1, 1001} {
			_, err := b.db.Query(b.ctx, store.Query{Table: store.Log, Partition: "p", Limit: limit})
			b.checkRefused(fmt.Sprintf("limit %d", limit), err, fault.Invalid)
		}
		_, err := b.db.Query(b.ctx, store.Query{Table: store.Log})
		b.checkRefused("no partition", err, fault.Invalid)
	}},
}

var conditionCases = []testCase{
	{"every_condition_on_every_state", func(b *bench) {
		past := time.Now().Add(-time.Minute)
		for _, state := range []struct {
			name  string
			setUp func(store.Key) []store.Op
			holds map[string]bool
		}{
			{"absent", func(store.Key) []store.Op { return nil }, map[string]bool{"absent": true}},
			{"version_0", func(k store.Key) []store.Op { return []store.Op{put(k, "old")} }, map[string]bool{"exists": true, "version 0": true}},
			{
				"version_5",
				func(k store.Key) []store.Op {
					return []store.Op{store.Put(store.Item{Key: k, Value: []byte("old"), Version: 5})}
				},
				map[string]bool{"exists": true, "version 5": true},
			},
			{
				"expired",
				func(k store.Key) []store.Op {
					return []store.Op{store.Put(store.Item{Key: k, Value: []byte("old"), Version: 5, Expires: past})}
				},
				map[string]bool{"absent": true},
			},
			{
				"counting",
				func(k store.Key) []store.Op { return []store.Op{store.Add(k, map[string]int64{"n": 1}, nil)} },
				map[string]bool{"exists": true, "version 0": true},
			},
		} {
			for name, cond := range map[string]store.Condition{
				"absent": store.Absent(), "exists": store.Exists(), "version 0": store.VersionIs(0),
				"version 5": store.VersionIs(5), "version 6": store.VersionIs(6),
			} {
				for kind, op := range map[string]func(store.Key) store.Op{
					"put":    func(k store.Key) store.Op { return put(k, "new", cond) },
					"delete": func(k store.Key) store.Op { return store.Delete(k, cond) },
					"check":  func(k store.Key) store.Op { return store.Check(k, cond) },
				} {
					b.condition(fmt.Sprintf("%s if %s on %s", kind, name, state.name), state.holds[name], state.setUp, op)
				}
			}
		}
	}},
	{"a_check_needs_a_condition", func(b *bench) {
		b.checkRefused("none", b.db.Write(b.ctx, store.Check(b.at("p", "s"), store.Condition{})), fault.Invalid)
	}},
	{"one_writer_wins_each_version", func(b *bench) {
		const writers, rounds = 8, 24
		key := b.at("p", "s")
		b.write(store.Put(store.Item{Key: key}))
		for round := range int64(rounds) {
			results := make([]error, writers)
			var all sync.WaitGroup
			for i := range writers {
				all.Go(func() {
					results[i] = b.db.Write(b.ctx, store.Put(store.Item{
						Key: key, Version: round + 1, Value: fmt.Appendf(nil, "%d", i),
					}, store.VersionIs(round)))
				})
			}
			all.Wait()
			winner := -1
			for i, err := range results {
				switch {
				case err == nil && winner >= 0:
					b.Fatalf("round %d: writers %d and %d both won", round, winner, i)
				case err == nil:
					winner = i
				case !errors.Is(err, store.ErrConflict):
					b.Fatalf("round %d: %v", round, err)
				}
			}
			if winner < 0 {
				b.Fatalf("round %d: no writer won", round)
			}
			expect.MustEqual(b, fmt.Sprintf("the item after round %d, which another writer won", round), b.value(key), fmt.Sprint(winner))
		}
	}},
	{"one_creator_wins", func(b *bench) {
		for round := range 10 {
			key := b.at("p", fmt.Sprint(round))
			results := make([]error, 6)
			var all sync.WaitGroup
			for i := range results {
				// Half of the writers write two operations, because some adapters use a transaction only for several operations.
				ops := []store.Op{put(key, "v", store.Absent())}
				if i%2 == 1 {
					ops = append(ops, put(b.at("other", fmt.Sprint(round, i)), "v"))
				}
				all.Go(func() { results[i] = b.db.Write(b.ctx, ops...) })
			}
			all.Wait()
			won := 0
			for i, err := range results {
				if err == nil {
					won++
				} else if !errors.Is(err, store.ErrConflict) {
					b.Fatalf("creator %d: %v", i, err)
				}
			}
			expect.MustEqual(b, fmt.Sprintf("the creators that won round %d", round), won, 1)
		}
	}},
}

// condition applies the operation op to an item that setUp has written. It does so twice: in a write with only this operation, and in a
// write with a second operation. The parameter holds says whether op must succeed or fail with [store.ErrConflict].
func (b *bench) condition(what string, holds bool, setUp func(store.Key) []store.Op, op func(store.Key) store.Op) {
	b.Helper()
	for _, with := range []string{"alone", "in a transaction"} {
		key := b.at(what, with)
		if ops := setUp(key); len(ops) > 0 {
			b.write(ops...)
		}
		ops := []store.Op{op(key)}
		companion := b.at(what, "companion")
		if with != "alone" {
			ops = append(ops, put(companion, "v"))
		}
		err := b.db.Write(b.ctx, ops...)
		if holds && err != nil {
			b.Errorf("%s, %s: got error %v, want it to apply", what, with, err)
		}
		if !holds && !errors.Is(err, store.ErrConflict) {
			b.Errorf("%s, %s: got error %v, want ErrConflict", what, with, err)
		}
		if with != "alone" && (b.get(companion) != nil) != holds {
			b.Errorf("%s: the transaction's other item exists: got %v, want %v", what, !holds, holds)
		}
		item := b.get(key)
		switch kind := ops[0].Kind; {
		case kind == store.OpPut && holds && (item == nil || string(item.Value) != "new"):
			b.Errorf("%s, %s: the put was not applied", what, with)
		case kind == store.OpPut && !holds && item != nil && string(item.Value) == "new":
			b.Errorf("%s, %s: the put was applied", what, with)
		case kind == store.OpDelete && holds && item != nil:
			b.Errorf("%s, %s: the item is still there", what, with)
		}
	}
}

var transactionCases = []testCase{
	{"all_or_nothing", func(b *bench) {
		exists, counter := b.at("p", "exists"), b.at("p", "counter")
		b.write(store.Put(store.Item{Key: exists, Value: []byte("v"), Version: 1}), store.Add(counter, map[string]int64{"n": 9}, nil))
		for name, bad := range map[string]store.Op{
			"a put":           put(exists, "new", store.Absent()),
			"a delete":        store.Delete(exists, store.VersionIs(2)),
			"a check":         store.Check(b.at("p", "nobody"), store.Exists()),
			"an add":          store.Add(counter, map[string]int64{"n": 2}, map[string]int64{"n": 10}),
			"an add of a new": store.Add(b.at("p", "new counter"), map[string]int64{"n": 2}, map[string]int64{"n": 1}),
		} {
			for position := range 3 {
				ops := []store.Op{
					put(b.at("p", "first"), "v"),
					store.Delete(b.at("p", "other")),
					store.Add(b.key(store.Deliveries, "p", "sum"), map[string]int64{"n": 1}, nil),
				}
				ops = append(ops[:position], append([]store.Op{bad}, ops[position:]...)...)
				b.checkConflict(fmt.Sprintf("%s at %d", name, position), ops...)
			}
		}
		b.checkAbsent("after the conflicts", b.at("p", "first"), b.key(store.Deliveries, "p", "sum"), b.at("p", "new counter"))
		expect.Equal(b, "the value of the existing item", b.value(exists), "v")
		expect.Equal(b, "the count", b.count(counter, "n"), 9)
	}},
	{"concurrent_transfers_keep_the_sum", func(b *bench) {
		const accounts, workers, transfers = 4, 8, 10
		account := func(i int) store.Key { return b.at("accounts", fmt.Sprint(i%accounts)) }
		for i := range accounts {
			b.write(store.Add(account(i), map[string]int64{"money": 100}, nil))
		}
		var all sync.WaitGroup
		for w := range workers {
			all.Go(func() {
				for i := range transfers {
					from, to := account(w+i), account(w+i+1+w%(accounts-1))
					err := b.db.Write(b.ctx,
						store.Add(from, map[string]int64{"money": -3}, nil), store.Add(to, map[string]int64{"money": 3}, nil))
					if err != nil {
						b.Errorf("transfer: %v", err)
					}
				}
			})
		}
		all.Wait()
		sum := int64(0)
		for i := range accounts {
			sum += b.count(account(i), "money")
		}
		expect.Equal(b, "the sum", sum, accounts*100)
	}},
}
