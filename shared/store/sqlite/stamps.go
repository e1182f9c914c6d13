package sqlite

import (
	"strconv"
	"sync/atomic"

	"github.com/mcp-events/mcpevents/shared/store"
	"github.com/mcp-events/mcpevents/shared/store/sqlite/engine"
)

// stamps gives the sort keys of [store.AtCommit]. Only the engine's writer calls it.
//
// A stamp is never given twice and none is smaller than an earlier one, whatever
// the clock does and over restarts. To that end the file holds a number that no
// given stamp exceeds. It is written ahead, so that not each commit has to.
type stamps struct {
	last    int64 // the largest given
	reserve int64 // the number in the file
	written int64 // that number as changed by the transaction attempt, not yet committed
	attempt int64

	end atomic.Int64 // the largest that was committed and announced
}

// ahead is how far the file's number runs ahead of the stamps, in microseconds.
// After a crash the first stamps may be as much in the future.
const ahead = 100_000

func (s *stamps) load(tx *engine.Tx) error {
	last, err := tx.Int("SELECT last FROM stamps")
	s.last, s.reserve, s.written = last, last, last
	s.end.Store(last)
	return err
}

// next gives span stamps, and returns the last of them as a sort key; or the one that it
// returned before.
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

// committed tells that the transaction of the last [stamps.next] has been committed.
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
