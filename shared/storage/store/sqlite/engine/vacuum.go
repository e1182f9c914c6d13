package engine

import (
	"context"
	"time"

	"github.com/mcp-events/mcpevents/shared/platform/periodic"
)

const (
	// vacuumStep is how many free pages one job gives back.
	vacuumStep = 128
	// vacuumPause is the time for other jobs after each such job.
	vacuumPause = 10 * time.Millisecond
	// keepFree is how many free pages always stay.
	keepFree = 256
)

// Shrink gives free pages back to the file system, in small steps, as long as more than a quarter of the file is free. Fewer
// free pages will soon be used again. It ends with ctx.
//
// A file of an earlier release cannot shrink before "PRAGMA auto_vacuum=2; VACUUM" has run on it while no server runs. Until
// then its free pages are only reused.
func (e *Engine) Shrink(ctx context.Context) error {
	for ctx.Err() == nil {
		step := &vacuum{}
		if err := e.Do(ctx, step); err != nil || !step.more {
			return err
		}
		_ = periodic.Sleep(ctx, vacuumPause) // the loop ends with ctx
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

// Rewrite rewrites the file and empties the log, so that rows that were deleted, replaced or moved before are gone from both.
// The writer and the readers pause meanwhile.
func (e *Engine) Rewrite(ctx context.Context) error {
	if e.inMemory() {
		return nil // there is no file
	}
	job := rewrite{e, make(chan error, 1)}
	if err := e.Do(ctx, job); err != nil {
		return err
	}
	return <-job.done
}

type rewrite struct {
	e    *Engine
	done chan error
}

func (rewrite) Apply(*Tx) error { return nil }

// Done runs in the writer, outside of a transaction.
func (r rewrite) Done(err error) {
	if err != nil {
		return
	}
	conns := make([]*Conn, cap(r.e.pool)) // the log cannot be emptied while there are readers
	for i := range conns {
		conns[i] = <-r.e.pool
	}
	if err = r.e.writer.Exec("VACUUM"); err == nil {
		_, _, err = r.e.writer.checkpoint("TRUNCATE")
	}
	for _, c := range conns {
		r.e.pool <- c
	}
	r.done <- err
}
