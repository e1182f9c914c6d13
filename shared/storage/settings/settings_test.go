package settings_test

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
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
	"github.com/mcp-events/mcpevents/test/expect"
)

func TestWriteAndReadInSQLite(t *testing.T) {
	db := expect.Value(sqlite.Open(sqlite.Memory, sqlite.Options{}))(t)
	defer func() { _ = db.Close() }()
	testWriteAndRead(t, db)
}

func TestWriteAndRead(t *testing.T) {
	db := settingstest.New()
	testWriteAndRead(t, db)
	db.Fail(fault.New(fault.Unavailable, "down"))
	expect.Fault(t, "the call", expect.ErrOf(Read(t.Context(), db, "d")), fault.Unavailable)
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
		e := Edit{Old: expect.Value(Read(ctx, db, "d"))(t), Text: []byte(step.text)}
		if err := Write(ctx, db, e); e.Version() != step.version || e.Changes() != step.changes || err != nil {
			t.Errorf("step %d: got %d, %v, %v; want %d, %v", i, e.Version(), e.Changes(), err, step.version, step.changes)
		}
		got, err := Read(ctx, db, "d")
		if string(got.Text) != step.text || got.Version != step.version || err != nil {
			t.Errorf("step %d: read %q, %d, %v; want %q, %d", i, got.Text, got.Version, err, step.text, step.version)
		}
		expect.Equal(t, fmt.Sprintf("the version after step %d", i), expect.Value(Version(ctx, db, "d"))(t), step.version)
	}
	expect.Equal(t, "the version of another document", expect.Value(Version(ctx, db, "other"))(t), 0)
}

// noise returns a text that compresses to about three quarters of its size.
func noise(size int) []byte {
	text := make([]byte, size)
	const letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
	rng := rand.New(rand.NewPCG(1, 2))
	for i := range text {
		text[i] = letters[rng.IntN(len(letters))]
	}
	return text
}

func TestWriteManyLargeTexts(t *testing.T) {
	db := expect.Value(sqlite.Open(sqlite.Memory, sqlite.Options{}))(t)
	defer func() { _ = db.Close() }()
	text := noise(480 << 10)
	var edits []Edit
	for i := range 2 * store.MaxWrite / PackedSize(text) {
		edits = append(edits, Edit{Old: Stored{Name: fmt.Sprint(i)}, Text: text})
	}
	expect.OK(t, Write(t.Context(), db, edits...))
	for _, e := range edits {
		expect.Equal(t, "the version of "+e.Old.Name, expect.Value(Version(t.Context(), db, e.Old.Name))(t), 1)
	}
}

func TestWriteRefusesATextThatDoesNotFit(t *testing.T) {
	for name, src := range map[string][]byte{"compressed": noise(800 << 10), "uncompressed": make([]byte, MaxText+1)} {
		expect.Fault(t, name, Write(t.Context(), settingstest.New(), Edit{Old: Stored{Name: "d"}, Text: src}), fault.TooLarge)
	}
}

// A change is checked against the document that it replaces. So another one must not take its place between the check and the
// write.
func TestGivenADocumentThatAnotherWriterChangedAnEditIsRefused(t *testing.T) {
	db := settingstest.New()
	old := expect.Value(Read(t.Context(), db, "d"))(t)
	write(t, db, "rival")
	expect.Fault(t, "the write", Write(t.Context(), db, Edit{Old: old, Text: []byte("mine")}), fault.Conflict)
	expect.Equal(t, "the text", string(expect.Value(Read(t.Context(), db, "d"))(t).Text), "rival")
}

func cache(db store.DB) *Cache[string] {
	return NewCache(db, "", func(src []byte) (string, error) {
		if strings.HasPrefix(string(src), "bad") {
			return "", fault.New(fault.Invalid, "bad")
		}
		return string(src), nil
	}, nil, slog.New(slog.DiscardHandler))
}

// wants checks the text of the document d that a method of a cache returns.
func wants(t *testing.T, get func(context.Context, string) (string, int64, error), text string) {
	t.Helper()
	got, _, err := get(t.Context(), "d")
	expect.OK(t, err)
	expect.Equal(t, "the text", got, text)
}

func write(t *testing.T, db store.DB, text string) {
	t.Helper()
	old := expect.Value(Read(t.Context(), db, "d"))(t)
	expect.OK(t, Write(t.Context(), db, Edit{Old: old, Text: []byte(text)}))
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
		expect.Equal(t, "reads of the version", db.Reads("head"), 1)
		expect.Equal(t, "reads of the text", db.Reads("text"), 0)

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
		expect.Equal(t, "reads of the store right after a failure", db.Reads("head"), 0)
		time.Sleep(MaxStale)
		_, _, err := c.Get(t.Context(), "d")
		expect.Fault(t, "the text long after the store was lost", err, fault.Unavailable)
		db.Fail(nil)
		wants("three", 4)
	})
}

func TestCacheReturnsAnErrorForAnInvalidText(t *testing.T) {
	db := settingstest.New()
	write(t, db, "bad")
	_, _, err := cache(db).Get(t.Context(), "d")
	expect.Fault(t, "the text", err, fault.Internal)
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
	expect.AtMost(t, "the kept documents", c.Len(), 1024)
	db.Reads("text")
	_, _, _ = c.Get(t.Context(), "d")
	expect.Equal(t, "reads of a document that exists", db.Reads("text"), 0)
}

func TestLatestIsNotFromMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := settingstest.New()
		write(t, db, "one")
		c := cache(db)
		wants(t, c.Get, "one")
		write(t, db, "two")
		time.Sleep(time.Millisecond)
		wants(t, c.Get, "one")
		wants(t, c.Latest, "two")
		wants(t, c.Get, "two")
		if v, version, err := c.Latest(t.Context(), "nothing"); v != "" || version != 0 || err != nil {
			t.Errorf("of a document that does not exist: %q, %d, %v", v, version, err)
		}
		time.Sleep(time.Millisecond)
		db.Fail(fault.New(fault.Unavailable, "down"))
		_, _, err := c.Latest(t.Context(), "d")
		expect.Fault(t, "the latest without the store", err, fault.Unavailable)
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
			c.Invalidate()
			db.Reads("head")
			for range 3 {
				for _, get := range []func(context.Context, string) (string, int64, error){c.Get, c.Latest} {
					wants(t, get, text)
				}
				time.Sleep(2 * MaxStale)
			}
			expect.Equal(t, "reads", db.Reads("head"), 1)
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
		var reading sync.WaitGroup
		reading.Go(func() { wants(t, c.Latest, "two") }) // it reads once more
		synctest.Wait()
		write(t, db.Store, "two")
		c.Invalidate()
		close(db.gate)
		reading.Wait()
		wants(t, c.Get, "two")
	})
}

// EVS-14, GWN-01: a change of a document is announced when every function uses the document, once for each workspace. A
// change that could not be announced stays.
func TestAnnounce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := expect.Value(sqlite.Open(sqlite.Memory, sqlite.Options{}))(t)
		defer func() { _ = db.Close() }()
		version := int64(0)
		write := func(text string, ops func(version int64) []store.Op) {
			old := Stored{Name: "d", Version: version}
			version++
			if err := Write(context.Background(), db, Edit{Old: old, Text: []byte(text), Also: ops(version)}); err != nil {
				t.Error(err)
			}
		}
		// The second one replaces the first one's change of that catalog, and no change of backends.
		write("one", func(v int64) []store.Op {
			return slices.Concat(Unannounced(Catalog, "a", []string{"a"}, v), UnannouncedOf(Backends, []string{"a", "b"}, v))
		})
		write("two", func(v int64) []store.Op {
			return slices.Concat(
				Unannounced(Catalog, "a", []string{"a"}, v), UnannouncedOf(Backends, []string{"c"}, v), UnannouncedOf(Backends, nil, v),
			)
		})
		began := time.Now()
		// A version that is stored while the announcer waits is announced by its next round, in place of the one before.
		time.AfterFunc(MaxAge/2, func() {
			write("three", func(v int64) []store.Op { return Unannounced(Catalog, "a", []string{"a"}, v) })
		})
		var announced []string
		down := true
		announce := func(_ context.Context, c Change) error {
			if c.Workspace == "b" && down {
				down = false
				return fault.New(fault.Unavailable, "down")
			}
			announced = append(announced, fmt.Sprint(c.Kind, " ", c.Workspace, " ", c.Version))
			return nil
		}
		for _, round := range []struct {
			took  time.Duration
			fails bool
			want  []string
		}{
			{MaxAge, true, []string{"backends a 1", "backends c 2"}}, // AWS-16: those behind the failed one had their turn
			{2 * MaxAge, false, []string{"backends a 1", "backends b 1", "catalog a 3"}},
			{2 * MaxAge, false, nil},
		} {
			err := Announce(t.Context(), db, MaxAge, announce)
			slices.Sort(announced)
			if took := time.Since(began); took != round.took || (err != nil) != round.fails || !slices.Equal(announced, round.want) {
				t.Errorf("after %s: announced %q, %v; want %q after %s", took, announced, err, round.want, round.took)
			}
			announced = announced[:0]
		}
	})
}

// unwritten is a store that keeps the operations of the last write instead of writing them.
type unwritten struct {
	store.DB
	ops []store.Op
}

func (u *unwritten) Write(_ context.Context, ops ...store.Op) error {
	u.ops = ops
	return nil
}

// EVS-14: a change is announced 5 s after the announcer found it, when every process uses it. The clocks of the machine that stored the
// change and of the processes that read it do not matter.
func TestAnnounceWithWrongClocks(t *testing.T) {
	const wrong = 10 * time.Second
	for name, clock := range map[string]struct{ operator, announcer time.Duration }{
		"equal":                      {},
		"the operator's is behind":   {announcer: wrong},
		"the operator's is ahead":    {operator: wrong},
		"the operator's is days off": {operator: 48 * time.Hour},
	} {
		edit := unwritten{}
		// Each bubble has a clock of its own, and all of them begin at the same time.
		synctest.Test(t, func(t *testing.T) {
			time.Sleep(clock.operator)
			old := Stored{Name: "d", Version: 1}
			expect.OK(t, Write(t.Context(), &edit, Edit{Old: old, Text: []byte("two"), Also: Unannounced(Catalog, "a", []string{"a"}, 2)}))
		})
		synctest.Test(t, func(t *testing.T) {
			time.Sleep(clock.announcer)
			db := expect.Value(sqlite.Open(sqlite.Memory, sqlite.Options{}))(t)
			defer func() { _ = db.Close() }()
			expect.OK(t, Write(t.Context(), db, Edit{Old: Stored{Name: "d"}, Text: []byte("one")}))
			processes := map[time.Duration]*Cache[string]{}
			for _, off := range []time.Duration{-wrong, 0, wrong} {
				now := func() time.Time { return time.Now().Add(off) }
				processes[off] = NewCache(db, "", func(text []byte) (string, error) { return string(text), nil }, now, nil)
			}
			check := func(when, want string) {
				for off, c := range processes {
					if got, _, err := c.Get(t.Context(), "d"); got != want || err != nil {
						t.Errorf("%s: %s, a process whose clock is off by %s uses %q, %v; want %q", name, when, off, got, err, want)
					}
				}
			}
			check("before the change", "one")
			expect.OK(t, db.Write(t.Context(), edit.ops...))
			began, announced := time.Now(), 0
			check("immediately after it", "one") // so that the announcement must wait
			expect.OK(t, Announce(t.Context(), db, MaxAge, func(context.Context, Change) error {
				announced++
				check("at the announcement", "two")
				return nil
			}))
			expect.Equal(t, name+": the announcements", announced, 1)
			expect.Equal(t, name+": the time", time.Since(began), MaxAge)
		})
	}
}
