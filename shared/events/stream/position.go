package stream

import (
	"context"
	"time"

	eventlog "github.com/mcp-events/mcpevents/shared/events/log"
	"github.com/mcp-events/mcpevents/shared/events/match"
	"github.com/mcp-events/mcpevents/shared/events/subscription"
)

// reach returns where a reader with a cursor starts in a partition. It is truncated when the log no longer has the events
// after the cursor, or the client wants none so old. Where writers stamp, a cursor is up to a window before the moment
// at which it was given; that is no gap.
func (ts *Tails) reach(c eventlog.Cursor, p eventlog.Partition, maxAge time.Duration) (start int64, truncated bool) {
	floor := ts.Log.Oldest()
	if maxAge > 0 {
		floor = max(floor, ts.Log.Time().Add(-maxAge-eventlog.Window).UnixMicro())
	}
	return ts.Log.Reach(c, ts.Sealer.From(c, p), floor)
}

// changeLag is how long before a reader learns of a changed catalog fanout may have used it to write the log.
const changeLag = 2 * time.Minute

// AfterChange returns the position from which [Feed.Add] must read a pattern that a changed catalog gives to an open
// stream. If an event type gives up its order, its events go to other partitions as soon as fanout knows, so those must
// be read from before the stream learned of the change.
func (ts *Tails) AfterChange(p match.Pattern) int64 {
	after := ts.Log.Position() - time.Second.Microseconds()
	if p.Unordered {
		after -= changeLag.Microseconds()
	}
	return after
}

// interested is [subscription.Interested] at most once in an eighth of the retention, for each pattern and process.
func (ts *Tails) interested(ctx context.Context, workspace string, p match.Pattern) (eventlog.Interest, error) {
	key := workspace + "#" + p.Key
	now := ts.Log.Time()
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
