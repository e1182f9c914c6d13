package sqlite

import (
	"context"
	"log/slog"
	"time"

	"github.com/mcp-events/mcpevents/shared/store"
	"github.com/mcp-events/mcpevents/shared/store/sqlite/engine"
)

// sweepStep is the number of items that one step removes. Each may lie on a page
// of its own, and the writer's other work waits meanwhile.
const sweepStep = 200

// sweeps removes expired items now and then until ctx ends, and gives back the room that they leave. Readers do not
// see them anyway.
func (db *DB) sweeps(ctx context.Context, every time.Duration) {
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

// clean removes what has expired, and gives back the room of it that is not used again soon.
func (db *DB) clean(ctx context.Context) error {
	if _, err := db.sweep(ctx); err != nil {
		return err
	}
	return db.engine.Shrink(ctx)
}

// sweep removes what has expired by now, step by step, and returns how much that was.
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
