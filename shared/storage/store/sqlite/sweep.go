package sqlite

import (
	"context"
	"log/slog"
	"time"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/storage/store"
	"github.com/mcp-events/mcpevents/shared/storage/store/sqlite/engine"
)

// sweepStep is the number of items that one step removes. Other writes wait for the step, and each item may be on a
// different page.
const sweepStep = 200

// runSweeps removes expired items regularly until ctx ends, and gives their room back to the file system. Readers never see
// expired items.
func (db *DB) runSweeps(ctx context.Context, every time.Duration) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if err := db.clean(ctx); err != nil && ctx.Err() == nil {
			slog.Warn("expired items not deleted", "error", err)
		}
	}
}

// clean removes expired items, and gives room back to the file system unless it will soon be used again.
func (db *DB) clean(ctx context.Context) error {
	if _, err := db.sweep(ctx); err != nil {
		return err
	}
	return db.engine.Shrink(ctx)
}

// sweep removes expired items step by step and returns their number.
func (db *DB) sweep(ctx context.Context) (removed int, err error) {
	for _, table := range store.Tables() {
		for {
			step := &sweepJob{sql: tables[table].sweep}
			if err := db.engine.Do(ctx, step); err != nil {
				return removed, err
			}
			removed += step.removed
			if step.removed < sweepStep {
				break
			}
		}
	}
	return removed, nil
}

type sweepJob struct {
	sql     string
	removed int
}

func (j *sweepJob) Apply(tx *engine.Tx) error {
	s, err := tx.Stmt(j.sql)
	if err != nil {
		return err
	}
	if err := s.Int(1, tx.Now.Unix()).Int(2, sweepStep).Exec(); err != nil {
		return err
	}
	j.removed = tx.Changes()
	return nil
}

func (*sweepJob) Done(error) {}

// Scrub implements [store.Scrub].
func (db *DB) Scrub(ctx context.Context) error {
	return fault.Wrap(fault.Unavailable, db.engine.Rewrite(ctx), "rewrite the file")
}
