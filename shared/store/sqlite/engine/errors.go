package engine

import (
	"context"
	"errors"
	"fmt"

	sqlite3 "modernc.org/sqlite/lib"

	"github.com/mcp-events/mcpevents/shared/fault"
)

// Error is what SQLite said. SQL is the statement without its parameters.
type Error struct {
	Code    int32 // extended result code
	Message string
	SQL     string
}

func (e *Error) Error() string {
	return fmt.Sprintf("sqlite: %s (%d) in %q", e.Message, e.Code, e.SQL)
}

func noMemory(sql string) *Error {
	return &Error{Code: sqlite3.SQLITE_NOMEM, Message: "out of memory", SQL: sql}
}

// errClosed is returned for work that arrives after [Engine.Close].
var errClosed = fault.New(fault.Unavailable, "the database is closed")

// transient are the primary result codes that may pass by themselves, or once
// somebody has made room on the disk.
var transient = map[int32]bool{
	sqlite3.SQLITE_BUSY: true, sqlite3.SQLITE_LOCKED: true, sqlite3.SQLITE_FULL: true,
	sqlite3.SQLITE_IOERR: true, sqlite3.SQLITE_NOMEM: true, sqlite3.SQLITE_INTERRUPT: true,
	sqlite3.SQLITE_CANTOPEN: true, sqlite3.SQLITE_READONLY: true, sqlite3.SQLITE_PROTOCOL: true,
}

// Kind is what an error of this package means to a caller: fault.Unavailable
// when the same call may succeed later, as with a full disk, a lock or a call
// whose context ended.
func Kind(err error) fault.Kind {
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return fault.Unavailable
	}
	if e, ok := errors.AsType[*Error](err); ok {
		switch primary := e.Code & 0xff; {
		case transient[primary]:
			return fault.Unavailable
		case primary == sqlite3.SQLITE_TOOBIG:
			return fault.TooLarge
		}
	}
	return fault.KindOf(err)
}
