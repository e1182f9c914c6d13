package engine

import (
	"os"
	"path/filepath"
	"strconv"

	"zombiezen.com/go/sqlite"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
)

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
	cache := "cache_size=-" + strconv.Itoa(opts.CacheSize>>10)
	if e.writer, err = openConn(file, "auto_vacuum=INCREMENTAL", "journal_mode=WAL", "synchronous=FULL", "wal_autocheckpoint=0",
		"journal_size_limit=67108864", "temp_store=MEMORY", cache); err != nil {
		return err
	}
	if err := intact(e.writer, path, log == nil || log.Size() == 0); err != nil {
		return err
	}
	for range opts.Readers {
		reader, err := openConn(file, "query_only=ON", cache)
		if err != nil {
			return err
		}
		e.pool <- reader
	}
	return e.files.open(path)
}

// maxQuickCheck is the size up to which the whole file is checked at the start. That takes up to 0.2 s.
const maxQuickCheck = 32 << 20

// intact looks for damage: in a small file everywhere, in a large one only at its length and schema. Reads find other
// damage; see [Engine.Health].
func intact(c *Conn, path string, noLog bool) error {
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
		return &Error{Code: sqlite.ResultCorrupt, Message: "the file is shorter than it says", SQL: "open"}
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

// fileSize is the size in bytes that the file should have when its log is empty.
func (c *Conn) fileSize() (int64, error) {
	pages, err := c.Int("PRAGMA page_count")
	if err != nil {
		return 0, err
	}
	size, err := c.Int("PRAGMA page_size")
	return pages * size, err
}

// create makes an empty file that only its owner can read, because it will hold sealed secrets and payloads. SQLite gives
// the log and the shared memory beside it the same mode.
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

// acquire locks the file for this engine: it keeps a transaction open in a database beside it. The system ends that with
// the process, however the process ends.
func acquire(path string) (*Conn, error) {
	c, err := openConn(path, "busy_timeout=0", "locking_mode=EXCLUSIVE")
	if err != nil {
		return nil, err
	}
	if err := c.Exec("BEGIN EXCLUSIVE"); err != nil {
		c.close()
		if isBusy(err) {
			return nil, fault.New(fault.Conflict, "another server has it open")
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
