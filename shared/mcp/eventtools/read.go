package eventtools

import (
	"context"
	"encoding/json"
	"strings"

	"github.com/mcp-events/mcpevents/shared/events/event"
	"github.com/mcp-events/mcpevents/shared/events/stream"
	"github.com/mcp-events/mcpevents/shared/events/subscription"
	"github.com/mcp-events/mcpevents/shared/mcp/method"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/platform/opaque"
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
func (h *tools) read(ctx context.Context, c *method.Call, in toolInput) (*reading, error) {
	at, err := parseHandle(in.subscription)
	if err != nil {
		return nil, err
	}
	r := &reading{Events: []toolEvent{}, handle: at, limit: in.limit, seconds: in.seconds}
	if r.Selection, err = h.selected(ctx, c.Principal, at.name, at.arguments); err != nil {
		return nil, err
	}
	page, err := h.feeds.Poll(ctx, stream.PollRequest{
		Workspace: c.Principal.Workspace, Pattern: r.Pattern, Cursor: at.cursor, Wants: r.Wants, Most: in.limit, Bytes: maxToolBytes,
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

// handle is a subscription as a model holds it: NAME~ARGUMENTS~CURSOR, the arguments in base64url. It grants nothing:
// name and arguments are checked at each call like those of subscribe, and the cursor is sealed.
type handle struct {
	name      string
	arguments json.RawMessage // nil for none
	cursor    string
}

const (
	handleSeparator    = "~" // neither in names of event types nor in base64url
	maxHandle          = 8 << 10
	maxHandleArguments = 2 << 10
)

// String returns the text that a model holds. [parseHandle] reads it.
func (h handle) String() string {
	arguments := ""
	if string(h.arguments) != "{}" {
		arguments = opaque.Encode(h.arguments)
	}
	return strings.Join([]string{h.name, arguments, h.cursor}, handleSeparator)
}

func notAHandle() error {
	return fault.New(fault.Invalid, "this is not a subscription that subscribe or a later call returned; copy it exactly, or subscribe again")
}

func parseHandle(text string) (h handle, err error) {
	parts := strings.Split(text[:min(len(text), maxHandle)], handleSeparator)
	if text == "" {
		return h, fault.New(fault.Invalid, "subscription is missing")
	}
	if len(text) > maxHandle || len(parts) != 3 || parts[0] == "" || parts[2] == "" {
		return h, notAHandle()
	}
	if parts[1] != "" {
		h.arguments, err = opaque.Decode(parts[1])
		if err != nil || len(h.arguments) > maxHandleArguments || !json.Valid(h.arguments) || h.arguments[0] != '{' {
			return handle{}, notAHandle()
		}
	}
	h.name, h.cursor = parts[0], parts[2]
	return h, nil
}
