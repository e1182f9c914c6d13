package sqlite

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"sync"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/storage/store"
	"github.com/mcp-events/mcpevents/shared/storage/store/sqlite/engine"
)

// Write applies all operations or none. It may share its commit with other
// writes; a conflict in one of them does not touch the others.
func (db *DB) Write(ctx context.Context, ops ...store.Op) error {
	if len(ops) == 0 {
		return ctx.Err()
	}
	if err := checkWrite(ops); err != nil {
		return err
	}
	return db.submit(ctx, ops)
}

// bulk is the number of operations that [DB.WriteAll] puts into one job, so few that other writes do not wait long.
const bulk = 250

// WriteAll applies the operations in their order, in jobs of bulk.
func (db *DB) WriteAll(ctx context.Context, ops ...store.Op) error {
	if len(ops) == 0 {
		return ctx.Err()
	}
	for i := range ops {
		if err := checkBulk(&ops[i]); err != nil {
			return err
		}
	}
	for len(ops) > 0 {
		n := 0
		for size := 0; n < min(len(ops), bulk) && (n == 0 || size < maxPage); n++ {
			size += len(ops[n].Item.Value)
		}
		if err := db.submit(ctx, ops[:n]); err != nil {
			return err
		}
		ops = ops[n:]
	}
	return nil
}

var jobs = sync.Pool{New: func() any { return &write{} }}

func (db *DB) submit(ctx context.Context, ops []store.Op) error {
	if store.IsUnhurried(ctx) {
		err := db.engine.Lazily(&write{db: db, ops: ops, unhurried: true})
		return fault.Wrap(engine.Kind(err), err, "write %d items, the first to %s", len(ops), ops[0].Item.Table)
	}
	w := jobs.Get().(*write)
	w.db, w.ops = db, ops
	err := db.engine.Do(ctx, w)
	if err != nil && !errors.Is(err, store.ErrConflict) {
		// The writer may still have a job whose caller gave up, so it is not reused.
		return fault.Wrap(engine.Kind(err), err, "write %d items, the first to %s", len(ops), ops[0].Item.Table)
	}
	*w = write{}
	jobs.Put(w)
	return err
}

// write is a transaction as a job of the engine. Each item occurs at most once, so all
// conditions can be tested before the first change, and a conflict leaves nothing to undo.
type write struct {
	db    *DB
	ops   []store.Op
	found []state // of the items whose operations have conditions or counts; nil if none has
	// stamp is the last stamp of an operation; 0 if none has one.
	stamp int64
	// unhurried says that no caller waits for the outcome.
	unhurried bool
}

// state is what conditions and counts need to know of an item.
type state struct {
	exists  bool // and has not expired
	stored  bool
	version int64
	expires int64
	counts  map[string]int64
}

func (w *write) Apply(tx *engine.Tx) error {
	now := tx.Now.Unix()
	w.found = nil
	for i := range w.ops {
		op := &w.ops[i]
		counting := op.Kind == store.OpAdd || op.Kind == store.OpRaise
		if !counting && op.Cond == (store.Condition{}) {
			continue
		}
		if w.found == nil {
			w.found = make([]state, len(w.ops))
		}
		if op.Item.Sort != store.AtCommit { // whose key is new
			found, err := look(tx.Conn, op.Item.Key, now, counting)
			if err != nil {
				return err
			}
			w.found[i] = found
		}
		if !holds(op, &w.found[i]) {
			return store.ErrConflict
		}
	}
	for i := range w.ops {
		if err := w.apply(tx, i); err != nil {
			return err
		}
	}
	return nil
}

// Done notifies the watchers.
func (w *write) Done(err error) {
	w.db.memo.changed(w.ops)
	if err != nil {
		if w.unhurried {
			slog.Warn("unhurried records lost", "table", w.ops[0].Item.Table, "records", len(w.ops), "error", err)
		}
		return
	}
	if w.stamp > 0 {
		w.db.stamps.committed()
	}
	w.db.watch.notify(w.ops, w.stamp, &w.db.stamps.end)
}

func look(c *engine.Conn, key store.Key, now int64, counting bool) (state, error) {
	var found state
	s, err := c.Stmt(tables[key.Table].state)
	if err != nil {
		return found, err
	}
	defer s.Reset()
	row, err := s.Text(1, key.Partition).Text(2, key.Sort).Step()
	if err != nil || !row {
		return found, err
	}
	found.stored = true
	found.expires = s.ColumnInt(1)
	if found.exists = found.expires == 0 || found.expires > now; found.exists {
		found.version = s.ColumnInt(0)
		if counting {
			found.counts = decodeCounts(s.ColumnText(2))
		}
	}
	return found, nil
}

func holds(op *store.Op, found *state) bool {
	for name, limit := range op.Limits {
		if found.counts[name]+op.Item.Counts[name] > limit {
			return false
		}
	}
	switch kind, version := op.Cond.Unpack(); kind {
	case "absent":
		return !found.exists
	case "exists":
		return found.exists
	case "version":
		return found.exists && found.version == version
	}
	return true
}

func (w *write) apply(tx *engine.Tx, i int) error {
	op := &w.ops[i]
	switch op.Kind {
	case store.OpPut:
		sort := op.Item.Sort
		if sort == store.AtCommit {
			var err error
			if sort, err = w.db.stamps.next(tx, op.Span); err != nil {
				return err
			}
			w.stamp = w.db.stamps.last
		}
		return put(tx.Conn, op.Item.Key, sort, &op.Item)
	case store.OpDelete:
		s, err := tx.Stmt(tables[op.Item.Table].delete)
		if err != nil {
			return err
		}
		return s.Text(1, op.Item.Partition).Text(2, op.Item.Sort).Exec()
	case store.OpAdd, store.OpRaise:
		return count(tx.Conn, op, &w.found[i])
	}
	return nil
}

func put(c *engine.Conn, key store.Key, sort string, item *store.Item) error {
	s, err := c.Stmt(tables[key.Table].put)
	if err != nil {
		return err
	}
	return s.Text(1, key.Partition).Text(2, sort).Int(3, item.Version).Int(4, seconds(item)).
		Text(5, encodeCounts(item.Counts)).Blob(6, item.Value).Exec()
}

// seconds is the expiry as stored. An expiry before 1970 is not "never".
func seconds(item *store.Item) int64 {
	if item.Expires.IsZero() {
		return 0
	}
	return max(item.Expires.Unix(), 1)
}

// count adds to or raises counts of an item. It replaces an expired item.
func count(c *engine.Conn, op *store.Op, found *state) error {
	counts := maps.Clone(found.counts)
	if counts == nil {
		counts = make(map[string]int64, len(op.Item.Counts))
	}
	for name, n := range op.Item.Counts {
		if old, has := counts[name]; op.Kind == store.OpAdd {
			counts[name] = old + n
		} else if !has || n > old {
			counts[name] = n
		}
	}
	if !found.exists {
		item := store.Item{Counts: counts, Expires: op.Item.Expires}
		return put(c, op.Item.Key, op.Item.Sort, &item)
	}
	expires := found.expires
	if !op.Item.Expires.IsZero() {
		expires = seconds(&op.Item)
	}
	s, err := c.Stmt(tables[op.Item.Table].counts)
	if err != nil {
		return err
	}
	return s.Int(1, expires).Text(2, encodeCounts(counts)).Text(3, op.Item.Partition).Text(4, op.Item.Sort).Exec()
}
