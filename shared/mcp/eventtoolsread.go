package mcp

import (
	"context"
	"encoding/json"

	"github.com/mcp-events/mcpevents/shared/events/event"
	"github.com/mcp-events/mcpevents/shared/events/stream"
	"github.com/mcp-events/mcpevents/shared/events/subscription"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
)

// toolEvent is an event as a model reads it.
type toolEvent struct {
	ID   string          `json:"id"`
	Name string          `json:"name"`
	URI  string          `json:"uri"` // tells apart the events of a subscription that left variables open
	Time string          `json:"time"`
	Data json.RawMessage `json:"data,omitempty"`
	Note string          `json:"note,omitempty"`
}

// reading is the result of a tool that reads, while it is made.
type reading struct {
	Events       []toolEvent `json:"events"`
	Subscription string      `json:"subscription"`
	More         bool        `json:"more,omitempty"`
	Gap          bool        `json:"gap,omitempty"`
	TimedOut     bool        `json:"timedOut,omitempty"`

	subscription.Selection `json:"-"`

	handle         handle
	limit, seconds int
	size           int
}

// read reads what came since the handle was made.
func (h *eventTools) read(ctx context.Context, c *call, in toolInput) (*reading, error) {
	at, err := parseHandle(in.subscription)
	if err != nil {
		return nil, err
	}
	r := &reading{Events: []toolEvent{}, handle: at, limit: in.limit, seconds: in.seconds}
	if r.Selection, err = h.selected(ctx, c.principal, at.name, at.arguments); err != nil {
		return nil, err
	}
	page, err := h.feeds.Poll(ctx, stream.PollRequest{
		Workspace: c.principal.Workspace, Pattern: r.Pattern, Cursor: at.cursor, Wants: r.Wants, Most: in.limit, Bytes: maxToolBytes,
	})
	if fault.Is(err, fault.Invalid) { // the cursor is none of ours
		return nil, notAHandle()
	}
	if err != nil {
		return nil, err
	}
	for _, ev := range page.Events {
		if _, err := r.add(ev); err != nil {
			return nil, err
		}
	}
	r.handle.cursor, r.More, r.Gap = page.Cursor, page.More, page.Truncated
	return r, nil
}

// add adds an event, or reports that there is no room for it.
func (r *reading) add(ev *event.Event) (bool, error) {
	if n := len(r.Events); n == r.limit || n > 0 && r.size+len(ev.Data) > maxToolBytes {
		r.More = true
		return false, nil
	}
	data, err := r.Data(ev)
	if err != nil {
		return false, err
	}
	x := toolEvent{ID: ev.ID, Name: ev.Name, URI: ev.URI, Time: ev.Timestamp(), Data: data}
	if len(data) > maxToolBytes {
		x.Data, x.Note = nil, "the data is too large to be shown here"
	}
	r.size += len(ev.Data)
	r.Events = append(r.Events, x)
	return true, nil
}
