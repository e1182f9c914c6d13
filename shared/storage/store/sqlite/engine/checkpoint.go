package engine

import (
	"errors"
	"log/slog"
	"time"
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
