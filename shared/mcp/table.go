package mcp

import (
	"bytes"
	"context"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/conversation"
	"github.com/mcp-events/mcpevents/shared/gateway/api"
	"github.com/mcp-events/mcpevents/shared/mcp/events"
	"github.com/mcp-events/mcpevents/shared/mcp/method"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/protocol/jsonrpc"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
)

// forwardHandler forwards a call's whole HTTP request to another handler, which serves the method.
type forwardHandler struct{ to http.Handler }

func (h forwardHandler) Serve(w http.ResponseWriter, c *method.Call) error {
	r := c.Request.Clone(c.Request.Context())
	r.Body = io.NopCloser(bytes.NewReader(c.Body))
	r.ContentLength = int64(len(c.Body))
	r.Header.Del("Content-Length")
	if c.Dialect {
		r.URL.Path, r.URL.RawPath = pathEndpoint, ""
	}
	if !c.Version.Stateless() {
		// The handler may be another service, which does not know the client's session. So remove the session's id, and send the
		// session's revision in a header.
		r.Header.Del(spec.HeaderSession)
		r.Header.Set(spec.HeaderVersion, string(c.Version))
	}
	h.to.ServeHTTP(w, r)
	return nil
}

func (e *Endpoint) table(lists *events.Lists) {
	o, t := e.options, e.methods
	answer := func(f func(context.Context, *method.Call) (method.Result, error)) method.Handler {
		return method.Answering{Replies: e.replies, Timing: e.streams.Timing, Answer: f}
	}
	toBackend := func(r router, local method.Handler) method.Handler { return proxyHandler{e, r, local} }
	reading := func(h method.Handler) method.Row {
		return method.Row{SessionBased: true, Stateless: true, Scope: auth.ScopeRead, Handler: h}
	}
	inSession := func(f func(context.Context, *method.Call) (method.Result, error)) method.Row {
		return method.Row{SessionBased: true, Session: true, Scope: auth.ScopeRead, Handler: answer(f)}
	}
	t[spec.MethodPing] = method.Row{SessionBased: true, Handler: answer(method.Empty)}
	t[spec.MethodDiscover] = method.Row{Stateless: true, Handler: answer(e.answerDiscover)}
	if e.sessions != nil {
		t[spec.MethodInitialize] = method.Row{SessionBased: true} // no handler, because the endpoint serves it before dispatch
		t[spec.MethodSetLevel] = inSession(e.setLevel)
		t[spec.MethodSubscribe] = inSession(e.subscribe)
		t[spec.MethodUnsubscribe] = inSession(e.unsubscribe)
	}
	if o.Feeds != nil {
		reads := &events.Reads{Catalogs: e.catalogs, Log: o.Feeds.Log, Subscriptions: o.Subscriptions}
		completions := &events.Completions{Catalogs: e.catalogs, Log: o.Feeds.Log}
		polls := &events.Polls{Catalogs: e.catalogs, Feeds: o.Feeds, Least: o.PollMin, Most: o.PollMax, Metrics: o.Metrics}
		t[spec.MethodResources] = reading(answer(lists.List(api.Resources)))
		t[spec.MethodTemplates] = reading(answer(lists.List(api.Templates)))
		t[spec.MethodComplete] = reading(toBackend(e.routeComplete, answer(completions.Complete)))
		t[spec.MethodRead] = reading(toBackend(e.routeRead, answer(reads.Read)))
		t[spec.MethodEvents] = method.Row{SessionBased: true, Stateless: true, Family: method.EventsMethods, Scope: auth.ScopeRead, Handler: answer(lists.ListEvents)}
		t[spec.MethodEventsPoll] = method.Row{SessionBased: true, Stateless: true, Family: method.EventsMethods, Scope: auth.ScopeRead, Handler: answer(polls.Poll)}
		// Only the stateless revisions have events/stream and subscriptions/listen. In the session-based revisions a disconnect does not
		// cancel a request, so clients could not end the stream.
		t[spec.MethodEventsStream] = method.Row{Stateless: true, Family: method.EventsMethods, Scope: auth.ScopeRead, Handler: events.NewPush(e.streams)}
		t[spec.MethodListen] = method.Row{Stateless: true, Scope: auth.ScopeRead, Handler: e.streams.Listen()}
	}
	if o.Gateway != nil {
		backends := func(c *method.Call) bool { return e.backends.Any(c.Request.Context()) }
		t[spec.MethodToolsList] = method.Row{SessionBased: true, Stateless: true, Offered: backends, Scope: auth.ScopeRead, Handler: answer(lists.List(api.Tools))}
		t[spec.MethodPromptsList] = method.Row{SessionBased: true, Stateless: true, Offered: backends, Scope: auth.ScopeRead, Handler: answer(lists.List(api.Prompts))}
		t[spec.MethodToolsCall] = method.Row{SessionBased: true, Stateless: true, Offered: backends, Scope: auth.ScopeRead, Handler: toBackend(routeName(api.Tools, "name"), nil)}
		t[spec.MethodPromptsGet] = method.Row{SessionBased: true, Stateless: true, Offered: backends, Scope: auth.ScopeRead, Handler: toBackend(routeName(api.Prompts, "name"), nil)}
		for _, name := range []string{spec.MethodTasksGet, spec.MethodTasksUpdate, spec.MethodTasksCancel} {
			t[name] = method.Row{Stateless: true, Offered: backends, Scope: auth.ScopeRead, Handler: toBackend(routeName(api.Tasks, "taskId"), nil)}
		}
	}
	if tools := lists.Tools; tools != nil {
		own := func(c *method.Call) (route, bool, error) {
			to, ok, err := routeName(api.Tools, "name")(c)
			return to, ok && !tools.Has(to.name), err
		}
		t[spec.MethodToolsList] = reading(answer(lists.List(api.Tools)))
		t[spec.MethodToolsCall] = reading(toBackend(own, answer(tools.Call)))
	}
	if o.Conversation != nil {
		for _, kind := range conversation.Kinds {
			t[kind.Method()] = method.Row{
				SessionBased: true, Stateless: true, Scope: auth.ScopeRead, Handler: answer(e.answerConversation),
				Offered: func(c *method.Call) bool { return o.Conversation.Offers(c.Request.Context(), c.Principal).Has(kind) },
			}
		}
	}
	e.webhookMethods(answer)
}

// webhookMethods adds the methods for webhook subscriptions to the method table. This process serves these methods itself or forwards
// them to another service.
func (e *Endpoint) webhookMethods(answer func(func(context.Context, *method.Call) (method.Result, error)) method.Handler) {
	o := e.options
	h := &events.Webhooks{Registrar: o.Registrar, Deregistrar: o.Deregistrar, Anonymous: o.AnonymousWebhooks}
	add := func(name string, f method.Family, local bool, forward http.Handler, serve func(context.Context, *method.Call) (method.Result, error)) {
		row := method.Row{SessionBased: true, Stateless: true, Family: f, Scope: auth.ScopeSubscribe}
		switch {
		case forward != nil:
			row.Handler = forwardHandler{forward}
		case local:
			row.Handler = answer(serve)
		default:
			return
		}
		e.methods[name] = row
	}
	add(spec.MethodRegister, method.CoreMethods, o.Registrar != nil, o.ForwardRegistrar, h.Register)
	add(spec.MethodEventsSub, method.EventsMethods, o.Registrar != nil, o.ForwardRegistrar, h.EventsSubscribe)
	add(spec.MethodDeregister, method.CoreMethods, o.Deregistrar != nil, o.ForwardDeregistrar, h.Deregister)
	add(spec.MethodEventsUnsub, method.EventsMethods, o.Deregistrar != nil, o.ForwardDeregistrar, h.EventsUnsubscribe)
}

// dispatch serves a request that has passed the checks of its revision. The remaining checks are in checkCall, a separate
// function, so that the stack of an open stream stays small.
func (e *Endpoint) dispatch(w http.ResponseWriter, c *method.Call) {
	var m method.Row
	err := e.checkCall(c, &m)
	if err == nil {
		err = m.Handler.Serve(w, c)
	}
	if err != nil {
		e.replies.SendFault(w, c, m, err)
	}
}

// checkCall looks up the request's method in the table and stores the method's row in m. It returns an error if the caller cannot use the
// method or the params contain a member twice.
func (e *Endpoint) checkCall(c *method.Call, m *method.Row) (err error) {
	row, known := e.methods[c.Msg.Method]
	if !known && e.options.Gateway != nil {
		row = e.extensionRow()
	}
	*m = row
	if m.Family == method.EventsMethods {
		c.Profile, err = e.profileOf(c)
	}
	if err == nil {
		err = m.CheckCall(c)
	}
	if err == nil && jsonrpc.HasRepeatedMember(c.Msg.Params) {
		// Refuse params with two members of the same name, because JSON readers disagree about which one counts.
		err = method.InvalidParams("params have a member twice, or more than %d members", jsonrpc.MaxComparedMembers)
	}
	return err
}

// extensionRow returns the row that the endpoint uses for all methods that the table does not contain. Such a method exists for a caller
// if one of the caller's backends declares an extension with the method.
func (e *Endpoint) extensionRow() method.Row {
	return method.Row{
		SessionBased: true, Stateless: true, Scope: auth.ScopeRead, Handler: proxyHandler{endpoint: e, route: routeExtension},
		Offered: func(c *method.Call) bool {
			ctx := c.Request.Context()
			return e.backends.Any(ctx) && e.backends.Has(ctx, c.Client(), api.Extensions, c.Msg.Method)
		},
	}
}

// profileOf returns the profile of a call, which is the version of the MCP Events extension that the call follows. A revision that the
// client declares takes precedence over the configured profile. If the declared revision is unknown, profileOf returns an error and the
// configured profile, which determines the code of the error response.
func (e *Endpoint) profileOf(c *method.Call) (spec.Profile, error) {
	profile := e.defaultProfile(c.Request.Context(), c.Principal)
	// The extension is defined only for the stateless revisions, and only these send the client's capabilities with each request. So a
	// call of another revision has no settings of the extension.
	settings := jsonrpc.Member(jsonrpc.Member(jsonrpc.Member(c.Meta, spec.MetaCapabilities), "extensions"), spec.EventsExtension)
	raw := jsonrpc.Member(settings, "revision")
	if raw == nil {
		return profile, nil
	}
	revision, ok := jsonrpc.String(raw)
	if !ok {
		return profile, method.InvalidParams("revision of %s must be a string", spec.EventsExtension)
	}
	if declared, ok := e.options.EventsRevisions[revision]; ok {
		return declared, nil
	}
	known := slices.Sorted(maps.Keys(e.options.EventsRevisions))
	text := "known: " + strings.Join(known, ", ")
	if len(known) == 0 {
		known, text = []string{}, "none is known yet; leave revision out"
	}
	return profile, fault.New(fault.Unsupported, "revision %q of %s is not known (%s)", method.Clip(revision), spec.EventsExtension, text).
		With(map[string]any{"feature": "revision", "value": method.Clip(revision), "supported": known})
}

func (e *Endpoint) defaultProfile(ctx context.Context, p auth.Principal) spec.Profile {
	if e.options.Profile == nil {
		return spec.Released
	}
	return e.options.Profile(ctx, p)
}
