package stream

import (
	"context"
	"sync"
	"time"

	"github.com/mcp-events/mcpevents/shared/eventlog"
	"github.com/mcp-events/mcpevents/shared/subscription"
)

// reach is where a reader with a cursor starts in a partition, and whether that is a gap: the log
// no longer reaches back so far, or the client wants nothing so old. Where writers stamp, a cursor lies
// up to a window before the moment it was given at, which is no gap.
func (ts *Tails) reach(c eventlog.Cursor, p eventlog.Partition, maxAge time.Duration) (start int64, truncated bool) {
	floor := ts.Log.Oldest()
	if maxAge > 0 {
		floor = max(floor, ts.now().Add(-maxAge-eventlog.Window).UnixMicro())
	}
	return ts.Log.Reach(c, ts.Sealer.From(c, p), floor)
}

// interests remembers which patterns this process knows to be recorded as read, so that
// a poll of one need not look each time.
type interests struct {
	mu    sync.Mutex
	known map[string]eventlog.Interest
}

const maxInterests = 4096

// interested is [subscription.Interested] without a read or a write while an eighth of
// the retention has not passed since the last one of this process.
func (ts *Tails) interested(ctx context.Context, workspace string, p subscription.Pattern) (eventlog.Interest, error) {
	key := workspace + "#" + p.Key
	now := ts.now()
	ts.interests.mu.Lock()
	in, ok := ts.interests.known[key]
	ts.interests.mu.Unlock()
	retention := now.Sub(time.UnixMicro(ts.Log.Oldest()))
	if ok && in.Until.Sub(now) > retention-retention/8 {
		return in, nil
	}
	in, err := subscription.Interested(ctx, ts.DB, ts.Log, workspace, p)
	if err != nil {
		return in, err
	}
	ts.interests.mu.Lock()
	defer ts.interests.mu.Unlock()
	if ts.interests.known == nil || len(ts.interests.known) >= maxInterests {
		ts.interests.known = map[string]eventlog.Interest{}
	}
	ts.interests.known[key] = in
	return in, nil
}
