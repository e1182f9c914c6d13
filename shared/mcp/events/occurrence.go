// Package events serves the MCP methods for events: the lists, resources/read, completions, events/poll, events/stream, and the methods that
// make and end webhook subscriptions.
//
// Subscriptions and event types themselves are in shared/events.
package events

import (
	"context"
	"encoding/json"
	"time"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/events/catalog"
	"github.com/mcp-events/mcpevents/shared/events/event"
	"github.com/mcp-events/mcpevents/shared/events/match"
	"github.com/mcp-events/mcpevents/shared/mcp/method"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/protocol/jsonrpc"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
)

// selected is the subscription in the params of events/poll and events/stream (SEP-3415).
type selected struct {
	match.Selection
	catalog *catalog.Catalog
	mode    string
	cursor  string        // empty to begin now
	maxAge  time.Duration // 0 for no limit
}

// readSelected reads the params that events/poll and events/stream share, and checks the caller's right to the events.
func readSelected(ctx context.Context, cs method.Catalogs, c *method.Call, mode string) (w selected, err error) {
	name, err := c.Required("name")
	if err != nil {
		return w, err
	}
	arguments, err := c.Arguments()
	if err != nil {
		return w, err
	}
	var given bool
	if w.cursor, given, err = c.Text("cursor"); err != nil {
		return w, err
	}
	if given && w.cursor == "" {
		return w, method.InvalidParams("cursor must be null or a cursor of this server")
	}
	if w.maxAge, err = readMaxAge(c); err != nil {
		return w, err
	}
	w.mode = mode
	if w.catalog, err = cs.Of(ctx, c.Principal); err != nil {
		return w, err
	}
	w.Selection, err = Choose(w.catalog, name, arguments, c.Principal, mode)
	return w, err
}

// Choose returns the selection of a name and arguments, or an error if the principal may not receive it in this mode.
func Choose(cat *catalog.Catalog, name string, arguments json.RawMessage, p auth.Principal, mode string) (match.Selection, error) {
	entry := cat.ByName(name)
	if entry == nil {
		return match.Selection{}, UnknownEvent(name)
	}
	s, err := match.Select(entry, arguments)
	if err != nil {
		return s, err
	}
	if err := s.Allowed(p); err != nil {
		return s, err
	}
	if mode == spec.ModePoll && !entry.PollAllowed() || mode == spec.ModePush && !entry.PushAllowed() {
		return s, fault.New(fault.Unsupported, "%s is not delivered by %s", name, mode).
			With(map[string]any{"feature": "deliveryMode", "value": mode})
	}
	return s, nil
}

// UnknownEvent returns the error for an event type that does not exist for the caller.
func UnknownEvent(name string) error {
	return fault.New(fault.NotFound, "unknown event type %.128q", name).With(map[string]any{"kind": "event"})
}

// appendOccurrence appends the members of an EventOccurrence (SEP-3415) except its cursor and its _meta.
func appendOccurrence(b []byte, ev *event.Event, data json.RawMessage) []byte {
	b = jsonrpc.AppendString(append(b, `"eventId":`...), ev.ID)
	b = jsonrpc.AppendString(append(b, `,"name":`...), ev.Name)
	b = jsonrpc.AppendString(append(b, `,"timestamp":`...), ev.Timestamp())
	b = append(b, `,"data":`...)
	return append(b, data...)
}
