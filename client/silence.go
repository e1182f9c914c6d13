package client

import (
	"context"
	"errors"
	"io"
	"time"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
)

// deadAfter limits how long a stream may be silent. It is more than twice the interval between heartbeats (SEP-3415,
// "Lifecycle": at least every 30 seconds; our server sends one every 15 seconds).
const deadAfter = 65 * time.Second

var errSilent = fault.New(fault.Unavailable, "the stream was silent for too long")

// liveBody is the body of a stream. It fails with errSilent if the connection brings no byte for too long, because a
// proxy can keep the connection open although the server behind it is gone. Any byte counts, for example a comment that
// serves as a heartbeat. The time in which the caller handles an event does not count.
type liveBody struct {
	io.ReadCloser
	ctx    context.Context
	cancel context.CancelCauseFunc
	dead   *time.Timer
	limit  time.Duration
}

// Read implements [io.Reader].
func (b *liveBody) Read(p []byte) (int, error) {
	b.dead.Reset(b.limit)
	n, err := b.ReadCloser.Read(p)
	b.dead.Stop()
	return n, silent(b.ctx, err)
}

// Close implements [io.Closer].
func (b *liveBody) Close() error {
	b.dead.Stop()
	b.cancel(nil)
	return b.ReadCloser.Close()
}

// silent replaces an error by errSilent if ctx was canceled for that reason.
func silent(ctx context.Context, err error) error {
	if err != nil && errors.Is(context.Cause(ctx), errSilent) {
		return errSilent
	}
	return err
}
