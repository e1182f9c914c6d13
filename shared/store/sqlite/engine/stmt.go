package engine

import (
	"unsafe"

	"modernc.org/libc"
	"modernc.org/libc/sys/types"
	sqlite3 "modernc.org/sqlite/lib"
)

// arenaSize is the memory of a statement for the texts and blobs bound to it.
// What does not fit is allocated for one execution.
const arenaSize = 4 << 10

// Stmt is a prepared statement of one connection. Bind its parameters, numbered
// from 1, then either [Stmt.Exec] it, or [Stmt.Step] through its rows and
// [Stmt.Reset] it. A failed binding is reported by the next Step.
type Stmt struct {
	conn  *Conn
	sql   string
	stmt  uintptr
	arena uintptr
	used  int
	large []uintptr
	err   error
}

// copied puts b where SQLite can read it until the statement is reset.
func (s *Stmt) copied(b []byte) uintptr {
	n := len(b)
	at := s.arena + uintptr(s.used)
	if s.used+n > arenaSize {
		if at = libc.Xmalloc(s.conn.tls, types.Size_t(n)); at == 0 {
			s.err = noMemory(s.sql)
			return 0
		}
		s.large = append(s.large, at)
	} else {
		s.used += n
	}
	copy(memory(at, n), b)
	return at
}

func (s *Stmt) bound(rc int32) *Stmt {
	if rc != sqlite3.SQLITE_OK && s.err == nil {
		s.err = s.conn.fail(s.sql, rc)
	}
	return s
}

// Int binds an integer.
func (s *Stmt) Int(i int, v int64) *Stmt {
	return s.bound(sqlite3.Xsqlite3_bind_int64(s.conn.tls, s.stmt, int32(i), v))
}

// Text binds a text.
func (s *Stmt) Text(i int, v string) *Stmt {
	at := s.arena // for an empty text any address but 0 will do, 0 is NULL
	if v != "" {
		at = s.copied(unsafe.Slice(unsafe.StringData(v), len(v)))
	}
	return s.bound(sqlite3.Xsqlite3_bind_text(s.conn.tls, s.stmt, int32(i), at, int32(len(v)), 0))
}

// Blob binds bytes; nil and empty are the empty blob.
func (s *Stmt) Blob(i int, v []byte) *Stmt {
	at := s.arena
	if len(v) > 0 {
		at = s.copied(v)
	}
	return s.bound(sqlite3.Xsqlite3_bind_blob(s.conn.tls, s.stmt, int32(i), at, int32(len(v)), 0))
}

// Step goes to the next row and reports whether there is one.
func (s *Stmt) Step() (row bool, err error) {
	if s.err != nil {
		return false, s.err
	}
	switch rc := sqlite3.Xsqlite3_step(s.conn.tls, s.stmt); rc {
	case sqlite3.SQLITE_ROW:
		return true, nil
	case sqlite3.SQLITE_DONE:
		return false, nil
	default:
		return false, s.conn.fail(s.sql, rc)
	}
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

// Reset ends an execution. The bound values stay bound to memory that will be
// reused, so all parameters are bound again before the next one.
func (s *Stmt) Reset() {
	sqlite3.Xsqlite3_reset(s.conn.tls, s.stmt) // repeats the error of Step, if any
	for _, at := range s.large {
		libc.Xfree(s.conn.tls, at)
	}
	s.large = s.large[:0]
	s.used, s.err = 0, nil
}

// ColumnInt is an integer of the current row; columns are numbered from 0.
func (s *Stmt) ColumnInt(i int) int64 {
	return sqlite3.Xsqlite3_column_int64(s.conn.tls, s.stmt, int32(i))
}

// ColumnText is a text of the current row.
func (s *Stmt) ColumnText(i int) string {
	at := sqlite3.Xsqlite3_column_text(s.conn.tls, s.stmt, int32(i))
	n := sqlite3.Xsqlite3_column_bytes(s.conn.tls, s.stmt, int32(i))
	if at == 0 || n == 0 {
		return ""
	}
	return string(memory(at, int(n)))
}

// ColumnSize is the size in bytes of a text or blob of the current row.
func (s *Stmt) ColumnSize(i int) int {
	return int(sqlite3.Xsqlite3_column_bytes(s.conn.tls, s.stmt, int32(i)))
}

// ColumnBlob is a copy of a blob of the current row; nil if it is empty.
func (s *Stmt) ColumnBlob(i int) []byte {
	at := sqlite3.Xsqlite3_column_blob(s.conn.tls, s.stmt, int32(i))
	n := sqlite3.Xsqlite3_column_bytes(s.conn.tls, s.stmt, int32(i))
	if at == 0 || n == 0 {
		return nil
	}
	b := make([]byte, n)
	copy(b, memory(at, int(n)))
	return b
}

func (s *Stmt) finalize() {
	if s.arena != 0 {
		s.Reset()
		libc.Xfree(s.conn.tls, s.arena)
		s.arena = 0
	}
	sqlite3.Xsqlite3_finalize(s.conn.tls, s.stmt)
	s.stmt = 0
}
