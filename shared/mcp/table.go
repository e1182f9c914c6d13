package mcp

import (
	"bytes"
	"context"
	"io"
	"net/http"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/conversation"
	"github.com/mcp-events/mcpevents/shared/gateway/api"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
)

// forwarding hands the whole request to who serves the method.
type forwarding struct{ to http.Handler }

func (h forwarding) serve(w http.ResponseWriter, c *call) error {
	r := c.request.Clone(c.request.Context())
	r.Body = io.NopCloser(bytes.NewReader(c.body))
	r.ContentLength = int64(len(c.body))
	r.Header.Del("Content-Length")
	if c.dialect {
		r.URL.Path, r.URL.RawPath = pathEndpoint, ""
	}
	if !c.version.Stateless() {
		// The other side has no sessions; it serves the revision that was settled here.
		r.Header.Del(spec.HeaderSession)
		r.Header.Set(spec.HeaderVersion, string(c.version))
	}
	h.to.ServeHTTP(w, r)
	return nil
}

// table lists what serves each method.
func (e *Endpoint) table(lists *lists) {
	o, t := e.options, e.methods
	answer := func(f func(context.Context, *call) (result, error)) handler {
		return answering{e.replies, e.calls.timing, f}
	}
	toBackend := func(r router, here handler) handler { return proxying{e.calls, r, here} }
	t[spec.MethodPing] = method{sessionBased: true, handler: answer(empty)}
	t[spec.MethodDiscover] = method{stateless: true, handler: answer(e.about.answerDiscover)}
	if e.sessions != nil {
		t[spec.MethodInitialize] = method{sessionBased: true} // served where sessions are made
		t[spec.MethodSetLevel] = method{sessionBased: true, session: true, scope: auth.ScopeRead, handler: answer(e.session.setLevel)}
		t[spec.MethodSubscribe] = method{sessionBased: true, session: true, scope: auth.ScopeRead, handler: answer(e.session.subscribe)}
		t[spec.MethodUnsubscribe] = method{sessionBased: true, session: true, scope: auth.ScopeRead, handler: answer(e.session.unsubscribe)}
	}
	if o.Feeds != nil {
		reads := &reads{e.catalogs, o.Feeds.Log, o.Subscriptions}
		completions := &completions{e.catalogs, o.Feeds.Log}
		polls := &polls{e.catalogs, o.Feeds, o.PollMin, o.PollMax, o.Metrics}
		t[spec.MethodResources] = method{sessionBased: true, stateless: true, scope: auth.ScopeRead, handler: answer(lists.list(api.Resources))}
		t[spec.MethodTemplates] = method{sessionBased: true, stateless: true, scope: auth.ScopeRead, handler: answer(lists.list(api.Templates))}
		t[spec.MethodComplete] = method{sessionBased: true, stateless: true, scope: auth.ScopeRead, handler: toBackend(e.calls.routeComplete, answer(completions.complete))}
		t[spec.MethodRead] = method{sessionBased: true, stateless: true, scope: auth.ScopeRead, handler: toBackend(e.calls.routeRead, answer(reads.read))}
		t[spec.MethodEvents] = method{sessionBased: true, stateless: true, family: eventsMethods, scope: auth.ScopeRead, handler: answer(lists.listEvents)}
		t[spec.MethodEventsPoll] = method{sessionBased: true, stateless: true, family: eventsMethods, scope: auth.ScopeRead, handler: answer(polls.poll)}
		// A client of a revision with sessions could not end it: closing is not cancelling there.
		t[spec.MethodEventsStream] = method{stateless: true, family: eventsMethods, scope: auth.ScopeRead, handler: streaming{e.streams, e.streams.openPush}}
		t[spec.MethodListen] = method{stateless: true, scope: auth.ScopeRead, handler: streaming{e.streams, e.streams.openListen}}
	}
	if o.Gateway != nil {
		backends := func(c *call) bool { return e.backends.Any(c.request.Context()) }
		t[spec.MethodToolsList] = method{sessionBased: true, stateless: true, offered: backends, scope: auth.ScopeRead, handler: answer(lists.list(api.Tools))}
		t[spec.MethodPromptsList] = method{sessionBased: true, stateless: true, offered: backends, scope: auth.ScopeRead, handler: answer(lists.list(api.Prompts))}
		t[spec.MethodToolsCall] = method{sessionBased: true, stateless: true, offered: backends, scope: auth.ScopeRead, handler: toBackend(routeName(api.Tools), nil)}
		t[spec.MethodPromptsGet] = method{sessionBased: true, stateless: true, offered: backends, scope: auth.ScopeRead, handler: toBackend(routeName(api.Prompts), nil)}
	}
	if tools := lists.tools; tools != nil {
		own := func(c *call) (route, bool, error) {
			to, ok, err := routeName(api.Tools)(c)
			return to, ok && !tools.Has(to.name), err
		}
		t[spec.MethodToolsList] = method{sessionBased: true, stateless: true, scope: auth.ScopeRead, handler: answer(lists.list(api.Tools))}
		t[spec.MethodToolsCall] = method{sessionBased: true, stateless: true, scope: auth.ScopeRead, handler: toBackend(own, answer(tools.Call))}
	}
	if o.Conversation != nil {
		for _, kind := range conversation.Kinds {
			t[kind.Method()] = method{
				sessionBased: true, stateless: true, scope: auth.ScopeRead, handler: answer(e.conversations.answer),
				offered: func(c *call) bool { return o.Conversation.Offers(c.request.Context(), c.principal).Has(kind) },
			}
		}
	}
	e.webhookMethods(answer)
}

// webhookMethods are served here or by who gets the whole request.
func (e *Endpoint) webhookMethods(answer func(func(context.Context, *call) (result, error)) handler) {
	o := e.options
	h := &webhooks{o.Registrar, o.Deregistrar, o.AnonymousWebhooks}
	add := func(name string, f family, here bool, forward http.Handler, serve func(context.Context, *call) (result, error)) {
		row := method{sessionBased: true, stateless: true, family: f, scope: auth.ScopeSubscribe}
		switch {
		case forward != nil:
			row.handler = forwarding{forward}
		case here:
			row.handler = answer(serve)
		default:
			return
		}
		e.methods[name] = row
	}
	add(spec.MethodRegister, coreMethods, o.Registrar != nil, o.ForwardRegistrar, h.register)
	add(spec.MethodEventsSub, eventsMethods, o.Registrar != nil, o.ForwardRegistrar, h.eventsSubscribe)
	add(spec.MethodDeregister, coreMethods, o.Deregistrar != nil, o.ForwardDeregistrar, h.deregister)
	add(spec.MethodEventsUnsub, eventsMethods, o.Deregistrar != nil, o.ForwardDeregistrar, h.eventsUnsubscribe)
}

// dispatch serves a request that has passed the checks of its revision.
func (e *Endpoint) dispatch(w http.ResponseWriter, c *call) {
	m := e.methods[c.msg.Method]
	var err error
	if m.family == eventsMethods {
		c.profile, err = e.profileOf(c)
	}
	if err == nil {
		err = m.permits(c)
	}
	if err == nil {
		err = m.handler.serve(w, c)
	}
	if err != nil {
		e.replies.fault(w, c, m, err)
	}
}
