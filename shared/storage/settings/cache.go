package settings

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/platform/refresh"
	"github.com/mcp-events/mcpevents/shared/storage/store"
)

// MaxAge is how old a document of a [Cache] may be. After that time, every process uses the written documents.
const MaxAge = 5 * time.Second

const (
	// RecheckAfter is when one caller looks for a new version. The others get the document from memory until MaxAge.
	RecheckAfter = 2 * time.Second
	// retryAfter is the pause after a failed read.
	retryAfter = time.Second
	// MaxStale is how long the last document is used while the store does not answer.
	MaxStale = 5 * time.Minute
	// maxHeld bounds the documents in memory, because callers choose the names of workspaces.
	maxHeld = 1024
)

// Cache serves parsed documents that are at most [MaxAge] old while the store answers. It polls the version of a document,
// which is one small item, and reads the text only if the version has changed. The only process over a store calls
// [Cache.Written] instead. Make it with [NewCache].
type Cache[T any] struct {
	db    store.DB
	kind  string // prefix of the documents' names
	parse func(src []byte) (T, error)
	now   func() time.Time
	log   *slog.Logger

	mu       sync.Mutex
	held     map[string]*refresh.Value[parsed[T]]
	notified bool // of all writes
}

// parsed is a parsed document. Version 0 is a document that does not exist.
type parsed[T any] struct {
	value   T
	version int64
}

// NewCache makes a cache of the documents whose names begin with kind. Callers of the cache leave kind out. The function
// parse turns a text into a value. The clock is time.Now when nil, the log slog.Default.
func NewCache[T any](db store.DB, kind string, parse func([]byte) (T, error), now func() time.Time, log *slog.Logger) *Cache[T] {
	if now == nil {
		now = time.Now
	}
	if log == nil {
		log = slog.Default()
	}
	return &Cache[T]{db: db, kind: kind, parse: parse, now: now, log: log, held: map[string]*refresh.Value[parsed[T]]{}}
}

// Written forgets all documents. A process that calls it must be the only one that writes, and call it after each write. From
// then on the cache reads a document once and keeps it until the next call.
func (c *Cache[T]) Written() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.notified = true
	c.held = map[string]*refresh.Value[parsed[T]]{} // a running read answers only the callers that wait for it
}

// Get returns a document and its version; the zero value and 0 if it does not exist.
func (c *Cache[T]) Get(ctx context.Context, name string) (T, int64, error) {
	held, _ := c.hold(name)
	d, err := held.Get(ctx)
	return d.value, d.version, err
}

// Latest returns a document for decisions that must not use an old one. Unlike [Cache.Get] it always reads the version from the
// store, and it fails with fault.Unavailable while the store does not answer.
func (c *Cache[T]) Latest(ctx context.Context, name string) (T, int64, error) {
	held, notified := c.hold(name)
	if notified {
		return c.Get(ctx, name)
	}
	d, err := held.Within(ctx, 0)
	if err != nil {
		err = &fault.Error{Kind: fault.Unavailable, Message: c.kind + name + " cannot be read at the moment", Err: err}
	}
	return d.value, d.version, err
}

// Read returns what [Cache.Latest] returns if latest is set, and otherwise what [Cache.Get] returns.
func (c *Cache[T]) Read(ctx context.Context, name string, latest bool) (T, int64, error) {
	if latest {
		return c.Latest(ctx, name)
	}
	return c.Get(ctx, name)
}

// hold returns the document's place in memory, and whether the cache is notified of all writes.
func (c *Cache[T]) hold(name string) (held *refresh.Value[parsed[T]], notified bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if held = c.held[name]; held == nil {
		held = c.load(name)
	}
	return held, c.notified
}

// load makes a place in memory for a document. The caller holds the lock.
func (c *Cache[T]) load(name string) (held *refresh.Value[parsed[T]]) {
	if len(c.held) >= maxHeld {
		c.evict()
	}
	document := c.kind + name
	o := refresh.Options{
		Name: document, Fresh: RecheckAfter, Shared: MaxAge, Stale: MaxStale, Backoff: retryAfter, Timeout: MaxAge, Now: c.now,
	}
	if c.notified {
		o.Fresh = refresh.Forever
	}
	held = refresh.New(o, func(ctx context.Context, old parsed[T]) (parsed[T], error) {
		d, err := c.read(ctx, document, old)
		if _, loaded := held.Peek(); err != nil && !loaded.IsZero() {
			c.log.WarnContext(ctx, "document not read", "document", document, "age", c.now().Sub(loaded), "error", err)
		}
		return d, err
	})
	c.held[name] = held
	return held
}

// evict removes a document from memory, preferably one that does not exist.
func (c *Cache[T]) evict() {
	victim := ""
	for name, held := range c.held {
		victim = name
		if d, _ := held.Peek(); d.version == 0 {
			break
		}
	}
	delete(c.held, victim)
}

// read returns the document, which is the old one if its version has not changed.
func (c *Cache[T]) read(ctx context.Context, name string, old parsed[T]) (d parsed[T], err error) {
	version, err := Version(ctx, c.db, name)
	if err != nil || version == old.version {
		return old, err
	}
	stored, err := Read(ctx, c.db, name)
	if err != nil || stored.Version == 0 {
		return d, err
	}
	value, err := c.parse(stored.Text)
	if err != nil {
		// The text was checked before it was stored, so another version of this program wrote it. A caller cannot fix that.
		return d, &fault.Error{Kind: fault.Internal, Message: "the stored " + name + " is not valid for this version", Err: err}
	}
	return parsed[T]{value, stored.Version}, nil
}
