package engine

import (
	"net/url"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"unsafe"

	"modernc.org/libc"
	sqlite3 "modernc.org/sqlite/lib"
)

// Stats counts the work of an engine since it was opened.
type Stats struct {
	Commits     int64 `json:"commits"`
	Checkpoints int64 `json:"checkpoints"`
	// Syncs and Written count the fsyncs and the written bytes of the file and its log. In memory they are 0.
	Syncs   int64 `json:"syncs"`
	Written int64 `json:"written_bytes"`
}

// Stats returns the counts so far.
func (e *Engine) Stats() Stats {
	return Stats{
		Commits: e.commits.Load(), Checkpoints: e.checkpointed.Load(),
		Syncs: e.disk.syncs.Load(), Written: e.disk.written.Load(),
	}
}

// disk counts the syncs and the written bytes of an engine's file and log.
//
// The Go packages for SQLite do not report them, so disk counts them in a VFS that forwards each call to the default VFS.
// All unsafe code of the engine is below.
type disk struct {
	id             int64
	syncs, written atomic.Int64
	mu             sync.Mutex
	methods        map[uintptr]*methods // by the address of the replaced methods
}

// methods are the methods of a counted file. The disk keeps them alive.
type methods struct {
	sync    func(tls *libc.TLS, file uintptr, flags int32) int32
	write   func(tls *libc.TLS, file, buf uintptr, n int32, offset sqlite3.Tsqlite3_int64) int32
	disk    *disk
	address uintptr // of the ioMethods that SQLite calls
}

// ioMethods are in C memory, because a program that is built with -race crashes when SQLite follows an address into Go's
// memory.
type ioMethods struct {
	sqlite3.Tsqlite3_io_methods
	counted uintptr // the address of the methods in Go's memory, which does not move
}

// vfs is the counting VFS of the process.
var vfs struct {
	register sync.Once
	open     func(tls *libc.TLS, vfs, name, file uintptr, flags int32, out uintptr) int32
	engine   uintptr // the name of the URI parameter, in C memory
	last     atomic.Int64
	disks    sync.Map // by id
}

// count returns the URI for connections to the file at path that this disk counts. The disk is closed after the connections.
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

// close ends the counting.
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

// replace returns the address of counting methods that call the original ones.
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

// allocate copies a value into C memory.
func allocate[T any](tls *libc.TLS, value T) uintptr {
	address := libc.Xmalloc(tls, libc.Tsize_t(unsafe.Sizeof(value)))
	*(*T)(pointer(address)) = value
	return address
}

// pointer converts an address into a Go pointer. The memory there must not be moved by the garbage collector.
func pointer(address uintptr) unsafe.Pointer { return *(*unsafe.Pointer)(unsafe.Pointer(&address)) }

// function converts a Go function to a C function pointer in the same way as the transpiled SQLite.
func function[F any](f F) uintptr { return *(*uintptr)(unsafe.Pointer(&f)) }
