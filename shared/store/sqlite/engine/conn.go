package engine

import (
	"strconv"
	"unsafe"

	"modernc.org/libc"
	sqlite3 "modernc.org/sqlite/lib"
)

// Conn is one connection to the file. One goroutine uses it at a time.
//
// It calls the transpiled SQLite directly instead of through database/sql: a
// statement then costs no allocation and about half the time, and there are some ten
// statements to a delivered webhook. Everything unsafe is in this file, stmt.go and count.go.
type Conn struct {
	tls   *libc.TLS
	db    uintptr
	out   uintptr // two words where SQLite leaves what it returns by pointer
	stmts map[string]*Stmt
	// tables are the methods of its files, which count.
	tables []uintptr
}

const outSize = 16

// pointer turns an address of C memory, which the garbage collector does not
// know and does not move, into a Go pointer.
func pointer(address uintptr) unsafe.Pointer {
	return *(*unsafe.Pointer)(unsafe.Pointer(&address))
}

// memory is n bytes of C memory.
func memory(address uintptr, n int) []byte {
	return unsafe.Slice((*byte)(pointer(address)), n)
}

// busyTimeout is how long, in milliseconds, a connection waits for a lock that somebody outside of
// this process holds, such as a shell that looks into the file.
const busyTimeout = 5000

// openConn opens the file at path, creating it if need be, and applies pragmas.
func openConn(path string, pragmas ...string) (*Conn, error) {
	c := &Conn{tls: libc.NewTLS(), stmts: map[string]*Stmt{}}
	if c.out = libc.Xmalloc(c.tls, outSize); c.out == 0 {
		c.tls.Close()
		return nil, noMemory("open")
	}
	name, err := libc.CString(path)
	if err != nil {
		c.close()
		return nil, noMemory("open")
	}
	defer libc.Xfree(c.tls, name)
	rc := sqlite3.Xsqlite3_open_v2(c.tls, name, c.out,
		sqlite3.SQLITE_OPEN_READWRITE|sqlite3.SQLITE_OPEN_CREATE|sqlite3.SQLITE_OPEN_NOMUTEX, 0)
	c.db = *(*uintptr)(pointer(c.out))
	if rc != sqlite3.SQLITE_OK {
		err := c.fail("open", rc)
		c.close()
		return nil, err
	}
	sqlite3.Xsqlite3_extended_result_codes(c.tls, c.db, 1)
	sqlite3.Xsqlite3_busy_timeout(c.tls, c.db, busyTimeout)
	for _, pragma := range pragmas {
		if err := c.Exec("PRAGMA " + pragma); err != nil {
			c.close()
			return nil, err
		}
	}
	return c, nil
}

// Exec runs statements without parameters and ignores their rows.
func (c *Conn) Exec(sql string) error {
	text, err := libc.CString(sql)
	if err != nil {
		return noMemory(sql)
	}
	defer libc.Xfree(c.tls, text)
	if rc := sqlite3.Xsqlite3_exec(c.tls, c.db, text, 0, 0, 0); rc != sqlite3.SQLITE_OK {
		return c.fail(sql, rc)
	}
	return nil
}

// Stmt returns the connection's statement for sql, prepared at its first use
// and kept. The caller resets it, by [Stmt.Exec] or [Stmt.Reset], before anybody
// asks for the same one again.
func (c *Conn) Stmt(sql string) (*Stmt, error) {
	if s, ok := c.stmts[sql]; ok {
		return s, nil
	}
	text, err := libc.CString(sql)
	if err != nil {
		return nil, noMemory(sql)
	}
	defer libc.Xfree(c.tls, text)
	rc := sqlite3.Xsqlite3_prepare_v3(c.tls, c.db, text, -1, sqlite3.SQLITE_PREPARE_PERSISTENT, c.out, 0)
	if rc != sqlite3.SQLITE_OK {
		return nil, c.fail(sql, rc)
	}
	s := &Stmt{conn: c, sql: sql, stmt: *(*uintptr)(pointer(c.out))}
	if s.arena = libc.Xmalloc(c.tls, arenaSize); s.arena == 0 {
		s.finalize()
		return nil, noMemory(sql)
	}
	c.stmts[sql] = s
	return s, nil
}

// Int runs a statement that returns one integer, 0 if no row or NULL.
func (c *Conn) Int(sql string) (int64, error) {
	s, err := c.Stmt(sql)
	if err != nil {
		return 0, err
	}
	defer s.Reset()
	row, err := s.Step()
	if err != nil || !row {
		return 0, err
	}
	return s.ColumnInt(0), nil
}

// setVersion writes the number that "PRAGMA user_version" reads.
func (c *Conn) setVersion(v int64) error {
	return c.Exec("PRAGMA user_version=" + strconv.FormatInt(v, 10))
}

// vacuum gives up to vacuumStep free pages back.
func (c *Conn) vacuum() error {
	return c.Exec("PRAGMA incremental_vacuum(" + strconv.Itoa(vacuumStep) + ")")
}

// Changes is the number of rows that the last statement inserted, updated or deleted.
func (c *Conn) Changes() int { return int(sqlite3.Xsqlite3_changes(c.tls, c.db)) }

// inTransaction reports that a transaction is open; some errors end it.
func (c *Conn) inTransaction() bool {
	return sqlite3.Xsqlite3_get_autocommit(c.tls, c.db) == 0
}

// checkpoint moves what it can from the write-ahead log into the file, without
// waiting for readers. It returns the frames in the log and how many of them are
// moved; both are 0 while another connection moves them.
func (c *Conn) checkpoint(mode int32) (frames, moved int, err error) {
	rc := sqlite3.Xsqlite3_wal_checkpoint_v2(c.tls, c.db, 0, mode, c.out, c.out+4)
	if rc&0xff == sqlite3.SQLITE_BUSY {
		return 0, 0, nil // another connection is at it
	}
	if rc != sqlite3.SQLITE_OK {
		return 0, 0, c.fail("checkpoint", rc)
	}
	counts := unsafe.Slice((*int32)(pointer(c.out)), 2)
	return int(counts[0]), int(counts[1]), nil
}

// reset ends every statement that is under way and the transaction, for a connection whose user did not.
func (c *Conn) reset() {
	for _, s := range c.stmts {
		s.Reset()
	}
	if c.inTransaction() {
		_ = c.Exec("ROLLBACK") // leaves nothing open, whatever it answers
	}
}

func (c *Conn) close() {
	for _, s := range c.stmts {
		s.finalize()
	}
	c.stmts = nil
	if c.db != 0 {
		sqlite3.Xsqlite3_close_v2(c.tls, c.db)
		c.db = 0
	}
	for _, table := range c.tables {
		libc.Xfree(c.tls, table)
	}
	c.tables = nil
	if c.out != 0 {
		libc.Xfree(c.tls, c.out)
		c.out = 0
	}
	c.tls.Close()
}

// fail makes an error of a result code and what the connection says about it.
func (c *Conn) fail(sql string, rc int32) *Error {
	e := &Error{Code: rc, SQL: sql, Message: libc.GoString(sqlite3.Xsqlite3_errstr(c.tls, rc))}
	if c.db != 0 {
		if extended := sqlite3.Xsqlite3_extended_errcode(c.tls, c.db); extended&0xff == rc&0xff {
			e.Code = extended
			e.Message = libc.GoString(sqlite3.Xsqlite3_errmsg(c.tls, c.db))
		}
	}
	return e
}
