package client

import (
	"context"
	"encoding/json"
	"slices"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
)

// EventType describes an event type (SEP-3415, "Listing Available Events").
type EventType struct {
	Name        string `json:"name"`
	Description string `json:"description"`
	// Delivery lists the modes in which this caller can receive it.
	Delivery []string `json:"delivery"`
	// InputSchema is the schema of the arguments, PayloadSchema the schema of [Event.Data].
	InputSchema   json.RawMessage `json:"inputSchema"`
	PayloadSchema json.RawMessage `json:"payloadSchema"`
}

// maxPages limits a list, because a faulty server could send cursors in a circle.
const maxPages = 1000

// EventTypes lists the event types that the caller may receive.
func (c *Client) EventTypes(ctx context.Context) (types []EventType, err error) {
	params := map[string]any{}
	for range maxPages {
		var page struct {
			Events []EventType `json:"events"`
			Next   string      `json:"nextCursor"`
		}
		if err := c.persist(ctx, func() error { return c.Call(ctx, spec.MethodEvents, params, &page) }); err != nil {
			return nil, err
		}
		types = append(types, page.Events...)
		if page.Next == "" {
			return types, nil
		}
		params = map[string]any{"cursor": page.Next}
	}
	return nil, fault.New(fault.Unavailable, "the server's list of event types has more than %d pages", maxPages)
}

// best chooses a mode: a webhook, because it needs a connection only when there is an event; otherwise a stream, because
// events arrive immediately; otherwise polls.
func (c *Client) best(ctx context.Context, name string) (string, error) {
	types, err := c.EventTypes(ctx)
	if err != nil {
		return "", err
	}
	at := slices.IndexFunc(types, func(t EventType) bool { return t.Name == name })
	if at < 0 {
		return "", fault.New(fault.NotFound, "unknown event type %q: the server does not list it for this caller", name)
	}
	for _, mode := range []string{ModeWebhook, ModePush, ModePoll} {
		if slices.Contains(types[at].Delivery, mode) && c.can(mode) == nil {
			return mode, nil
		}
	}
	return "", fault.New(fault.Unsupported, "%s is delivered by %v, of which this client can use none", name, types[at].Delivery)
}

// can returns an error if this client cannot use a mode, whatever the server offers.
func (c *Client) can(mode string) error {
	switch {
	case mode == ModePoll, mode == ModePush && c.stateless(), mode == ModeWebhook && c.options.Webhooks != nil:
		return nil
	case mode == ModePush:
		return fault.New(fault.Unsupported, "mode push is for revision 2026-07-28, and this server speaks %s", c.version)
	case mode == ModeWebhook:
		return fault.New(fault.Invalid, "mode webhook needs a handler of webhooks that the server can reach")
	}
	return fault.New(fault.Invalid, "%q is no mode (allowed: webhook, push, poll)", mode)
}
