package engine

import (
	"context"
	"errors"
	"log/slog"
	"sync"

	"zombiezen.com/go/sqlite"

	"github.com/mcp-events/mcpevents/shared/fault"
)

// health is what the last write, the last checkpoint and all reads have told of the file.
type health struct {
	mu         sync.Mutex
	damaged    error // for as long as the engine is open
	write      error
	checkpoint error
}

// Health is nil unless the last write or checkpoint failed for the file's or the disk's sake, or the file is damaged. The
// cause is in the log. While writes fail the engine tries one of its own every half second, so that an idle server recovers too.
func (e *Engine) Health() error {
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

// blames reports that an error speaks of the file or its disk, not of a statement.
func blames(err error) (is, damaged bool) {
	se, ok := errors.AsType[*Error](err)
	if !ok {
		return false, false
	}
	primary := se.Code.ToPrimary()
	damaged = primary == sqlite.ResultCorrupt || primary == sqlite.ResultNotADB
	return damaged || transient[primary] && primary != sqlite.ResultInterrupt, damaged
}

// note takes down the outcome of a write or a checkpoint.
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

// noteRead takes down damage that a read has found.
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

// probe is a write that changes nothing and reaches the disk nevertheless.
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
		_ = e.Do(context.Background(), probe{}) // the health takes note of it
	}
}
