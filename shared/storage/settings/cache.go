package settings

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/storage/store"
)

// MaxAge is how old a document of a [Cache] may be: what [Write] stored is in use
// everywhere after that time.
const MaxAge = 5 * time.Second

const (
	// RecheckAfter is when one caller looks for a new version, while the others
	// go on with what is there until MaxAge.
	RecheckAfter = 2 * time.Second
	// RetryAfter spaces attempts while the store does not answer.
	RetryAfter = time.Second
	// readTime bounds a read.
	readTime = MaxAge
	// MaxStale is how long the last document is served without the store.
	MaxStale = 5 * time.Minute
	// maxHeld bounds the documents in memory; workspaces' names come from callers.
	maxHeld = 1024
)

// Cache serves parsed documents, at most [MaxAge] old as long as the store
// answers. There is no background work: on Lambda a process sleeps between calls,
// and would wake up with what it knew. Instead the first caller after two seconds
// begins to read the version (one small item), and the text only if that has moved;
// the others are served meanwhile. A read goes on when who began it goes away. The only
// process over a store tells the cache of its writes instead, by [Cache.Written]. Make it with [NewCache].
type Cache[T any] struct {
	db    store.DB
	kind  string // what the documents' names begin with
	parse func(src []byte) (T, error)
	now   func() time.Time
	log   *slog.Logger

	mu       sync.Mutex
	held     map[string]*held[T]
	notified bool // of all writes
}

// held is a document in memory. Its fields are guarded by Cache.mu.
type held[T any] struct {
	value   T
	version int64     // 0: there is no such document
	checked time.Time // start of the read that found it current; zero: never read
	retry   time.Time // not before, after a failed read
	reading *reading  // nil while nobody reads
}

// reading is a read under way, which all that need it wait for.
type reading struct {
	began time.Time
	done  chan struct{}
	err   error // set when done is closed
}

// NewCache makes a cache of the documents whose names begin with kind, which is left out where they are
// asked for. Parse turns texts into values. The clock is time.Now when nil, the log slog.Default.
func NewCache[T any](db store.DB, kind string, parse func([]byte) (T, error), now func() time.Time, log *slog.Logger) *Cache[T] {
	if now == nil {
		now = time.Now
	}
	if log == nil {
		log = slog.Default()
	}
	return &Cache[T]{db: db, kind: kind, parse: parse, now: now, log: log, held: map[string]*held[T]{}}
}

// Written forgets all documents, since some were written. A process that calls it is the only one that writes, and
// calls it after each write: from now on a document is read once and used until the next call.
func (c *Cache[T]) Written() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.notified = true
	c.held = map[string]*held[T]{} // a read under way answers those who wait for it, and none later
}

// Get returns a document and its version; the zero value and 0 when it does not exist.
func (c *Cache[T]) Get(ctx context.Context, name string) (T, int64, error) {
	return c.get(ctx, name, func(h *held[T]) bool {
		now := c.now()
		age := now.Sub(h.checked)
		return age < RecheckAfter || h.reading != nil && age < MaxAge || now.Before(h.retry) && age < MaxStale
	})
}

// Latest is [Cache.Get] for what must not be decided by an old document: the version
// is read after Latest was called. While the store does not answer it fails with
// fault.Unavailable.
func (c *Cache[T]) Latest(ctx context.Context, name string) (T, int64, error) {
	called := c.now()
	value, version, err := c.get(ctx, name, func(h *held[T]) bool { return !h.checked.Before(called) })
	if err != nil {
		return value, version, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	switch h := c.holder(name); {
	case c.notified: // as soon as it was called
		return value, version, nil
	case h.checked.Before(called): // it is what was left of an earlier time
		var zero T
		return zero, 0, fault.New(fault.Unavailable, "%s%s cannot be read at the moment", c.kind, name)
	default:
		return h.value, h.version, nil
	}
}

func (c *Cache[T]) get(ctx context.Context, name string, usable func(h *held[T]) bool) (T, int64, error) {
	var called time.Time
	for {
		c.mu.Lock()
		h := c.holder(name)
		if !h.checked.IsZero() && (c.notified || usable(h)) { // notified of all writes it holds no old one
			defer c.mu.Unlock()
			return h.value, h.version, nil
		}
		now := c.now()
		if called.IsZero() {
			called = now
		}
		r := h.reading
		if r == nil {
			r = &reading{began: now, done: make(chan struct{})}
			h.reading = r
			go c.read(context.WithoutCancel(ctx), name, h, h.version)
		}
		c.mu.Unlock()
		select {
		case <-r.done:
			// A read that began earlier may have failed because the process was frozen during it, maybe for hours.
			if !r.began.Before(called) {
				return c.outcome(h, r)
			}
		case <-ctx.Done():
			var zero T
			return zero, 0, fault.Wrap(fault.Unavailable, ctx.Err(), "wait for %s%s", c.kind, name)
		}
	}
}

// outcome returns the result of a read. After a failed read it is the last document, unless that is too old by now.
func (c *Cache[T]) outcome(h *held[T], r *reading) (T, int64, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if r.err != nil && (h.checked.IsZero() || c.now().Sub(h.checked) >= MaxStale) {
		var zero T
		return zero, 0, r.err
	}
	return h.value, h.version, nil
}

// holder finds or makes the document's place. The caller holds the lock.
func (c *Cache[T]) holder(name string) *held[T] {
	h := c.held[name]
	if h == nil {
		if len(c.held) >= maxHeld {
			c.evict()
		}
		h = &held[T]{}
		c.held[name] = h
	}
	return h
}

// evict makes room, first of documents that do not exist.
func (c *Cache[T]) evict() {
	victim := ""
	for name, h := range c.held {
		if h.reading != nil {
			continue
		}
		victim = name
		if h.version == 0 {
			break
		}
	}
	delete(c.held, victim)
}

// read looks for another version than the given one, and publishes what it found.
func (c *Cache[T]) read(ctx context.Context, name string, h *held[T], version int64) {
	ctx, cancel := context.WithTimeout(ctx, readTime)
	defer cancel()
	document := c.kind + name
	value, next, err := c.fetch(ctx, document, version)

	c.mu.Lock()
	defer c.mu.Unlock()
	r := h.reading
	h.reading, r.err = nil, err
	close(r.done)
	switch {
	case err == nil:
		h.checked, h.retry = r.began, time.Time{}
		if next != version {
			h.value, h.version = value, next
		}
	case !h.checked.IsZero():
		h.retry = c.now().Add(RetryAfter)
		c.log.WarnContext(ctx, "document not read", "document", document,
			"age", r.began.Sub(h.checked), "error", err)
	}
}

// fetch reads the document if there is another version than the given one.
func (c *Cache[T]) fetch(ctx context.Context, name string, version int64) (value T, next int64, err error) {
	next, err = Version(ctx, c.db, name)
	if err != nil || next == version {
		return value, next, err
	}
	src, next, err := Read(ctx, c.db, name)
	if err != nil || next == 0 {
		return value, next, err
	}
	if value, err = c.parse(src); err != nil {
		// What is stored was checked: only another version of this program can
		// have written it, so it is nothing that a caller could mend.
		return value, 0, &fault.Error{Kind: fault.Internal, Message: "the stored " + name + " is not valid for this version", Err: err}
	}
	return value, next, nil
}
