package storetest

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/storage/store"
)

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
			if got := b.value(key); got != fmt.Sprint(winner) {
				b.Fatalf("round %d: got %s in the item, want %d, which won", round, got, winner)
			}
		}
	}},
	{"one_creator_wins", func(b *bench) {
		for round := range 10 {
			key := b.at("p", fmt.Sprint(round))
			results := make([]error, 6)
			var all sync.WaitGroup
			for i := range results {
				// Some adapters write a single operation differently.
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
			if won != 1 {
				b.Fatalf("round %d: got %d creators that won, want 1", round, won)
			}
		}
	}},
}

// condition runs an operation on a new item in the given state, alone and in a transaction with another operation. It checks
// that the operation applies if holds is true, and otherwise conflicts.
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
		if got := b.value(exists); got != "v" {
			b.Errorf("got %q in the existing item, want v", got)
		}
		if got := b.count(counter, "n"); got != 9 {
			b.Errorf("got a count of %d, want 9", got)
		}
	}},
	{"over_several_tables", func(b *bench) {
		record, due, quota := b.key(store.Deliveries, "d", "1"), b.key(store.Deliveries, "due", "1"), b.key(store.Sessions, "quota", "alice")
		b.write(
			put(record, "r", store.Absent()), put(due, "d", store.Absent()),
			store.Add(quota, map[string]int64{"n": 1}, map[string]int64{"n": 1}), store.Check(b.at("none", "x"), store.Absent()),
		)
		b.write(store.Delete(record, store.Exists()), store.Delete(due), store.Add(quota, map[string]int64{"n": -1}, nil))
		b.checkAbsent("after the second transaction", record, due)
		if got := b.count(quota, "n"); got != 0 {
			b.Errorf("got a quota of %d, want 0", got)
		}
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
		if sum != accounts*100 {
			b.Errorf("the sum is %d, want %d", sum, accounts*100)
		}
	}},
}
