package streams

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"os"
	"time"

	"github.com/mcp-events/mcpevents/shared/events/stream"
	"github.com/mcp-events/mcpevents/shared/mcp/method"
)

// The kinds of streams, in the log.
const (
	kindSession = "session" // the GET stream of a session
	kindListen  = "subscriptions/listen"
	KindEvents  = "events/stream"
	kindDialect = "named_events"
)

// ending is the end of a stream: its cause, the reason for operators, and the reason in the dialect's streamClosed.
type ending struct {
	err             error
	reason, closing string
}

// endings lists the causes for which streams end.
var endings = []ending{
	{os.ErrDeadlineExceeded, "slow_reader", reasonError}, // of a write; must precede ErrWriting, which wraps it
	{stream.ErrSlow, "slow_reader", "tooSlow"},
	{method.ErrWriting, reasonClient, reasonError},
	{context.Canceled, reasonClient, reasonError},
	{errAge, "max_age", "maxAge"},
	{errExpired, "credentials_expired", "maxAge"},
	{errRevoked, "credentials_revoked", "revoked"},
	{errEnding, "shutdown", "shutdown"},
	{stream.ErrClosed, "shutdown", "shutdown"},
	{errSuperseded, "superseded", "superseded"},
	{errTaken, "session_taken", "superseded"},
}

const (
	reasonClient       = "client_closed"
	reasonSubscription = "subscription_ended"
	reasonError        = "error"
)

// endingOf returns the ending with the given cause, or nil for any other error.
func endingOf(why error) *ending {
	for i, x := range endings {
		if errors.Is(why, x.err) {
			return &endings[i]
		}
	}
	return nil
}

// endReason returns the reason, for operators, for which a stream ended.
func endReason(r *http.Request, why error) string {
	_, subscription := errors.AsType[*Ended](why)
	switch x := endingOf(why); {
	case x != nil:
		return x.reason
	case subscription:
		return reasonSubscription
	case r.Context().Err() != nil: // the client disconnected, which caused the failure
		return reasonClient
	}
	return reasonError
}

// finish logs why the stream ended, and notifies a client that still reads.
func (w *Writer) finish(c *method.Call, why error) {
	w.logEnd(c.Request, why)
	if !errors.Is(why, method.ErrWriting) && c.Request.Context().Err() == nil { // otherwise the client has closed the stream
		w.Framing.End(c, why)
	}
}

// logEnd logs and counts the end of the stream.
func (w *Writer) logEnd(r *http.Request, why error) {
	reason := endReason(r, why)
	w.Streams.Faults.Metrics.StreamEnded(reason)
	level, attrs := slog.LevelInfo, make([]slog.Attr, 0, 6)
	attrs = append(attrs, slog.String("reason", reason), slog.String("kind", w.Kind), slog.String("workspace", w.Caller.Principal.Workspace),
		slog.String("principal", w.Caller.Principal.LogName()))
	if !w.began.IsZero() {
		attrs = append(attrs, slog.Float64("open_s", time.Since(w.began).Round(time.Millisecond).Seconds()))
	}
	if reason == reasonError {
		level, attrs = slog.LevelWarn, append(attrs, slog.Any("error", why))
	}
	w.Streams.Faults.Logger.LogAttrs(context.WithoutCancel(r.Context()), level, "stream ended", attrs...)
}

// Ended is the error that ends a stream because access was revoked or the event type has changed.
type Ended struct{ Reason error }

// Error implements error.
func (e *Ended) Error() string { return "mcp: the subscription ends: " + e.Reason.Error() }
