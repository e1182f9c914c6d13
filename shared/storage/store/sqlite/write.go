package sqlite

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/storage/store"
	"github.com/mcp-events/mcpevents/shared/storage/store/sqlite/engine"
)

// Write implements [store.DB]. It may share its commit with other writes, but a conflict in one write does not affect the others.
func (db *DB) Write(ctx context.Context, ops ...store.Op) error { return db.write(ctx, ops, true) }

func (db *DB) write(ctx context.Context, ops []store.Op, wait bool) error {
	if len(ops) == 0 {
		return ctx.Err()
	}
	if err := store.CheckWrite(ops); err != nil {
		return err
	}
	if err := checkStamps(ops, true); err != nil {
		return err
	}
	return db.submit(ctx, ops, wait)
}

// bulk limits the operations in one job of [DB.WriteAll], so that other writes do not wait long for it.
const bulk = 250

// WriteAll implements [store.DB]. It applies the operations in their order, in several jobs of the engine if there are many.
func (db *DB) WriteAll(ctx context.Context, ops ...store.Op) error {
	return db.writeAll(ctx, ops, true)
}

func (db *DB) writeAll(ctx context.Context, ops []store.Op, wait bool) error {
	if len(ops) == 0 {
		return ctx.Err()
	}
	if err := store.CheckWriteAll(ops); err != nil {
		return err
	}
	if err := checkStamps(ops, false); err != nil { // WriteAll may take several commits
		return err
	}
	for len(ops) > 0 {
		n := 0
		for size := 0; n < min(len(ops), bulk) && (n == 0 || size < maxPage); n++ {
			size += len(ops[n].Item.Value)
		}
		if err := db.submit(ctx, ops[:n], wait); err != nil {
			return err
		}
		ops = ops[n:]
	}
	return nil
}

// Unhurried returns the store for writes that may be committed later; see [store.Unhurried].
func (db *DB) Unhurried() store.DB { return unhurried{db} }

// unhurried is the store that [DB.Unhurried] returns. Its writes return before they are committed.
type unhurried struct{ *DB }

func (u unhurried) Write(ctx context.Context, ops ...store.Op) error {
	return u.write(ctx, ops, false)
}

func (u unhurried) WriteAll(ctx context.Context, ops ...store.Op) error {
	return u.writeAll(ctx, ops, false)
}

var jobs = sync.Pool{New: func() any { return &write{} }}

func (db *DB) submit(ctx context.Context, ops []store.Op, wait bool) error {
	if !wait {
		w := &write{db: db, ops: ops, tables: tablesOf(ops), unhurried: true}
		err := db.engine.Batch(w, len(ops))
		return fault.Wrap(engine.Kind(err), err, "write %d items, the first to %s", len(ops), ops[0].Item.Table)
	}
	w := jobs.Get().(*write)
	w.db, w.ops, w.tables = db, ops, tablesOf(ops)
	err := db.engine.Do(ctx, w)
	if err != nil && !errors.Is(err, store.ErrConflict) {
		// If the caller's context ended, the writer may still use the job w. So w must not go back to the pool.
		return fault.Wrap(engine.Kind(err), err, "write %d items, the first to %s", len(ops), ops[0].Item.Table)
	}
	*w = write{}
	jobs.Put(w)
	return err
}

// write is an [engine.Job] that applies the operations of one write. In a write with conditions, each item occurs at most once, so all
// conditions can be tested before the first change. So a conflict leaves nothing to undo.
type write struct {
	db        *DB
	ops       []store.Op
	tables    uint64  // a bit for each table of ops
	found     []state // by operation; nil if no operation has a condition or counts
	stamp     int64   // the last stamp; 0 if no operation has one
	unhurried bool    // no caller waits for the outcome
}

// state has the fields of a stored item that conditions and counts depend on.
type state struct {
	exists  bool // false for an expired item
	version int64
	expires int64
	counts  map[string]int64
}

func (w *write) Apply(tx *engine.Tx) error {
	now := tx.Now.Unix()
	w.found = nil
	for i := range w.ops {
		op := &w.ops[i]
		counting := op.Kind == store.OpAdd
		if !counting && op.Cond == (store.Condition{}) {
			continue
		}
		if w.found == nil {
			w.found = make([]state, len(w.ops))
		}
		if op.Item.Sort != store.AtCommit { // a put at AtCommit always creates an item
			found, err := readState(tx.Conn, op.Item.Key, now, counting)
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

// Before implements [engine.BatchJob], so that writes to the same table keep their order. It does not read the other job's operations,
// because the caller of that job may have given up and may reuse them.
func (w *write) Before(other engine.Job) bool {
	later, ok := other.(*write)
	return ok && w.tables&later.tables != 0
}

var tableBits = func() map[store.Table]uint64 {
	bits := map[store.Table]uint64{}
	for i, t := range store.Tables() {
		bits[t] = 1 << i
	}
	return bits
}()

func tablesOf(ops []store.Op) (bits uint64) {
	for i := range ops {
		bits |= tableBits[ops[i].Item.Table]
	}
	return bits
}

func (w *write) Done(err error) {
	w.db.memo.noteWrite(w.ops)
	if err != nil {
		if w.unhurried {
			w.db.engine.Log().Warn("unhurried records lost", "table", w.ops[0].Item.Table, "records", len(w.ops), "error", err)
		}
		return
	}
	if w.stamp > 0 {
		w.db.stamps.committed()
	}
	w.db.watch.notify(w.ops, w.stamp, &w.db.stamps.end)
}

func readState(c *engine.Conn, key store.Key, now int64, counting bool) (state, error) {
	var found state
	s := c.Stmt(tables[key.Table].state)
	defer s.Reset()
	row, err := s.Text(1, key.Partition).Text(2, key.Sort).Step()
	if err != nil || !row {
		return found, err
	}
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
	return op.Cond.Holds(found.exists, found.version)
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
		return tx.Stmt(tables[op.Item.Table].delete).Text(1, op.Item.Partition).Text(2, op.Item.Sort).Exec()
	case store.OpAdd:
		return count(tx.Conn, op, &w.found[i])
	}
	return nil
}

func put(c *engine.Conn, key store.Key, sort string, item *store.Item) error {
	return c.Stmt(tables[key.Table].put).Text(1, key.Partition).Text(2, sort).Int(3, item.Version).Int(4, seconds(item)).
		Text(5, encodeCounts(item.Counts)).Blob(6, item.Value).Exec()
}

// seconds returns an item's expiry as the file stores it, in seconds since 1970. 0 means never, so an expiry before 1970 is stored as 1.
func seconds(item *store.Item) int64 {
	if item.Expires.IsZero() {
		return 0
	}
	return max(item.Expires.Unix(), 1)
}

// count adds to the counts of an item. If the item has expired, count replaces it.
func count(c *engine.Conn, op *store.Op, found *state) error {
	counts := maps.Clone(found.counts)
	if counts == nil {
		counts = make(map[string]int64, len(op.Item.Counts))
	}
	for name, n := range op.Item.Counts {
		counts[name] += n
	}
	if !found.exists {
		item := store.Item{Counts: counts, Expires: op.Item.Expires}
		return put(c, op.Item.Key, op.Item.Sort, &item)
	}
	expires := found.expires
	if !op.Item.Expires.IsZero() {
		expires = seconds(&op.Item)
	}
	return c.Stmt(tables[op.Item.Table].counts).Int(1, expires).Text(2, encodeCounts(counts)).
		Text(3, op.Item.Partition).Text(4, op.Item.Sort).Exec()
}

// encodeCounts encodes counts as "name=1,other=-2". Names cannot contain the two separators.
func encodeCounts(counts map[string]int64) string {
	if len(counts) == 0 {
		return ""
	}
	b := make([]byte, 0, 16*len(counts))
	for _, name := range slices.Sorted(maps.Keys(counts)) {
		if len(b) > 0 {
			b = append(b, ',')
		}
		b = append(append(b, name...), '=')
		b = strconv.AppendInt(b, counts[name], 10)
	}
	return string(b)
}

func decodeCounts(text string) map[string]int64 {
	if text == "" {
		return nil
	}
	counts := make(map[string]int64, 1+strings.Count(text, ","))
	for text != "" {
		var pair string
		pair, text, _ = strings.Cut(text, ",")
		name, digits, _ := strings.Cut(pair, "=")
		n, err := strconv.ParseInt(digits, 10, 64)
		if err != nil {
			continue // ignore text that [encodeCounts] cannot have written
		}
		counts[name] = n
	}
	return counts
}

// maxSpan is the largest allowed [store.Op.Span].
const maxSpan = 1 << 20

// checkStamps checks the operations whose sort key is [store.AtCommit], which the store replaces with a stamp, the time of the commit. It
// returns an error if such an operation is not a put, or asks for a stamp that it cannot get. The parameter oneCommit says that all
// operations are in one commit, because only then can two of them share a stamp.
func checkStamps(ops []store.Op, oneCommit bool) error {
	for i := range ops {
		op := &ops[i]
		switch {
		case op.Item.Sort != store.AtCommit:
		case op.Kind != store.OpPut || op.Span < store.SameStamp || op.Span > maxSpan:
			return fault.New(fault.Invalid, "only a put with a span of 0 to %d gets a stamp", maxSpan)
		case op.Span == store.SameStamp && !oneCommit:
			return fault.New(fault.Invalid, "puts cannot share a stamp in WriteAll, because it may take several commits")
		case op.Span == store.SameStamp && !canShare(ops[:i], op):
			return fault.New(fault.Invalid, "puts that share a stamp must be in different partitions")
		}
	}
	return nil
}

// canShare reports whether op can use the stamp of an earlier put at [store.AtCommit]. All earlier operations with a stamp must be in
// other partitions, because otherwise two items would have the same key.
func canShare(earlier []store.Op, op *store.Op) bool {
	stamped := false
	for i := range earlier {
		if earlier[i].Item.Sort == store.AtCommit {
			stamped = true
			if earlier[i].Item.Partition == op.Item.Partition && earlier[i].Item.Table == op.Item.Table {
				return false
			}
		}
	}
	return stamped
}

// stamps makes the sort keys for puts at [store.AtCommit]. Only the engine's writer calls it.
//
// Each stamp must be greater than every earlier one, even after a restart with a clock that was set back. So the file holds a limit that
// no stamp may exceed, and after a restart the stamps continue after that limit.
type stamps struct {
	last    int64
	limit   int64 // the committed limit
	written int64 // the limit that the transaction with number attempt has written
	attempt int64

	end atomic.Int64 // the last committed stamp
}

// stampStep is how far ahead of the last stamp the stored limit is set, in microseconds. A stamp is the time of a commit, used as a sort
// key. The limit makes sure that no stamp repeats after a restart. Because it is set ahead, most commits need not write a new limit.
const stampStep = 100_000

func (s *stamps) load(tx *engine.Tx) error {
	last, err := tx.Int("SELECT last FROM stamps")
	s.last, s.limit, s.written = last, last, last
	s.end.Store(last)
	return err
}

// next reserves as many stamps as the parameter span says, at least one, and returns the last of them as a sort key. For
// [store.SameStamp], it returns the previous stamp again.
func (s *stamps) next(tx *engine.Tx, span int) (string, error) {
	if span != store.SameStamp {
		s.last = max(tx.Now.UnixMicro(), s.last+int64(max(span, 1)))
	}
	if s.attempt != tx.Attempt {
		s.attempt, s.written = tx.Attempt, s.limit
	}
	if s.last > s.written {
		if err := s.writeLimit(tx, s.last+stampStep); err != nil {
			return "", err
		}
	}
	digits := strconv.AppendInt(make([]byte, 0, 16), s.last, 10)
	for len(digits) < 16 {
		digits = append([]byte{'0'}, digits...)
	}
	return string(digits), nil
}

func (s *stamps) writeLimit(tx *engine.Tx, limit int64) error {
	stmt := tx.Stmt("UPDATE stamps SET last=?")
	s.written = limit
	return stmt.Int(1, limit).Exec()
}

func (s *stamps) committed() { s.limit = s.written }

// closeStamps is an [engine.Job] that lowers the stored limit to the last stamp, so that the next process continues directly after it.
type closeStamps struct{ *stamps }

func (s closeStamps) Apply(tx *engine.Tx) error {
	if s.last == s.limit {
		return nil
	}
	return s.writeLimit(tx, s.last)
}

func (closeStamps) Done(error) {}

// sweepStep is the number of expired items that one job deletes. It is small, because other writes wait for the job, and each item may be
// on a different page of the file.
const sweepStep = 200

// runSweeps regularly deletes expired items and returns their room in the file to the file system, until ctx ends.
func (db *DB) runSweeps(ctx context.Context, every time.Duration) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if err := db.clean(ctx); err != nil && ctx.Err() == nil {
			db.engine.Log().Warn("expired items not deleted", "error", err)
		}
	}
}

func (db *DB) clean(ctx context.Context) error {
	if _, err := db.sweep(ctx); err != nil {
		return err
	}
	return db.engine.Shrink(ctx)
}

func (db *DB) sweep(ctx context.Context) (removed int, err error) {
	for _, table := range store.Tables() {
		for {
			step := &sweepJob{sql: tables[table].sweep}
			if err := db.engine.Do(ctx, step); err != nil {
				return removed, err
			}
			removed += step.removed
			if step.removed < sweepStep {
				break
			}
		}
	}
	return removed, nil
}

type sweepJob struct {
	sql     string
	removed int
}

func (j *sweepJob) Apply(tx *engine.Tx) error {
	if err := tx.Stmt(j.sql).Int(1, tx.Now.Unix()).Int(2, sweepStep).Exec(); err != nil {
		return err
	}
	j.removed = tx.Changes()
	return nil
}

func (*sweepJob) Done(error) {}

// Scrub implements [store.Scrub] by rewriting the file.
func (db *DB) Scrub(ctx context.Context) error {
	return fault.Wrap(fault.Unavailable, db.engine.Rewrite(ctx), "rewrite the file")
}
