// Package settings keeps an operator's files (catalogs and configuration) in the store, so that all processes of a deployment use the
// same files.
//
// A changed file takes these steps, on AWS and on a stand-alone server:
//
//	parse     catalog.ParseFile, config.ParseFile
//	check     apply.Target, with the checks of catalog, config and the packages that own their sections
//	write     [Write], in one transaction unless there are many files
//	refresh   [Cache], behind catalog.Stored and config.Stored
//	announce  [Announce], to clients
//
// A stored file is called a document. It is two items: a small head with the version, which readers poll, and the compressed text, which
// they read when the version has changed.
package settings

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"errors"
	"io"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/platform/periodic"
	"github.com/mcp-events/mcpevents/shared/platform/refresh"
	"github.com/mcp-events/mcpevents/shared/storage/store"
)

// MaxText limits the size of a document's text in bytes, before compression.
const MaxText = 4 << 20

func headKey(name string) store.Key {
	return store.Key{Table: store.Settings, Partition: name, Sort: "head"}
}

func textKey(name string) store.Key {
	return store.Key{Table: store.Settings, Partition: name, Sort: "text"}
}

// Version reads the version of a document. The first version is 1. If the document does not exist, the result is 0.
func Version(ctx context.Context, db store.DB, name string) (int64, error) {
	items, err := db.Get(ctx, headKey(name))
	if err != nil {
		return 0, fault.Wrap(fault.Internal, err, "read the version of %s", name)
	}
	if items[0] == nil {
		return 0, nil
	}
	return items[0].Version, nil
}

// Stored is a document as it was read from the store. Version 0 means that the document does not exist.
type Stored struct {
	Name    string
	Text    []byte
	Version int64
}

// Read reads a document. If the document does not exist, the result has version 0, and the error is nil.
func Read(ctx context.Context, db store.DB, name string) (Stored, error) {
	d := Stored{Name: name}
	items, err := db.Get(ctx, textKey(name))
	if err != nil {
		return d, fault.Wrap(fault.Internal, err, "read %s", name)
	}
	if items[0] == nil {
		return d, nil
	}
	d.Version = items[0].Version
	d.Text, err = unpack(items[0].Value)
	return d, fault.Wrap(fault.Internal, err, "read %s", name)
}

// Edit is a change that replaces the text of a document.
type Edit struct {
	// Old is the stored document that the caller has read and compared with the new text.
	Old Stored
	// Text is the new text. To remove a document, store an empty text, so that its version numbers continue.
	Text []byte
	// Also is a list of further operations for the transaction that writes the document.
	Also []store.Op
}

// Version returns the document's version after the edit.
func (e Edit) Version() int64 {
	if e.Changes() {
		return e.Old.Version + 1
	}
	return e.Old.Version
}

// Changes reports whether the edit creates the document or changes its text.
func (e Edit) Changes() bool { return e.Old.Version == 0 || !bytes.Equal(e.Old.Text, e.Text) }

// Write writes the edits for which [Edit.Changes] returns true, in one transaction. Edits that exceed a limit of [store.DB.Write], for
// example more than 25 catalogs or 4 MB of compressed text, take several transactions. An error may then leave some of the edits written.
//
// The error has the kind fault.TooLarge if a text does not fit into an item; Write has then written nothing. It has the kind
// fault.Conflict if another writer has changed a document since the caller read Edit.Old.
func Write(ctx context.Context, db store.DB, edits ...Edit) error {
	var transactions [][]store.Op
	names := make([]string, len(edits))
	for i, e := range edits {
		names[i] = e.Old.Name
		if !e.Changes() {
			continue
		}
		ops, err := e.ops()
		if err != nil {
			return err
		}
		last := len(transactions) - 1
		if last >= 0 && store.CheckWrite(slices.Concat(transactions[last], ops)) == nil {
			transactions[last] = append(transactions[last], ops...)
		} else {
			transactions = append(transactions, ops)
		}
	}
	for _, ops := range transactions {
		err := db.Write(ctx, ops...)
		if errors.Is(err, store.ErrConflict) {
			return fault.New(fault.Conflict, "another writer changed %s meanwhile; check it and try again", strings.Join(names, " or "))
		}
		if err != nil {
			return fault.Wrap(fault.Internal, err, "write %s", strings.Join(names, ", "))
		}
	}
	return nil
}

func (e Edit) ops() ([]store.Op, error) {
	packed, err := pack(e.Text)
	if err != nil {
		return nil, fault.Wrap(fault.Internal, err, "write %s", e.Old.Name)
	}
	cond := store.Absent()
	if e.Old.Version > 0 {
		cond = store.VersionIs(e.Old.Version)
	}
	return append([]store.Op{
		store.Put(store.Item{Key: textKey(e.Old.Name), Value: packed, Version: e.Version()}, cond),
		store.Put(store.Item{Key: headKey(e.Old.Name), Version: e.Version()}),
	}, e.Also...), nil
}

// PackedSize returns the size of a document's text in bytes after compression.
func PackedSize(src []byte) int {
	b := compress(src)
	return b.Len()
}

func compress(src []byte) (b bytes.Buffer) {
	w, _ := gzip.NewWriterLevel(&b, gzip.BestCompression) // the level is valid, and writes to a buffer do not fail
	_, _ = w.Write(src)
	_ = w.Close()
	return b
}

func pack(src []byte) ([]byte, error) {
	if len(src) > MaxText {
		return nil, fault.New(fault.TooLarge, "the text has %d bytes (allowed: up to %d)", len(src), MaxText)
	}
	b := compress(src)
	if b.Len() > store.MaxItem {
		return nil, fault.New(fault.TooLarge, "the compressed text has %d bytes (allowed: up to %d)", b.Len(), store.MaxItem)
	}
	return b.Bytes(), nil
}

func unpack(packed []byte) ([]byte, error) {
	r, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		return nil, err
	}
	src, err := io.ReadAll(io.LimitReader(r, MaxText+1))
	if err != nil {
		return nil, err
	}
	if len(src) > MaxText {
		return nil, fault.New(fault.Internal, "the stored text has more than %d bytes", MaxText)
	}
	return src, nil
}

// MaxAge is how long a [Cache] may serve the old version of a document after a new one was written. After that time, every process uses
// the new version.
const MaxAge = 5 * time.Second

const (
	// RecheckAfter is the age of a cached document at which one caller looks for a new version in the store. The other callers use the
	// cached document meanwhile.
	RecheckAfter = 2 * time.Second
	retryAfter   = time.Second
	// MaxStale is the age up to which a cached document is used while the store does not answer.
	MaxStale = 5 * time.Minute
	// maxHeld limits the documents in a [Cache]. The number needs a limit because callers choose the names of workspaces, and documents
	// that do not exist are cached too.
	maxHeld = 1024
)

// Cache serves parsed documents that are at most [MaxAge] old, as long as the store answers. It polls the version of a document, which is
// one small item, and reads the text only if the version has changed.
type Cache[T any] struct {
	db    store.DB
	kind  string // prefix of the documents' names
	parse func(src []byte) (T, error)
	now   func() time.Time
	log   *slog.Logger

	mu       sync.Mutex
	held     map[string]*refresh.Value[*parsed[T]]
	notified bool // Invalidate was called, so the cache learns of every write
}

// parsed is a parsed document. A nil *parsed means that the document does not exist. The cache holds pointers because Go compiles the
// generic package refresh only once for all pointer types, and the Lambda functions must stay small.
type parsed[T any] struct {
	value   T
	version int64
}

func (d *parsed[T]) get() (value T, version int64) {
	if d == nil {
		return value, 0
	}
	return d.value, d.version
}

// NewCache returns a cache of the documents whose names begin with the prefix kind. The methods of the cache take names without that
// prefix. The function parse turns a document's text into a value.
//
// A nil now means time.Now, and a nil log means slog.Default.
func NewCache[T any](db store.DB, kind string, parse func([]byte) (T, error), now func() time.Time, log *slog.Logger) *Cache[T] {
	return &Cache[T]{
		db: db, kind: kind, parse: parse, now: periodic.Clock(now), log: cmp.Or(log, slog.Default()), held: map[string]*refresh.Value[*parsed[T]]{},
	}
}

// Invalidate removes all documents from the cache. A process that calls it must be the only writer of the documents and must call it
// after each write, because the cache no longer polls for new versions after the first call.
func (c *Cache[T]) Invalidate() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.notified = true
	c.held = map[string]*refresh.Value[*parsed[T]]{} // a running read has an old entry, so its result is not cached
}

// Get returns a document and its version. If the document does not exist, it returns the zero value and 0.
func (c *Cache[T]) Get(ctx context.Context, name string) (T, int64, error) {
	held, _ := c.hold(name)
	d, err := held.Get(ctx)
	value, version := d.get()
	return value, version, err
}

// Latest returns the latest version of a document, for decisions that must not use an older one. It reads the version from the store each
// time, and fails with fault.Unavailable while the store does not answer. After the first call of [Cache.Invalidate], every cached
// version is the latest one, so Latest then works like [Cache.Get].
func (c *Cache[T]) Latest(ctx context.Context, name string) (T, int64, error) {
	held, notified := c.hold(name)
	if notified {
		return c.Get(ctx, name)
	}
	d, err := held.Within(ctx, 0)
	if err != nil {
		err = &fault.Error{Kind: fault.Unavailable, Message: c.kind + name + " cannot be read at the moment", Err: err}
	}
	value, version := d.get()
	return value, version, err
}

// Read calls [Cache.Latest] if f is [refresh.Latest], and otherwise [Cache.Get].
func (c *Cache[T]) Read(ctx context.Context, name string, f refresh.Freshness) (T, int64, error) {
	if f == refresh.Latest {
		return c.Latest(ctx, name)
	}
	return c.Get(ctx, name)
}

// hold returns the cache entry of a document, which it adds if it is missing. It also returns the value of c.notified.
func (c *Cache[T]) hold(name string) (held *refresh.Value[*parsed[T]], notified bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if held = c.held[name]; held == nil {
		held = c.load(name)
	}
	return held, c.notified
}

// load adds the cache entry of a document without reading the document. The caller holds c.mu.
func (c *Cache[T]) load(name string) (held *refresh.Value[*parsed[T]]) {
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
	held = refresh.New(o, func(ctx context.Context, old *parsed[T]) (*parsed[T], error) {
		d, err := c.read(ctx, document, old)
		if _, loaded := held.Peek(); err != nil && !loaded.IsZero() {
			c.log.WarnContext(ctx, "document not read", "document", document, "age", c.now().Sub(loaded), "error", err)
		}
		return d, err
	})
	c.held[name] = held
	return held
}

// evict removes one document from the cache to make room. It prefers an entry for a document that does not exist.
func (c *Cache[T]) evict() {
	victim := ""
	for name, held := range c.held {
		victim = name
		d, _ := held.Peek()
		if _, version := d.get(); version == 0 {
			break
		}
	}
	delete(c.held, victim)
}

// read reads a document from the store. If the document's version has not changed, read returns old.
func (c *Cache[T]) read(ctx context.Context, name string, old *parsed[T]) (*parsed[T], error) {
	version, err := Version(ctx, c.db, name)
	if _, known := old.get(); err != nil || version == known {
		return old, err
	}
	stored, err := Read(ctx, c.db, name)
	if err != nil || stored.Version == 0 {
		return nil, err
	}
	value, err := c.parse(stored.Text)
	if err != nil {
		// The text was valid when it was stored, so another version of this program must have stored it.
		return nil, &fault.Error{Kind: fault.Internal, Message: "the stored " + name + " is not valid for this version", Err: err}
	}
	return &parsed[T]{value, stored.Version}, nil
}

// A change of a document is announced to clients only after every process uses the new version, because a client could otherwise get the
// old list from another instance. Until then, an item in the store records that the announcement is due, so that a crash cannot lose it.

// Kind is the kind of a changed document.
type Kind string

// The kinds of documents. Backends is a workspace's settings for the gateway's backends, and BackendEvents is the event types of these
// backends.
const (
	Catalog       Kind = "catalog"
	Backends      Kind = "backends"
	BackendEvents Kind = "backend-events"
)

// Change is a change of a document that must be announced to the clients of a workspace.
type Change struct {
	Kind      Kind
	Workspace string
	Version   int64
}

const unannouncedPartition = "announce"

// Unannounced returns operations that record a change of a document for [Announce]. The record of a later version replaces the document's
// earlier record, including its workspaces. So if versions of a document may concern different workspaces, use [UnannouncedOf].
func Unannounced(kind Kind, document string, workspaces []string, version int64) []store.Op {
	if len(workspaces) == 0 {
		return nil
	}
	return []store.Op{store.Put(store.Item{
		Key:     store.Key{Table: store.Settings, Partition: unannouncedPartition, Sort: string(kind) + ":" + document},
		Value:   []byte(strings.Join(workspaces, "\n")),
		Version: version,
	})}
}

// UnannouncedOf returns operations that record a change for [Announce], for documents whose versions may have different workspaces.
// Unlike with [Unannounced], each version has its own record, so that the change is announced to all of these workspaces.
func UnannouncedOf(kind Kind, workspaces []string, version int64) []store.Op {
	return Unannounced(kind, strconv.FormatInt(version, 10), workspaces, version)
}

// Announce announces the changes that were recorded before the call. A change may be announced twice after a crash, or if two processes
// call Announce.
//
// Announce first waits until every process uses the changed documents: the parameter wait is [MaxAge], or 0 if this is the only process.
// The wait does not depend on the time at which a document was stored, because the clock of the operator's machine may be wrong.
func Announce(ctx context.Context, db store.DB, wait time.Duration, announce func(context.Context, Change) error) error {
	var due []store.Item
	err := store.Each(ctx, db, store.Key{Table: store.Settings, Partition: unannouncedPartition}, "read the changes to announce", func(it *store.Item) error {
		due = append(due, *it)
		return nil
	})
	if err != nil || len(due) == 0 {
		return err
	}
	if err := periodic.Sleep(ctx, wait); err != nil {
		return err
	}
	var errs []error
	for _, it := range due {
		errs = append(errs, announceOne(ctx, db, it, announce))
	}
	return errors.Join(errs...)
}

// announceOne announces a change, unless another process has announced it during the wait, or the record of a newer version has replaced
// it. A later [Announce] announces the newer version.
func announceOne(ctx context.Context, db store.DB, it store.Item, announce func(context.Context, Change) error) error {
	now, err := store.One(ctx, db, it.Key, "read a change to announce")
	if err != nil || now == nil || now.Version != it.Version {
		return err
	}
	kind, _, _ := strings.Cut(it.Sort, ":")
	for workspace := range strings.SplitSeq(string(it.Value), "\n") {
		if err := announce(ctx, Change{Kind(kind), workspace, it.Version}); err != nil {
			return err
		}
	}
	err = db.Write(ctx, store.Delete(it.Key, store.VersionIs(it.Version)))
	if errors.Is(err, store.ErrConflict) {
		return nil
	}
	return fault.Wrap(fault.Unavailable, err, "record an announcement")
}
