package settings_test

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
	. "github.com/mcp-events/mcpevents/shared/storage/settings"
	"github.com/mcp-events/mcpevents/shared/storage/settings/settingstest"
	"github.com/mcp-events/mcpevents/shared/storage/store"
	"github.com/mcp-events/mcpevents/shared/storage/store/sqlite"
)

func TestWriteAndReadInSQLite(t *testing.T) {
	db, err := sqlite.Open(sqlite.Memory, sqlite.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = db.Close() }()
	testWriteAndRead(t, db)
}

func TestWriteAndRead(t *testing.T) {
	db := settingstest.New()
	testWriteAndRead(t, db)
	db.Fail(fault.New(fault.Unavailable, "down"))
	if _, err := Read(t.Context(), db, "d"); !fault.Is(err, fault.Unavailable) {
		t.Errorf("got %v, want Unavailable", err)
	}
}

func testWriteAndRead(t *testing.T, db store.DB) {
	t.Helper()
	ctx := t.Context()
	if got, err := Read(ctx, db, "d"); got.Text != nil || got.Version != 0 || err != nil {
		t.Errorf("got %+v, %v of a document that does not exist", got, err)
	}
	for i, step := range []struct {
		text    string
		version int64
		changes bool
	}{{"one", 1, true}, {"one", 1, false}, {"two", 2, true}, {"", 3, true}} {
		old, err := Read(ctx, db, "d")
		if err != nil {
			t.Fatal(err)
		}
		e := Edit{Old: old, Text: []byte(step.text)}
		if err := Write(ctx, db, e); e.Version() != step.version || e.Changes() != step.changes || err != nil {
			t.Errorf("step %d: got %d, %v, %v; want %d, %v", i, e.Version(), e.Changes(), err, step.version, step.changes)
		}
		got, err := Read(ctx, db, "d")
		if string(got.Text) != step.text || got.Version != step.version || err != nil {
			t.Errorf("step %d: read %q, %d, %v; want %q, %d", i, got.Text, got.Version, err, step.text, step.version)
		}
		if v, err := Version(ctx, db, "d"); v != step.version || err != nil {
			t.Errorf("step %d: version %d, %v; want %d", i, v, err, step.version)
		}
	}
	if v, err := Version(ctx, db, "other"); v != 0 || err != nil {
		t.Errorf("another document: got version %d, %v; want 0", v, err)
	}
}

func TestWriteRefusesATextThatDoesNotFit(t *testing.T) {
	noise := make([]byte, 800<<10) // compresses to no less than three quarters
	const letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
	rng := rand.New(rand.NewPCG(1, 2))
	for i := range noise {
		noise[i] = letters[rng.IntN(len(letters))]
	}
	for name, src := range map[string][]byte{"compressed": noise, "uncompressed": make([]byte, MaxText+1)} {
		if err := Write(t.Context(), settingstest.New(), Edit{Old: Stored{Name: "d"}, Text: src}); !fault.Is(err, fault.TooLarge) {
			t.Errorf("%s: got %v, want TooLarge", name, err)
		}
	}
}

// A change is checked against the document that it replaces. So another one must not take its place between the check and the
// write.
func TestGivenADocumentThatAnotherWriterChangedAnEditIsRefused(t *testing.T) {
	db := settingstest.New()
	old, err := Read(t.Context(), db, "d")
	if err != nil {
		t.Fatal(err)
	}
	write(t, db, "rival")
	if err := Write(t.Context(), db, Edit{Old: old, Text: []byte("mine")}); !fault.Is(err, fault.Conflict) {
		t.Errorf("got %v, want Conflict", err)
	}
	if got, _ := Read(t.Context(), db, "d"); string(got.Text) != "rival" {
		t.Errorf("got %q, want rival", got.Text)
	}
}

func cache(db store.DB) *Cache[string] {
	return NewCache(db, "", func(src []byte) (string, error) {
		if strings.HasPrefix(string(src), "bad") {
			return "", fault.New(fault.Invalid, "bad")
		}
		return string(src), nil
	}, nil, slog.New(slog.DiscardHandler))
}

func write(t *testing.T, db store.DB, text string) {
	t.Helper()
	old, err := Read(t.Context(), db, "d")
	if err != nil {
		t.Fatal(err)
	}
	if err := Write(t.Context(), db, Edit{Old: old, Text: []byte(text)}); err != nil {
		t.Fatal(err)
	}
}

func TestCacheFollowsTheStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := settingstest.New()
		c := cache(db)
		wants := func(text string, version int64) {
			t.Helper()
			if got, v, err := c.Get(t.Context(), "d"); got != text || v != version || err != nil {
				t.Errorf("got %q, %d, %v, want %q, %d", got, v, err, text, version)
			}
		}
		wants("", 0)
		write(t, db, "one")
		time.Sleep(MaxAge)
		wants("one", 1)

		db.Reads("head")
		db.Reads("text")
		for range 100 {
			wants("one", 1)
		}
		time.Sleep(RecheckAfter)
		for range 100 {
			wants("one", 1)
		}
		if head, text := db.Reads("head"), db.Reads("text"); head != 1 || text != 0 {
			t.Errorf("got %d reads of the version and %d of the text, want 1 and 0", head, text)
		}

		write(t, db, "two")
		time.Sleep(MaxAge)
		wants("two", 2)
		write(t, db, "bad") // by another version of the program
		time.Sleep(MaxAge)
		wants("two", 2)
		write(t, db, "three")
		time.Sleep(MaxAge)
		wants("three", 4)

		db.Fail(fault.New(fault.Unavailable, "down"))
		time.Sleep(time.Minute)
		wants("three", 4)
		db.Reads("head")
		wants("three", 4)
		if n := db.Reads("head"); n != 0 {
			t.Errorf("the store was asked again %d times right after a failure", n)
		}
		time.Sleep(MaxStale)
		if _, _, err := c.Get(t.Context(), "d"); !fault.Is(err, fault.Unavailable) {
			t.Errorf("got %v after %v without the store", err, MaxStale)
		}
		db.Fail(nil)
		wants("three", 4)
	})
}

func TestCacheServesOthersWhileOneReads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := settingstest.New()
		write(t, db, "one")
		c := cache(db)
		if _, _, err := c.Get(t.Context(), "d"); err != nil {
			t.Fatal(err)
		}
		gate := make(chan struct{})
		db.Hold(gate)
		time.Sleep(RecheckAfter)
		var wg sync.WaitGroup
		defer wg.Wait()
		wg.Go(func() { _, _, _ = c.Get(t.Context(), "d") }) // reads, and waits at the gate
		synctest.Wait()
		if got, _, err := c.Get(t.Context(), "d"); got != "one" || err != nil {
			t.Errorf("got %q, %v while another caller reads", got, err)
		}
		time.Sleep(MaxAge - RecheckAfter)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, _, err := c.Get(ctx, "d"); !fault.Is(err, fault.Unavailable) {
			t.Errorf("got %v beyond MaxAge, want to wait for the reader", err)
		}
		close(gate)
	})
}

func TestCacheReturnsAnErrorForAnInvalidText(t *testing.T) {
	db := settingstest.New()
	write(t, db, "bad")
	if _, _, err := cache(db).Get(t.Context(), "d"); !fault.Is(err, fault.Internal) || err == nil {
		t.Errorf("got %v", err)
	}
}

func TestCacheIsBounded(t *testing.T) {
	db := settingstest.New()
	write(t, db, "one")
	c := cache(db)
	_, _, _ = c.Get(t.Context(), "d")
	for i := range 3000 {
		if _, v, err := c.Get(t.Context(), fmt.Sprint("w", i)); v != 0 || err != nil {
			t.Fatal(v, err)
		}
	}
	if n := c.Len(); n > 1024 {
		t.Errorf("%d documents are held", n)
	}
	db.Reads("text")
	_, _, _ = c.Get(t.Context(), "d")
	if db.Reads("text") != 0 {
		t.Error("a document that exists was evicted before documents that do not")
	}
}

func TestLatestIsNotFromMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := settingstest.New()
		write(t, db, "one")
		c := cache(db)
		if v, _, err := c.Get(t.Context(), "d"); v != "one" || err != nil {
			t.Fatal(v, err)
		}
		write(t, db, "two")
		time.Sleep(time.Millisecond)
		if v, _, _ := c.Get(t.Context(), "d"); v != "one" {
			t.Errorf("got %q from memory", v)
		}
		if v, _, err := c.Latest(t.Context(), "d"); v != "two" || err != nil {
			t.Errorf("the latest is %q, %v", v, err)
		}
		if v, _, _ := c.Get(t.Context(), "d"); v != "two" {
			t.Errorf("got %q from memory after the latest was read", v)
		}
		if v, version, err := c.Latest(t.Context(), "nothing"); v != "" || version != 0 || err != nil {
			t.Errorf("of a document that does not exist: %q, %d, %v", v, version, err)
		}
		time.Sleep(time.Millisecond)
		db.Fail(fault.New(fault.Unavailable, "down"))
		if v, _, err := c.Latest(t.Context(), "d"); !fault.Is(err, fault.Unavailable) {
			t.Errorf("without the store: %q, %v", v, err)
		}
	})
}

// TestTheOnlyWriterReadsOnce checks that the only process that uses a store immediately uses its writes, and does not read a
// document again until it writes.
func TestTheOnlyWriterReadsOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := settingstest.New()
		c := cache(db)
		for _, text := range []string{"one", "two"} {
			write(t, db, text)
			c.Written()
			db.Reads("head")
			for range 3 {
				for _, get := range []func(context.Context, string) (string, int64, error){c.Get, c.Latest} {
					if v, _, err := get(t.Context(), "d"); v != text || err != nil {
						t.Errorf("got %q, %v, want %q", v, err, text)
					}
				}
				time.Sleep(2 * MaxStale)
			}
			if n := db.Reads("head"); n != 1 {
				t.Errorf("%d reads, want 1", n)
			}
		}
	})
}

// late answers the first read only when its gate is closed, with the items from before.
type late struct {
	*settingstest.Store
	once sync.Once
	gate chan struct{}
}

func (s *late) Get(ctx context.Context, keys ...store.Key) ([]*store.Item, error) {
	items, err := s.Store.Get(ctx, keys...)
	s.once.Do(func() { <-s.gate })
	return items, err
}

// A read that began before a write does not hide it.
func TestWrittenDuringARead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := &late{Store: settingstest.New(), gate: make(chan struct{})}
		c := cache(db)
		write(t, db.Store, "one")
		done := make(chan struct{})
		go func() {
			defer close(done)
			if _, _, err := c.Latest(t.Context(), "d"); err != nil {
				t.Error(err)
			}
		}()
		synctest.Wait()
		write(t, db.Store, "two")
		c.Written()
		close(db.gate)
		<-done
		if v, _, err := c.Get(t.Context(), "d"); v != "two" || err != nil {
			t.Errorf("got %q, %v", v, err)
		}
	})
}
