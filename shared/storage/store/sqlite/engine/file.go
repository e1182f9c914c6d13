package engine

import (
	"context"
	"os"
	"path/filepath"
	"strconv"

	"zombiezen.com/go/sqlite"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
)

// The page caches of the connections in bytes. A reader's can be small, because the system caches the file too.
const (
	writerCache = 8 << 20
	readerCache = 2 << 20
)

// cache returns the pragma for a page cache.
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
	if e.writer, err = openConn(file, "auto_vacuum=INCREMENTAL", "journal_mode=WAL", "synchronous=FULL", "wal_autocheckpoint=0",
		"journal_size_limit=67108864", "temp_store=MEMORY", cache(writerCache)); err != nil {
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

// maxQuickCheck is the size up to which Open checks the whole file. That takes up to 0.2 s.
const maxQuickCheck = 32 << 20

// checkIntact returns an error if the file is damaged. It checks a small file completely, but only the length and the schema
// of a large one. Reads find other damage; see [Engine.Health].
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
	s, err := c.Stmt("PRAGMA quick_check(1)")
	if err != nil {
		return err
	}
	defer s.Reset()
	if _, err := s.Step(); err != nil {
		return err
	}
	if found := s.ColumnText(0); found != "ok" {
		return &Error{Code: sqlite.ResultCorrupt, Message: found, SQL: "PRAGMA quick_check"}
	}
	return nil
}

// fileSize returns the size in bytes that the file should have when its log is empty.
func (c *Conn) fileSize() (int64, error) {
	pages, err := c.Int("PRAGMA page_count")
	if err != nil {
		return 0, err
	}
	size, err := c.Int("PRAGMA page_size")
	return pages * size, err
}

// create creates an empty file that only its owner can read, because it will hold sealed secrets and payloads. SQLite gives
// the same mode to the log and the shared memory.
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

// acquire locks the file for this engine. It keeps a transaction open in a second database at path. The system ends the
// transaction with the process, even if the process crashes.
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

// Copy writes a snapshot of the file at path to a new or empty file, without the free pages. An engine of this process or
// another may have the file open. It continues to write, because readers of a write-ahead log do not block writers. Copy
// calls begun with the size of the file, which is the largest size that the copy can have.
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
