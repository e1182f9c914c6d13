package stream

import (
	"context"
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

// interested is [subscription.Interested] without a read or a write while an eighth of
// the retention has not passed since the last one of this process.
func (ts *Tails) interested(ctx context.Context, workspace string, p subscription.Pattern) (eventlog.Interest, error) {
	key := workspace + "#" + p.Key
	now := ts.now()
	in, ok := ts.interests.Get(key)
	retention := now.Sub(time.UnixMicro(ts.Log.Oldest()))
	if ok && in.Until.Sub(now) > retention-retention/8 {
		return in, nil
	}
	in, err := subscription.Interested(ctx, ts.DB, ts.Log, workspace, p)
	if err != nil {
		return in, err
	}
	ts.interests.Put(key, in)
	return in, nil
}
