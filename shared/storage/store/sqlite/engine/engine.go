// Package engine runs one SQLite file with a single writer for the store (store/sqlite) and the queues (queue/sqlite).
//
// The writer is a goroutine. It puts all waiting jobs into one transaction, a group commit, so that they share one sync of the file to
// the disk (WAL, synchronous=FULL). While it commits, jobs for the next commit arrive.
//
//	Do, Post ──▶ queue of jobs ──▶ writer: BEGIN, job, job, job, COMMIT ──▶ answers
//	Read     ──▶ pool of connections, each of which sees the last commit
//	             checkpoints: move the log into the file, concurrently with the writer
//
// The file belongs to one process at a time.
package engine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"path/filepath"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"modernc.org/libc"
	sqlite3 "modernc.org/sqlite/lib"
	"zombiezen.com/go/sqlite"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/platform/periodic"
)

// Memory is a path for [Open] that keeps the database in memory until the engine is closed.
const Memory = ":memory:"

// Options are the settings of an [Engine]. The zero value has the defaults.
type Options struct {
	// Readers is the number of read connections. The default is 2*GOMAXPROCS, at most 8. A database in memory has a single connection
	// for reads and writes.
	Readers int
	// Now is the clock; nil means [time.Now].
	Now func() time.Time
	// Log receives failures of the file and the disk; nil means [slog.Default].
	Log *slog.Logger
}

// Engine is an open SQLite file with its writer. Its methods may be called concurrently.
type Engine struct {
	now    func() time.Time
	log    *slog.Logger
	lock   *Conn
	writer *Conn
	tx     Tx
	pool   chan *Conn // connections for reads; in memory, it has only the writer

	gate   sync.RWMutex // held for reading while a job is submitted, so that Close can wait for that
	closed bool
	queue  chan *entry
	// entries is a pool for entries. It is not a variable of the package, because an entry has a channel, and a channel that was made in
	// the synctest bubble of one test must not be used in another.
	entries sync.Pool

	lazyMu   sync.Mutex
	lazyDone bool // new lazy jobs are refused, because the last commit has taken the waiting ones
	lazy     []*entry
	lazyBy   time.Time   // when the first lazy job must be committed; zero if no lazy job waits
	lazySeq  int64       // the number of lazy and batch jobs so far
	batch    batch       // the jobs of [Engine.Batch] that still wait
	alarm    *time.Timer // wakes the writer at lazyBy, or when the batch is due

	dirty        atomic.Bool // a job has written since the last checkpoint
	health       health
	files        presence
	disk         disk
	commits      atomic.Int64
	checkpointed atomic.Int64

	maxFrames int
	stop      chan struct{}
	running   sync.WaitGroup
}

// Open opens the database at path, which may be [Memory], and starts its writer. The folder of the file must exist. If another engine has
// the file open, the error is of kind fault.Conflict.
func Open(path string, opts Options) (*Engine, error) {
	if opts.Readers <= 0 {
		opts.Readers = min(2*runtime.GOMAXPROCS(0), 8)
	}
	opts.Now = periodic.Clock(opts.Now)
	opts.Log = cmp.Or(opts.Log, slog.Default())
	e := &Engine{
		now: opts.Now, log: opts.Log, health: health{log: opts.Log}, files: presence{log: opts.Log},
		queue: make(chan *entry, maxQueue), alarm: time.NewTimer(lazyDelay), stop: make(chan struct{}), maxFrames: maxFrames,
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

// Log returns the logger for failures of the file and the disk.
func (e *Engine) Log() *slog.Logger { return e.log }

// Read calls f with a connection for reading. The connection sees the writes of every job whose [Engine.Do] has returned. f must not
// write with the connection, or use it after f has returned.
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

// Snapshot calls f like [Engine.Read], but all statements of f see the same commit.
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

// inMemory reports whether the database is in memory. Its only connection is then both the writer and the pool of readers.
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

// Close refuses new jobs, commits the waiting jobs, and closes the file.
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

	// Wait until the running reads have returned their connections. Later reads get nil from the closed pool and fail.
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
	Code    sqlite.ResultCode // an extended result code
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

// errClosed is the error for work that arrives after [Engine.Close].
var errClosed = fault.New(fault.Unavailable, "the database is closed")

// transient has the primary result codes of temporary errors. After such an error, the same call may succeed later.
var transient = map[sqlite.ResultCode]bool{
	sqlite.ResultBusy: true, sqlite.ResultLocked: true, sqlite.ResultFull: true,
	sqlite.ResultIOErr: true, sqlite.ResultNoMem: true, sqlite.ResultInterrupt: true,
	sqlite.ResultCantOpen: true, sqlite.ResultReadOnly: true, sqlite.ResultProtocol: true,
}

// Kind returns the kind of an error of this package. It is fault.Unavailable if the same call may succeed later, for
// example after an error because the disk is full, the file is locked, or the context of the call has ended.
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

// Stats counts the work of an engine since it was opened.
type Stats struct {
	Commits     int64 `json:"commits"`
	Checkpoints int64 `json:"checkpoints"`
	// Syncs and Written count the fsyncs and the written bytes of the file and its write-ahead log. They are 0 for an
	// engine in memory.
	Syncs   int64 `json:"syncs"`
	Written int64 `json:"written_bytes"`
}

// Stats returns the counts since the engine was opened.
func (e *Engine) Stats() Stats {
	return Stats{
		Commits: e.commits.Load(), Checkpoints: e.checkpointed.Load(),
		Syncs: e.disk.syncs.Load(), Written: e.disk.written.Load(),
	}
}

// disk counts the syncs and the written bytes of an engine's file and write-ahead log. The Go packages for SQLite do not report
// them, so disk counts them in a VFS (SQLite's interface to the file system) that forwards each call to the default VFS. All
// unsafe code of the engine is below.
type disk struct {
	id             int64
	syncs, written atomic.Int64
	mu             sync.Mutex
	methods        map[uintptr]*methods // SQLite's own methods by their address
}

// methods has SQLite's own methods for a file, to which the counting methods forward. A [disk] keeps a reference to these methods.
// Without it, the garbage collector would free them, because it does not see references in C memory.
type methods struct {
	sync    func(tls *libc.TLS, file uintptr, flags int32) int32
	write   func(tls *libc.TLS, file, buf uintptr, n int32, offset sqlite3.Tsqlite3_int64) int32
	disk    *disk
	address uintptr // of the ioMethods that SQLite calls
}

// ioMethods is the table of file methods that SQLite calls. It is in C memory, because a program that is built with -race crashes when
// SQLite follows an address into Go's memory.
type ioMethods struct {
	sqlite3.Tsqlite3_io_methods
	counted uintptr // the address of the methods in Go's memory, which does not move
}

var vfs struct {
	register sync.Once
	open     func(tls *libc.TLS, vfs, name, file uintptr, flags int32, out uintptr) int32
	engine   uintptr // the text "engine" in C memory, which is the name of a URI parameter
	last     atomic.Int64
	disks    sync.Map // the disks by their ids
}

// count returns a URI that opens the file at path so that d counts its syncs and written bytes. Close d only after all connections to the
// file are closed.
func (d *disk) count(path string) string {
	vfs.register.Do(func() {
		tls := libc.NewTLS()
		defer tls.Close()
		counting := allocate(tls, *(*sqlite3.Tsqlite3_vfs)(pointer(sqlite3.Xsqlite3_vfs_find(tls, 0))))
		v := (*sqlite3.Tsqlite3_vfs)(pointer(counting))
		vfs.open = *(*func(*libc.TLS, uintptr, uintptr, uintptr, int32, uintptr) int32)(unsafe.Pointer(&v.FxOpen))
		v.FxOpen = function(countOpen)
		v.FzName, _ = libc.CString("counting")
		vfs.engine, _ = libc.CString("engine")
		sqlite3.Xsqlite3_vfs_register(tls, counting, 0)
	})
	d.id = vfs.last.Add(1)
	vfs.disks.Store(d.id, d)
	return "file:" + (&url.URL{Path: filepath.ToSlash(path)}).EscapedPath() + "?vfs=counting&engine=" + strconv.FormatInt(d.id, 10)
}

func (d *disk) close() {
	vfs.disks.Delete(d.id)
	d.mu.Lock()
	defer d.mu.Unlock()
	tls := libc.NewTLS()
	defer tls.Close()
	for _, m := range d.methods {
		libc.Xfree(tls, m.address)
	}
	d.methods = nil
}

func countOpen(tls *libc.TLS, self, name, file uintptr, flags int32, out uintptr) int32 {
	rc := vfs.open(tls, self, name, file, flags, out)
	if rc != sqlite3.SQLITE_OK || flags&(sqlite3.SQLITE_OPEN_MAIN_DB|sqlite3.SQLITE_OPEN_WAL) == 0 {
		return rc
	}
	if d, ok := vfs.disks.Load(sqlite3.Xsqlite3_uri_int64(tls, name, vfs.engine, 0)); ok {
		f := (*sqlite3.Tsqlite3_file)(pointer(file))
		f.FpMethods = d.(*disk).replace(tls, f.FpMethods)
	}
	return rc
}

// replace returns the address of file methods that count their calls and then call the methods at the address original.
func (d *disk) replace(tls *libc.TLS, original uintptr) uintptr {
	d.mu.Lock()
	defer d.mu.Unlock()
	m := d.methods[original]
	if m == nil {
		m = &methods{disk: d}
		m.address = allocate(tls, ioMethods{*(*sqlite3.Tsqlite3_io_methods)(pointer(original)), uintptr(unsafe.Pointer(m))})
		io := (*ioMethods)(pointer(m.address))
		m.sync = *(*func(*libc.TLS, uintptr, int32) int32)(unsafe.Pointer(&io.FxSync))
		m.write = *(*func(*libc.TLS, uintptr, uintptr, int32, sqlite3.Tsqlite3_int64) int32)(unsafe.Pointer(&io.FxWrite))
		io.FxSync, io.FxWrite = function(countSync), function(countWrite)
		if d.methods == nil {
			d.methods = map[uintptr]*methods{}
		}
		d.methods[original] = m
	}
	return m.address
}

func countSync(tls *libc.TLS, file uintptr, flags int32) int32 {
	m := methodsOf(file)
	m.disk.syncs.Add(1)
	return m.sync(tls, file, flags)
}

func countWrite(tls *libc.TLS, file, buf uintptr, n int32, offset sqlite3.Tsqlite3_int64) int32 {
	m := methodsOf(file)
	m.disk.written.Add(int64(n))
	return m.write(tls, file, buf, n, offset)
}

func methodsOf(file uintptr) *methods {
	io := (*ioMethods)(pointer((*sqlite3.Tsqlite3_file)(pointer(file)).FpMethods))
	return (*methods)(pointer(io.counted))
}

func allocate[T any](tls *libc.TLS, value T) uintptr {
	address := libc.Xmalloc(tls, libc.Tsize_t(unsafe.Sizeof(value)))
	*(*T)(pointer(address)) = value
	return address
}

// pointer converts an address into a Go pointer. The memory there must not be moved by the garbage collector.
func pointer(address uintptr) unsafe.Pointer { return *(*unsafe.Pointer)(unsafe.Pointer(&address)) }

// function converts a Go function to a C function pointer in the same way as the transpiled SQLite.
func function[F any](f F) uintptr { return *(*uintptr)(unsafe.Pointer(&f)) }
