package logsource

import (
	"context"
	"errors"
	"time"

	"github.com/mcp-events/mcpevents/shared/events/match"
	"github.com/mcp-events/mcpevents/shared/events/stream"
	"github.com/mcp-events/mcpevents/shared/mcp/eventtools"
	"github.com/mcp-events/mcpevents/shared/mcp/streams"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
)

// wait waits for events when the log has no more for the subscription. It counts as an open stream until it returns.
func (h *source) wait(r *reading) error {
	c := h.call
	ctx, leave, err := h.admission.Admit(c.Answer.W, c.Request.WithContext(c.Connection()), c)
	if leave == nil {
		if err == nil {
			c.Answer.Stop()
			err = errAnswered
		}
		return err
	}
	defer leave()
	limited, cancel := context.WithTimeout(ctx, r.query.Wait)
	defer cancel()
	c.Answer.Wait()
	err = h.await(limited, r)
	switch {
	case !r.out.Empty(): // if err is lasting, the next call returns it
		return nil
	case limited.Err() != nil: // out of time, or this instance shuts down; in both cases the model calls again
		r.out.TimedOut = true
		return nil
	}
	return err
}

// errAnswered means that the response has already been written.
var errAnswered = errors.New("mcp: the request was answered")

// await reads the feed of a subscription until the result is not empty or ctx ends.
func (h *source) await(ctx context.Context, r *reading) error {
	feed, err := h.feeds.Open(ctx, stream.Request{
		Workspace: h.call.Principal.Workspace, Principal: h.call.Principal.ID, Patterns: []match.Pattern{r.Pattern}, Cursor: r.handle.cursor, Sole: true, Wants: r.Wants,
	})
	if err != nil {
		return err
	}
	defer feed.Close()
	began := time.Now()
	progress := time.NewTicker(eventtools.ProgressEvery)
	defer progress.Stop()
	for {
		if err := h.drain(ctx, feed, r); err != nil || !r.out.Empty() {
			return err
		}
		select {
		case <-feed.Ready():
		case <-progress.C:
			h.call.Answer.Progress(h.call, time.Since(began), int(r.query.Wait.Seconds()), eventtools.ProgressMessage)
			s, err := h.find(ctx, h.call.Principal, r.handle.name, r.handle.arguments)
			if err != nil { // the next call returns the error
				continue
			}
			if _, err := h.follow(ctx, feed, r, s); err != nil {
				return err
			}
			r.handle.cursor = feed.Cursor()
		case <-ctx.Done():
			return context.Cause(ctx) // the handle has the cursor of the last progress
		}
	}
}

// drain adds the events that a feed has now, until the result is full.
func (h *source) drain(ctx context.Context, feed *stream.Feed, r *reading) error {
	for {
		d, ok, err := feed.Poll(ctx)
		if err != nil || !ok {
			return err
		}
		cursor := d.Cursor
		if len(r.out.Events) == 0 { // the wait may have been long
			changed, err := h.recheck(ctx, feed, r)
			if err != nil {
				return err
			}
			if changed { // d.Cursor does not cover the partitions that were added
				cursor = feed.Cursor()
			}
		}
		if d.Event != nil && r.Wants(d.Event) {
			if room, err := r.add(d.Event); err != nil || !room {
				return err
			}
		}
		r.out.Gap = r.out.Gap || d.Lost != ""
		r.handle.cursor = cursor
	}
}

// recheck checks the subscription against the caller's current credentials and the current catalog. It reports whether it added
// partitions to the feed.
func (h *source) recheck(ctx context.Context, feed *stream.Feed, r *reading) (changed bool, err error) {
	now, err := streams.Recheck(ctx, h.auth, h.call.Request.Header, h.call.Principal)
	if err != nil {
		return false, fault.Wrap(fault.Unauthenticated, err, "the caller's credentials are no longer valid")
	}
	s, err := h.find(ctx, now, r.handle.name, r.handle.arguments)
	if err != nil {
		return false, err
	}
	return h.follow(ctx, feed, r, s)
}

// follow makes s the selection of a wait. If the order of the event type was switched on or off, follow adds the partitions of
// the log that its events go to now, and reports true.
func (h *tools) follow(ctx context.Context, feed *stream.Feed, r *reading, s match.Selection) (changed bool, err error) {
	if changed = s.Pattern != r.Pattern; changed {
		if err := feed.Add(ctx, s.Pattern, h.feeds.AfterChange(s.Pattern)); err != nil {
			return false, err
		}
	}
	r.Selection = s
	return changed, nil
}
