package mcp

import (
	"context"
	"net/http"
	"strings"
	"time"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/auth/quota"
	"github.com/mcp-events/mcpevents/shared/events/catalog"
	"github.com/mcp-events/mcpevents/shared/events/match"
	"github.com/mcp-events/mcpevents/shared/events/stream"
	"github.com/mcp-events/mcpevents/shared/events/subscription"
	"github.com/mcp-events/mcpevents/shared/gateway/api"
	"github.com/mcp-events/mcpevents/shared/mcp/method"
	"github.com/mcp-events/mcpevents/shared/mcp/session"
	"github.com/mcp-events/mcpevents/shared/mcp/streams"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/protocol/jsonrpc"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
	"github.com/mcp-events/mcpevents/shared/protocol/sse"
)

// subscribe serves resources/subscribe. Every event of the URI that is published after the answer to this request is sent on the
// session's stream.
func (e *Endpoint) subscribe(ctx context.Context, c *method.Call) (method.Result, error) {
	uri, cat, err := e.readURI(ctx, c)
	if err != nil {
		return method.Result{}, err
	}
	t, err := e.streams.Resolve(ctx, cat, c.Principal, uri)
	if err != nil {
		return method.Result{}, err
	}
	open := t.CountOpen() > 0
	if open {
		if err := e.checkPatternLimit(ctx, c.Session, t.URI); err != nil {
			return method.Result{}, err
		}
	}
	for _, p := range t.Patterns {
		if p.Kind == match.Concrete {
			continue
		}
		if _, err := subscription.RecordInterest(ctx, e.options.Feeds.DB, e.options.Feeds.Log, c.Principal.Workspace, p); err != nil {
			return method.Result{}, err
		}
	}
	after := e.options.Feeds.Log.Position()
	if t.Backend != "" { // before the session's record is written, because the backend's quota may refuse the subscription
		if err := e.backends.Subscribe(ctx, subscriptionAt(c.Session, t.Backend, t.URI, c.Session.NeedsUntil())); err != nil {
			return method.Result{}, err
		}
	}
	replaced, err := e.sessions.Subscribe(ctx, c.Session, session.URI{URI: t.URI, After: after, Open: open, Backend: t.Backend})
	if err != nil {
		if t.Backend != "" && !fault.Is(err, fault.Unavailable) {
			e.unsubscribeAll(ctx, c.Session, []session.URI{{URI: t.URI, Backend: t.Backend}})
		}
		return method.Result{}, sessionFault(err)
	}
	if replaced != nil {
		e.unsubscribeAll(ctx, c.Session, []session.URI{*replaced})
	}
	return method.Result{}, e.notifySession(ctx, c)
}

func (e *Endpoint) readURI(ctx context.Context, c *method.Call) (uri string, cat *catalog.Catalog, err error) {
	if uri, err = c.RequiredString("uri"); err == nil {
		cat, err = e.catalogs.CatalogOf(ctx, c.Principal)
	}
	return uri, cat, err
}

// checkPatternLimit returns an error if the session already has as many patterns as [Options.MaxStreamPatterns] allows. A pattern is a
// URI that has a wildcard or is a parent of other URIs. If the given URI is a pattern that the session already has, there is no error.
func (e *Endpoint) checkPatternLimit(ctx context.Context, sess *session.Session, uri string) error {
	uris, err := e.sessions.ListSubscriptions(ctx, sess.Key)
	if err != nil {
		return err
	}
	n := 0
	for _, u := range uris {
		if u.URI == uri {
			return nil
		}
		if u.Open {
			n++
		}
	}
	if n >= e.options.MaxStreamPatterns {
		return session.LimitReached("streamPatterns", e.options.MaxStreamPatterns)
	}
	return nil
}

// unsubscribe serves resources/unsubscribe. It also succeeds if the session is not subscribed to the URI, but the URI must be valid.
func (e *Endpoint) unsubscribe(ctx context.Context, c *method.Call) (method.Result, error) {
	uri, cat, err := e.readURI(ctx, c)
	if err != nil {
		return method.Result{}, err
	}
	// Read the backend's name from the session's record of the subscription, because the backend may no longer list the resource.
	record, err := e.sessions.FindSubscription(ctx, c.Session, uri)
	if err != nil {
		return method.Result{}, err
	}
	ofBackend := record != nil && record.Backend != ""
	if record == nil && e.backends.Any(ctx) && !match.InCatalog(cat, uri) {
		_, ofBackend, _ = e.backends.Subscribable(ctx, c.Principal, uri) // ending a subscription needs no scope, so ignore a missing one
	}
	switch {
	case record != nil && ofBackend:
		if err := e.backends.Unsubscribe(ctx, subscriptionAt(c.Session, record.Backend, uri, time.Time{})); err != nil {
			return method.Result{}, err
		}
	case !ofBackend && !strings.HasPrefix(uri, streams.SubscriptionScheme):
		if uri, err = catalog.CanonicalPattern(uri); err != nil {
			return method.Result{}, fault.Wrap(fault.Invalid, err, "unsubscribe")
		}
	}
	if err := e.sessions.Unsubscribe(ctx, c.Session, uri); err != nil {
		return method.Result{}, err
	}
	return method.Result{}, e.notifySession(ctx, c)
}

func (e *Endpoint) notifySession(ctx context.Context, c *method.Call) error {
	return e.options.Feeds.Log.Notify(ctx, c.Principal.Workspace, stream.TopicSession(c.Session.Key), streams.SessionNotice)
}

// sessionFault converts [session.ErrNone] into an error for the client, which says that the session has ended. It returns other errors
// unchanged. Requests get ErrNone if their session ends while they use it.
func sessionFault(err error) error {
	if err == session.ErrNone {
		return fault.New(fault.NotFound, "the session has ended")
	}
	return err
}

func (e *Endpoint) unsubscribeAll(ctx context.Context, sess *session.Session, uris []session.URI) {
	for _, u := range uris {
		if u.Backend == "" {
			continue
		}
		if err := e.backends.Unsubscribe(ctx, subscriptionAt(sess, u.Backend, u.URI, time.Time{})); err != nil {
			e.faults.LogError(ctx, "backend subscription left to expire", err)
		}
	}
}

// subscriptionAt describes a session's subscription to a backend's resource. The parameter until is when the subscription expires. It may
// be zero if the caller wants to end the subscription.
func subscriptionAt(sess *session.Session, backend, uri string, until time.Time) api.Subscription {
	return api.Subscription{
		Place: api.Place{Workspace: sess.Workspace, Backend: backend}, URI: uri, Principal: sess.Principal, Holder: sess.Key, Until: until,
	}
}

// prolong extends a session's subscription at a backend until the given time. The session store calls it for each such subscription when
// it extends the session (see [session.Store.Prolong]).
func (e *Endpoint) prolong(ctx context.Context, sess *session.Session, u session.URI, until time.Time) error {
	return e.backends.Subscribe(ctx, subscriptionAt(sess, u.Backend, u.URI, until))
}

// initialize serves the method initialize. It chooses the protocol revision and creates the session.
func (e *Endpoint) initialize(w http.ResponseWriter, c *method.Call) {
	c.Version = spec.LatestSessionBased
	if e.sessions == nil {
		method.SendError(w, http.StatusOK, c.Msg.ID, method.UnknownMethod(c.Msg.Method))
		return
	}
	asked, err := c.RequiredString("protocolVersion")
	if err != nil {
		e.replies.SendFault(w, c, method.Row{}, err)
		return
	}
	if v := spec.Version(asked); v.Known() && !v.Stateless() {
		c.Version = v
	}
	declared := c.Param("capabilities")
	s := session.Session{
		Workspace: c.Principal.Workspace, Principal: c.Principal.ID, Version: c.Version, Dialect: c.Dialect,
		Payloads: method.Declares(declared, spec.OwnExtension), Events: method.Declares(declared, spec.EventsExtension),
	}
	if e.backends != (noBackends{}) {
		s.Client = method.ClientInfo(c.Param("clientInfo"))
		if !c.Dialect { // backends get the client's capabilities for their requests to it, which the dialect cannot send
			s.Capabilities = method.CopyDeclaration(declared)
		}
	}
	if c.Session != nil { // a session of the dialect may begin without initialize
		err = e.redeclare(c, s)
	} else if c.Session, err = e.createSession(c.Request.Context(), c.Principal, s); err == nil {
		w.Header().Set(spec.HeaderSession, c.Session.ID)
	}
	if err != nil {
		e.replies.SessionFailed(w, c, err)
		return
	}
	version := append(append([]byte(`"protocolVersion":"`), c.Version...), `",`...)
	about := e.describeInitialize(e.offersTo(c.Request.Context(), c))
	method.Send(w, http.StatusOK, func(b []byte) []byte {
		return e.replies.AppendResult(b, c, method.Result{Members: [][]byte{version, about}})
	})
}

// redeclare updates an existing session of the named-event dialect after an initialize: it stores the revision and the extensions that
// the client named.
func (e *Endpoint) redeclare(c *method.Call, s session.Session) error {
	ctx := c.Request.Context()
	if err := e.sessions.Change(ctx, c.Session, func(now *session.Session) {
		now.Version, now.Payloads, now.Events = s.Version, s.Payloads, s.Events
	}); err != nil {
		return err
	}
	return e.notifySession(ctx, c)
}

// createSession creates a session. If the principal has too many sessions, it first ends the one that was unused for the longest time.
func (e *Endpoint) createSession(ctx context.Context, p auth.Principal, s session.Session) (*session.Session, error) {
	surplus, err := e.sessions.FindSurplus(ctx, p)
	if err != nil {
		return nil, err
	}
	if surplus != nil {
		e.faults.Metrics.LimitReached(quota.Sessions)
		if err := e.endSession(ctx, surplus, api.Client{Principal: p, Session: surplus.Key}); err != nil {
			return nil, err
		}
	}
	return e.sessions.Create(ctx, s)
}

// endSession ends a session, its stream, and its sessions and subscriptions at backends.
func (e *Endpoint) endSession(ctx context.Context, s *session.Session, client api.Client) error {
	if e.backends.Any(ctx) {
		if err := e.backends.End(ctx, client); err != nil {
			e.faults.LogError(ctx, "backend sessions left to expire", err)
		}
	}
	uris, err := e.sessions.Remove(ctx, s)
	e.unsubscribeAll(ctx, s, uris)
	if err != nil {
		return err
	}
	return e.options.Feeds.Log.Notify(ctx, s.Workspace, stream.TopicSession(s.Key), streams.SessionNotice)
}

func (e *Endpoint) delete(w http.ResponseWriter, c *method.Call) {
	if !e.enterSession(w, c) {
		return
	}
	if err := e.endSession(c.Request.Context(), c.Session, c.Client()); err != nil {
		e.replies.SessionFailed(w, c, err)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

// setLevel serves logging/setLevel (up to 2025-11-25). The client sets the lowest severity of the log messages that it gets from backends
// and from this server. For example, this server warns that the catalog no longer has a subscribed URI.
func (e *Endpoint) setLevel(ctx context.Context, c *method.Call) (method.Result, error) {
	level, err := c.RequiredString("level")
	if err != nil {
		return method.Result{}, err
	}
	if !spec.KnownSeverity(level) {
		return method.Result{}, method.InvalidParams("level must be one of the severities of RFC 5424, debug to emergency")
	}
	if err := e.sessions.Change(ctx, c.Session, func(s *session.Session) { s.Level = level }); err != nil {
		return method.Result{}, sessionFault(err)
	}
	if e.backends.Any(ctx) {
		if err := e.backends.SetLevel(ctx, c.Client()); err != nil {
			return method.Result{}, err
		}
	}
	return method.Result{}, e.notifySession(ctx, c)
}

// postSessionBased serves one message of the session-based protocol revisions (up to 2025-11-25).
func (e *Endpoint) postSessionBased(w http.ResponseWriter, c *method.Call) {
	if c.Msg.Kind == jsonrpc.Request && c.Msg.Method == spec.MethodInitialize {
		e.initialize(w, c)
		return
	}
	limit := method.NoticeFor
	if c.Msg.Kind == jsonrpc.Request || e.expectsConversation(c) {
		limit = method.DetachedFor
	}
	defer c.Detach(limit)()
	switch {
	case !e.enterSession(w, c): // enterSession has answered the request
	case c.Msg.Kind == jsonrpc.Request:
		e.dispatch(w, c)
	default:
		e.accept(w, c)
	}
}

// enterSession finds the session and the revision of a request. If that fails, it answers the request and returns false.
func (e *Endpoint) enterSession(w http.ResponseWriter, c *method.Call) bool {
	c.Version = spec.V20250326 // the revision of clients without the header
	if header := c.Request.Header.Get(spec.HeaderVersion); header != "" {
		if c.Version = spec.Version(header); !c.Version.Known() || len(c.Request.Header[spec.HeaderVersion]) > 1 {
			method.SendError(w, http.StatusBadRequest, c.Msg.ID, &jsonrpc.Error{
				Code: jsonrpc.InvalidRequest, Message: "Bad Request: unsupported protocol version",
				Data: map[string]any{"supported": e.supportedVersions(), "requested": method.Clip(header)},
			})
			return false
		}
	}
	if e.sessions == nil {
		return true
	}
	id := c.Request.Header.Get(spec.HeaderSession)
	switch {
	case id == "" && c.Request.Header.Get(spec.HeaderVersion) == "":
		method.SendError(w, http.StatusBadRequest, c.Msg.ID, &jsonrpc.Error{
			Code: jsonrpc.InvalidRequest, Message: "Bad Request: the header MCP-Protocol-Version is missing: send " + string(spec.V20260728) +
				", or begin a session of an earlier revision with initialize",
			Data: map[string]any{"supported": e.supportedVersions()},
		})
		return false
	case id == "":
		method.SendError(w, http.StatusBadRequest, c.Msg.ID, method.InvalidRequest("Bad Request: the header Mcp-Session-Id is missing; begin with initialize"))
		return false
	}
	return e.loadSession(w, c, id)
}

// loadSession loads the session with the given id into the call. If that fails, it answers the request and returns false.
func (e *Endpoint) loadSession(w http.ResponseWriter, c *method.Call, id string) bool {
	s, err := e.sessions.Load(c.Request.Context(), id, c.Principal, c.Dialect)
	if err != nil {
		e.replies.SessionFailed(w, c, err)
		return false
	}
	c.Session, c.Version = s, s.Version
	return true
}

func (e *Endpoint) get(w http.ResponseWriter, c *method.Call) {
	e.sessionStream(w, c, e.enterSession, func(ctx context.Context, last streams.Position) (*streams.Stream, error) {
		return e.streams.OpenSession(ctx, c, last)
	})
}

// sessionStream serves a GET, which opens the stream of a session. The function enter loads the session. The function open opens the
// stream, which continues after the event in the header Last-Event-ID.
func (e *Endpoint) sessionStream(w http.ResponseWriter, c *method.Call, enter func(http.ResponseWriter, *method.Call) bool,
	open func(context.Context, streams.Position) (*streams.Stream, error),
) {
	if !method.Accepts(c.Request.Header, sse.ContentType) {
		method.SendError(w, http.StatusNotAcceptable, nil, method.InvalidRequest("Accept must list text/event-stream"))
		return
	}
	if !enter(w, c) {
		return
	}
	if err := c.Principal.Require(auth.ScopeRead); err != nil {
		e.replies.SendFault(w, c, method.Row{}, err)
		return
	}
	from, err := streams.LastEvent(c)
	if err == nil {
		err = e.streams.Hold(w, c, func(ctx context.Context) (*streams.Stream, error) { return open(ctx, from) })
	}
	switch {
	case err == nil:
	case fault.Is(err, fault.Exhausted), fault.Is(err, fault.Invalid):
		e.replies.SendStatus(w, c, nil, err)
	default:
		e.replies.SessionFailed(w, c, err)
	}
}
