package storetest

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"pgregory.net/rapid"

	"github.com/mcp-events/mcpevents/shared/storage/store"
)

// model is a map of items that behaves as a store must. It drops expired items, because readers cannot tell them from absent ones.
type model map[store.Key]store.Item

// apply applies operations to the map as [store.DB.Write] must do. It returns false if there is a conflict.
func (m model) apply(ops []store.Op) bool {
	for _, op := range ops {
		item, exists := m[op.Item.Key]
		if !op.Cond.Holds(exists, item.Version) {
			return false
		}
		for name, limit := range op.Limits {
			if item.Counts[name]+op.Item.Counts[name] > limit {
				return false
			}
		}
	}
	for _, op := range ops {
		key := op.Item.Key
		switch op.Kind {
		case store.OpPut:
			m[key] = op.Item
			if !op.Item.Expires.IsZero() && op.Item.Expires.Before(time.Now()) {
				delete(m, key)
			}
		case store.OpDelete:
			delete(m, key)
		case store.OpAdd:
			item := m[key]
			item.Key = key
			counts := map[string]int64{}
			for name, n := range item.Counts {
				counts[name] = n
			}
			for name, n := range op.Item.Counts {
				counts[name] += n
			}
			item.Counts = counts
			m[key] = item
		}
	}
	return true
}

func (m model) query(q store.Query) (want []string) {
	for key := range m {
		if key.Table == q.Table && key.Partition == q.Partition && key.Sort > q.After &&
			(q.Until == "" || key.Sort <= q.Until) && (q.Before == "" || key.Sort < q.Before) {
			want = append(want, key.Sort)
		}
	}
	slices.Sort(want)
	if q.Reverse {
		slices.Reverse(want)
	}
	return want
}

var modelCases = []testCase{
	{"random_writes_and_reads_agree_with_a_map", func(b *bench) {
		round := 0
		rapid.Check(b.T, func(t *rapid.T) {
			round++
			(&modelRun{bench: b, T: t, m: model{}, prefix: fmt.Sprintf("%s%d#", b.prefix, round)}).run()
		})
	}},
}

// modelRun applies random operations to a store and to a model, and compares them. Each run has its own partitions.
type modelRun struct {
	*rapid.T
	bench  *bench
	m      model
	prefix string
}

var (
	modelSorts = []string{"a", "a#", "b", "É"}
	countNames = []string{"n", "m"}
	// modelTables has one table that the store in SQLite caches, and one that it does not cache.
	modelTables = []store.Table{store.Subscriptions, store.Deliveries}
)

func (r *modelRun) key() store.Key {
	return store.Key{
		Table:     rapid.SampledFrom(modelTables).Draw(r.T, "table"),
		Partition: r.prefix + rapid.SampledFrom([]string{"p", "q"}).Draw(r.T, "partition"),
		Sort:      rapid.SampledFrom(modelSorts).Draw(r.T, "sort"),
	}
}

func (r *modelRun) item(key store.Key) store.Item {
	item := store.Item{
		Key:     key,
		Value:   []byte(strings.Repeat("v", rapid.IntRange(0, 3).Draw(r.T, "value"))),
		Version: rapid.Int64Range(0, 2).Draw(r.T, "version"),
	}
	if rapid.Bool().Draw(r.T, "counting") {
		item.Counts = map[string]int64{"n": rapid.Int64Range(-2, 2).Draw(r.T, "n")}
	}
	switch rapid.IntRange(0, 4).Draw(r.T, "expiry") {
	case 0:
		item.Expires = time.Now().Add(-time.Hour).Truncate(time.Second)
	case 1:
		item.Expires = time.Now().Add(time.Hour).Truncate(time.Second)
	}
	return item
}

func (r *modelRun) condition() []store.Condition {
	return rapid.SampledFrom([][]store.Condition{
		nil, nil, {store.Absent()}, {store.Exists()}, {store.VersionIs(0)}, {store.VersionIs(1)},
	}).Draw(r.T, "condition")
}

func (r *modelRun) op(key store.Key) store.Op {
	switch rapid.IntRange(0, 5).Draw(r.T, "op") {
	case 0:
		return store.Delete(key, r.condition()...)
	case 1:
		counts := map[string]int64{rapid.SampledFrom(countNames).Draw(r.T, "count"): rapid.Int64Range(-2, 3).Draw(r.T, "delta")}
		var limits map[string]int64
		if rapid.Bool().Draw(r.T, "limited") {
			limits = map[string]int64{}
			for name := range counts {
				limits[name] = rapid.Int64Range(-1, 4).Draw(r.T, "limit")
			}
		}
		return store.Add(key, counts, limits)
	case 2:
		return store.Check(key, rapid.SampledFrom([]store.Condition{store.Absent(), store.Exists(), store.VersionIs(1)}).Draw(r.T, "check"))
	default:
		return store.Put(r.item(key), r.condition()...)
	}
}

func (r *modelRun) run() {
	r.Repeat(map[string]func(*rapid.T){
		"write": func(t *rapid.T) {
			r.T = t
			var ops []store.Op
			used := map[store.Key]bool{}
			for range rapid.IntRange(1, 4).Draw(t, "ops") {
				if key := r.key(); !used[key] {
					used[key] = true
					ops = append(ops, r.op(key))
				}
			}
			r.write(ops...)
		},
		"write all": func(t *rapid.T) {
			r.T = t
			var ops []store.Op
			used := map[store.Key]bool{}
			for range rapid.IntRange(1, 6).Draw(t, "ops") {
				key := r.key()
				if used[key] {
					continue
				}
				used[key] = true
				if rapid.Bool().Draw(t, "delete") {
					ops = append(ops, store.Delete(key))
				} else {
					ops = append(ops, store.Put(r.item(key)))
				}
			}
			if err := r.bench.db.WriteAll(r.bench.ctx, ops...); err != nil {
				t.Fatalf("WriteAll: %v", err)
			}
			r.m.apply(ops)
		},
		"query": func(t *rapid.T) {
			r.T = t
			bound := func(name string) string {
				return rapid.SampledFrom(append([]string{"", "", "a\x00", "zz"}, modelSorts...)).Draw(t, name)
			}
			key := r.key()
			q := store.Query{
				Table: key.Table, Partition: key.Partition, After: bound("after"), Until: bound("until"), Before: bound("before"),
				Limit: rapid.IntRange(1, 5).Draw(t, "limit"), Reverse: rapid.Bool().Draw(t, "reverse"),
			}
			items, _ := r.bench.pages(q)
			if got, want := sorts(items), r.m.query(q); !slices.Equal(got, want) {
				t.Fatalf("query %+v: got %q, want %q", q, got, want)
			}
			for _, item := range items {
				r.checkSame(item, r.m[item.Key])
			}
		},
		"": func(t *rapid.T) {
			r.T = t
			var keys []store.Key
			for _, partition := range []string{"p", "q"} {
				for _, sort := range modelSorts {
					for _, table := range modelTables {
						keys = append(keys, store.Key{Table: table, Partition: r.prefix + partition, Sort: sort})
					}
				}
			}
			items, err := r.bench.db.Get(r.bench.ctx, keys...)
			if err != nil {
				t.Fatalf("Get: %v", err)
			}
			for i, key := range keys {
				want, exists := r.m[key]
				if (items[i] != nil) != exists {
					t.Fatalf("%v: exists %v, want %v", key, items[i] != nil, exists)
				}
				if exists {
					r.checkSame(*items[i], want)
				}
			}
		},
	})
}

func (r *modelRun) write(ops ...store.Op) {
	err := r.bench.db.Write(r.bench.ctx, ops...)
	switch applied := r.m.apply(ops); {
	case err != nil && !errors.Is(err, store.ErrConflict):
		r.Fatalf("Write: %v", err)
	case applied != (err == nil):
		r.Fatalf("Write returned %v, the model applied: %v", err, applied)
	}
}

func (r *modelRun) checkSame(got, want store.Item) {
	if !isSame(got, want) {
		r.Fatalf("got %+v, want %+v", got, want)
	}
}
