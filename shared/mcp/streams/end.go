package streams

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
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

// ending is what ended a stream, and the words for it.
type ending struct {
	err             error
	reason, closing string
}

// endings are why a stream ends, by what ended it: the reason for operators, and that of streamClosed in the dialect.
var endings = []ending{
	{os.ErrDeadlineExceeded, "slow_reader", reasonError}, // of a write, and so errWriting too
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

// endingOf is the ending of what ended a stream; nil for anything else.
func endingOf(why error) *ending {
	for i, x := range endings {
		if errors.Is(why, x.err) {
			return &endings[i]
		}
	}
	return nil
}

// endReason says why a stream of a request ended.
func endReason(r *http.Request, why error) string {
	_, subscription := errors.AsType[*Ended](why)
	switch x := endingOf(why); {
	case x != nil:
		return x.reason
	case subscription:
		return reasonSubscription
	case r.Context().Err() != nil: // what failed did so because the client had gone
		return reasonClient
	}
	return reasonError
}

// finish logs why the stream ended, and says so to a client that still reads.
func (w *Writer) finish(c *method.Call, why error) {
	w.ended(c.Request, why)
	if !errors.Is(why, method.ErrWriting) && c.Request.Context().Err() == nil { // else the client closed it
		w.Framing.End(c, why)
	}
}

// ended logs and counts the end of the stream. A principal is known by the beginning of its SHA-256, for its id may be
// a person's name.
func (w *Writer) ended(r *http.Request, why error) {
	reason := endReason(r, why)
	w.Streams.Faults.Metrics.StreamEnded(reason)
	level, attrs := slog.LevelInfo, make([]slog.Attr, 0, 6)
	hash := sha256.Sum256([]byte(w.Caller.Principal.ID))
	attrs = append(attrs, slog.String("reason", reason), slog.String("kind", w.Kind), slog.String("workspace", w.Caller.Principal.Workspace),
		slog.String("principal", hex.EncodeToString(hash[:6])))
	if !w.began.IsZero() {
		attrs = append(attrs, slog.Float64("open_s", time.Since(w.began).Round(time.Millisecond).Seconds()))
	}
	if reason == reasonError {
		level, attrs = slog.LevelWarn, append(attrs, slog.Any("error", why))
	}
	w.Streams.Faults.Logger.LogAttrs(context.WithoutCancel(r.Context()), level, "stream ended", attrs...)
}

// Ended is why a subscription ends that was granted before: access was revoked, or the event
// type is not what it was.
type Ended struct{ Reason error }

// Error implements error.
func (e *Ended) Error() string { return "mcp: the subscription ends: " + e.Reason.Error() }
