package mcp

import (
	"context"
	"encoding/json"
	"net/http"
	"time"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/jsonrpc"
	"github.com/mcp-events/mcpevents/shared/mcpspec"
)

// call is one request on its way through the endpoint.
type call struct {
	request   *http.Request
	body      []byte // of the whole HTTP request
	principal auth.Principal
	version   mcpspec.Version
	session   *session // nil in the modern era
	dialect   bool     // of named events, see dialect.go
	msg       jsonrpc.Message
	meta      json.RawMessage // of the params; nil without
	waits     func()          // to be called before the answer waits for others; see [lateAnswer]
	ends      time.Time       // when the function that serves it is ended; zero for a server
}

// param finds a member of the params; nil when it is absent or null.
func (c *call) param(name string) json.RawMessage { return jsonrpc.Member(c.msg.Params, name) }

// text finds a member of the params that must be a string if it is there.
func (c *call) text(name string) (value string, given bool, err error) {
	raw := c.param(name)
	if raw == nil {
		return "", false, nil
	}
	value, ok := jsonrpc.String(raw)
	if !ok {
		return "", false, invalidParams("%s must be a string", name)
	}
	return value, true, nil
}

// required is [call.text] for a member that must be there and not be empty.
func (c *call) required(name string) (string, error) {
	value, _, err := c.text(name)
	if err == nil && value == "" {
		err = invalidParams("%s is missing", name)
	}
	return value, err
}

// result is what a method answers, in the parts that both eras share.
type result struct {
	// members are the result's members without the braces; the pieces are joined.
	members [][]byte
	// meta are further members of _meta, without braces.
	meta []byte
	// cache is set where revision 2026-07-28 requires caching hints.
	cache *caching
}

// caching is the hint of a cacheable result (revision 2026-07-28, Caching).
type caching struct {
	ttl   int64 // milliseconds
	scope string
}

const (
	public  = "public"
	private = "private"
)

// method is a row of the table.
type method struct {
	// legacy and modern say in which eras the method exists.
	legacy, modern bool
	family         family
	// backends is set for what only backends serve: it is unknown while there are none.
	backends bool
	// gathers is set for what may have to wait for backends.
	gathers bool
	// session is set for what changes the session that a request is part of.
	session bool
	// scope is needed to call it; empty for none.
	scope string
	// offered tells whether it is there for the caller; nil is for everybody.
	offered func(c *call) bool
	// route finds what of a backend a request is for; without one, or when it finds
	// nothing, the request is served here.
	route func(c *call) (to route, ok bool, err error)
	// One of these serves it: answer gives a result; stream answers with a stream
	// or returns an error before it wrote anything; forward gets the whole request.
	answer  func(ctx context.Context, c *call) (result, error)
	stream  func(w http.ResponseWriter, c *call) error
	forward http.Handler
}

// table lists what this endpoint serves. A method that nothing serves is not in
// it, so that it is neither advertised nor known.
func (e *Endpoint) table() map[string]method {
	o := e.options
	t := map[string]method{
		mcpspec.MethodPing:     {legacy: true, answer: empty},
		mcpspec.MethodDiscover: {modern: true, answer: e.answerDiscover},
	}
	if e.sessions != nil {
		t[mcpspec.MethodInitialize] = method{legacy: true} // served where sessions are made
	}
	if o.Lists {
		t[mcpspec.MethodResources] = method{legacy: true, modern: true, gathers: true, scope: auth.ScopeRead, answer: e.listResources}
		t[mcpspec.MethodTemplates] = method{legacy: true, modern: true, gathers: true, scope: auth.ScopeRead, answer: e.listTemplates}
		t[mcpspec.MethodEvents] = method{legacy: true, modern: true, family: eventsMethods, scope: auth.ScopeRead, answer: e.listEvents}
	}
	if o.Lists && o.Log != nil {
		t[mcpspec.MethodComplete] = method{legacy: true, modern: true, scope: auth.ScopeRead, route: e.routeComplete, answer: e.complete}
	}
	if o.Feeds != nil && e.sessions != nil {
		t[mcpspec.MethodSetLevel] = method{legacy: true, session: true, scope: auth.ScopeRead, answer: e.setLevel}
	}
	if o.Log != nil {
		t[mcpspec.MethodRead] = method{legacy: true, modern: true, scope: auth.ScopeRead, route: e.routeRead, answer: e.read}
	}
	if o.Feeds != nil {
		t[mcpspec.MethodEventsPoll] = method{legacy: true, modern: true, family: eventsMethods, scope: auth.ScopeRead, answer: e.poll}
		// A client of a revision with sessions could not end it: closing is not cancelling there.
		t[mcpspec.MethodEventsStream] = method{modern: true, family: eventsMethods, scope: auth.ScopeRead, stream: e.eventsStream}
		t[mcpspec.MethodListen] = method{modern: true, scope: auth.ScopeRead, stream: e.listen}
		if e.sessions != nil {
			t[mcpspec.MethodSubscribe] = method{legacy: true, session: true, scope: auth.ScopeRead, answer: e.subscribe}
			t[mcpspec.MethodUnsubscribe] = method{legacy: true, session: true, scope: auth.ScopeRead, answer: e.unsubscribe}
		}
	}
	webhooks := func(core, events string, here bool, forward http.Handler, answerCore, answerEvents func(context.Context, *call) (result, error)) {
		if forward == nil && !here {
			return
		}
		row := method{legacy: true, modern: true, scope: auth.ScopeSubscribe, forward: forward}
		if forward == nil {
			row.answer = answerCore
		}
		t[core] = row
		row.family = eventsMethods
		if forward == nil {
			row.answer = answerEvents
		}
		t[events] = row
	}
	if o.Gateway != nil {
		t[mcpspec.MethodToolsList] = method{legacy: true, modern: true, backends: true, gathers: true, scope: auth.ScopeRead, answer: e.listTools}
		t[mcpspec.MethodPromptsList] = method{legacy: true, modern: true, backends: true, gathers: true, scope: auth.ScopeRead, answer: e.listPrompts}
		t[mcpspec.MethodToolsCall] = method{legacy: true, modern: true, backends: true, scope: auth.ScopeRead, route: e.routeTool}
		t[mcpspec.MethodPromptsGet] = method{legacy: true, modern: true, backends: true, scope: auth.ScopeRead, route: e.routePrompt}
	}
	if o.Conversation != nil {
		for kind, name := range conversationMethods {
			t[name] = method{
				legacy: true, modern: true, scope: auth.ScopeRead, answer: e.tell,
				offered: func(c *call) bool { return o.Conversation.Offers(c.request.Context(), c.principal).Has(kind) },
			}
		}
	}
	webhooks(mcpspec.MethodRegister, mcpspec.MethodEventsSub, o.Registrar != nil, o.ForwardRegistrar, e.register, e.eventsSubscribe)
	webhooks(mcpspec.MethodDeregister, mcpspec.MethodEventsUnsub, o.Deregistrar != nil, o.ForwardDeregistrar, e.deregister, e.eventsUnsubscribe)
	return t
}

// method finds the row of a method that is served now.
func (e *Endpoint) method(ctx context.Context, name string) (m method, ok bool) {
	if m, ok = e.methods[name]; !ok || m.backends && e.gateway(ctx) == nil {
		return method{}, false
	}
	return m, true
}

func (e *Endpoint) has(name string) bool {
	_, ok := e.methods[name]
	return ok
}

func empty(context.Context, *call) (result, error) { return result{}, nil }
