package engine

import (
	"sync"
	"unsafe"

	"modernc.org/libc"
	"modernc.org/libc/sys/types"
	sqlite3 "modernc.org/sqlite/lib"
)

// SQLite writes a commit into its log by two calls for each page, 24 and 4,096
// bytes that follow each other; then it syncs. Those calls were three
// quarters of the writer's CPU time. The file system of this file passes everything
// through to the default one, except that writes to the log that continue one
// another are gathered and written at once: at the sync, or when anything but a
// continuing write is asked of the file.
//
// That changes nothing of what SQLite relies on. Before a sync it expects no
// order on the disk, and no other connection looks at frames before they are in the
// index of the log, which follows the sync. The latter holds only with synchronous=FULL and
// where SQLite does not pad the log to disk sectors, which is its default everywhere;
// so only the connection of the writer uses this.

// walVFS is the name of the file system.
const walVFS = "mcpevents-wal"

const (
	// walBuffer is how much is gathered, in bytes.
	walBuffer = 256 << 10
	// walPiece is how much is written at once. The default file system takes a
	// size modulo 128 KiB and so fails on multiples of that.
	walPiece = 64 << 10
)

// walFile is what belongs to an open log. It lies in C memory; so does its buffer.
type walFile struct {
	original uintptr // sqlite3_io_methods of the default file system
	buffer   uintptr
	start    int64 // where in the file the buffer belongs
	used     int32
}

// The C functions that this file calls or stands for, by their signatures.
type (
	openFunc     = func(tls *libc.TLS, vfs, name, file uintptr, flags int32, outFlags uintptr) int32
	closeFunc    = func(tls *libc.TLS, file uintptr) int32
	transferFunc = func(tls *libc.TLS, file, data uintptr, n int32, at int64) int32
	truncateFunc = func(tls *libc.TLS, file uintptr, size int64) int32
	syncFunc     = func(tls *libc.TLS, file uintptr, flags int32) int32
	sizeFunc     = func(tls *libc.TLS, file, size uintptr) int32
)

// native makes a Go function of a C function pointer.
func native[F any](address uintptr) F {
	return *(*F)(unsafe.Pointer(&struct{ uintptr }{address}))
}

// foreign makes a C function pointer of a function of the package's top level.
func foreign[F any](f F) uintptr { return *(*uintptr)(unsafe.Pointer(&f)) }

var (
	walOnce    sync.Once
	walError   error
	walDefault *sqlite3.Tsqlite3_vfs
	walOffset  uintptr             // where in an open file the address of its walFile lies
	walMethods map[uintptr]uintptr // by original methods
	walMutex   sync.Mutex
)

// registerWAL makes the file system known to SQLite, once in a process.
func registerWAL() error {
	walOnce.Do(func() {
		tls := libc.NewTLS()
		defer tls.Close()
		found := sqlite3.Xsqlite3_vfs_find(tls, 0)
		vfs := libc.Xcalloc(tls, 1, size[sqlite3.Tsqlite3_vfs]())
		name, err := libc.CString(walVFS)
		if found == 0 || vfs == 0 || err != nil {
			walError = noMemory("register " + walVFS)
			return
		}
		walMethods = map[uintptr]uintptr{}
		walDefault = (*sqlite3.Tsqlite3_vfs)(pointer(found))
		walOffset = uintptr(walDefault.FszOsFile+7) &^ 7
		own := (*sqlite3.Tsqlite3_vfs)(pointer(vfs))
		*own = *walDefault
		own.FszOsFile = int32(walOffset) + 8
		own.FpNext = 0
		own.FzName = name
		own.FxOpen = foreign(openFunc(walOpen))
		if rc := sqlite3.Xsqlite3_vfs_register(tls, vfs, 0); rc != sqlite3.SQLITE_OK {
			walError = &Error{Code: rc, Message: "the file system could not be registered", SQL: "register " + walVFS}
		}
	})
	return walError
}

// size is C's sizeof.
func size[T any]() types.Size_t {
	var v T
	return types.Size_t(unsafe.Sizeof(v))
}

func walOpen(tls *libc.TLS, _, name, file uintptr, flags int32, outFlags uintptr) int32 {
	rc := native[openFunc](walDefault.FxOpen)(tls, uintptr(unsafe.Pointer(walDefault)), name, file, flags, outFlags)
	if rc != sqlite3.SQLITE_OK || flags&sqlite3.SQLITE_OPEN_WAL == 0 {
		return rc
	}
	f := (*sqlite3.Tsqlite3_file)(pointer(file))
	state := libc.Xcalloc(tls, 1, size[walFile]())
	buffer := libc.Xmalloc(tls, walBuffer)
	methods := methodsOver(tls, f.FpMethods)
	if state == 0 || buffer == 0 || methods == 0 {
		native[closeFunc]((*sqlite3.Tsqlite3_io_methods)(pointer(f.FpMethods)).FxClose)(tls, file)
		f.FpMethods = 0
		libc.Xfree(tls, state)
		libc.Xfree(tls, buffer)
		return sqlite3.SQLITE_NOMEM
	}
	*(*walFile)(pointer(state)) = walFile{original: f.FpMethods, buffer: buffer}
	*(*uintptr)(pointer(file + walOffset)) = state
	f.FpMethods = methods
	return sqlite3.SQLITE_OK
}

// methodsOver returns the methods of a log file that are laid over the original
// ones; they are made once and never freed.
func methodsOver(tls *libc.TLS, original uintptr) uintptr {
	walMutex.Lock()
	defer walMutex.Unlock()
	if m := walMethods[original]; m != 0 {
		return m
	}
	at := libc.Xcalloc(tls, 1, size[sqlite3.Tsqlite3_io_methods]())
	if at == 0 {
		return 0
	}
	m := (*sqlite3.Tsqlite3_io_methods)(pointer(at))
	*m = *(*sqlite3.Tsqlite3_io_methods)(pointer(original))
	m.FxClose = foreign(closeFunc(walClose))
	m.FxRead = foreign(transferFunc(walRead))
	m.FxWrite = foreign(transferFunc(walWrite))
	m.FxTruncate = foreign(truncateFunc(walTruncate))
	m.FxSync = foreign(syncFunc(walSync))
	m.FxFileSize = foreign(sizeFunc(walSize))
	walMethods[original] = at
	return at
}

func walOf(file uintptr) (*walFile, *sqlite3.Tsqlite3_io_methods) {
	w := (*walFile)(pointer(*(*uintptr)(pointer(file + walOffset))))
	return w, (*sqlite3.Tsqlite3_io_methods)(pointer(w.original))
}

// flush writes what has been gathered. After a failure it is forgotten: SQLite
// gives the transaction up, and what it writes next lies in the same place.
func (w *walFile) flush(tls *libc.TLS, file uintptr, m *sqlite3.Tsqlite3_io_methods) int32 {
	if w.used == 0 {
		return sqlite3.SQLITE_OK
	}
	end := w.used
	w.used = 0
	for from := int32(0); from < end; from += walPiece {
		rc := native[transferFunc](m.FxWrite)(tls, file, w.buffer+uintptr(from), min(walPiece, end-from), w.start+int64(from))
		if rc != sqlite3.SQLITE_OK {
			return rc
		}
	}
	return sqlite3.SQLITE_OK
}

func walWrite(tls *libc.TLS, file, data uintptr, n int32, at int64) int32 {
	w, m := walOf(file)
	if w.used > 0 && (at != w.start+int64(w.used) || w.used+n > walBuffer) {
		if rc := w.flush(tls, file, m); rc != sqlite3.SQLITE_OK {
			return rc
		}
	}
	if n > walBuffer {
		return native[transferFunc](m.FxWrite)(tls, file, data, n, at)
	}
	if w.used == 0 {
		w.start = at
	}
	copy(memory(w.buffer+uintptr(w.used), int(n)), memory(data, int(n)))
	w.used += n
	return sqlite3.SQLITE_OK
}

func walRead(tls *libc.TLS, file, data uintptr, n int32, at int64) int32 {
	w, m := walOf(file)
	if rc := w.flush(tls, file, m); rc != sqlite3.SQLITE_OK {
		return rc
	}
	return native[transferFunc](m.FxRead)(tls, file, data, n, at)
}

func walSync(tls *libc.TLS, file uintptr, flags int32) int32 {
	w, m := walOf(file)
	if rc := w.flush(tls, file, m); rc != sqlite3.SQLITE_OK {
		return rc
	}
	return native[syncFunc](m.FxSync)(tls, file, flags)
}

func walTruncate(tls *libc.TLS, file uintptr, length int64) int32 {
	w, m := walOf(file)
	if rc := w.flush(tls, file, m); rc != sqlite3.SQLITE_OK {
		return rc
	}
	return native[truncateFunc](m.FxTruncate)(tls, file, length)
}

func walSize(tls *libc.TLS, file, result uintptr) int32 {
	w, m := walOf(file)
	if rc := w.flush(tls, file, m); rc != sqlite3.SQLITE_OK {
		return rc
	}
	return native[sizeFunc](m.FxFileSize)(tls, file, result)
}

func walClose(tls *libc.TLS, file uintptr) int32 {
	w, m := walOf(file)
	flushed := w.flush(tls, file, m)
	(*sqlite3.Tsqlite3_file)(pointer(file)).FpMethods = w.original
	rc := native[closeFunc](m.FxClose)(tls, file)
	libc.Xfree(tls, w.buffer)
	libc.Xfree(tls, uintptr(unsafe.Pointer(w)))
	if flushed != sqlite3.SQLITE_OK {
		return flushed
	}
	return rc
}
