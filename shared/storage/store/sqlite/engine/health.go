package engine

import (
	"context"
	"errors"
	"log/slog"
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
