package engine

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/mcp-events/mcpevents/shared/platform/periodic"
)

const (
	// checkpointEvery is how often the log is moved into the file. It is long enough that a page written by many commits is
	// moved once, and short enough that the log stays small.
	checkpointEvery = 500 * time.Millisecond
	// maxFrames is the length of the log, in pages of 4 KiB, at which the engine makes it start over. SQLite does not do
	// that while there are always readers.
	maxFrames = 8192
	// fewFrames is how many frames may be left to move while the writer and the readers pause.
	fewFrames = 256
)

// runCheckpoints regularly moves the log into the file with a connection of the pool, so that no commit waits for it.
func (e *Engine) runCheckpoints() {
	tick := time.NewTicker(checkpointEvery)
	defer tick.Stop()
	for {
		select {
		case <-e.stop:
			return
		case <-tick.C:
		}
		_ = e.files.check() // logs a removed file even without a write
		e.probe()
		if !e.dirty.Swap(false) {
			continue
		}
		if err := e.checkpoint(); err != nil && !errors.Is(err, errClosed) {
			slog.Warn("checkpoint failed", "error", err)
			e.dirty.Store(true)
		}
	}
}

func (e *Engine) checkpoint() error {
	// The log grows during a pass, so a few more passes move most of the new frames.
	for range 4 {
		conn := <-e.pool
		frames, moved, err := conn.checkpoint("PASSIVE")
		e.pool <- conn
		e.checkpointed.Add(1)
		e.health.note(&e.health.checkpoint, err)
		if err != nil || frames < e.maxFrames {
			return err
		}
		if frames-moved < fewFrames {
			break
		}
	}
	return e.Post(startOver{e})
}

// startOver is a job that makes the log start over. The writer runs it, so it does not write meanwhile. The readers pause
// because the job takes their connections.
type startOver struct{ e *Engine }

func (startOver) Apply(*Tx) error { return nil }

func (s startOver) Done(error) {
	conns := make([]*Conn, cap(s.e.pool))
	for i := range conns {
		conns[i] = <-s.e.pool
	}
	if _, _, err := s.e.writer.checkpoint("RESTART"); err != nil {
		slog.Warn("checkpoint failed", "error", err)
	}
	for _, c := range conns {
		s.e.pool <- c
	}
}

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
