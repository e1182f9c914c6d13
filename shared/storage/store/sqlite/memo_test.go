package sqlite

import (
	"context"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/shared/storage/store"
	"github.com/mcp-events/mcpevents/shared/storage/store/sqlite/engine"
)

func TestMemo(t *testing.T) {
	var clock atomic.Int64
	clock.Store(1_000_000)
	db, err := Open(filepath.Join(t.TempDir(), "db"), Options{
		SweepEvery: -1, Engine: engine.Options{Readers: 1, Now: func() time.Time { return time.Unix(clock.Load(), 0) }},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	ctx := t.Context()
	key := func(table store.Table, sort string) store.Key {
		return store.Key{Table: table, Partition: "p", Sort: sort}
	}
	write := func(op store.Op) {
		t.Helper()
		if err := db.Write(ctx, op); err != nil {
			t.Fatal(err)
		}
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
			ctx, cancel = context.WithTimeout(ctx, 100*time.Millisecond)
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

// A caller whose write was answered reads that write or a later one.
func TestMemoShowsAnsweredWrites(t *testing.T) {
	db, err := Open(filepath.Join(t.TempDir(), "db"), Options{SweepEvery: -1})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	ctx := t.Context()
	key := store.Key{Table: store.Subscriptions, Partition: "p", Sort: "s"}
	var answered atomic.Int64
	done := make(chan struct{})
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
				}
				least := answered.Load()
				items, err := db.Get(ctx, key)
				if err != nil || least > 0 && (items[0] == nil || items[0].Version < least) {
					t.Errorf("got %+v, %v after version %d was answered", items, err, least)
					return
				}
				least = answered.Load()
				page, err := db.Query(ctx, store.Query{Table: key.Table, Partition: key.Partition})
				if err != nil || least > 0 && (len(page.Items) != 1 || page.Items[0].Version < least) {
					t.Errorf("got %+v, %v after version %d was answered", page, err, least)
					return
				}
			}
		})
	}
	for v := int64(1); v <= 500; v++ {
		if err := db.Write(ctx, store.Put(store.Item{Key: key, Version: v})); err != nil {
			t.Fatal(err)
		}
		answered.Store(v)
	}
	close(done)
	wg.Wait()
}
