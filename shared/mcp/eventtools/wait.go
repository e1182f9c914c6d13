package eventtools

import (
	"context"
	"errors"
	"time"

	"github.com/mcp-events/mcpevents/shared/events/stream"
	"github.com/mcp-events/mcpevents/shared/events/subscription"
	"github.com/mcp-events/mcpevents/shared/mcp/method"
	"github.com/mcp-events/mcpevents/shared/mcp/streams"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
)

// progressEvery is how often a wait notifies the client of its progress.
const progressEvery = 5 * time.Second

// wait waits for events of a subscription that has none now. It counts as a stream while it does.
func (h *tools) wait(c *method.Call, r *reading) error {
	request := c.Request
	if c.Attached != nil {
		request = request.WithContext(c.Attached)
	}
	ctx, leave, err := h.admission.Admit(c.Late.W, request, c)
	if leave == nil {
		if err == nil {
			c.Late.Stop()
			err = errAnswered
		}
		return err
	}
	defer leave()
	limited, cancel := context.WithTimeout(ctx, time.Duration(r.seconds)*time.Second)
	defer cancel()
	c.Late.Waits(c.Late.Timing.AnswerAfter)
	err = h.await(limited, c, r)
	switch {
	case len(r.Events) > 0, r.Gap: // what comes after them fails again, with the next call
		return nil
	case limited.Err() != nil: // the time, or the end of this instance: the model calls again either way
		r.TimedOut = true
		return nil
	}
	return err
}

// errAnswered stands for a response that is out.
var errAnswered = errors.New("mcp: the request was answered")

// await reads the feed of a subscription until it brings something.
func (h *tools) await(ctx context.Context, c *method.Call, r *reading) error {
	feed, err := h.feeds.Open(ctx, stream.Request{
		Workspace: c.Principal.Workspace, Patterns: []subscription.Pattern{r.Pattern}, Cursor: r.handle.cursor, Sole: true, Wants: r.Wants,
	})
	if err != nil {
		return err
	}
	defer feed.Close()
	began := time.Now()
	progress := time.NewTicker(progressEvery)
	defer progress.Stop()
	for {
		if err := h.drain(ctx, c, feed, r); err != nil || len(r.Events) > 0 || r.Gap {
			return err
		}
		select {
		case <-feed.Ready():
		case <-progress.C:
			c.Late.Progress(c, time.Since(began), r.seconds)
			if s, err := h.selected(ctx, c.Principal, r.handle.name, r.handle.arguments); err == nil { // else the next call returns the error
				if _, err := h.follow(ctx, feed, r, s); err != nil {
					return err
				}
				r.handle.cursor = feed.Cursor()
			}
		case <-ctx.Done():
			return context.Cause(ctx) // the cursor is that of the last look at the catalog
		}
	}
}

// drain takes what a feed has now, as far as there is room.
func (h *tools) drain(ctx context.Context, c *method.Call, feed *stream.Feed, r *reading) error {
	for {
		d, ok, err := feed.Poll(ctx)
		if err != nil || !ok {
			return err
		}
		cursor := d.Cursor
		if len(r.Events) == 0 { // it may have waited for long
			changed, err := h.again(ctx, c, feed, r)
			if err != nil {
				return err
			}
			if changed { // the cursor was made without the partitions that were added since
				cursor = feed.Cursor()
			}
		}
		if d.Event != nil && r.Wants(d.Event) {
			if room, err := r.add(d.Event); err != nil || !room {
				return err
			}
		}
		r.Gap = r.Gap || d.Lost != ""
		r.handle.cursor = cursor
	}
}

// again checks the subscription against the caller's credentials and the catalog as they are now. It reports whether it
// added partitions to the feed.
func (h *tools) again(ctx context.Context, c *method.Call, feed *stream.Feed, r *reading) (changed bool, err error) {
	now, err := streams.Recheck(ctx, h.auth, c.Request.Header, c.Principal)
	if err != nil {
		return false, fault.Wrap(fault.Unauthenticated, err, "the caller's credentials are not valid any more")
	}
	s, err := h.selected(ctx, now, r.handle.name, r.handle.arguments)
	if err != nil {
		return false, err
	}
	return h.follow(ctx, feed, r, s)
}

// follow makes s the selection of a wait. If the event type gave up its order or regained it, follow adds the partitions
// of the log that its events go to now, and reports true.
func (h *tools) follow(ctx context.Context, feed *stream.Feed, r *reading, s subscription.Selection) (changed bool, err error) {
	if changed = s.Pattern != r.Pattern; changed {
		if err := feed.Add(ctx, s.Pattern, h.feeds.AfterChange(s.Pattern)); err != nil {
			return false, err
		}
	}
	r.Selection = s
	return changed, nil
}
