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

// route names the tool, prompt or other item that a request is about. The gateway finds the backend for the request by this name. The
// field member is the key of the name in the params, for example "name" or "uri".
type route struct {
	kind         api.Kind
	name, member string
}

// routeName returns a router for a method whose params contain the name of an item. The parameter member is the key of the name, for
// example "name" in the params of tools/call.
func routeName(kind api.Kind, member string) router {
	return func(c *method.Call) (route, bool, error) {
		name, err := c.RequiredString(member)
		return route{kind, name, member}, true, err
	}
}

// routeRead routes resources/read to a backend if a backend has the resource. URIs of this server's event types and webhook subscriptions
// always stay with this server.
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

// routeComplete routes completion/complete, the method that suggests values for an argument of a prompt or of a URI template. Requests
// for prompts go to a backend, because this server has no prompts of its own. Requests for a URI template go to this server if one of its
// event types has the template, and otherwise to a backend with the template.
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

// router is a function that returns the tool, prompt or other item of a backend to which a request goes. It returns false if this server
// serves the request itself.
type router func(c *method.Call) (to route, ok bool, err error)

// proxyHandler serves a method that this server and its backends share. The field route decides for each request whether a backend or
// this server serves the request. The field local is this server's own handler. If it is nil, all requests go to backends.
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

// callBackend sends a client's request to a backend and relays the response. The request counts toward the caller's limit of concurrent
// calls until the backend has responded, even if the client has disconnected. It stops counting before the response is flushed, because a
// client that has the response may immediately make its next call.
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

// withoutTask returns the params without the member "task". With this member, a client of revision 2025-11-25 asks to run a tool call as
// a task. The gateway does not relay the methods that fetch the result of such a task, so it ignores the member like a server without
// tasks (2025-11-25, Tasks).
func withoutTask(c *method.Call) json.RawMessage {
	if c.Msg.Method != spec.MethodToolsCall || c.Version.Stateless() || c.Param("task") == nil {
		return c.Msg.Params
	}
	return jsonrpc.Without(c.Msg.Params, func(name string) bool { return name == "task" })
}

// parameterHeaders returns the request's Mcp-Param headers, in which clients repeat arguments of a tool call (2026-07-28, Custom Headers
// from Tool Parameters).
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

// accept serves a client's notifications and responses, to which JSON-RPC has no answer.
//
// If a notification is a message of a user's conversation with a model, accept first collects the context of the context providers, and
// sends it on the client's streams. Only then does it answer the POST, because a Lambda function is frozen after the answer.
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

// handleMessage forwards a client's notification or response to the backends that it concerns, and otherwise drops it. This server itself
// does not need such messages: it sends no requests that a client could answer, and its own methods end too quickly to be cancelled.
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

// notifyExtension forwards a notification of an MCP extension to the backend that declares the extension. The name of such a notification
// has another slash after the prefix "notifications/". The notification counts toward the caller's limit of concurrent calls, because a
// slow backend may take seconds to accept it.
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
