package engine

import (
	"errors"
	"log/slog"
	"time"
)

const (
	// checkpointEvery is how often the log is moved into the file. Long enough
	// that a page written by many commits is moved once, short enough that the log stays small.
	checkpointEvery = 500 * time.Millisecond
	// maxFrames is the length of the log, in pages of 4 KiB, at which it has to start over. With readers at all times
	// it would not do so by itself.
	maxFrames = 8192
	// fewFrames is how much of the log may be left to move while writer and readers pause.
	fewFrames = 256
)

// checkpoints moves the log into the file on a connection of its own, beside the
// writer and the readers, so that no commit waits for it.
func (e *Engine) checkpoints() {
	tick := time.NewTicker(checkpointEvery)
	defer tick.Stop()
	for {
		select {
		case <-e.stop:
			return
		case <-tick.C:
		}
		_ = e.files.check() // so that the log tells of it although nothing is written
		e.probe()
		if !e.dirty.Swap(false) {
			continue
		}
		if err := e.checkpoint(); err != nil && !errors.Is(err, errClosed) {
			warnCheckpoint(err)
			e.dirty.Store(true)
		}
	}
}

func warnCheckpoint(err error) {
	slog.Warn("checkpoint failed", "error", err)
}

func (e *Engine) checkpoint() error {
	// While one pass runs the log grows; a few more passes shorten what is left.
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

// startOver is a job that makes the log start over. The writer runs it and so pauses; the readers pause because it takes
// their connections.
type startOver struct{ e *Engine }

func (startOver) Apply(*Tx) error { return nil }

func (s startOver) Done(error) {
	conns := make([]*Conn, cap(s.e.pool))
	for i := range conns {
		conns[i] = <-s.e.pool
	}
	if _, _, err := s.e.writer.checkpoint("RESTART"); err != nil {
		warnCheckpoint(err)
	}
	for _, c := range conns {
		s.e.pool <- c
	}
}
