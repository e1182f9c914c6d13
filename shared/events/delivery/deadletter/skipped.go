package deadletter

import (
	"errors"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
)

// The reasons why a replay skips a letter or an event.
const (
	SkippedSuspended = "suspended" // the subscription is, until its subscriber refreshes it
	SkippedEnded     = "ended"     // the subscription has
	SkippedExpired   = "expired"   // the event is not stored any more
	SkippedUnderway  = "underway"  // the event is being delivered already
	SkippedReturn    = "return"    // the message cannot go back to its queue
)

// reason is the cause of an error by which a letter is skipped.
type reason string

func (r reason) Error() string { return string(r) }

// skipped returns an error of kind Conflict with the reason why a letter is skipped.
func skipped(why reason, text string) error {
	return &fault.Error{Kind: fault.Conflict, Message: text, Err: why}
}

// whySkipped returns the reason that skipped has given a Conflict, or [SkippedReturn] for other errors.
func whySkipped(err error) string {
	if r, ok := errors.AsType[reason](err); ok {
		return string(r)
	}
	return SkippedReturn
}

// skip counts letters that are not replayed.
func (r *Replay) skip(why string, n int) {
	if n <= 0 {
		return
	}
	if r.Because == nil {
		r.Because = map[string]int{}
	}
	r.Because[why] += n
	r.Skipped += n
}
