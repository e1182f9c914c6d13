package catalog

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

	"mcpevents/shared/fault"
	"mcpevents/shared/store"
)

// memory is the part of a store that the catalog uses, with switches for what a
// real one cannot be made to do: fail, and wait.
type memory struct {
	store.DB // nil: everything else panics

	mu    sync.Mutex
	items map[store.Key]store.Item
	reads map[string]int // by sort key
	fail  error
	gate  chan struct{} // reads wait for it when set
}

func newMemory() *memory {
	return &memory{items: map[store.Key]store.Item{}, reads: map[string]int{}}
}

func (m *memory) Get(ctx context.Context, keys ...store.Key) ([]*store.Item, error) {
	m.mu.Lock()
	gate := m.gate
	m.mu.Unlock()
	if gate != nil {
		select {
		case <-gate:
		case <-ctx.Done():
			return nil, fault.Wrap(fault.Unavailable, ctx.Err(), "get")
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	out := make([]*store.Item, len(keys))
	for i, k := range keys {
		m.reads[k.Sort]++
		if m.fail != nil {
			return nil, m.fail
		}
		if it, ok := m.items[k]; ok {
			out[i] = &it
		}
	}
	return out, nil
}

func (m *memory) Write(_ context.Context, ops ...store.Op) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, op := range ops {
		old, ok := m.items[op.Item.Key]
		switch kind, v := op.Cond.Unpack(); kind {
		case "absent":
			if ok {
				return store.ErrConflict
			}
		case "version":
			if !ok || old.Version != v {
				return store.ErrConflict
			}
		}
	}
	for _, op := range ops {
		m.items[op.Item.Key] = op.Item
	}
	return nil
}

func (m *memory) set(change func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	change()
}

func one(name string) []byte {
	return fmt.Appendf(nil, "events:\n  - {name: %s, uri: 'event://%s'}\n", name, name)
}

func TestApplyAndLoad(t *testing.T) {
	db := newMemory()
	ctx := t.Context()
	if _, err := Load(ctx, db, "default"); !fault.Is(err, fault.NotFound) {
		t.Errorf("got %v before anything was applied", err)
	}
	for i, step := range []struct {
		src     []byte
		version int64
		changed bool
		changes int
	}{
		{one("a"), 1, true, 1},
		{one("a"), 1, false, 0},
		{one("b"), 2, true, 2},
	} {
		got, err := Apply(ctx, db, "default", step.src)
		if err != nil || got.Version != step.version || got.Changed != step.changed || len(got.Changes) != step.changes {
			t.Errorf("step %d: got %+v, %v", i, got, err)
		}
	}
	c, err := Load(ctx, db, "default")
	if err != nil || c.ByName("b") == nil || c.ByName("a") != nil {
		t.Errorf("got %v, %v", c, err)
	}
	if _, err := Load(ctx, db, "other"); !fault.Is(err, fault.NotFound) {
		t.Errorf("another workspace: got %v", err)
	}
	if _, err := Apply(ctx, db, "default", []byte("events: 1")); !fault.Is(err, fault.Invalid) {
		t.Errorf("a faulty file: got %v", err)
	}
	noise := make([]byte, 800<<10) // compresses to no less than three quarters
	const letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
	rng := rand.New(rand.NewPCG(1, 2))
	for i := range noise {
		noise[i] = letters[rng.IntN(len(letters))]
	}
	big := append(one("a"), "# "+string(noise)...)
	if _, err := Apply(ctx, db, "default", big); !fault.Is(err, fault.TooLarge) {
		t.Errorf("a file that does not fit: got %v", err)
	}
}

// racing changes the document between the read and the write of an Apply.
type racing struct {
	*memory
	once sync.Once
}

func (r *racing) Write(ctx context.Context, ops ...store.Op) error {
	r.once.Do(func() { _, _ = Apply(ctx, r.memory, "default", one("rival")) })
	return r.memory.Write(ctx, ops...)
}

func TestApplyRefusesAConcurrentChange(t *testing.T) {
	db := &racing{memory: newMemory()}
	if _, err := Apply(t.Context(), db, "default", one("mine")); !fault.Is(err, fault.Conflict) {
		t.Errorf("got %v, want a conflict", err)
	}
	if c, err := Load(t.Context(), db, "default"); err != nil || c.ByName("rival") == nil {
		t.Errorf("got %v, %v", c, err)
	}
}

func TestStored(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := newMemory()
		ctx := t.Context()
		src := NewStored(db, nil, slog.New(slog.DiscardHandler))
		has := func(name string) bool {
			t.Helper()
			c, err := src.Catalog(ctx, "default")
			return err == nil && c.ByName(name) != nil
		}
		if _, err := src.Catalog(ctx, "default"); !fault.Is(err, fault.NotFound) {
			t.Errorf("got %v without a catalog", err)
		}
		_, _ = Apply(ctx, db, "default", one("a"))
		time.Sleep(MaxAge)
		if !has("a") {
			t.Error("the first catalog is not seen after MaxAge")
		}
		db.set(func() { clear(db.reads) })
		for range 100 {
			has("a")
		}
		time.Sleep(recheckAfter)
		for range 100 {
			has("a")
		}
		if db.reads["head"] != 1 || db.reads["text"] != 0 {
			t.Errorf("got reads %v, want one of the head", db.reads)
		}
		_, _ = Apply(ctx, db, "default", one("b"))
		time.Sleep(MaxAge)
		if !has("b") {
			t.Error("EVS-14: the new catalog is not seen after MaxAge")
		}
		db.set(func() { db.fail = fault.New(fault.Unavailable, "down") })
		time.Sleep(time.Minute)
		if !has("b") {
			t.Error("the last catalog is not served while the store is down")
		}
		reads := db.reads["head"]
		has("b")
		if db.reads["head"] != reads {
			t.Error("the store was asked again at once after a failure")
		}
		time.Sleep(maxStale)
		if _, err := src.Catalog(ctx, "default"); !fault.Is(err, fault.Unavailable) {
			t.Errorf("got %v after %v without the store", err, maxStale)
		}
		db.set(func() { db.fail = nil })
		if !has("b") {
			t.Error("the catalog is not back with the store")
		}
	})
}

func TestStoredServesOthersWhileOneReads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := newMemory()
		_, _ = Apply(t.Context(), db, "default", one("a"))
		src := NewStored(db, nil, slog.New(slog.DiscardHandler))
		if _, err := src.Catalog(t.Context(), "default"); err != nil {
			t.Fatal(err)
		}
		gate := make(chan struct{})
		db.set(func() { db.gate = gate })
		time.Sleep(recheckAfter)
		var wg sync.WaitGroup
		defer wg.Wait()
		wg.Go(func() { _, _ = src.Catalog(t.Context(), "default") }) // reads, and waits at the gate
		synctest.Wait()
		if c, err := src.Catalog(t.Context(), "default"); err != nil || c.ByName("a") == nil {
			t.Errorf("got %v, %v while another caller reads", c, err)
		}
		time.Sleep(MaxAge)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := src.Catalog(ctx, "default"); !fault.Is(err, fault.Unavailable) {
			t.Errorf("got %v beyond MaxAge, want to wait for the reader", err)
		}
		close(gate)
	})
}

func TestStoredIsBounded(t *testing.T) {
	db := newMemory()
	_, _ = Apply(t.Context(), db, "default", one("a"))
	src := NewStored(db, nil, slog.New(slog.DiscardHandler))
	_, _ = src.Catalog(t.Context(), "default")
	for i := range 3 * maxHeld {
		if _, err := src.Catalog(t.Context(), fmt.Sprint("w", i)); !fault.Is(err, fault.NotFound) {
			t.Fatal(err)
		}
	}
	if len(src.held) > maxHeld {
		t.Errorf("%d workspaces are held", len(src.held))
	}
}

func TestStatic(t *testing.T) {
	s := NewStatic(parse(t, string(one("a"))), "default")
	if _, err := s.Catalog(t.Context(), "other"); !fault.Is(err, fault.NotFound) {
		t.Errorf("got %v", err)
	}
	s.Replace(parse(t, string(one("b"))))
	if c, err := s.Catalog(t.Context(), "default"); err != nil || c.ByName("b") == nil {
		t.Errorf("got %v, %v", c, err)
	}
	if _, err := NewStatic(parse(t, sample)).Catalog(t.Context(), "any"); err != nil {
		t.Error(err)
	}
}

func TestDiff(t *testing.T) {
	schema := func(members ...string) string { return entry(append([]string{"uri: event://a"}, members...)...) }
	base := "payloadSchema: {type: object, required: [a], properties: {a: {enum: [x, y]}}}"
	for name, tc := range map[string]struct{ before, after, want string }{
		"nothing":              {sample, sample, ""},
		"new":                  {"events: []\n", schema(), "+ is new"},
		"removed":              {schema(), "events: []\n", "! is removed"},
		"another URI":          {schema(), entry("uri: event://b"), "! its URI changes from event://a to event://b"},
		"words":                {schema(), schema("title: x"), "+ its title or description changes"},
		"webhook type":         {schema(), schema("webhookType: x"), "! its webhook type changes from a.b to x"},
		"a mode less":          {schema(), schema("delivery: [push, poll]"), "! the delivery mode webhook is removed"},
		"a mode more":          {schema("delivery: [push, poll]"), schema(), "+ the delivery mode webhook is added"},
		"a filter more":        {schema(), schema("filters: {s: /s}"), "+ the filter s is added"},
		"a filter moved":       {schema("filters: {s: /s}"), schema("filters: {s: /t}"), "! the filter s changes from /s to /t"},
		"a filter less":        {schema("filters: {s: /s}"), schema(), "! the filter s is removed"},
		"more redaction":       {schema(), schema("redact: [/s]"), "! the redacted member /s is added"},
		"a scope more":         {schema(), schema("access: {scopes: [s]}"), "! access needs the scope s"},
		"a scope less":         {schema("access: {scopes: [s]}"), schema(), "+ access does not need the scope s any more"},
		"a claim":              {entry("uriTemplate: 'event://{a}'"), entry("uriTemplate: 'event://{a}'", "access: {claims: {a: org}}"), "! access ties {a} to the claim org"},
		"a claim less":         {entry("uriTemplate: 'event://{a}'", "access: {claims: {a: org}}"), entry("uriTemplate: 'event://{a}'"), "+ access does not tie {a} to the claim org any more"},
		"a schema":             {schema(), schema(base), "! a payload schema is added"},
		"no schema":            {schema(base), schema(), "! the payload schema is removed"},
		"an optional property": {schema(base), schema(strings.Replace(base, "]}}", "]}, b: {type: string}}", 1)), "+ the payload schema gains optional properties or annotations"},
		"an annotation":        {schema(base), schema(strings.Replace(base, "enum:", "title: A, enum:", 1)), "+ the payload schema gains optional properties or annotations"},
		"a required property":  {schema(base), schema(strings.Replace(base, "[a]", "[a, b]", 1)), "! the payload schema changes at /required"},
		"a value more":         {schema(base), schema(strings.Replace(base, "[x, y]", "[x, y, z]", 1)), "! the payload schema changes at /properties/a/enum"},
		"a property less":      {schema(base), schema("payloadSchema: {type: object, required: [a], properties: {}}"), "! the payload schema changes at /properties/a"},
		"closed":               {schema(base), schema(strings.Replace(base, "type: object", "type: object, additionalProperties: false", 1)), "! the payload schema changes at /additionalProperties"},
	} {
		t.Run(name, func(t *testing.T) {
			var got []string
			for _, c := range Diff(parse(t, tc.before), parse(t, tc.after)) {
				mark := "+ "
				if c.Breaking {
					mark = "! "
				}
				got = append(got, mark+c.What)
			}
			if s := strings.Join(got, "; "); s != tc.want {
				t.Errorf("got %q, want %q", s, tc.want)
			}
		})
	}
}
