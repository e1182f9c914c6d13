package engine

import (
	"strconv"
	"strings"
	"time"

	"zombiezen.com/go/sqlite"
)

// Conn is one connection to the file. One goroutine uses it at a time.
type Conn struct {
	db *sqlite.Conn
	// stmts has the prepared statements. db has them too, but clears the bindings when it returns a statement, and SQLite
	// prepares some statements again after that.
	stmts map[string]*Stmt
}

// busyTimeout is how long a connection waits for a lock of another process, such as a shell that reads the file.
const busyTimeout = 5 * time.Second

// openConn opens the file at path, which it creates if necessary, and applies pragmas.
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
		_ = s.Finalize() // repeats the error of Step
		if err != nil {
			return newError(sql, err)
		}
		rest = strings.TrimSpace(rest[len(rest)-unread:])
	}
	return nil
}

// Stmt returns the connection's statement for sql, which it prepares at the first use. The caller must reset it, with
// [Stmt.Exec] or [Stmt.Reset], before the statement is used again.
func (c *Conn) Stmt(sql string) (*Stmt, error) {
	if s, ok := c.stmts[sql]; ok {
		return s, nil
	}
	stmt, err := c.db.Prepare(sql)
	if err != nil {
		return nil, newError(sql, err)
	}
	s := &Stmt{stmt: stmt, sql: sql}
	c.stmts[sql] = s
	return s, nil
}

// Int runs a statement and returns its integer, or 0 if it returns no row or NULL.
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

// Changes returns the number of rows that the last statement inserted, updated or deleted.
func (c *Conn) Changes() int { return c.db.Changes() }

// inTransaction reports whether a transaction is open. Some errors end it.
func (c *Conn) inTransaction() bool { return !c.db.AutocommitEnabled() }

// checkpoint moves frames from the write-ahead log into the file. It returns the number of frames in the log and how many of
// them are in the file. Both are 0 while another connection runs a checkpoint.
func (c *Conn) checkpoint(mode string) (frames, moved int, err error) {
	s, err := c.Stmt("PRAGMA wal_checkpoint(" + mode + ")")
	if err != nil {
		return 0, 0, err
	}
	defer s.Reset()
	if _, err := s.Step(); isBusy(err) {
		return 0, 0, nil // the log is being recovered
	} else if err != nil {
		return 0, 0, err
	}
	if busy := s.ColumnInt(0) != 0; busy {
		return 0, 0, nil
	}
	return int(s.ColumnInt(1)), int(s.ColumnInt(2)), nil
}

// reset ends all running statements and the transaction of a connection whose user did not end them.
func (c *Conn) reset() {
	for _, s := range c.stmts {
		s.Reset()
	}
	if c.inTransaction() {
		_ = c.Exec("ROLLBACK") // ends the transaction even if it returns an error
	}
}

func (c *Conn) close() {
	_ = c.db.Close() // finalizes the statements; an unused connection closes
}

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
