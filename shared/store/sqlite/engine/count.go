package engine

import (
	"sync/atomic"
	"unsafe"

	"modernc.org/libc"
	"modernc.org/libc/sys/types"
	sqlite3 "modernc.org/sqlite/lib"
)

// Stats are what an engine has done since it was opened.
type Stats struct {
	Commits     int64 `json:"commits"`
	Checkpoints int64 `json:"checkpoints"`
	// Syncs and Written count what the file and its log cost the disk: fsyncs, and bytes. In memory they are 0.
	Syncs   int64 `json:"syncs"`
	Written int64 `json:"written_bytes"`
}

// Stats tells what has been done so far.
func (e *Engine) Stats() Stats {
	return Stats{
		Commits: e.commits.Load(), Checkpoints: e.checkpointed.Load(),
		Syncs: e.disk.syncs.Load(), Written: e.disk.written.Load(),
	}
}

// disk counts syncs and written bytes.
type disk struct{ syncs, written atomic.Int64 }

// counted is a copy of a file's table of methods in C memory, with what counting needs behind it. SQLite hands the
// file to each method, and with it the way to the counters.
type counted struct {
	methods     sqlite3.Tsqlite3_io_methods
	sync, write uintptr // the originals
	disk        uintptr // of the engine that has the file open; it outlives its connections
}

// count has the connection's file and log counted. The log is open after a first read.
func (c *Conn) count(d *disk) error {
	if err := c.Exec("SELECT 1 FROM sqlite_schema"); err != nil {
		return err
	}
	for _, op := range []int32{sqlite3.SQLITE_FCNTL_FILE_POINTER, sqlite3.SQLITE_FCNTL_JOURNAL_POINTER} {
		if rc := sqlite3.Xsqlite3_file_control(c.tls, c.db, 0, op, c.out); rc != sqlite3.SQLITE_OK {
			return c.fail("file control", rc)
		}
		file := (*sqlite3.Tsqlite3_file)(pointer(*(*uintptr)(pointer(c.out))))
		if file == nil || file.FpMethods == 0 {
			continue
		}
		at := libc.Xmalloc(c.tls, types.Size_t(unsafe.Sizeof(counted{})))
		if at == 0 {
			return noMemory("count")
		}
		c.tables = append(c.tables, at)
		t := (*counted)(pointer(at))
		t.methods = *(*sqlite3.Tsqlite3_io_methods)(pointer(file.FpMethods))
		t.sync, t.write, t.disk = t.methods.FxSync, t.methods.FxWrite, uintptr(unsafe.Pointer(d))
		t.methods.FxSync, t.methods.FxWrite = function(countSync), function(countWrite)
		file.FpMethods = at
	}
	return nil
}

// table is the counted methods of a file.
func table(file uintptr) *counted {
	return (*counted)(pointer((*sqlite3.Tsqlite3_file)(pointer(file)).FpMethods))
}

func countSync(tls *libc.TLS, file uintptr, flags int32) int32 {
	t := table(file)
	(*disk)(pointer(t.disk)).syncs.Add(1)
	return (*(*func(*libc.TLS, uintptr, int32) int32)(unsafe.Pointer(&struct{ uintptr }{t.sync})))(tls, file, flags)
}

func countWrite(tls *libc.TLS, file, buf uintptr, n int32, offset sqlite3.Tsqlite3_int64) int32 {
	t := table(file)
	(*disk)(pointer(t.disk)).written.Add(int64(n))
	return (*(*func(*libc.TLS, uintptr, uintptr, int32, sqlite3.Tsqlite3_int64) int32)(
		unsafe.Pointer(&struct{ uintptr }{t.write})))(tls, file, buf, n, offset)
}

// function is a Go function as a C function pointer, the way the transpiled SQLite makes them.
func function(f any) uintptr {
	return (*(*[2]uintptr)(unsafe.Pointer(&f)))[1]
}
