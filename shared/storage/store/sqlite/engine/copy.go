package engine

import (
	"context"

	"zombiezen.com/go/sqlite"
)

// Copy writes what the file at path held at one moment to a new or empty file, without its free pages. An engine may
// have it open, of this process or another, and goes on meanwhile: readers of a write-ahead log hold up no writer. Begun gets
// the size of the file, of which the copy has at most as much.
func Copy(ctx context.Context, path, to string, begun func(size int64)) error {
	db, err := sqlite.OpenConn(path, sqlite.OpenReadWrite) // for the log of a server that was killed, which is to be recovered
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
