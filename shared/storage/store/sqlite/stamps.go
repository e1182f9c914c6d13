package sqlite

import (
	"strconv"
	"sync/atomic"

	"github.com/mcp-events/mcpevents/shared/storage/store"
	"github.com/mcp-events/mcpevents/shared/storage/store/sqlite/engine"
)

// stamps makes the sort keys of [store.AtCommit]. Only the writer of the engine calls it.
//
// Each stamp is greater than every earlier one, whatever the clock does, and after a restart too. For that the file
// holds a reserve: a number that no stamp exceeds. It is ahead of the stamps, so that not every commit writes it.
type stamps struct {
	last    int64 // the greatest so far
	reserve int64 // in the file
	written int64 // the reserve as the current transaction has changed it
	attempt int64

	end atomic.Int64 // the greatest that was committed
}

// ahead is how far the reserve is ahead of the stamps, in microseconds. After a crash the first stamps may be as far in
// the future.
const ahead = 100_000

func (s *stamps) load(tx *engine.Tx) error {
	last, err := tx.Int("SELECT last FROM stamps")
	s.last, s.reserve, s.written = last, last, last
	s.end.Store(last)
	return err
}

// next makes span stamps and returns the last as a sort key. For [store.SameStamp] it returns the last one again.
func (s *stamps) next(tx *engine.Tx, span int) (string, error) {
	if span != store.SameStamp {
		s.last = max(tx.Now.UnixMicro(), s.last+int64(max(span, 1)))
	}
	if s.attempt != tx.Attempt {
		s.attempt, s.written = tx.Attempt, s.reserve
	}
	if s.last > s.written {
		if err := s.store(tx, s.last+ahead); err != nil {
			return "", err
		}
	}
	digits := strconv.AppendInt(make([]byte, 0, 16), s.last, 10)
	for len(digits) < 16 {
		digits = append([]byte{'0'}, digits...)
	}
	return string(digits), nil
}

func (s *stamps) store(tx *engine.Tx, reserve int64) error {
	stmt, err := tx.Stmt("UPDATE stamps SET last=?")
	if err != nil {
		return err
	}
	s.written = reserve
	return stmt.Int(1, reserve).Exec()
}

// committed is called after the commit of the last [stamps.next].
func (s *stamps) committed() { s.reserve = s.written }

// settle writes the exact last stamp when the store is closed.
type settle struct{ db *DB }

func (s *settle) Apply(tx *engine.Tx) error {
	if s.db.stamps.last == s.db.stamps.reserve {
		return nil
	}
	return s.db.stamps.store(tx, s.db.stamps.last)
}

func (*settle) Done(error) {}
