package mcp

import (
	"bytes"
	"encoding/json"
	"net/http"
	"strings"
	"sync"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/events/match"
	"github.com/mcp-events/mcpevents/shared/gateway/api"
	"github.com/mcp-events/mcpevents/shared/mcp/method"
	"github.com/mcp-events/mcpevents/shared/mcp/streams"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/protocol/jsonrpc"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
)

// route is the item that a request names, by which the gateway finds the backend for the request. The params have the name under the
// key member, e.g. "name" or "uri".
type route struct {
	kind         api.Kind
	name, member string
}

// routeName returns a router for a method whose params name an item under the key member. For example, the params of tools/call have
// the tool's name under "name".
func routeName(kind api.Kind, member string) router {
	return func(c *method.Call) (route, bool, error) {
		name, err := c.RequiredString(member)
		return route{kind, name, member}, true, err
	}
}

// routeRead routes resources/read to a backend unless this server has the URI or no backend has it.
func (e *Endpoint) routeRead(c *method.Call) (route, bool, error) {
	uri, err := c.RequiredString("uri")
	if err != nil || strings.HasPrefix(uri, streams.SubscriptionScheme) {
		return route{}, false, err
	}
	ctx := c.Request.Context()
	if cat, err := e.catalogs.CatalogOf(ctx, c.Principal); err == nil && match.InCatalog(cat, uri) {
		return route{}, false, nil // this server serves the URI, even if a backend has it too
	}
	return route{api.Resources, uri, "uri"}, e.backends.Has(ctx, c.Client(), api.Resources, uri), nil
}

// routeComplete routes a request to complete a value. Completions for prompts go to a backend, because this server has no prompts of
// its own. For a URI template, this server answers if the template belongs to one of its event types, and otherwise a backend that has
// the template.
func (e *Endpoint) routeComplete(c *method.Call) (route, bool, error) {
	ref := c.Param("ref")
	if name, ok := jsonrpc.String(jsonrpc.Member(ref, "name")); ok {
		return route{api.Prompts, name, "ref"}, true, nil
	}
	uri, _ := jsonrpc.String(jsonrpc.Member(ref, "uri"))
	if cat, err := e.catalogs.CatalogOf(c.Request.Context(), c.Principal); err == nil && cat.HasTemplate(uri) {
		return route{}, false, nil
	}
	to := route{api.Templates, uri, "ref"}
	return to, e.backends.Has(c.Request.Context(), c.Client(), api.Templates, uri), nil
}

func routeExtension(c *method.Call) (route, bool, error) {
	return route{kind: api.Extensions, name: c.Msg.Method}, true, nil
}

// router returns the destination of a request at the gateway, or false if this server serves the request.
type router func(c *method.Call) (to route, ok bool, err error)

// proxyHandler is the handler of a method that this server and backends serve. route decides whether a request goes to a backend or to the
// local handler. If local is nil, all requests go to backends, and the method exists only while there are backends.
type proxyHandler struct {
	endpoint *Endpoint
	route    router
	local    method.Handler
}

func (h proxyHandler) Serve(w http.ResponseWriter, c *method.Call) error {
	if h.local != nil && !h.endpoint.backends.Any(c.Request.Context()) {
		return h.local.Serve(w, c)
	}
	to, ok, err := h.route(c)
	switch {
	case err != nil:
		return err
	case !ok:
		return h.local.Serve(w, c)
	}
	return h.endpoint.callBackend(w, c, to)
}

// callBackend calls a backend and relays its answer. The call counts toward the limit of concurrent calls until it ends, even if the client
// has disconnected. But callBackend stops counting the call before it flushes a JSON response, because a client
// that has the response can immediately make its next call.
func (e *Endpoint) callBackend(w http.ResponseWriter, c *method.Call, to route) error {
	release, err := e.options.Calls.Take(c.Request.Context(), c.Principal)
	if err != nil {
		return err
	}
	release = sync.OnceFunc(release)
	defer release()
	if e.options.Left != nil {
		defer c.OnDisconnect(func() { e.options.Left(c.Request) })()
	}
	request := api.Call{
		Client: c.Client(), Kind: to.kind, Name: to.name, Member: to.member, Method: c.Msg.Method,
		ID: bytes.Clone(c.Msg.ID), Params: withoutTask(c), Header: parameterHeaders(c.Request.Header),
	}
	p := e.streams.Timing.NewRelayed(w, c, e.faults)
	request.Send, request.ResponseOnly = p.Send, !p.StreamsMessages()
	ctx, stop := p.Begin()
	defer stop()
	request.Answered = func() {
		release()
		p.Flush()
	}
	err = e.backends.Call(ctx, request)
	release()
	if err != nil && p.Fail(err) {
		return nil
	}
	return err
}

// withoutTask drops the member with which a client of 2025-11-25 asks for a task, because the gateway does not relay the methods
// that fetch a task's result. A server without tasks must ignore this member (2025-11-25, Tasks).
func withoutTask(c *method.Call) json.RawMessage {
	if c.Msg.Method != spec.MethodToolsCall || c.Version.Stateless() || c.Param("task") == nil {
		return c.Msg.Params
	}
	return jsonrpc.Without(c.Msg.Params, func(name string) bool { return name == "task" })
}

// parameterHeaders returns the headers that repeat arguments of a tool (2026-07-28, Custom Headers from Tool Parameters).
func parameterHeaders(h http.Header) http.Header {
	var out http.Header
	for name, values := range h {
		if strings.HasPrefix(name, spec.HeaderParameter) {
			if out == nil {
				out = http.Header{}
			}
			out[name] = values
		}
	}
	return out
}

// accept serves messages that need no response. If the message is part of a conversation, accept first sends the context that the
// providers return for it and only then answers the POST, because a Lambda function is frozen after the answer.
func (e *Endpoint) accept(w http.ResponseWriter, c *method.Call) {
	handle := e.handleMessage
	if e.expectsConversation(c) {
		defer c.Detach(method.DetachedFor)()
		handle = e.handleConversation
	}
	err := handle(c)
	if err == nil {
		w.WriteHeader(http.StatusAccepted)
		return
	}
	if fault.Is(err, fault.Forbidden) {
		e.replies.SendFault(w, c, method.Row{Scope: auth.ScopeRead}, err)
		return
	}
	e.replies.SendStatus(w, c, nil, err)
}

// handleMessage forwards a client's notification or response to the backends that it concerns. It drops all other messages. The server
// itself needs none of them: it sends no requests that a client could answer, and its own methods are too fast to be cancelled.
func (e *Endpoint) handleMessage(c *method.Call) error {
	ctx := c.Request.Context()
	backends := e.backends
	if !backends.Any(ctx) {
		return nil
	}
	switch session := c.Session != nil; {
	case session && c.Msg.Kind == jsonrpc.Response:
		id, _ := jsonrpc.String(c.Msg.ID)
		err := backends.Answer(ctx, c.Client(), id, c.Msg.Raw)
		if fault.Is(err, fault.NotFound) {
			return method.InvalidRequest(fault.Public(err))
		}
		return err
	case session && c.Msg.Method == spec.NoteCancelled:
		return backends.Cancel(ctx, c.Client(), c.Msg.Raw)
	case session && c.Msg.Method == spec.NoteProgress:
		return backends.Progress(ctx, c.Client(), c.Msg.Raw)
	case session && c.Msg.Method == spec.NoteRootsChange:
		return backends.Notify(ctx, c.Client(), c.Msg.Raw)
	case c.Msg.Kind == jsonrpc.Notification && c.Principal.Has(auth.ScopeRead):
		return e.notifyExtension(c)
	}
	return nil
}

// notifyExtension forwards a notification of an extension, whose name has another slash after notifications/. The
// notification counts toward the limit of concurrent calls, because a slow backend may take seconds to accept it.
func (e *Endpoint) notifyExtension(c *method.Call) error {
	if !strings.Contains(strings.TrimPrefix(c.Msg.Method, "notifications/"), "/") {
		return nil
	}
	ctx := c.Request.Context()
	release, err := e.options.Calls.Take(ctx, c.Principal)
	if err != nil {
		return err
	}
	defer release()
	return e.backends.NotifyExtension(ctx, c.Client(), c.Msg.Method, c.Msg.Params)
}
