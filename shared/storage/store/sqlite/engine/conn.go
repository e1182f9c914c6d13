package engine

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"zombiezen.com/go/sqlite"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
)

// Conn is a connection to the SQLite file. Only one goroutine may use it at a time.
type Conn struct {
	db *sqlite.Conn
	// stmts caches prepared statements by their SQL. The cache of zombiezen.com/go/sqlite clears the bindings each time that a statement
	// is used, and SQLite then has to prepare some statements again.
	stmts map[string]*Stmt
}

// busyTimeout is how long a connection waits for a lock of another process, such as a shell that reads the file.
const busyTimeout = 5 * time.Second

func openConn(path string, pragmas ...string) (*Conn, error) {
	db, err := sqlite.OpenConn(path, sqlite.OpenReadWrite, sqlite.OpenCreate, sqlite.OpenURI)
	if err != nil {
		return nil, newError("open", err)
	}
	db.SetBusyTimeout(busyTimeout)
	c := &Conn{db: db, stmts: map[string]*Stmt{}}
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
	for rest := strings.TrimSpace(sql); rest != ""; {
		s, unread, err := c.db.PrepareTransient(rest)
		if err != nil {
			return newError(sql, err)
		}
		for row := true; row && err == nil; {
			row, err = s.Step()
		}
		_ = s.Finalize()
		if err != nil {
			return newError(sql, err)
		}
		rest = strings.TrimSpace(rest[len(rest)-unread:])
	}
	return nil
}

// Stmt returns the prepared statement for sql, which the connection prepares at the first use. If the preparation fails, the next
// [Stmt.Step] or [Stmt.Exec] returns the error. The caller must reset the statement, with [Stmt.Exec] or [Stmt.Reset], before it is used
// again.
func (c *Conn) Stmt(sql string) *Stmt {
	if s, ok := c.stmts[sql]; ok {
		return s
	}
	stmt, err := c.db.Prepare(sql)
	if err != nil {
		return &Stmt{sql: sql, failed: newError(sql, err)}
	}
	s := &Stmt{stmt: stmt, sql: sql}
	c.stmts[sql] = s
	return s
}

// Int runs a statement and returns the integer in its first row. It returns 0 if there is no row or the value is NULL.
func (c *Conn) Int(sql string) (int64, error) {
	s := c.Stmt(sql)
	defer s.Reset()
	row, err := s.Step()
	if err != nil || !row {
		return 0, err
	}
	return s.ColumnInt(0), nil
}

func (c *Conn) vacuum() error {
	return c.Exec("PRAGMA incremental_vacuum(" + strconv.Itoa(vacuumStep) + ")")
}

// Changes returns the number of rows that the last statement inserted, updated or deleted.
func (c *Conn) Changes() int { return c.db.Changes() }

// inTransaction reports whether a transaction is open. SQLite itself rolls a transaction back after some errors.
func (c *Conn) inTransaction() bool { return !c.db.AutocommitEnabled() }

// checkpoint copies pages from the write-ahead log into the file. The parameter mode is PASSIVE, RESTART or TRUNCATE.
//
// The result frames is the number of pages in the log. The result moved is the number of log pages that are copied so far. Both are 0
// while another connection runs a checkpoint.
func (c *Conn) checkpoint(mode string) (frames, moved int, err error) {
	s := c.Stmt("PRAGMA wal_checkpoint(" + mode + ")")
	defer s.Reset()
	if _, err := s.Step(); isBusy(err) {
		return 0, 0, nil // another connection is recovering the log
	} else if err != nil {
		return 0, 0, err
	}
	if busy := s.ColumnInt(0) != 0; busy {
		return 0, 0, nil
	}
	return int(s.ColumnInt(1)), int(s.ColumnInt(2)), nil
}

// reset ends the statements and the transaction that the last user of the connection left open, for example after a panic. The connection
// can then be used again.
func (c *Conn) reset() {
	for _, s := range c.stmts {
		s.Reset()
	}
	if c.inTransaction() {
		_ = c.Exec("ROLLBACK") // ends the transaction even if it returns an error
	}
}

func (c *Conn) close() {
	_ = c.db.Close() // finalizes the statements, and does not fail when the connection is unused
}

// Stmt is a prepared statement of one connection. Bind all its parameters, which are numbered from 1. Then call either [Stmt.Exec], or
// [Stmt.Step] for each row and finally [Stmt.Reset].
//
// The next Step returns the error of a failed binding. Values stay bound after a reset.
type Stmt struct {
	stmt   *sqlite.Stmt
	sql    string
	failed error // stmt could not be prepared
}

// Int binds an integer to parameter i.
func (s *Stmt) Int(i int, v int64) *Stmt {
	if s.failed == nil {
		s.stmt.BindInt64(i, v)
	}
	return s
}

// Text binds a text to parameter i.
func (s *Stmt) Text(i int, v string) *Stmt {
	if s.failed == nil {
		s.stmt.BindText(i, v)
	}
	return s
}

// Blob binds bytes to parameter i. Nil and empty are both stored as the empty blob.
func (s *Stmt) Blob(i int, v []byte) *Stmt {
	if s.failed == nil {
		s.stmt.BindBytes(i, v)
	}
	return s
}

// Step moves to the next row of the result and reports whether there is one.
func (s *Stmt) Step() (row bool, err error) {
	if s.failed != nil {
		return false, s.failed
	}
	row, err = s.stmt.Step()
	if err != nil {
		return false, newError(s.sql, err)
	}
	return row, nil
}

// Exec runs the statement to its end, ignores its rows, and resets it.
func (s *Stmt) Exec() error {
	var err error
	for row := true; row && err == nil; {
		row, err = s.Step()
	}
	s.Reset()
	return err
}

// Reset ends the statement's execution, so that it can be used again.
func (s *Stmt) Reset() {
	if s.failed == nil {
		_ = s.stmt.Reset()
	}
}

// ColumnInt returns the integer in column i of the current row. Columns are numbered from 0.
func (s *Stmt) ColumnInt(i int) int64 { return s.stmt.ColumnInt64(i) }

// ColumnText returns the text in column i of the current row.
func (s *Stmt) ColumnText(i int) string { return s.stmt.ColumnText(i) }

// ColumnBlob returns a copy of the blob in column i of the current row, or nil if it is empty.
func (s *Stmt) ColumnBlob(i int) []byte {
	n := s.stmt.ColumnLen(i)
	if n == 0 {
		return nil
	}
	b := make([]byte, n)
	s.stmt.ColumnBytes(i, b)
	return b
}

// Sizes of the connections' page caches in bytes. A reader's cache can be small, because the operating system caches the file too.
const (
	writerCache = 8 << 20
	readerCache = 2 << 20
)

// pageSize is the page size of a new file in bytes; an existing file keeps its page size. A commit writes whole pages, and most rows are
// smaller than 500 bytes. So an event writes a third fewer bytes than with SQLite's default of 4 KiB, but pages of 1 KiB would cost
// batches of writes 5 to 10 % more CPU time.
const pageSize = 2 << 10

func cache(bytes int) string { return "cache_size=-" + strconv.Itoa(bytes>>10) }

func (e *Engine) openMemory() (err error) {
	e.pool = make(chan *Conn, 1)
	if e.writer, err = openConn(Memory); err != nil {
		return err
	}
	e.pool <- e.writer
	return nil
}

func (e *Engine) openFile(path string, opts Options) (err error) {
	e.pool = make(chan *Conn, opts.Readers)
	if path, err = filepath.Abs(path); err != nil {
		return err
	}
	if e.lock, err = acquire(path + ".lock"); err != nil {
		return err
	}
	if err := create(path); err != nil {
		return err
	}
	log, _ := os.Stat(path + "-wal")
	file := e.disk.count(path)
	if e.writer, err = openConn(file, "page_size="+strconv.Itoa(pageSize), "auto_vacuum=INCREMENTAL", "journal_mode=WAL", "synchronous=FULL",
		"wal_autocheckpoint=0", "journal_size_limit=67108864", "temp_store=MEMORY", cache(writerCache)); err != nil {
		return err
	}
	if err := checkIntact(e.writer, path, log == nil || log.Size() == 0); err != nil {
		return err
	}
	for range opts.Readers {
		reader, err := openConn(file, "query_only=ON", cache(readerCache))
		if err != nil {
			return err
		}
		e.pool <- reader
	}
	return e.files.open(path)
}

// maxQuickCheck is the size in bytes up to which [Open] checks the whole file for damage, which takes up to 0.2 s.
const maxQuickCheck = 32 << 20

// checkIntact returns an error if the file is damaged. It checks a small file completely, but only the schema and the length of a large
// one. Reads find other damage; see [Engine.Health].
//
// It checks the length only if the parameter noLog says that the write-ahead log is empty, because the log may have the missing pages.
func checkIntact(c *Conn, path string, noLog bool) error {
	if _, err := c.Int("SELECT count(*) FROM sqlite_schema"); err != nil {
		return err
	}
	info, err := os.Stat(path)
	if err != nil {
		return fault.Wrap(fault.Unavailable, err, "read the size of the file")
	}
	size, err := c.fileSize()
	if err != nil {
		return err
	}
	if noLog && info.Size() < size {
		return &Error{Code: sqlite.ResultCorrupt, Message: "the file is shorter than its page count", SQL: "open"}
	}
	if info.Size() > maxQuickCheck {
		return nil
	}
	s := c.Stmt("PRAGMA quick_check(1)")
	defer s.Reset()
	if _, err := s.Step(); err != nil {
		return err
	}
	if found := s.ColumnText(0); found != "ok" {
		return &Error{Code: sqlite.ResultCorrupt, Message: found, SQL: "PRAGMA quick_check"}
	}
	return nil
}

func (c *Conn) fileSize() (int64, error) {
	pages, err := c.Int("PRAGMA page_count")
	if err != nil {
		return 0, err
	}
	size, err := c.Int("PRAGMA page_size")
	return pages * size, err
}

// create creates an empty file, unless the file exists. Only the owner can read it, because it will hold sealed secrets and payloads.
// SQLite gives the same mode to its other files.
func create(path string) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if os.IsExist(err) {
		return nil
	}
	if err != nil {
		return fault.Wrap(fault.Unavailable, err, "create the file")
	}
	return f.Close()
}

// acquire locks a database. The parameter path is a second database file, which serves only as the lock: acquire opens an exclusive
// transaction in it. When the process ends, the operating system ends this transaction and so releases the lock.
func acquire(path string) (*Conn, error) {
	c, err := openConn(path, "busy_timeout=0", "locking_mode=EXCLUSIVE")
	if err != nil {
		return nil, err
	}
	if err := c.Exec("BEGIN EXCLUSIVE"); err != nil {
		c.close()
		if isBusy(err) {
			return nil, fault.New(fault.Conflict, "another server has it open: stop that server, or use another data directory")
		}
		return nil, err
	}
	return c, nil
}

// Lock locks a file in the same way as [Open] locks its file, so that commands of several processes can exclude each other. If the file is
// locked already, the error is of kind fault.Conflict. The system unlocks the file when the process ends.
func Lock(path string) (unlock func(), err error) {
	c, err := acquire(path)
	if err != nil {
		return nil, fault.Wrap(Kind(err), err, "lock %s", path)
	}
	return c.close, nil
}

// closeConns closes the connections of an engine that could not start.
func (e *Engine) closeConns() {
	for _, c := range []*Conn{e.writer, e.lock} {
		if c != nil {
			c.close()
		}
	}
	for {
		select {
		case c := <-e.pool:
			if c != e.writer {
				c.close()
			}
		default:
			e.disk.close()
			return
		}
	}
}

// Copy writes a snapshot of a database, without its free pages, to a file. The parameter path is the database, and the parameter to is
// the new or empty file. A server that has the database open continues to write. Before Copy begins, it calls the function begun with the
// largest size that the copy can have.
func Copy(ctx context.Context, path, to string, begun func(size int64)) error {
	db, err := sqlite.OpenConn(path, sqlite.OpenReadWrite) // writable to recover the log of a server that was killed
	if err != nil {
		return newError("open", err)
	}
	c := &Conn{db: db, stmts: map[string]*Stmt{}}
	defer c.close()
	db.SetBusyTimeout(busyTimeout)
	db.SetInterrupt(ctx.Done())
	size, err := c.fileSize()
	if err != nil {
		return err
	}
	begun(size)
	const sql = "VACUUM INTO ?"
	s, err := db.Prepare(sql)
	if err != nil {
		return newError(sql, err)
	}
	s.BindText(1, to)
	if _, err = s.Step(); err != nil {
		return newError(sql, err)
	}
	return nil
}
