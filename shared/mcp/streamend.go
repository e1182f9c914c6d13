package mcp

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"log/slog"
	"net/http"
	"os"
	"time"

	"github.com/mcp-events/mcpevents/shared/stream"
)

// The kinds of streams, in the log.
const (
	kindSession = "session" // the GET stream of a session
	kindListen  = "subscriptions/listen"
	kindEvents  = "events/stream"
	kindDialect = "named_events"
)

// reasons are why a stream ends, for operators, by what ended it.
var reasons = []struct {
	err    error
	reason string
}{
	{os.ErrDeadlineExceeded, "slow_reader"}, // of a write, and so errWriting too
	{stream.ErrSlow, "slow_reader"},
	{errWriting, reasonClient},
	{context.Canceled, reasonClient},
	{errAge, "max_age"},
	{errExpired, "credentials_expired"},
	{errRevoked, "credentials_revoked"},
	{errEnding, "shutdown"},
	{stream.ErrClosed, "shutdown"},
	{errSuperseded, "superseded"},
	{errTaken, "session_taken"},
}

const (
	reasonClient       = "client_closed"
	reasonSubscription = "subscription_ended"
	reasonError        = "error"
)

// endReason says why a stream of a request ended.
func endReason(r *http.Request, why error) string {
	for _, x := range reasons {
		if errors.Is(why, x.err) {
			return x.reason
		}
	}
	if _, ok := errors.AsType[*ended](why); ok {
		return reasonSubscription
	}
	if r.Context().Err() != nil { // what failed did so because the client had gone
		return reasonClient
	}
	return reasonError
}

// ended logs and counts the end of the stream. A principal is known by the beginning of its SHA-256, for its id may be
// a person's name.
func (o *streamWriter) ended(r *http.Request, why error) {
	reason := endReason(r, why)
	o.streams.faults.metrics.StreamEnded(reason)
	level, attrs := slog.LevelInfo, make([]slog.Attr, 0, 6)
	hash := sha256.Sum256([]byte(o.principal.ID))
	attrs = append(attrs, slog.String("reason", reason), slog.String("kind", o.kind), slog.String("workspace", o.principal.Workspace),
		slog.String("principal", hex.EncodeToString(hash[:6])))
	if !o.began.IsZero() {
		attrs = append(attrs, slog.Float64("open_s", time.Since(o.began).Round(time.Millisecond).Seconds()))
	}
	if reason == reasonError {
		level, attrs = slog.LevelWarn, append(attrs, slog.Any("error", why))
	}
	o.streams.faults.logger.LogAttrs(context.WithoutCancel(r.Context()), level, "stream ended", attrs...)
}
