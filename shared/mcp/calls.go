package mcp

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/auth/quota"
	"github.com/mcp-events/mcpevents/shared/events/catalog"
	"github.com/mcp-events/mcpevents/shared/events/subscription"
	"github.com/mcp-events/mcpevents/shared/gateway/api"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/protocol/jsonrpc"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
)

// calls hands requests, and what clients notify and answer, on to backends.
type calls struct {
	backends Gateway
	underWay *quota.Held
	left     func(*http.Request) // see [Options.Left]
	catalogs catalogs
	faults   faults
	timing   timing
	shut     context.Context // ends calls that still run, see [Endpoint.Close]
}

// route is where in the gateway a request goes: what its member of params names.
type route struct {
	kind         api.Kind
	name, member string
}

// routeName finds a tool or a prompt.
func routeName(kind api.Kind) router {
	return func(c *call) (route, bool, error) {
		name, err := c.required("name")
		return route{kind, name, "name"}, true, err
	}
}

// routeRead leaves our own schemes to us.
func (h *calls) routeRead(c *call) (route, bool, error) {
	uri, err := c.required("uri")
	if err != nil || strings.HasPrefix(uri, subscriptionScheme) {
		return route{}, false, err
	}
	ctx := c.request.Context()
	if cat, err := h.catalogs.of(ctx, c.principal); err == nil && known(cat, uri) {
		return route{}, false, nil
	}
	return route{api.Resources, uri, "uri"}, h.backends.Has(ctx, c.client(), api.Resources, uri), nil
}

// known reports whether a URI is one of the catalog's. Such a one is not looked for at backends,
// as when it is subscribed to.
func known(cat *catalog.Catalog, uri string) bool {
	_, _, err := subscription.Resolve(cat, uri)
	return err == nil
}

func (h *calls) routeComplete(c *call) (route, bool, error) {
	ref := c.param("ref")
	if name, ok := jsonrpc.String(jsonrpc.Member(ref, "name")); ok {
		return route{api.Prompts, name, "ref"}, true, nil
	}
	uri, _ := jsonrpc.String(jsonrpc.Member(ref, "uri"))
	if cat, err := h.catalogs.of(c.request.Context(), c.principal); err == nil && slices.ContainsFunc(cat.Entries(), func(x *catalog.Entry) bool { return x.URITemplate == uri }) {
		return route{}, false, nil
	}
	to := route{api.Templates, uri, "ref"}
	return to, h.backends.Has(c.request.Context(), c.client(), api.Templates, uri), nil
}

// router finds what of a backend a request is for. Without ok it is for nothing of theirs.
type router func(c *call) (to route, ok bool, err error)

// proxying serves what backends have, and leaves the rest to here. Without here all is theirs, and the
// method is known only while there are backends.
type proxying struct {
	calls *calls
	route router
	here  handler
}

func (h proxying) serve(w http.ResponseWriter, c *call) error {
	if h.here != nil && !h.calls.backends.Any(c.request.Context()) {
		return h.here.serve(w, c)
	}
	to, ok, err := h.route(c)
	switch {
	case err != nil:
		return err
	case !ok:
		return h.here.serve(w, c)
	}
	return h.calls.serve(w, c, to)
}

// serve calls what a backend has and relays its answer. The call of a client that has left counts until it ends.
func (h *calls) serve(w http.ResponseWriter, c *call, to route) error {
	release, err := h.underWay.Take(c.request.Context(), c.principal)
	if err != nil {
		return err
	}
	defer release()
	if h.left != nil && c.attached != nil {
		stop := context.AfterFunc(c.attached, func() { h.left(c.request) })
		defer stop()
	}
	request := api.Call{
		Client: c.client(), Kind: to.kind, Name: to.name, Member: to.member, Method: c.msg.Method,
		ID: bytes.Clone(c.msg.ID), Params: c.msg.Params, Header: parameterHeaders(c.request.Header),
	}
	p := h.timing.relay(w, c, h.faults)
	request.Send, request.ResponseOnly = p.send, !p.streams
	ctx, end := p.begin(h.shut)
	defer end()
	err = h.backends.Call(ctx, request)
	if err != nil && p.failed(err) {
		return nil
	}
	return err
}

// parameterHeaders are those that repeat arguments of a tool (2026-07-28, Custom
// Headers from Tool Parameters). The backend compares them.
func parameterHeaders(h http.Header) http.Header {
	out := http.Header{}
	for name, values := range h {
		if strings.HasPrefix(name, "Mcp-Param-") {
			out[name] = values
		}
	}
	return out
}

// takeIn serves what needs no response: messages of conversations, whose answer comes when the context is on its way,
// for on Lambda nothing goes on after it; other notifications; and answers to what a backend asked the client.
func (e *Endpoint) takeIn(w http.ResponseWriter, c *call) {
	handle := e.calls.handle
	if e.conversations.handles(c) {
		if c.attached == nil {
			defer c.detach(e.shut, detachedFor)()
		}
		handle = e.conversations.handle
	}
	err := handle(c)
	if err == nil {
		w.WriteHeader(http.StatusAccepted)
		return
	}
	code, kind := http.StatusBadRequest, fault.KindOf(err)
	_, refused := errors.AsType[*jsonrpc.Error](err)
	switch {
	case refused:
	case kind == fault.Forbidden:
		e.replies.fault(w, c, method{scope: auth.ScopeRead}, err)
		return
	case kind == fault.Internal || kind == fault.Unavailable:
		w.Header().Set("Retry-After", "1")
		code = http.StatusServiceUnavailable
	case kind == fault.Exhausted:
		if after, ok := fault.DataOf(err).(quota.RetryAfter); ok {
			w.Header().Set("Retry-After", strconv.Itoa(after.Seconds))
		}
		code = http.StatusTooManyRequests
	}
	sendError(w, code, nil, e.faults.translate(c.request.Context(), err, c.version, c.profile))
}

// handle hands a notification or an answer on to backends. Without any, and without a session, nothing that a client notifies or
// answers changes anything: requests are short then, and one that is under way cannot be
// cancelled, which the revisions allow for.
func (h *calls) handle(c *call) error {
	ctx := c.request.Context()
	backends := h.backends
	if !backends.Any(ctx) || c.session == nil {
		return nil
	}
	switch {
	case c.msg.Kind == jsonrpc.Response:
		id, _ := jsonrpc.String(c.msg.ID)
		err := backends.Answer(ctx, c.client(), id, c.msg.Raw)
		if fault.Is(err, fault.NotFound) {
			return invalidRequest(fault.Public(err))
		}
		return err
	case c.msg.Method == spec.NoteCancelled:
		return backends.Cancel(ctx, c.client(), c.msg.Raw)
	case c.msg.Method == spec.NoteProgress:
		return backends.Progress(ctx, c.client(), c.msg.Raw)
	case c.msg.Method == spec.NoteRootsChange:
		return backends.Notify(ctx, c.client(), c.msg.Raw)
	}
	return nil
}
