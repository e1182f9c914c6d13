// Package engine is one SQLite file with one writer, which the store (store/sqlite) and the queues (queue/sqlite) share.
//
// One goroutine writes. It puts all waiting jobs into one transaction, a group commit. Every commit syncs the file to the
// disk (WAL, synchronous=FULL). All jobs that arrived during the previous commit share that sync and the rewritten pages.
//
//	Do, Post ──▶ queue of jobs ──▶ writer: BEGIN, job, job, job, COMMIT ──▶ answers
//	Read     ──▶ pool of connections, each of which sees the last commit
//	             checkpoints: move the log into the file, concurrently with the writer
//
// The file belongs to one process at a time. Tables and domain types do not appear here. Continue in
// shared/storage/store/sqlite.
package engine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"zombiezen.com/go/sqlite"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
)

// Memory, as a path, keeps everything in memory until the engine is closed.
const Memory = ":memory:"

// Options change how an [Engine] works. The zero value is the default.
type Options struct {
	// Readers is the number of read connections. The default is 2*GOMAXPROCS, at most 8. A database in memory has a single connection
	// for reads and writes.
	Readers int
	// Now is the clock; nil is [time.Now].
	Now func() time.Time
}

// Engine is an open file. Its methods may be called concurrently.
type Engine struct {
	now    func() time.Time
	lock   *Conn
	writer *Conn
	tx     Tx
	pool   chan *Conn // readers; in memory, the writer

	gate   sync.RWMutex // held for reading while a job is submitted
	closed bool
	queue  chan *entry
	// entries are reused. Each engine has its own, because their channels cannot leave the synctest bubble of a test.
	entries sync.Pool

	lazyMu  sync.Mutex
	lazy    []*entry
	lazyBy  time.Time // when the first lazy job must be committed; zero if no lazy job waits
	lazyArm chan struct{}

	dirty   atomic.Bool // written since the last checkpoint
	health  health
	files   presence
	disk    disk
	commits atomic.Int64
	// checkpointed counts checkpoints.
	checkpointed atomic.Int64

	maxFrames int
	stop      chan struct{}
	running   sync.WaitGroup
}

// Open opens the file at path, or [Memory], and starts the writer. The folder must exist. If another engine has the file
// open, in this process or another, Open returns an error of kind fault.Conflict.
func Open(path string, opts Options) (*Engine, error) {
	if opts.Readers <= 0 {
		opts.Readers = min(2*runtime.GOMAXPROCS(0), 8)
	}
	if opts.Now == nil {
		opts.Now = time.Now
	}
	e := &Engine{
		now: opts.Now, queue: make(chan *entry, maxQueue), lazyArm: make(chan struct{}, 1),
		stop: make(chan struct{}), maxFrames: maxFrames,
	}
	var err error
	if path == Memory {
		err = e.openMemory()
	} else {
		err = e.openFile(path, opts)
	}
	if err != nil {
		e.closeConns()
		if _, damaged := blames(err); damaged {
			return nil, fault.Wrap(fault.Invalid, err,
				"the database %[1]s is damaged; restore a backup, or move %[1]s, %[1]s-wal and %[1]s-shm away to start with an empty one", path)
		}
		return nil, fault.Wrap(Kind(err), err, "open the database %s", path)
	}
	e.running.Go(e.write)
	if path != Memory {
		e.running.Go(e.runCheckpoints)
	}
	return e, nil
}

// Now returns the time of the engine's clock.
func (e *Engine) Now() time.Time { return e.now() }

// Read calls f with a connection that sees every commit that was answered before. f must not write with the connection or
// keep it.
func (e *Engine) Read(ctx context.Context, f func(c *Conn) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	var conn *Conn
	select {
	case conn = <-e.pool:
	case <-ctx.Done():
		return ctx.Err()
	}
	if conn == nil {
		return errClosed
	}
	returned := false // false if f panics
	defer func() {
		if !returned || conn.inTransaction() {
			conn.reset()
		}
		e.pool <- conn
	}()
	err := f(conn)
	returned = true
	e.health.noteRead(err)
	return err
}

// Snapshot reads like [Engine.Read], and all statements of f see the same commit.
func (e *Engine) Snapshot(ctx context.Context, f func(c *Conn) error) error {
	return e.Read(ctx, func(c *Conn) error {
		if err := run(c, "BEGIN"); err != nil {
			return err
		}
		err := f(c)
		if end := run(c, "COMMIT"); err == nil {
			err = end
		}
		return err
	})
}

// inMemory reports whether the engine is in memory. Then one connection is both the writer and the pool.
func (e *Engine) inMemory() bool { return e.lock == nil }

func (e *Engine) lockWriter() *Conn {
	if e.inMemory() {
		return <-e.pool
	}
	return e.writer
}

func (e *Engine) unlockWriter() {
	if e.inMemory() {
		e.pool <- e.writer
	}
}

// Close refuses new jobs, commits the waiting ones, and closes the file.
func (e *Engine) Close() error {
	e.gate.Lock()
	if e.closed {
		e.gate.Unlock()
		return nil
	}
	e.closed = true
	close(e.queue)
	e.gate.Unlock()
	close(e.stop)
	e.running.Wait()

	// Readers finish. Later ones get nil from the closed pool and are refused.
	conns := make([]*Conn, cap(e.pool))
	for i := range conns {
		conns[i] = <-e.pool
	}
	err := e.files.check()
	if !e.inMemory() {
		_, _, failed := e.writer.checkpoint("TRUNCATE")
		err = cmp.Or(err, failed)
	}
	close(e.pool)
	for _, c := range conns {
		if c != e.writer {
			c.close()
		}
	}
	e.writer.close()
	if e.lock != nil {
		e.lock.close()
	}
	e.disk.close()
	return fault.Wrap(Kind(err), err, "close the database")
}

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
