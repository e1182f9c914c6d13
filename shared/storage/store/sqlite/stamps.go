package sqlite

import (
	"strconv"
	"sync/atomic"

	"github.com/mcp-events/mcpevents/shared/storage/store"
	"github.com/mcp-events/mcpevents/shared/storage/store/sqlite/engine"
)

// stamps makes the sort keys of [store.AtCommit]. Only the writer of the engine calls it.
//
// Each stamp must be greater than every earlier one, even after a restart with a clock that was set back. So the file holds
// a limit that no stamp may exceed, and a restart continues after it. The limit is raised in steps of [stampStep], so that
// most commits need not write it.
type stamps struct {
	last    int64 // the last stamp
	limit   int64 // the committed limit
	written int64 // the limit that transaction number attempt has written
	attempt int64

	end atomic.Int64 // the last committed stamp
}

// stampStep is how far the limit is raised beyond the last stamp, in microseconds. After a crash the first stamps may be as
// far in the future.
const stampStep = 100_000

func (s *stamps) load(tx *engine.Tx) error {
	last, err := tx.Int("SELECT last FROM stamps")
	s.last, s.limit, s.written = last, last, last
	s.end.Store(last)
	return err
}

// next makes span stamps and returns the last of them as a sort key. With [store.SameStamp] it repeats the last stamp.
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
	stmt, err := tx.Stmt("UPDATE stamps SET last=?")
	if err != nil {
		return err
	}
	s.written = limit
	return stmt.Int(1, limit).Exec()
}

// committed notes that the transaction of the last [stamps.next] was committed.
func (s *stamps) committed() { s.limit = s.written }

// closeStamps is a job that sets the limit to the last stamp, so that the next process need not skip the rest of the step.
type closeStamps struct{ *stamps }

func (s closeStamps) Apply(tx *engine.Tx) error {
	if s.last == s.limit {
		return nil
	}
	return s.writeLimit(tx, s.last)
}

func (closeStamps) Done(error) {}
