// Package storetest is the suite that every adapter of [store.DB] passes.
//
// An adapter's test calls [Run] with a function that opens its store. Each case uses its own partitions, so that all cases
// may share one database, which need not be empty. Cases run in parallel and write little, because one of the databases is
// an emulator.
package storetest

import (
	"context"
	"crypto/rand"
	"errors"
	"slices"
	"testing"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/storage/store"
)

// Run tests the stores that open returns against the contract of package store. open is called once for each case, from
// its test, and may return the same store every time. It closes what it opened by t.Cleanup.
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

// ifStamps returns cases that do nothing unless [store.DB.Stamps] of the store is as given.
func ifStamps(stamps bool, cases []testCase) []testCase {
	var out []testCase
	for _, c := range cases {
		out = append(out, testCase{c.name, func(b *bench) {
			if b.db.Stamps() == stamps {
				c.run(b)
			}
		}})
	}
	return out
}

// bench is a test with the store under test, and a prefix for the partitions of its case.
type bench struct {
	*testing.T
	db     store.DB
	ctx    context.Context
	prefix string
}

func newBench(t *testing.T, db store.DB) *bench {
	return &bench{T: t, db: db, ctx: t.Context(), prefix: rand.Text() + "#"}
}

// key returns the key of an item. The prefix of the bench keeps the partitions of different cases apart.
func (b *bench) key(table store.Table, partition, sort string) store.Key {
	return store.Key{Table: table, Partition: b.prefix + partition, Sort: sort}
}

// at returns the key of an item in the table that most cases use.
func (b *bench) at(partition, sort string) store.Key {
	return b.key(store.Subscriptions, partition, sort)
}

// write writes, and fails the test on an error.
func (b *bench) write(ops ...store.Op) {
	b.Helper()
	if err := b.db.Write(b.ctx, ops...); err != nil {
		b.Fatalf("Write: %v", err)
	}
}

// writeAll calls WriteAll, and fails the test on an error.
func (b *bench) writeAll(ops ...store.Op) {
	b.Helper()
	if err := b.db.WriteAll(b.ctx, ops...); err != nil {
		b.Fatalf("WriteAll of %d: %v", len(ops), err)
	}
}

// checkConflict checks that a write returns [store.ErrConflict].
func (b *bench) checkConflict(what string, ops ...store.Op) {
	b.Helper()
	if err := b.db.Write(b.ctx, ops...); !errors.Is(err, store.ErrConflict) {
		b.Errorf("%s: got error %v, want ErrConflict", what, err)
	}
}

// checkRefused checks that err has one of the kinds and is not a conflict.
func (b *bench) checkRefused(what string, err error, kinds ...fault.Kind) {
	b.Helper()
	if err == nil || errors.Is(err, store.ErrConflict) || !slices.Contains(kinds, fault.KindOf(err)) {
		b.Errorf("%s: got error %v (kind %v), want one of kind %v", what, err, fault.KindOf(err), kinds)
	}
}

// get reads one item that may be absent.
func (b *bench) get(key store.Key) *store.Item {
	b.Helper()
	items, err := b.db.Get(b.ctx, key)
	if err != nil {
		b.Fatalf("Get: %v", err)
	}
	if len(items) != 1 {
		b.Fatalf("Get of one key returned %d items", len(items))
	}
	return items[0]
}

// value reads the value of an item that must exist.
func (b *bench) value(key store.Key) string {
	b.Helper()
	item := b.get(key)
	if item == nil {
		b.Fatalf("no item at %s", key.Sort)
	}
	return string(item.Value)
}

// count reads a count of an item that must exist.
func (b *bench) count(key store.Key, name string) int64 {
	b.Helper()
	item := b.get(key)
	if item == nil {
		b.Fatalf("no item at %s", key.Sort)
	}
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
		page, err := b.db.Query(b.ctx, q)
		if err != nil {
			b.Fatalf("Query: %v", err)
		}
		pages++
		if len(page.Items) > limit {
			b.Fatalf("got a page of %d items, want at most %d", len(page.Items), limit)
		}
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
