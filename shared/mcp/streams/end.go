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

var (
	errAge        = errors.New("mcp: the stream reached its maximum age")
	errExpired    = errors.New("mcp: the caller's token has expired")
	errRevoked    = errors.New("mcp: the caller's credentials are no longer valid")
	errEnding     = errors.New("mcp: the server is shutting down")
	errSuperseded = errors.New("mcp: the principal opened too many newer streams")
	errTaken      = errors.New("mcp: the session ended or has a newer stream")
)

// ending describes why a stream ended.
type ending struct {
	err     error  // the cause
	reason  string // the reason in the log and the metrics
	closing string // the reason that clients of the named-event dialect receive in streamClosed
}

var endings = []ending{
	{os.ErrDeadlineExceeded, "slow_reader", reasonError}, // write timeout; must precede ErrWriting, because a write timeout matches both
	{stream.ErrSlow, "slow_reader", "tooSlow"},
	{method.ErrWriting, reasonClient, reasonError},
	{context.Canceled, reasonClient, reasonError},
	{errAge, "max_age", "maxAge"},
	{errExpired, "credentials_expired", "maxAge"},
	{errRevoked, "credentials_revoked", "revoked"},
	{stream.ErrToken, "backend_token", "revoked"},
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

// endingOf finds the error why, with which a stream ended, in the list endings. It returns nil if the list does not contain the error.
func endingOf(why error) *ending {
	for i, x := range endings {
		if errors.Is(why, x.err) {
			return &endings[i]
		}
	}
	return nil
}

// endReason returns why a stream ended, as a short text for the log and the metrics.
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

func (s *Stream) finish(c *method.Call, why error) {
	s.logEnd(c.Request, why)
	if !errors.Is(why, method.ErrWriting) && c.Request.Context().Err() == nil { // otherwise the client is gone
		s.Framing.End(c, why)
	}
}

func (s *Stream) logEnd(r *http.Request, why error) {
	reason := endReason(r, why)
	s.Streams.Faults.Metrics.StreamEnded(reason)
	level, attrs := slog.LevelInfo, make([]slog.Attr, 0, 6)
	attrs = append(attrs, slog.String("reason", reason), slog.String("kind", s.Kind), slog.String("workspace", s.Caller.Principal.Workspace),
		slog.String("principal", s.Caller.Principal.LogName()))
	if !s.began.IsZero() {
		attrs = append(attrs, slog.Float64("open_s", time.Since(s.began).Round(time.Millisecond).Seconds()))
	}
	if reason == reasonError {
		level, attrs = slog.LevelWarn, append(attrs, slog.Any("error", why))
	}
	s.Streams.Faults.Logger.LogAttrs(context.WithoutCancel(r.Context()), level, "stream ended", attrs...)
}

// Ended is the error that ends an events/stream because the caller may no longer receive its events, or because the event type
// was removed or has changed incompatibly.
type Ended struct{ Reason error }

func (e *Ended) Error() string { return "mcp: the subscription ends: " + e.Reason.Error() }
