package mcp

import (
	"context"
	"net/http"
	"strings"
	"time"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/auth/quota"
	"github.com/mcp-events/mcpevents/shared/events/catalog"
	"github.com/mcp-events/mcpevents/shared/events/stream"
	"github.com/mcp-events/mcpevents/shared/events/subscription"
	"github.com/mcp-events/mcpevents/shared/gateway/api"
	"github.com/mcp-events/mcpevents/shared/mcp/session"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
)

// sessionMethods serve what begins, changes and ends sessions.
type sessionMethods struct {
	sessions    *session.Store
	catalogs    catalogs
	targets     *targets
	feeds       *stream.Tails
	backends    Gateway
	about       *description
	replies     *replies
	faults      faults
	maxPatterns int
}

// subscribe serves resources/subscribe. Every event that is published after its
// answer is sent on the session's stream.
func (h *sessionMethods) subscribe(ctx context.Context, c *call) (result, error) {
	uri, cat, err := h.named(ctx, c)
	if err != nil {
		return result{}, err
	}
	t, err := h.targets.resolve(ctx, cat, c.principal, uri)
	if err != nil {
		return result{}, err
	}
	open := t.open() > 0
	if open {
		if err := h.admitOpen(ctx, c.session, t); err != nil {
			return result{}, err
		}
	}
	for _, p := range t.patterns {
		if p.Kind == subscription.Concrete {
			continue
		}
		if _, err := subscription.Interested(ctx, h.feeds.DB, h.feeds.Log, c.principal.Workspace, p); err != nil {
			return result{}, err
		}
	}
	after := h.feeds.Log.Position()
	if t.backend != "" { // before the session's record, because the backend's quota may refuse it
		if err := h.backends.Subscribe(ctx, atBackend(c.session, t.backend, t.uri, c.session.NeedsUntil())); err != nil {
			return result{}, err
		}
	}
	if err := h.sessions.Subscribe(ctx, c.session, session.URI{URI: t.uri, After: after, Open: open, Backend: t.backend}); err != nil {
		if t.backend != "" && !fault.Is(err, fault.Unavailable) {
			h.unsubscribeAll(ctx, c.session, []session.URI{{URI: t.uri, Backend: t.backend}})
		}
		return result{}, sessionFault(err)
	}
	return result{}, h.notify(ctx, c)
}

// named is the URI in the params, and the catalog that it is looked up in.
func (h *sessionMethods) named(ctx context.Context, c *call) (uri string, cat *catalog.Catalog, err error) {
	if uri, err = c.required("uri"); err == nil {
		cat, err = h.catalogs.of(ctx, c.principal)
	}
	return uri, cat, err
}

// admitOpen holds a session to its number of parents and wildcards.
func (h *sessionMethods) admitOpen(ctx context.Context, sess *session.Session, t target) error {
	uris, err := h.sessions.Subscriptions(ctx, sess.Key)
	if err != nil {
		return err
	}
	n := 0
	for _, u := range uris {
		if u.URI == t.uri {
			return nil
		}
		if u.Open {
			n++
		}
	}
	if n >= h.maxPatterns {
		return session.LimitReached("streamPatterns", h.maxPatterns)
	}
	return nil
}

// unsubscribe serves resources/unsubscribe. Ending what is not there is no
// fault, but the URI must be one that could be.
func (h *sessionMethods) unsubscribe(ctx context.Context, c *call) (result, error) {
	uri, cat, err := h.named(ctx, c)
	if err != nil {
		return result{}, err
	}
	// The record says where the session is subscribed. The backend may not list the resource any more.
	record, err := h.sessions.Subscription(ctx, c.session, uri)
	if err != nil {
		return result{}, err
	}
	ofBackend := record != nil && record.Backend != ""
	if record == nil && h.backends.Any(ctx) && !known(cat, uri) {
		_, ofBackend = h.backends.Subscribable(ctx, c.principal, uri)
	}
	switch {
	case record != nil && ofBackend:
		if err := h.backends.Unsubscribe(ctx, atBackend(c.session, record.Backend, uri, time.Time{})); err != nil {
			return result{}, err
		}
	case !ofBackend && !strings.HasPrefix(uri, subscriptionScheme):
		if uri, err = catalog.CanonicalPattern(uri); err != nil {
			return result{}, fault.Wrap(fault.Invalid, err, "unsubscribe")
		}
	}
	if err := h.sessions.Unsubscribe(ctx, c.session, uri); err != nil {
		return result{}, err
	}
	return result{}, h.notify(ctx, c)
}

func (h *sessionMethods) notify(ctx context.Context, c *call) error {
	return h.feeds.Log.Notify(ctx, c.principal.Workspace, stream.TopicSession(c.session.Key), sessionNotice)
}

// sessionFault is a session that ended while it was used.
func sessionFault(err error) error {
	if err == session.ErrNone {
		return fault.New(fault.NotFound, "the session has ended")
	}
	return err
}

// unsubscribeAll ends at the backends what a session was subscribed to.
func (h *sessionMethods) unsubscribeAll(ctx context.Context, sess *session.Session, uris []session.URI) {
	for _, u := range uris {
		if u.Backend == "" || h.backends == (noGateway{}) {
			continue
		}
		if err := h.backends.Unsubscribe(ctx, atBackend(sess, u.Backend, u.URI, time.Time{})); err != nil {
			h.faults.log(ctx, "backend subscription left to expire", err)
		}
	}
}

// atBackend returns a session's subscription at a backend.
func atBackend(sess *session.Session, backend, uri string, until time.Time) api.Subscription {
	return api.Subscription{
		Place: api.Place{Workspace: sess.Workspace, Backend: backend}, URI: uri, Principal: sess.Principal, Holder: sess.Key, Until: until,
	}
}

// prolong keeps a session's subscription at a backend for as long as the session.
func (e *Endpoint) prolong(ctx context.Context, sess *session.Session, u session.URI, until time.Time) error {
	if e.backends == (noGateway{}) {
		return nil
	}
	return e.backends.Subscribe(ctx, atBackend(sess, u.Backend, u.URI, until))
}

// initialize serves initialize: it settles the revision and makes the
// session.
func (h *sessionMethods) initialize(w http.ResponseWriter, c *call) {
	c.version = spec.LatestSessionBased
	if h.sessions == nil {
		sendError(w, http.StatusOK, c.msg.ID, unknownMethod(c.msg.Method))
		return
	}
	asked, err := c.required("protocolVersion")
	if err != nil {
		h.replies.fault(w, c, method{}, err)
		return
	}
	// One that is not session-based, or that we do not know, is answered with the latest that we do.
	if v := spec.Version(asked); v.Known() && !v.Stateless() {
		c.version = v
	}
	declared := c.param("capabilities")
	s := session.Session{
		Workspace: c.principal.Workspace, Principal: c.principal.ID, Version: c.version, Dialect: c.dialect,
		Payloads: declares(declared, Extension), Events: declares(declared, spec.EventsExtension),
	}
	if h.backends != (noGateway{}) {
		s.Client = clientInfo(c.param("clientInfo"))
		if !c.dialect { // which has no way to ask a client, whatever it could answer
			s.Capabilities = declaration(declared)
		}
	}
	if c.session != nil { // the dialect lets a session begin without initialize
		err = h.redeclare(c, s)
	} else if c.session, err = h.create(c.request.Context(), c.principal, s); err == nil {
		w.Header().Set(spec.HeaderSession, c.session.ID)
	}
	if err != nil {
		h.replies.sessionFailed(w, c, err)
		return
	}
	version := append(append([]byte(`"protocolVersion":"`), c.version...), `",`...)
	about := h.about.describeInitialize(h.about.offersTo(c.request.Context(), c))
	send(w, http.StatusOK, func(b []byte) []byte {
		return h.replies.appendResult(b, c, result{members: [][]byte{version, about}})
	})
}

// create makes a session. It ends another one of a principal that has as many as it may have.
func (h *sessionMethods) create(ctx context.Context, p auth.Principal, s session.Session) (*session.Session, error) {
	surplus, err := h.sessions.Surplus(ctx, p)
	if err != nil {
		return nil, err
	}
	if surplus != nil {
		h.faults.metrics.LimitReached(quota.Sessions)
		if err := h.end(ctx, surplus, api.Client{Principal: p, Session: surplus.Key}); err != nil {
			return nil, err
		}
	}
	return h.sessions.Create(ctx, s)
}

// end ends a session, its stream, and its sessions and subscriptions at backends. The backends know the session as client.
func (h *sessionMethods) end(ctx context.Context, s *session.Session, client api.Client) error {
	if h.backends.Any(ctx) {
		if err := h.backends.End(ctx, client); err != nil {
			h.faults.log(ctx, "backend sessions left to expire", err)
		}
	}
	uris, err := h.sessions.Remove(ctx, s)
	h.unsubscribeAll(ctx, s, uris)
	if err != nil {
		return err
	}
	return h.feeds.Log.Notify(ctx, s.Workspace, stream.TopicSession(s.Key), sessionNotice)
}

// delete serves DELETE: it ends a session and its stream.
func (e *Endpoint) delete(w http.ResponseWriter, c *call) {
	if !e.enterSession(w, c) {
		return
	}
	if err := e.session.end(c.request.Context(), c.session, c.client()); err != nil {
		e.replies.sessionFailed(w, c, err)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

// setLevel serves logging/setLevel (up to 2025-11-25): from then on the session's
// stream logs what a client would otherwise not notice. Without it nothing is logged there.
func (h *sessionMethods) setLevel(ctx context.Context, c *call) (result, error) {
	level, err := c.required("level")
	if err != nil {
		return result{}, err
	}
	if !spec.KnownSeverity(level) {
		return result{}, invalidParams("level must be one of the severities of RFC 5424, debug to emergency")
	}
	if err := h.sessions.Change(ctx, c.session, func(s *session.Session) { s.Level = level }); err != nil {
		return result{}, sessionFault(err)
	}
	if h.backends.Any(ctx) {
		if err := h.backends.SetLevel(ctx, c.client()); err != nil {
			return result{}, err
		}
	}
	return result{}, h.notify(ctx, c)
}
