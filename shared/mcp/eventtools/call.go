package eventtools

import (
	"context"
	"encoding/json"
	"math"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/events/stream"
	"github.com/mcp-events/mcpevents/shared/events/subscription"
	"github.com/mcp-events/mcpevents/shared/mcp/events"
	"github.com/mcp-events/mcpevents/shared/mcp/method"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/protocol/jsonrpc"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
)

// Bounds of a tool's result and of a wait. The default wait is below the 60 s after which clients give up a request
// unless they are set otherwise.
const (
	maxToolEvents = 20
	maxToolBytes  = 64 << 10 // of payloads, or of event types
	defaultWait   = 50       // seconds
	maxWait       = 600
)

// toolInput is what a model calls a tool with.
type toolInput struct {
	name, after, subscription string
	arguments                 json.RawMessage
	limit, seconds            int
}

// read reads the arguments of a tool.
func (in *toolInput) read(tool string, raw json.RawMessage) (err error) {
	in.limit, in.seconds = maxToolEvents, defaultWait
	for key, value := range jsonrpc.Members(raw) {
		ok := true
		switch name := string(key); {
		case string(value) == "null":
		case name == "name" && tool == toolSubscribe:
			in.name, ok = jsonrpc.String(value)
		case name == "arguments" && tool == toolSubscribe:
			in.arguments, ok = value, value[0] == '{'
		case name == "after" && tool == toolTypes:
			in.after, ok = jsonrpc.String(value)
		case name == "subscription" && tool != toolTypes && tool != toolSubscribe:
			in.subscription, ok = jsonrpc.String(value)
		case name == "limit" && (tool == toolRecent || tool == toolWait):
			in.limit, err = count(name, value, maxToolEvents)
		case name == "seconds" && tool == toolWait:
			in.seconds, err = count(name, value, maxWait)
		default:
			err = fault.New(fault.Invalid, "%s takes no argument %.64q", tool, name)
		}
		switch {
		case err != nil:
			return err
		case !ok && string(key) == "arguments":
			return fault.New(fault.Invalid, "arguments is not an object")
		case !ok:
			return fault.New(fault.Invalid, "%s is not a string", key)
		}
	}
	return nil
}

// count reads an integer from 1 to most.
func count(name string, raw json.RawMessage, most int) (int, error) {
	var n float64 // 10, 1e1 and 10.0 are one number in JSON
	if json.Unmarshal(raw, &n) != nil || n != math.Trunc(n) || n < 1 || n > float64(most) {
		return 0, fault.New(fault.Invalid, "%s %.32s is out of range (1 to %d)", name, raw, most)
	}
	return int(n), nil
}

// Call implements [Tools].
func (h *tools) Call(ctx context.Context, c *method.Call) (method.Result, error) {
	tool, err := c.Required("name")
	if err != nil {
		return method.Result{}, err
	}
	arguments, err := c.Arguments()
	if err != nil {
		return method.Result{}, err
	}
	if !h.Has(tool) {
		return method.Result{}, method.InvalidParams("unknown tool %s", method.Clip(tool))
	}
	var in toolInput
	var out any
	if err = in.read(tool, arguments); err == nil {
		out, err = h.do(ctx, c, tool, in)
	}
	switch {
	case err == nil:
		text := jsonrpc.Encode(out)
		b := jsonrpc.AppendString([]byte(`"content":[{"type":"text","text":`), string(text))
		b = append(append(b, `}],"structuredContent":`...), text...)
		return method.Result{Members: [][]byte{b}}, nil
	case mendable(err):
		b := jsonrpc.AppendString([]byte(`"content":[{"type":"text","text":`), fault.Public(err))
		return method.Result{Members: [][]byte{append(b, `}],"isError":true`...)}}, nil
	}
	return method.Result{}, err
}

func (h *tools) do(ctx context.Context, c *method.Call, tool string, in toolInput) (any, error) {
	switch tool {
	case toolTypes:
		return h.types(ctx, c, in)
	case toolSubscribe:
		return h.subscribe(ctx, c, in)
	case toolUnsubscribe:
		_, err := parseHandle(in.subscription)
		return map[string]bool{"ended": true}, err
	}
	r, err := h.read(ctx, c, in)
	if err == nil && tool == toolWait && len(r.Events) == 0 && !r.Gap {
		err = h.wait(c, r)
	}
	if err != nil {
		return nil, err
	}
	r.Subscription = r.handle.String()
	return r, nil
}

// mendable reports whether a model can do something about an error, by other arguments. A lack of scopes is for its
// client.
func mendable(err error) bool {
	switch fault.KindOf(err) {
	case fault.Invalid, fault.NotFound, fault.Unsupported, fault.Unprocessable, fault.TooLarge:
		return true
	case fault.Forbidden:
		return !method.MissingScopes(err)
	}
	return false
}

type toolEventType struct {
	Name        string          `json:"name"`
	Description string          `json:"description"`
	Arguments   json.RawMessage `json:"arguments"`
}

type toolEventTypes struct {
	EventTypes []toolEventType `json:"eventTypes"`
	More       bool            `json:"more,omitempty"`
}

// types lists what the caller can subscribe to.
func (h *tools) types(ctx context.Context, c *method.Call, in toolInput) (out toolEventTypes, err error) {
	cat, err := h.catalogs.Of(ctx, c.Principal)
	if err != nil {
		return out, err
	}
	out.EventTypes = []toolEventType{}
	skip, size := in.after != "", 0
	for _, x := range cat.Entries() {
		if !x.PollAllowed() || !x.Access.VisibleTo(c.Principal) {
			continue
		}
		if skip {
			skip = x.Name != in.after
			continue
		}
		t := toolEventType{x.Name, x.Description, x.InputSchema()}
		if size += len(t.Name) + len(t.Description) + len(t.Arguments); size > maxToolBytes && len(out.EventTypes) > 0 {
			out.More = true
			break
		}
		out.EventTypes = append(out.EventTypes, t)
	}
	if skip {
		return out, fault.New(fault.Invalid, "unknown event type %.128q in after", in.after)
	}
	return out, nil
}

// selected finds what a name and arguments stand for now. Types that the caller may not see are unknown, as they are
// not listed.
func (h *tools) selected(ctx context.Context, p auth.Principal, name string, arguments json.RawMessage) (subscription.Selection, error) {
	cat, err := h.catalogs.Of(ctx, p)
	if err != nil {
		return subscription.Selection{}, err
	}
	if entry := cat.ByName(name); entry != nil && !entry.Access.VisibleTo(p) {
		return subscription.Selection{}, events.UnknownEvent(name)
	}
	return events.Choose(cat, name, arguments, p, spec.ModePoll)
}

// subscribe makes the handle of what follows from now on.
func (h *tools) subscribe(ctx context.Context, c *method.Call, in toolInput) (any, error) {
	if in.name == "" {
		return nil, fault.New(fault.Invalid, "name is missing")
	}
	s, err := h.selected(ctx, c.Principal, in.name, in.arguments)
	if err != nil {
		return nil, err
	}
	if len(s.Arguments) > maxHandleArguments {
		return nil, fault.New(fault.Invalid, "the arguments take %d bytes (allowed: %d)", len(s.Arguments), maxHandleArguments)
	}
	page, err := h.feeds.Poll(ctx, stream.PollRequest{Workspace: c.Principal.Workspace, Pattern: s.Pattern})
	if err != nil {
		return nil, err
	}
	return map[string]string{"subscription": handle{s.Entry.Name, s.Arguments, page.Cursor}.String()}, nil
}
