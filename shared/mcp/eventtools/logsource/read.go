package logsource

import (
	"context"

	"github.com/mcp-events/mcpevents/shared/events/event"
	"github.com/mcp-events/mcpevents/shared/events/match"
	"github.com/mcp-events/mcpevents/shared/events/stream"
	"github.com/mcp-events/mcpevents/shared/mcp/eventtools"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
)

// reading is a result that is being put together.
type reading struct {
	match.Selection

	out    *eventtools.Events
	handle handle // continues after the events of out
	query  eventtools.Query
}

// Read implements [eventtools.Source]. It returns the events since the handle was made.
func (h *source) Read(ctx context.Context, q eventtools.Query) (*eventtools.Events, error) {
	r, err := h.poll(ctx, q)
	if err == nil && r.out.Empty() && q.Wait > 0 {
		err = h.wait(r)
	}
	if err != nil {
		return nil, err
	}
	r.out.Subscription = r.handle.String()
	return r.out, nil
}

// poll reads the events that are in the log now.
func (h *source) poll(ctx context.Context, q eventtools.Query) (*reading, error) {
	at, err := parseHandle(q.Subscription)
	if err != nil {
		return nil, err
	}
	r := &reading{out: eventtools.NewEvents(q), handle: at, query: q}
	if r.Selection, err = h.find(ctx, h.call.Principal, at.name, at.arguments); err != nil {
		return nil, err
	}
	page, err := h.feeds.Poll(ctx, stream.PollRequest{
		Workspace: h.call.Principal.Workspace, Principal: h.call.Principal.ID, Pattern: r.Pattern, Cursor: at.cursor, Wants: r.Wants, Most: q.Limit, Bytes: eventtools.MaxBytes,
	})
	if fault.Is(err, fault.Invalid) { // this server did not issue the cursor
		return nil, errNoHandle()
	}
	if err != nil {
		return nil, err
	}
	for _, ev := range page.Events {
		if _, err := r.add(ev); err != nil {
			return nil, err
		}
	}
	r.handle.cursor, r.out.More, r.out.Gap = page.Cursor, page.More, page.Truncated
	return r, nil
}

// add adds an event. It reports false if the result is full.
func (r *reading) add(ev *event.Event) (bool, error) {
	data, err := r.Data(ev)
	if err != nil {
		return false, err
	}
	return r.out.Add(eventtools.Event{ID: ev.ID, Name: ev.Name, URI: ev.URI, Time: ev.Timestamp(), Data: data}), nil
}
