package engine

import (
	"os"
	"path/filepath"
	"strconv"

	sqlite3 "modernc.org/sqlite/lib"

	"mcpevents/shared/fault"
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
	cache := "cache_size=-" + strconv.Itoa(opts.CacheSize>>10)
	if e.writer, err = openConn(path, "journal_mode=WAL", "synchronous=FULL", "wal_autocheckpoint=0",
		"journal_size_limit=67108864", "temp_store=MEMORY", cache); err != nil {
		return err
	}
	for range opts.Readers {
		reader, err := openConn(path, "query_only=ON", cache)
		if err != nil {
			return err
		}
		e.pool <- reader
	}
	return nil
}

// create makes an empty file that only its owner can read, for it will hold
// sealed secrets and payloads. SQLite gives its companions the same mode.
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

// acquire locks the file for this engine by keeping a transaction open in a
// database beside it, which the system ends with the process, however that ends.
func acquire(path string) (*Conn, error) {
	c, err := openConn(path, "busy_timeout=0", "locking_mode=EXCLUSIVE")
	if err != nil {
		return nil, err
	}
	if err := c.Exec("BEGIN EXCLUSIVE"); err != nil {
		c.close()
		if e, ok := err.(*Error); ok && e.Code&0xff == sqlite3.SQLITE_BUSY {
			return nil, fault.New(fault.Conflict, "another server has it open")
		}
		return nil, err
	}
	return c, nil
}

// closeConns is for an engine that did not come to run.
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
			return
		}
	}
}
