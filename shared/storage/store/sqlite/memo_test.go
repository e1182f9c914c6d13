package sqlite

import (
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/mcp-events/mcpevents/shared/storage/store"
	"github.com/mcp-events/mcpevents/test/expect"
)

func openMemory(t *testing.T) *DB {
	t.Helper()
	db := expect.Value(Open(Memory, Options{SweepEvery: -1}))(t)
	t.Cleanup(func() { _ = db.Close() })
	return db
}

func TestSessionsAreCachedUntilTheirPartitionChanges(t *testing.T) {
	db := openMemory(t)
	cached := func(keys ...store.Key) bool {
		_, ok := db.memo.get(db.memo.commitsOfAll(keys), keys, db.engine.Now())
		return ok
	}
	put := func(key store.Key, value string) {
		t.Helper()
		expect.OK(t, db.Write(t.Context(), store.Put(store.Item{Key: key, Value: []byte(value)})))
	}
	get := func(key store.Key, want string) {
		t.Helper()
		items, err := db.Get(t.Context(), key)
		if err != nil || items[0] == nil || string(items[0].Value) != want {
			t.Fatalf("got %v, %v, want %s", items, err, want)
		}
	}
	one := store.Key{Table: store.Sessions, Partition: "s#1", Sort: "-"}
	next := store.Key{Table: store.Sessions, Partition: "s#1", Sort: "u#"}
	other := store.Key{Table: store.Sessions, Partition: "s#2", Sort: "-"}
	for n := 3; db.memo.commitsOf(other) == db.memo.commitsOf(one); n++ {
		other.Partition = "s#" + strconv.Itoa(n)
	}
	put(one, "a")
	get(one, "a")
	if !cached(one) {
		t.Error("got no cached item after a read, want it cached")
	}
	put(other, "b")
	get(other, "b")
	if !cached(one) || cached(one, other) {
		t.Error("want the item cached after a write to another partition, but not together with an item of that one")
	}
	put(next, "c")
	if cached(one) {
		t.Error("got a cached item after a write to its partition, want none")
	}
	put(one, "d")
	get(one, "d")
}

func TestCachedSessionIsNeverOlderThanAnAnsweredWrite(t *testing.T) {
	db := openMemory(t)
	var running sync.WaitGroup
	for n := range 4 {
		key := store.Key{Table: store.Sessions, Partition: fmt.Sprint("s#", n), Sort: "-"}
		var answered atomic.Int64
		done := make(chan struct{})
		running.Go(func() {
			defer close(done)
			for version := range int64(300) {
				if err := db.Write(t.Context(), store.Put(store.Item{Key: key, Version: version + 1})); err != nil {
					t.Error(err)
					return
				}
				answered.Store(version + 1)
			}
		})
		running.Go(func() {
			for {
				least := answered.Load()
				items, err := db.Get(t.Context(), key)
				switch {
				case err != nil:
					t.Error(err)
					return
				case least > 0 && (items[0] == nil || items[0].Version < least):
					t.Errorf("got %+v, want version %d or later", items[0], least)
					return
				}
				select {
				case <-done:
					return
				default:
				}
			}
		})
	}
	running.Wait()
}
