package engine

import (
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"sync"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
)

// errRemoved is returned while the file or its log is not at its path. The system keeps an open file that was removed or
// replaced, so writes to it would succeed, but would be lost when the engine closes.
var errRemoved = fault.New(fault.Unavailable, "the database was removed or replaced while it was open")

// presence knows which files the engine has open: the database and its log. The zero value is for an engine in memory.
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

// check returns errRemoved if one of the engine's files was removed or replaced. The files may be moved back later.
func (p *presence) check() error {
	if p.path == "" {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	main, log := p.main, p.log
	removed := isMissing(p.path, &main) || isMissing(p.path+"-wal", &log)
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

// isMissing reports whether the file at path is not the known one. If known is nil, it becomes the file at path. An error that
// is inconclusive, such as a missing permission, counts as the same file.
func isMissing(path string, known *os.FileInfo) bool {
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
