package engine

import (
	"context"
	"time"
)

const (
	// vacuumStep is how many free pages one job gives back.
	vacuumStep = 128
	// vacuumPause is how long the writer has for other jobs after each.
	vacuumPause = 10 * time.Millisecond
	// keepFree is how many free pages stay in any case.
	keepFree = 256
)

// Shrink gives free pages back to the file system, in small steps, while more than a quarter of the file is free:
// fewer than that are soon used again. It ends with ctx.
//
// A file of an earlier release cannot shrink before "PRAGMA auto_vacuum=2; VACUUM" has run on it, while no server runs.
// Until then its free pages are only used again.
func (e *Engine) Shrink(ctx context.Context) error {
	for ctx.Err() == nil {
		step := &vacuum{}
		if err := e.Do(ctx, step); err != nil || !step.more {
			return err
		}
		select {
		case <-ctx.Done():
		case <-time.After(vacuumPause):
		}
	}
	return nil
}

type vacuum struct{ more bool }

func (v *vacuum) Apply(tx *Tx) error {
	v.more = false
	var mode, free, pages int64
	for _, read := range []struct {
		sql string
		to  *int64
	}{{"PRAGMA auto_vacuum", &mode}, {"PRAGMA freelist_count", &free}, {"PRAGMA page_count", &pages}} {
		var err error
		if *read.to, err = tx.Int(read.sql); err != nil {
			return err
		}
	}
	if mode != 2 || free <= keepFree || free <= pages/4 {
		return nil
	}
	v.more = true
	return tx.vacuum()
}

func (*vacuum) Done(error) {}
