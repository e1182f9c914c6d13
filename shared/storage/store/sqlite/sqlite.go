// Package sqlite keeps a [store.DB] in one SQLite file, for the stand-alone server.
//
// Each [store.Table] is a table with these columns, an index on partition and sort key, and an index on the expiry:
//
//	id    rowid, so that new items are next to each other at the end of the file
//	pk    partition     ver     version
//	sk    sort key      counts  "name=1,other=-2", sorted by name
//	exp   seconds since 1970, 0 is never
//	val   value
//
// In our measurements, tables that are clustered by their key (WITHOUT ROWID) need twice the CPU, because every put splits and rewrites
// pages of a few items each.
//
// Package engine owns the file and its one writer, which the queues (package queue/sqlite) use too.
package sqlite

import (
	"context"
	"fmt"
	"hash/maphash"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mcp-events/mcpevents/shared/platform/bounded"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/storage/store"
	"github.com/mcp-events/mcpevents/shared/storage/store/sqlite/engine"
)

// Memory is a path for [Open] that keeps the database in memory.
const Memory = engine.Memory

// Options are the settings of a [DB]. The zero value has the defaults.
type Options struct {
	// Engine has the options of the engine, which owns the file and its writer.
	Engine engine.Options
	// SweepEvery is how often expired items are deleted from the file; 0 means 30 s, and a negative value means never.
	SweepEvery time.Duration
}

// DB is a [store.DB] and a [store.Watcher] in a SQLite file.
type DB struct {
	engine *engine.Engine
	stamps stamps
	watch  watchers
	memo   memo

	stop    context.CancelFunc
	once    sync.Once
	running sync.WaitGroup
}

var (
	_ store.DB      = (*DB)(nil)
	_ store.Watcher = (*DB)(nil)
)

// schemaVersion is the version of the tables' layout. Open refuses a file with a later version.
const schemaVersion = 1

type statements struct {
	get, asc, desc             string
	state, put, delete, counts string
	sweep, count               string
}

var tables = func() map[store.Table]*statements {
	all := map[store.Table]*statements{}
	for _, t := range store.Tables() {
		const columns = "ver, exp, counts, val"
		page := "SELECT sk, " + columns + " FROM " + string(t) + " WHERE pk=? AND sk>? AND sk<? ORDER BY sk %s LIMIT ?"
		all[t] = &statements{
			get:   fmt.Sprintf("SELECT %s FROM %s WHERE pk=? AND sk=?", columns, t),
			asc:   fmt.Sprintf(page, "ASC"),
			desc:  fmt.Sprintf(page, "DESC"),
			state: fmt.Sprintf("SELECT ver, exp, counts FROM %s WHERE pk=? AND sk=?", t),
			put: fmt.Sprintf(`INSERT INTO %s (pk, sk, ver, exp, counts, val) VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE
				SET ver=excluded.ver, exp=excluded.exp, counts=excluded.counts, val=excluded.val`, t),
			delete: fmt.Sprintf("DELETE FROM %s WHERE pk=? AND sk=?", t),
			counts: fmt.Sprintf("UPDATE %s SET exp=?, counts=? WHERE pk=? AND sk=?", t),
			count:  fmt.Sprintf("SELECT count(*) FROM %s WHERE pk>=? AND pk<?", t),
			sweep:  fmt.Sprintf("DELETE FROM %[1]s WHERE id IN (SELECT id FROM %[1]s WHERE exp>0 AND exp<=? ORDER BY exp LIMIT ?)", t),
		}
	}
	return all
}()

// Open opens the database at path, which may be [Memory]. It creates the file and its tables if they do not exist.
func Open(path string, opts Options) (*DB, error) {
	e, err := engine.Open(path, opts.Engine)
	if err != nil {
		return nil, err
	}
	ctx, stop := context.WithCancel(context.Background())
	db := &DB{engine: e, memo: newMemo(), stop: stop}
	if err := e.Do(context.Background(), &setup{db: db}); err != nil {
		stop()
		e.Close()
		return nil, fault.Wrap(engine.Kind(err), err, "set up the store in %s", path)
	}
	if opts.SweepEvery == 0 {
		opts.SweepEvery = 30 * time.Second
	}
	if opts.SweepEvery > 0 {
		db.running.Go(func() { db.runSweeps(ctx, opts.SweepEvery) })
	}
	return db, nil
}

type setup struct{ db *DB }

func (s *setup) Apply(tx *engine.Tx) error {
	version, err := tx.Int("PRAGMA user_version")
	if err != nil {
		return err
	}
	if version > schemaVersion {
		return fault.New(fault.Unsupported, "the database has schema version %d of a later release (supported: up to %d)", version, schemaVersion)
	}
	if version == schemaVersion {
		return s.db.stamps.load(tx)
	}
	schema := fmt.Sprintf(`CREATE TABLE IF NOT EXISTS stamps (last INTEGER NOT NULL);
		INSERT INTO stamps SELECT 0 WHERE NOT EXISTS (SELECT 1 FROM stamps);
		PRAGMA user_version = %d;`, schemaVersion)
	for _, t := range store.Tables() {
		schema += fmt.Sprintf(`
			CREATE TABLE IF NOT EXISTS %[1]s (id INTEGER PRIMARY KEY, pk TEXT NOT NULL, sk TEXT NOT NULL,
				ver INTEGER NOT NULL, exp INTEGER NOT NULL, counts TEXT NOT NULL, val BLOB NOT NULL, UNIQUE (pk, sk));
			CREATE INDEX IF NOT EXISTS %[1]s_exp ON %[1]s (exp) WHERE exp > 0;`, t)
	}
	if err := tx.Exec(schema); err != nil {
		return err
	}
	return s.db.stamps.load(tx)
}

func (*setup) Done(error) {}

// Engine returns the engine, which owns the file and its writer. The queues (package queue/sqlite) use the same engine.
func (db *DB) Engine() *engine.Engine { return db.engine }

// Local reports true, because only this process uses the file.
func (db *DB) Local() bool { return true }

// End implements [store.DB]. After a crash, it may be up to a tenth of a second ahead of the last stamp; see [stamps].
func (db *DB) End() int64 { return db.stamps.end.Load() }

// Close stops the deletion of expired items, commits the waiting writes and closes the file.
func (db *DB) Close() error {
	var err error
	db.once.Do(func() {
		db.stop()
		db.running.Wait()
		if stampErr := db.engine.Do(context.Background(), closeStamps{&db.stamps}); stampErr != nil {
			db.engine.Log().Warn("last stamp not written", "error", stampErr)
		}
		err = db.engine.Close()
	})
	return err
}

// Get implements [store.DB]. All items of the result are from the same commit.
func (db *DB) Get(ctx context.Context, keys ...store.Key) ([]*store.Item, error) {
	if len(keys) > store.MaxGet {
		return nil, fault.New(fault.Invalid, "the read has %d keys (allowed: up to %d)", len(keys), store.MaxGet)
	}
	for _, key := range keys {
		if err := key.Check(); err != nil {
			return nil, err
		}
	}
	commits := db.memo.commitsOfAll(keys)
	if items, ok := db.memo.get(commits, keys, db.engine.Now()); ok {
		return items, ctx.Err()
	}
	var at uint64
	if commits != nil {
		at = commits.Load()
	}
	items := make([]*store.Item, len(keys))
	read := db.engine.Snapshot
	if len(keys) == 1 {
		read = db.engine.Read // one statement sees a single commit anyway
	}
	err := read(ctx, func(c *engine.Conn) error {
		now := db.engine.Now().Unix()
		for i, key := range keys {
			item, err := get(c, key, now)
			if err != nil {
				return err
			}
			items[i] = item
		}
		return nil
	})
	if err != nil {
		return nil, fault.Wrap(engine.Kind(err), err, "read %d items", len(keys))
	}
	if commits != nil {
		db.memo.keepItems(at, keys, items)
	}
	return items, nil
}

func get(c *engine.Conn, key store.Key, now int64) (*store.Item, error) {
	s := c.Stmt(tables[key.Table].get)
	defer s.Reset()
	row, err := s.Text(1, key.Partition).Text(2, key.Sort).Step()
	if err != nil || !row {
		return nil, err
	}
	item := &store.Item{Key: key}
	if !scan(s, 0, now, item) {
		return nil, nil
	}
	return item, nil
}

// scan reads the columns ver, exp, counts and val of a row into an item. The parameter column is the number of the column ver. scan
// returns false if the item has expired.
func scan(s *engine.Stmt, column int, now int64, item *store.Item) bool {
	if exp := s.ColumnInt(column + 1); exp != 0 {
		if exp <= now {
			return false
		}
		item.Expires = time.Unix(exp, 0).UTC()
	}
	item.Version = s.ColumnInt(column)
	item.Counts = decodeCounts(s.ColumnText(column + 2))
	item.Value = s.ColumnBlob(column + 3)
	return true
}

// maxPage is the total size of values, in bytes, at which a page of [DB.Query] ends. DynamoDB ends pages at the same size.
const maxPage = 1 << 20

// Query implements [store.DB]. Expired items count toward the limit of a page, so that many of them cannot make a page slow.
func (db *DB) Query(ctx context.Context, q store.Query) (store.Page, error) {
	if err := q.Check(); err != nil {
		return store.Page{}, err
	}
	if page, ok := db.memo.query(q, db.engine.Now()); ok {
		return page, ctx.Err()
	}
	at := db.memo.subscriptions.Load()
	var page store.Page
	err := db.engine.Read(ctx, func(c *engine.Conn) error {
		now := db.engine.Now().Unix()
		sql := tables[q.Table].asc
		if q.Reverse {
			sql = tables[q.Table].desc
		}
		s := c.Stmt(sql)
		defer s.Reset()
		s.Text(1, q.Partition).Text(2, q.After).Text(3, upper(q)).Int(4, int64(q.Limit)+1)
		size := 0
		for read := 0; ; read++ {
			row, err := s.Step()
			if err != nil || !row {
				return err
			}
			if read == q.Limit || size >= maxPage {
				page.More = true
				return nil
			}
			item := store.Item{Key: store.Key{Table: q.Table, Partition: q.Partition, Sort: s.ColumnText(0)}}
			page.Last = item.Sort
			if scan(s, 1, now, &item) {
				if page.Items == nil {
					page.Items = make([]store.Item, 0, min(q.Limit, 32))
				}
				page.Items = append(page.Items, item)
				size += len(item.Value)
			}
		}
	})
	if err != nil {
		return store.Page{}, fault.Wrap(engine.Kind(err), err, "query %s", q.Table)
	}
	db.memo.keepPage(at, q, page, db.engine.Now())
	return page, nil
}

// upper returns the exclusive upper bound of a query's sort keys.
func upper(q store.Query) string {
	bound := "\xff" // after every key, because keys are UTF-8
	if q.Until != "" {
		bound = q.Until + "\x00" // the next key after Until
	}
	if q.Before != "" {
		bound = min(bound, q.Before)
	}
	return bound
}

// Count returns the number of items in a table whose partitions p are in the range from <= p < before. DynamoDB cannot count a range of
// partitions, so Count is not part of [store.DB].
func (db *DB) Count(ctx context.Context, table store.Table, from, before string) (n int64, err error) {
	err = db.engine.Read(ctx, func(c *engine.Conn) error {
		s := c.Stmt(tables[table].count)
		defer s.Reset()
		if _, err := s.Text(1, from).Text(2, before).Step(); err != nil {
			return err
		}
		n = s.ColumnInt(0)
		return nil
	})
	return n, fault.Wrap(engine.Kind(err), err, "count items of %s", table)
}

// Contains reports whether the value of any item contains the text, including expired items that are still in the file. It reads the
// whole file, so it is for commands that run while no server runs.
func (db *DB) Contains(ctx context.Context, text []byte) (found bool, err error) {
	err = db.engine.Snapshot(ctx, func(c *engine.Conn) error {
		for _, table := range store.Tables() {
			s := c.Stmt("SELECT 1 FROM " + string(table) + " WHERE instr(val, ?) LIMIT 1")
			row, err := s.Blob(1, text).Step()
			s.Reset()
			if err != nil {
				return err
			}
			if found = row; found {
				return nil
			}
		}
		return nil
	})
	return found, fault.Wrap(engine.Kind(err), err, "search the database")
}

// memo caches items and pages until the next commit that may change them. Every event causes two reads of [store.Subscriptions], which
// changes much less often, and every request of a session reads the session's item.
//
// A cached value is current as long as its counter of commits has not changed. The writer raises the counter before it reports a write as
// done, so the caller of the write never reads an older value. A value is cached with the counter from before its read, so it is not used
// if a commit has changed the item during or after the read.
type memo struct {
	subscriptions commits
	// sessions has 256 counters of commits, selected by the hash of a partition, so that a write to one session does not make the cached
	// values of all sessions stale.
	sessions [256]commits
	seed     maphash.Seed
	items    *bounded.Map[store.Key, keptItem]
	pages    *bounded.Map[store.Query, keptPage]
}

type commits struct{ atomic.Uint64 }

type keptItem struct {
	at   uint64
	item *store.Item
}

type keptPage struct {
	at   uint64
	page store.Page
}

// Limits of cached values in bytes. The cache takes at most 64 MiB, because it holds up to 4,096 items of 8 KiB and 512 pages of 64 KiB.
const (
	maxKeptItem = 8 << 10
	maxKeptPage = 64 << 10
)

func newMemo() memo {
	return memo{
		seed:  maphash.MakeSeed(),
		items: bounded.NewMap[store.Key, keptItem](4096), pages: bounded.NewMap[store.Query, keptPage](512),
	}
}

// commitsOf returns the counter of commits for a key, or nil if items of the key's table are not cached.
func (m *memo) commitsOf(key store.Key) *commits {
	switch key.Table {
	case store.Subscriptions:
		return &m.subscriptions
	case store.Sessions:
		return &m.sessions[maphash.String(m.seed, key.Partition)%uint64(len(m.sessions))]
	}
	return nil
}

// commitsOfAll returns the counter of commits that all keys share, or nil. Items with different counters are not read from the cache
// together, because they might not be from the same commit.
func (m *memo) commitsOfAll(keys []store.Key) (shared *commits) {
	for i, key := range keys {
		of := m.commitsOf(key)
		if of == nil || i > 0 && of != shared {
			return nil
		}
		shared = of
	}
	return shared
}

// noteWrite raises the counters of the items that a transaction may have changed, so that their cached values become stale. It does so
// even after a failed transaction, which only costs another read.
func (m *memo) noteWrite(ops []store.Op) {
	for i := range ops {
		if of := m.commitsOf(ops[i].Item.Key); of != nil && ops[i].Kind != store.OpCheck {
			of.Add(1)
		}
	}
}

// get returns the cached items of the keys, and true if all of them are cached and current. The parameter counter is the counter of
// commits that the keys share, or nil.
func (m *memo) get(counter *commits, keys []store.Key, now time.Time) ([]*store.Item, bool) {
	if counter == nil {
		return nil, false
	}
	at := counter.Load()
	items := make([]*store.Item, len(keys))
	for i, key := range keys {
		kept, ok := m.items.Get(key)
		if !ok || kept.at != at {
			return nil, false
		}
		if kept.item != nil && !isExpired(kept.item, now) {
			own := shareItem(*kept.item)
			items[i] = &own
		}
	}
	return items, true
}

// keepItems caches items. The parameter at is the value that their counter of commits had before the items were read.
func (m *memo) keepItems(at uint64, keys []store.Key, items []*store.Item) {
	for i, key := range keys {
		if items[i] != nil && len(items[i].Value) > maxKeptItem {
			continue
		}
		kept := keptItem{at: at}
		if items[i] != nil {
			own := shareItem(*items[i])
			kept.item = &own
		}
		m.items.Put(key, kept)
	}
}

func (m *memo) query(q store.Query, now time.Time) (store.Page, bool) {
	if q.Table != store.Subscriptions {
		return store.Page{}, false
	}
	kept, ok := m.pages.Get(q)
	if !ok || kept.at != m.subscriptions.Load() {
		return store.Page{}, false
	}
	return copyPage(kept.page, now), true
}

func (m *memo) keepPage(at uint64, q store.Query, page store.Page, now time.Time) {
	size := 0
	for i := range page.Items {
		size += len(page.Items[i].Value)
	}
	if q.Table == store.Subscriptions && size <= maxKeptPage {
		m.pages.Put(q, keptPage{at, copyPage(page, now)})
	}
}

func copyPage(page store.Page, now time.Time) store.Page {
	page.Items = slices.Clone(page.Items)
	page.Items = slices.DeleteFunc(page.Items, func(it store.Item) bool { return isExpired(&it, now) })
	for i := range page.Items {
		page.Items[i] = shareItem(page.Items[i])
	}
	return page
}

// shareItem returns a copy of an item. The copy shares the bytes of the value, so callers must not change these bytes.
func shareItem(it store.Item) store.Item {
	it.Counts = maps.Clone(it.Counts)
	it.Value = slices.Clip(it.Value)
	return it
}

func isExpired(it *store.Item, now time.Time) bool {
	return !it.Expires.IsZero() && it.Expires.Unix() <= now.Unix()
}

type watchers struct {
	mu sync.Mutex
	by map[string]*watched
}

type watched struct {
	changed []chan struct{}
	written atomic.Int64
}

// Watch implements [store.Watcher]. The channel is never closed; stop may be called twice.
func (db *DB) Watch(partition string) (changed <-chan struct{}, written func() int64, stop func()) {
	w := &db.watch
	ch := make(chan struct{}, 1)
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.by == nil {
		w.by = map[string]*watched{}
	}
	p := w.by[partition]
	if p == nil {
		p = &watched{}
		w.by[partition] = p
	}
	p.changed = append(p.changed, ch)
	return ch, p.written.Load, sync.OnceFunc(func() { w.remove(partition, ch) })
}

func (w *watchers) remove(partition string, ch chan struct{}) {
	w.mu.Lock()
	defer w.mu.Unlock()
	p := w.by[partition]
	p.changed = slices.DeleteFunc(p.changed, func(other chan struct{}) bool { return other == ch })
	if len(p.changed) == 0 {
		delete(w.by, partition)
	}
}

// notify tells the watchers about a commit and its stamp, and raises [DB.End]. It stores the stamp for the watchers before it raises the
// end, so that a watcher that reads the end and then calls written misses no commit. It does not send to a full channel, because the
// channel's watcher already has a notification.
func (w *watchers) notify(ops []store.Op, stamp int64, end *atomic.Int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.by) > 0 && stamp > 0 {
		for i := range ops {
			if p := w.find(&ops[i]); p != nil && ops[i].Item.Sort == store.AtCommit {
				p.written.Store(stamp)
			}
		}
	}
	end.Store(max(end.Load(), stamp))
	if len(w.by) == 0 {
		return
	}
	for i := range ops {
		p := w.find(&ops[i])
		if p == nil {
			continue
		}
		for _, ch := range p.changed {
			select {
			case ch <- struct{}{}:
			default:
			}
		}
	}
}

// find returns the watched partition that an operation writes, or nil. The caller holds w.mu.
func (w *watchers) find(op *store.Op) *watched {
	if op.Item.Table != store.Log || op.Kind == store.OpCheck {
		return nil
	}
	return w.by[op.Item.Partition]
}
