package engine

import "zombiezen.com/go/sqlite"

// Stmt is a prepared statement of one connection. Bind all its parameters, numbered from 1, then either call [Stmt.Exec], or
// [Stmt.Step] for each row and [Stmt.Reset]. The next Step reports a failed binding. Values stay bound after a reset.
type Stmt struct {
	stmt *sqlite.Stmt
	sql  string
}

// Int binds an integer.
func (s *Stmt) Int(i int, v int64) *Stmt {
	s.stmt.BindInt64(i, v)
	return s
}

// Text binds a text.
func (s *Stmt) Text(i int, v string) *Stmt {
	s.stmt.BindText(i, v)
	return s
}

// Blob binds bytes; nil and empty are the empty blob.
func (s *Stmt) Blob(i int, v []byte) *Stmt {
	s.stmt.BindBytes(i, v)
	return s
}

// Step moves to the next row and reports whether there is one.
func (s *Stmt) Step() (row bool, err error) {
	row, err = s.stmt.Step()
	if err != nil {
		return false, newError(s.sql, err)
	}
	return row, nil
}

// Exec runs the statement to its end and resets it.
func (s *Stmt) Exec() error {
	var err error
	for row := true; row && err == nil; {
		row, err = s.Step()
	}
	s.Reset()
	return err
}

// Reset ends an execution.
func (s *Stmt) Reset() {
	_ = s.stmt.Reset() // repeats the error of Step, if any
}

// ColumnInt returns an integer of the current row. Columns are numbered from 0.
func (s *Stmt) ColumnInt(i int) int64 { return s.stmt.ColumnInt64(i) }

// ColumnText returns a text of the current row.
func (s *Stmt) ColumnText(i int) string { return s.stmt.ColumnText(i) }

// ColumnSize returns the size in bytes of a text or blob of the current row.
func (s *Stmt) ColumnSize(i int) int { return s.stmt.ColumnLen(i) }

// ColumnBlob returns a copy of a blob of the current row, or nil if it is empty.
func (s *Stmt) ColumnBlob(i int) []byte {
	n := s.stmt.ColumnLen(i)
	if n == 0 {
		return nil
	}
	b := make([]byte, n)
	s.stmt.ColumnBytes(i, b)
	return b
}
