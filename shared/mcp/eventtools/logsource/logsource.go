// Package logsource serves the event tools at the MCP endpoint, from the server's log. It keeps nothing between two calls: a
// subscription is a text that the model holds, so that any instance can serve each call.
package logsource

import (
	"context"
	"encoding/json"
	"slices"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/events/match"
	"github.com/mcp-events/mcpevents/shared/events/stream"
	"github.com/mcp-events/mcpevents/shared/mcp/events"
	"github.com/mcp-events/mcpevents/shared/mcp/eventtools"
	"github.com/mcp-events/mcpevents/shared/mcp/method"
	"github.com/mcp-events/mcpevents/shared/mcp/streams"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/protocol/jsonrpc"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
)

// tools are the event tools of an endpoint.
type tools struct {
	catalogs  method.Catalogs
	auth      auth.Authenticator
	feeds     *stream.Tails
	admission *streams.Admission

	names  []string
	listed [][]byte // the entries of tools/list, encoded once
}

// New returns the tools. A wait counts as an open stream.
func New(st *streams.Streams) events.Tools {
	h := &tools{catalogs: st.Catalogs, auth: st.Auth, feeds: st.Feeds, admission: st.Admission}
	for _, t := range eventtools.Tools(false) {
		h.names, h.listed = append(h.names, t.Name), append(h.listed, jsonrpc.Encode(t))
	}
	return h
}

// Instructions implements [events.Tools].
func (h *tools) Instructions() string { return eventtools.Instructions }

// ListEntries implements [events.Tools].
func (h *tools) ListEntries() [][]byte { return h.listed }

// Has implements [events.Tools].
func (h *tools) Has(name string) bool { return slices.Contains(h.names, name) }

// Call implements [events.Tools].
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
	out, err := eventtools.Call(ctx, &source{h, c}, tool, arguments)
	switch {
	case err == nil:
		text := jsonrpc.Encode(out)
		b := jsonrpc.AppendString([]byte(`"content":[{"type":"text","text":`), string(text))
		b = append(append(b, `}],"structuredContent":`...), text...)
		return method.Result{Members: [][]byte{b}}, nil
	case correctable(err):
		b := jsonrpc.AppendString([]byte(`"content":[{"type":"text","text":`), fault.Public(err))
		return method.Result{Members: [][]byte{append(b, `}],"isError":true`...)}}, nil
	}
	return method.Result{}, err
}

// correctable reports whether a model can avoid an error with other arguments. A missing scope is an error for its client.
func correctable(err error) bool {
	switch fault.KindOf(err) {
	case fault.Invalid, fault.NotFound, fault.Unsupported, fault.Unprocessable, fault.TooLarge:
		return true
	case fault.Forbidden:
		return !auth.LacksScope(err)
	}
	return false
}

// source is the [eventtools.Source] of one call.
type source struct {
	*tools
	call *method.Call
}

// EventTypes implements [eventtools.Source].
func (h *source) EventTypes(ctx context.Context) (all []eventtools.EventType, err error) {
	cat, err := h.catalogs.Of(ctx, h.call.Principal)
	if err != nil {
		return nil, err
	}
	for _, x := range cat.Entries() {
		if x.PollAllowed() && x.Access.VisibleTo(h.call.Principal) {
			all = append(all, eventtools.EventType{Name: x.Name, Description: x.Description, Arguments: x.InputSchema()})
		}
	}
	return all, nil
}

// Subscribe implements [eventtools.Source]. It returns a handle at the end of the log.
func (h *source) Subscribe(ctx context.Context, name string, arguments json.RawMessage) (string, error) {
	s, err := h.find(ctx, h.call.Principal, name, arguments)
	if err != nil {
		return "", err
	}
	if len(s.Arguments) > maxHandleArguments {
		return "", fault.New(fault.Invalid, "the arguments have %d bytes (allowed: %d)", len(s.Arguments), maxHandleArguments)
	}
	page, err := h.feeds.Poll(ctx, stream.PollRequest{Workspace: h.call.Principal.Workspace, Principal: h.call.Principal.ID, Pattern: s.Pattern})
	if err != nil {
		return "", err
	}
	return handle{s.Entry.Name, s.Arguments, page.Cursor}.String(), nil
}

// Unsubscribe implements [eventtools.Source]. Between two calls there is nothing to end.
func (h *source) Unsubscribe(_ context.Context, subscription string) (bool, error) {
	_, err := parseHandle(subscription)
	return err == nil, err
}

// find returns the current selection of a name and arguments. An event type that the caller may not see is unknown, because it is
// not listed either.
func (h *tools) find(ctx context.Context, p auth.Principal, name string, arguments json.RawMessage) (match.Selection, error) {
	cat, err := h.catalogs.Of(ctx, p)
	if err != nil {
		return match.Selection{}, err
	}
	if entry := cat.ByName(name); entry != nil && !entry.Access.VisibleTo(p) {
		return match.Selection{}, events.UnknownEvent(name)
	}
	return events.Choose(cat, name, arguments, p, spec.ModePoll)
}
