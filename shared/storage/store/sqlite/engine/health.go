package engine

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"sync"

	"zombiezen.com/go/sqlite"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
)

// health holds the errors of the last write and the last checkpoint, and the damage that any of them or a read has found.
type health struct {
	mu         sync.Mutex
	damaged    error // until the engine is closed
	write      error
	checkpoint error
}

// Health returns an error if the last write or checkpoint failed because of the file or the disk, or if the file is damaged,
// was removed or was replaced. The log has the cause. While writes fail, the engine itself tries a write every half second,
// so that Health also recovers on an idle server.
func (e *Engine) Health() error {
	if err := e.files.check(); err != nil {
		return err
	}
	h := &e.health
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case h.damaged != nil:
		return fault.New(fault.Unavailable, "the database is damaged")
	case h.write != nil:
		return fault.New(fault.Unavailable, "the last write to the database failed")
	case h.checkpoint != nil:
		return fault.New(fault.Unavailable, "the last checkpoint of the database failed")
	}
	return nil
}

// blames reports whether an error is about the file or its disk and not about a statement, and whether it means damage.
func blames(err error) (is, damaged bool) {
	se, ok := errors.AsType[*Error](err)
	if !ok {
		return false, false
	}
	primary := se.Code.ToPrimary()
	damaged = primary == sqlite.ResultCorrupt || primary == sqlite.ResultNotADB
	return damaged || transient[primary] && primary != sqlite.ResultInterrupt, damaged
}

// note records the outcome of a write or a checkpoint.
func (h *health) note(to *error, err error) {
	is, damaged := blames(err)
	if err != nil && !is {
		return
	}
	if damaged {
		h.damage(err)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case err != nil && *to == nil:
		slog.Error("database write failed", "error", err)
	case err == nil && *to != nil:
		slog.Info("database writes succeed again")
	}
	*to = err
}

// noteRead records damage that a read found.
func (h *health) noteRead(err error) {
	if _, damaged := blames(err); damaged {
		h.damage(err)
	}
}

func (h *health) damage(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.damaged == nil {
		slog.Error("database damaged", "error", err)
	}
	h.damaged = err
}

func (h *health) writing() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.write == nil
}

// probe is a job that writes to the disk without changing a value.
type probe struct{}

func (probe) Apply(tx *Tx) error {
	version, err := tx.Int("PRAGMA user_version")
	if err != nil {
		return err
	}
	return tx.setVersion(version)
}

func (probe) Done(error) {}

func (e *Engine) probe() {
	if !e.health.writing() {
		_ = e.Do(context.Background(), probe{}) // the writer notes the outcome
	}
}

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
