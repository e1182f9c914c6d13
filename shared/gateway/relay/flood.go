package relay

import (
	"bytes"
	"context"
	"io"
	"log/slog"

	"golang.org/x/time/rate"
)

// A backend may send much more than events: gaps, positions, errors and messages that are malformed. All of them cost something. A gap is
// published, the cursor of a position is stored, and an error is logged.
const (
	// gapCost is how many events a gap counts as, because each webhook subscriber gets a notice of it.
	gapCost = 10
	// lineRate and lineBurst limit the lines per second of all streams of a backend. A message has two lines or more.
	lineRate, lineBurst = 8 * eventRate, 8 * eventBurst
	// logRate and logBurst limit the lines that a backend's messages add to the log.
	logRate, logBurst = 1, 50
)

// limitedStream reads a stream no faster than the limit for its lines.
type limitedStream struct {
	io.ReadCloser
	ctx   context.Context
	lines *rate.Limiter
}

// Read implements [io.Reader].
func (s limitedStream) Read(b []byte) (int, error) {
	n, err := s.ReadCloser.Read(b)
	lines := bytes.Count(b[:n], []byte{'\n'}) + bytes.Count(b[:n], []byte{'\r'})
	if late := s.lines.WaitN(s.ctx, min(lines, lineBurst)); err == nil {
		err = late
	}
	return n, err
}

// limitedLog drops log lines beyond a rate.
type limitedLog struct {
	slog.Handler
	limit *rate.Limiter
}

func limitLog(l *slog.Logger) *slog.Logger {
	return slog.New(limitedLog{l.Handler(), rate.NewLimiter(logRate, logBurst)})
}

// Handle implements [slog.Handler].
func (l limitedLog) Handle(ctx context.Context, r slog.Record) error {
	if !l.limit.Allow() {
		return nil
	}
	return l.Handler.Handle(ctx, r)
}

// WithAttrs implements [slog.Handler].
func (l limitedLog) WithAttrs(attrs []slog.Attr) slog.Handler {
	return limitedLog{l.Handler.WithAttrs(attrs), l.limit}
}

// WithGroup implements [slog.Handler].
func (l limitedLog) WithGroup(name string) slog.Handler {
	return limitedLog{l.Handler.WithGroup(name), l.limit}
}
