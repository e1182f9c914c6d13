// Package loglines collects log lines and writes several of them together after a delay. Writing each line immediately takes several
// times as much processor time, and the request that caused the line would have to wait for it.
package loglines

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// Writer passes log records to a handler, in the order of the calls of [Writer.Add]. It may be used concurrently.
type Writer struct {
	Handler slog.Handler
	// Delay is how long a record may wait until it is written; 0 writes each record immediately.
	Delay time.Duration

	mu      sync.Mutex
	waiting []line
	spare   []line     // an empty slice that Flush swaps with waiting, to reuse its memory
	writing sync.Mutex // held while lines are written, to keep their order
}

// line is a log record with the context of the request that caused it, because a handler may read values from the context, for example a
// trace id.
type line struct {
	ctx    context.Context
	record slog.Record
}

// maxLines is the number of waiting lines at which [Writer.Add] writes them immediately.
const maxLines = 1000

// Add passes a record to the handler, at the latest after the delay.
func (w *Writer) Add(ctx context.Context, record slog.Record) {
	if w.Delay == 0 {
		w.write(line{ctx, record})
		return
	}
	w.mu.Lock()
	w.waiting = append(w.waiting, line{ctx, record})
	n := len(w.waiting)
	w.mu.Unlock()
	switch {
	case n == 1:
		time.AfterFunc(w.Delay, w.Flush)
	case n >= maxLines:
		w.Flush()
	}
}

// Flush passes all waiting records to the handler.
func (w *Writer) Flush() {
	w.writing.Lock()
	defer w.writing.Unlock()
	w.mu.Lock()
	lines := w.waiting
	w.waiting = w.spare
	w.mu.Unlock()
	for _, l := range lines {
		w.write(l)
	}
	clear(lines)
	w.spare = lines[:0]
}

func (w *Writer) write(l line) {
	_ = w.Handler.Handle(context.WithoutCancel(l.ctx), l.record) // slog.Logger also ignores the error
}
