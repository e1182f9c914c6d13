package engine

import (
	"context"
	"errors"
	"fmt"

	"zombiezen.com/go/sqlite"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
)

// Error is an error of SQLite. SQL is the statement without its parameters.
type Error struct {
	Code    sqlite.ResultCode // extended
	Message string
	SQL     string
}

func newError(sql string, err error) *Error {
	e := &Error{Code: sqlite.ErrCode(err), SQL: sql}
	for cause := err; cause != nil; cause = errors.Unwrap(cause) {
		e.Message = cause.Error() // the innermost message is SQLite's
	}
	return e
}

func (e *Error) Error() string {
	return fmt.Sprintf("sqlite: %s (%d) in %q", e.Message, e.Code, e.SQL)
}

// isBusy reports whether err means that another connection holds a lock.
func isBusy(err error) bool {
	e, ok := errors.AsType[*Error](err)
	return ok && e.Code.ToPrimary() == sqlite.ResultBusy
}

// errClosed is returned for work that arrives after [Engine.Close].
var errClosed = fault.New(fault.Unavailable, "the database is closed")

// transient has the primary result codes of errors after which the same call may succeed later, for example when the disk
// has room again.
var transient = map[sqlite.ResultCode]bool{
	sqlite.ResultBusy: true, sqlite.ResultLocked: true, sqlite.ResultFull: true,
	sqlite.ResultIOErr: true, sqlite.ResultNoMem: true, sqlite.ResultInterrupt: true,
	sqlite.ResultCantOpen: true, sqlite.ResultReadOnly: true, sqlite.ResultProtocol: true,
}

// Kind returns the kind of an error of this package. It is fault.Unavailable if the same call may succeed later, because the
// disk is full, the file is locked, or the context of the call has ended.
func Kind(err error) fault.Kind {
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return fault.Unavailable
	}
	if e, ok := errors.AsType[*Error](err); ok {
		switch primary := e.Code.ToPrimary(); {
		case transient[primary]:
			return fault.Unavailable
		case primary == sqlite.ResultTooBig:
			return fault.TooLarge
		}
	}
	return fault.KindOf(err)
}
