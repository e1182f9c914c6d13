package sqlite

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/shared/storage/store"
	"github.com/mcp-events/mcpevents/shared/storage/store/sqlite/engine"
	"github.com/mcp-events/mcpevents/shared/storage/store/storetest"
	"github.com/mcp-events/mcpevents/test/expect"
)

func open(t testing.TB, path string, opts Options) *DB {
	t.Helper()
	db := expect.Value(Open(path, opts))(t)
	t.Cleanup(func() { expect.OK(t, db.Close()) })
	return db
}

func TestStore(t *testing.T) {
	for name, path := range map[string]func(t *testing.T) string{
		"file":   func(t *testing.T) string { return filepath.Join(t.TempDir(), "events.db") },
		"memory": func(*testing.T) string { return Memory },
	} {
		t.Run(name, func(t *testing.T) {
			storetest.Run(t, func(t *testing.T) store.DB { return open(t, path(t), Options{}) })
		})
	}
}

func TestContainsFindsATextInTheValuesOfEveryTable(t *testing.T) {
	for _, table := range store.Tables() {
		db := open(t, Memory, Options{})
		item := store.Item{Key: store.Key{Table: table, Partition: "AQpartition", Sort: "AQsort"}, Value: []byte(`{"sec":"AQvalue"}`)}
		expect.OK(t, db.Write(t.Context(), store.Put(item)))
		for text, want := range map[string]bool{"AQval": true, "aqval": false, "AQpart": false, "AQsort": false} {
			expect.Equal(t, fmt.Sprintf("%s contains %q", table, text), expect.Value(db.Contains(t.Context(), []byte(text)))(t), want)
		}
	}
}

// TestPlans: OPS-03 and OPS-04. Each list of the admin API is a query of one partition, so each is as fast as its index.
func TestPlans(t *testing.T) {
	db := open(t, Memory, Options{})
	for _, table := range store.Tables() {
		for name, sql := range map[string]string{
			"get": tables[table].get, "asc": tables[table].asc, "desc": tables[table].desc, "delete": tables[table].delete, "sweep": tables[table].sweep,
		} {
			t.Run("OPS-03 OPS-04 an index answers "+name+" of "+string(table), func(t *testing.T) {
				err := db.engine.Read(t.Context(), func(c *engine.Conn) error {
					s := c.Stmt("EXPLAIN QUERY PLAN " + sql)
					defer s.Reset()
					steps := 0
					for row, err := s.Step(); row || err != nil; row, err = s.Step() {
						if err != nil {
							return err
						}
						steps++
						if step := s.ColumnText(3); strings.HasPrefix(step, "SCAN") || strings.Contains(step, "TEMP B-TREE") {
							t.Errorf("%s: %s", sql, step)
						}
					}
					expect.True(t, "there is a plan", steps > 0)
					return nil
				})
				expect.OK(t, err)
			})
		}
	}
}

// A week with an event every 18 seconds to one subscriber, the log kept for a day and records for two, and one hour with
// forty times as many events. The file stays within a small multiple of the stored data, and shrinks after the burst.
func TestTheFileIsBoundedOverAWeek(t *testing.T) {
	var clock wallClock
	clock.us.Store(1_800_000_000_000_000)
	path := filepath.Join(t.TempDir(), "events.db")
	db := open(t, path, Options{SweepEvery: -1, Engine: engine.Options{Now: clock.now}})
	const perHour, burst, value = 200, 8000, 500
	n := 0
	hour := func(events int) {
		var ops []store.Op
		for range events {
			n++
			logged := store.Item{Key: store.Key{Table: store.Log, Partition: fmt.Sprint("u#", n%10), Sort: store.AtCommit}}
			record := store.Item{Key: store.Key{Table: store.Deliveries, Partition: fmt.Sprintf("r#%016x", rand.IntN(1000)*7919), Sort: fmt.Sprintf("%016d", n)}}
			logged.Value, record.Value = make([]byte, value), make([]byte, value)
			logged.Expires, record.Expires = clock.now().Add(24*time.Hour), clock.now().Add(48*time.Hour)
			ops = append(ops, store.Put(logged), store.Put(record))
		}
		expect.OK(t, db.WriteAll(context.Background(), ops...))
		clock.us.Add(time.Hour.Microseconds())
		expect.OK(t, db.clean(context.Background()))
	}
	read := func(sql string) (n int64) {
		err := db.engine.Read(context.Background(), func(c *engine.Conn) (err error) { n, err = c.Int(sql); return err })
		expect.OK(t, err)
		return n
	}
	size := func() int64 { return read("PRAGMA page_count") * read("PRAGMA page_size") }
	live := func() int64 {
		return read("SELECT (SELECT count(*) FROM log) + (SELECT count(*) FROM deliveries)") * value
	}
	var most int64
	for h := range 7 * 24 {
		events := perHour
		if h == 3*24 {
			events = burst
		}
		hour(events)
		if h > 24 {
			expect.AtMost(t, fmt.Sprintf("hour %d: twice the bytes of the file", h), 2*size(), 5*live())
		}
		most = max(most, size())
		if h%24 == 23 {
			t.Logf("day %d: file %.1f MB, values %.1f MB", h/24+1, float64(size())/1e6, float64(live())/1e6)
		}
	}
	if got := size(); got > 2*live() || got > most*3/4 {
		t.Errorf("%d bytes at the end for %d that live, %d after the burst", got, live(), most)
	}
	expect.OK(t, db.Close())
	expect.AtMost(t, "the bytes of the file", expect.Value(os.Stat(path))(t).Size(), most*3/4)
}

func TestMemo(t *testing.T) {
	var clock atomic.Int64
	clock.Store(1_000_000)
	db := open(t, filepath.Join(t.TempDir(), "db"), Options{
		SweepEvery: -1, Engine: engine.Options{Readers: 1, Now: func() time.Time { return time.Unix(clock.Load(), 0) }},
	})
	ctx := t.Context()
	key := func(table store.Table, sort string) store.Key {
		return store.Key{Table: table, Partition: "p", Sort: sort}
	}
	write := func(op store.Op) {
		t.Helper()
		expect.OK(t, db.Write(ctx, op))
	}
	write(store.Put(store.Item{Key: key(store.Subscriptions, "a"), Value: []byte("1"), Counts: map[string]int64{"n": 1}}))
	write(store.Put(store.Item{Key: key(store.Subscriptions, "b"), Value: []byte("2"), Expires: time.Unix(1_000_060, 0)}))
	write(store.Put(store.Item{Key: key(store.Sessions, "a"), Value: []byte("3")}))
	keys := []store.Key{key(store.Subscriptions, "a"), key(store.Subscriptions, "b"), key(store.Subscriptions, "none")}
	query := store.Query{Table: store.Subscriptions, Partition: "p"}

	// values reads "a", "b" and "none", and the page; with quick it gives up when the file has to be asked.
	values := func(quick bool) (got string, err error) {
		ctx := ctx
		if quick {
			release := make(chan struct{})
			held := make(chan struct{})
			var holding sync.WaitGroup
			holding.Go(func() {
				_ = db.engine.Read(context.Background(), func(*engine.Conn) error { close(held); <-release; return nil })
			})
			<-held
			defer holding.Wait()
			defer close(release)
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeout(ctx, time.Second)
			defer cancel()
		}
		items, err := db.Get(ctx, keys...)
		if err != nil {
			return "", err
		}
		page, err := db.Query(ctx, query)
		if err != nil {
			return "", err
		}
		for _, it := range items {
			if it == nil {
				got += "-"
				continue
			}
			got += string(it.Value)
			it.Value = append(it.Value, "changed"...) // its reader's own
			clear(it.Counts)
		}
		got += " "
		for i := range page.Items {
			got += string(page.Items[i].Value)
			page.Items[i].Value = nil
		}
		return got, nil
	}
	for _, step := range []struct {
		name   string
		do     func()
		quick  bool
		want   string
		failed bool
	}{
		{name: "the first read asks the file", do: func() {}, want: "12- 12"},
		{name: "the second does not", do: func() {}, quick: true, want: "12- 12"},
		{name: "a commit to another table changes nothing", do: func() { write(store.Delete(key(store.Sessions, "a"))) }, quick: true, want: "12- 12"},
		{name: "what expires is left out", do: func() { clock.Store(1_000_060) }, quick: true, want: "1-- 1"},
		{name: "after a commit the file is asked", do: func() { write(store.Put(store.Item{Key: key(store.Subscriptions, "none"), Value: []byte("4")})) }, quick: true, failed: true},
		{name: "and tells the new state", do: func() {}, want: "1-4 14"},
		{name: "which is kept", do: func() {}, quick: true, want: "1-4 14"},
	} {
		step.do()
		got, err := values(step.quick)
		if got != step.want || (err != nil) != step.failed {
			t.Fatalf("%s: got %q, %v", step.name, got, err)
		}
	}
}

// A caller whose write was answered reads that write or a later one. The memory of sessions is separate for each partition.
func TestMemoShowsAnsweredWrites(t *testing.T) {
	db := open(t, filepath.Join(t.TempDir(), "db"), Options{SweepEvery: -1})
	var running sync.WaitGroup
	for _, key := range []store.Key{
		{Table: store.Subscriptions, Partition: "p", Sort: "s"}, {Table: store.Sessions, Partition: "s#1", Sort: "-"}, {Table: store.Sessions, Partition: "s#2", Sort: "-"},
	} {
		var answered atomic.Int64
		const last = 500
		running.Go(func() {
			for version := int64(1); version <= last; version++ {
				expect.OK(t, db.Write(t.Context(), store.Put(store.Item{Key: key, Version: version})))
				answered.Store(version)
			}
		})
		for range 2 {
			running.Go(func() {
				for least := int64(0); least < last && !t.Failed(); {
					least = answered.Load()
					items, err := db.Get(t.Context(), key)
					if err != nil || least > 0 && (items[0] == nil || items[0].Version < least) {
						t.Errorf("got %+v, %v after version %d was answered", items, err, least)
					}
					least = answered.Load()
					page, err := db.Query(t.Context(), store.Query{Table: key.Table, Partition: key.Partition})
					if err != nil || least > 0 && (len(page.Items) != 1 || page.Items[0].Version < least) {
						t.Errorf("got %+v, %v after version %d was answered", page, err, least)
					}
				}
			})
		}
	}
	running.Wait()
}

func TestSessionsAreCachedUntilTheirPartitionChanges(t *testing.T) {
	db := open(t, Memory, Options{SweepEvery: -1})
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
	expect.True(t, "the item is cached after a read", cached(one))
	put(other, "b")
	get(other, "b")
	if !cached(one) || cached(one, other) {
		t.Error("want the item cached after a write to another partition, but not together with an item of that one")
	}
	put(next, "c")
	expect.True(t, "the item is not cached after a write to its partition", !cached(one))
	put(one, "d")
	get(one, "d")
}

// TestUnhurriedWritesKeepTheirOrder checks that the later of two writes to a table wins.
func TestUnhurriedWritesKeepTheirOrder(t *testing.T) {
	db := open(t, filepath.Join(t.TempDir(), "events.db"), Options{SweepEvery: -1})
	put := func(db store.DB, sort string, version int64, tables ...store.Table) {
		t.Helper()
		var ops []store.Op
		for _, table := range tables {
			ops = append(ops, store.Put(store.Item{Key: store.Key{Table: table, Partition: "p", Sort: sort}, Version: version}))
		}
		expect.OK(t, db.Write(t.Context(), ops...))
	}
	hurried, unhurried := store.DB(db), store.Unhurried(db)
	for _, tt := range []struct {
		name         string
		first, later store.DB
	}{
		{"unhurried, then hurried", unhurried, hurried},
		{"unhurried, then unhurried", unhurried, unhurried},
	} {
		put(tt.first, tt.name, 1, store.Deliveries, store.Log)
		put(tt.later, tt.name, 2, store.Deliveries)
		put(hurried, "last", 0, store.Deliveries) // commits all others
		items := expect.Value(db.Get(t.Context(), store.Key{Table: store.Deliveries, Partition: "p", Sort: tt.name}))(t)
		if items[0] == nil || items[0].Version != 2 {
			t.Errorf("%s: got the item %+v, want version 2", tt.name, items[0])
		}
	}
}

// TestAnUnhurriedWriteDoesNotReadAbandonedOperations checks that the operations of a write whose caller gave up can be used again.
func TestAnUnhurriedWriteDoesNotReadAbandonedOperations(t *testing.T) {
	db := open(t, filepath.Join(t.TempDir(), "events.db"), Options{SweepEvery: -1})
	op := func(table store.Table, version int64) store.Op {
		return store.Put(store.Item{Key: store.Key{Table: table, Partition: "p", Sort: "s"}, Version: version})
	}
	var busy sync.WaitGroup
	busy.Go(func() {
		for i := range int64(500) {
			expect.OK(t, db.Write(t.Context(), op(store.Log, i)))
		}
	})
	ops := []store.Op{op(store.Settings, 0)}
	for i := range int64(500) {
		expect.OK(t, store.Unhurried(db).Write(t.Context(), op(store.Deliveries, i)))
		short, cancel := context.WithTimeout(t.Context(), 50*time.Microsecond)
		if db.Write(short, ops...) != nil {
			ops[0] = op(store.Settings, i) // the race detector notices if the writer reads it
		} else {
			ops = []store.Op{op(store.Settings, i)}
		}
		cancel()
	}
	busy.Wait()
}
