package engine

import (
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"sync"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
)

// errRemoved refuses work while the file or its log is not at its path. The system keeps an open file that was removed or
// replaced, so writes to it would succeed and be lost when the engine closes.
var errRemoved = fault.New(fault.Unavailable, "the database was removed or replaced while it was open")

// presence knows which files the engine has open: the database and its log. The zero value, for an engine in memory, has
// none.
type presence struct {
	path string

	mu        sync.Mutex
	main, log os.FileInfo
	removed   bool // the last check found this
}

// open notes the files at path, which the engine has just opened.
func (p *presence) open(path string) error {
	main, err := os.Stat(path)
	if err != nil {
		return fault.Wrap(fault.Unavailable, err, "look at the file")
	}
	p.path, p.main = path, main
	p.log, _ = os.Stat(path + "-wal") // it may not be there yet
	return nil
}

// check returns errRemoved if another file or none is at a path of the engine's files. The files may come back.
func (p *presence) check() error {
	if p.path == "" {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	main, log := p.main, p.log
	removed := missing(p.path, &main) || missing(p.path+"-wal", &log)
	p.log = log
	switch {
	case removed && !p.removed:
		slog.Error("database removed", "path", p.path)
	case !removed && p.removed:
		slog.Info("database is back", "path", p.path)
	}
	if p.removed = removed; removed {
		return errRemoved
	}
	return nil
}

// missing reports whether the file at path is not the given one. A file that is not known yet becomes the one at path. An
// error that does not tell, such as one of permissions, counts as the same file.
func missing(path string, known *os.FileInfo) bool {
	found, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return *known != nil
	case err != nil:
		return false
	case *known == nil:
		*known = found
		return false
	}
	return !os.SameFile(*known, found)
}
