package mcp

import (
	"context"
	"net/http"

	"github.com/mcp-events/mcpevents/shared/protocol/jsonrpc"
)

// result is what a method answers, in the parts that all revisions share.
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

// handler serves a method for one call. An error is returned only while nothing was written.
type handler interface {
	serve(w http.ResponseWriter, c *call) error
}

// method is a row of the table.
type method struct {
	// sessionBased and stateless say in which revisions the method exists.
	sessionBased, stateless bool
	family                  family
	// session is set for what changes the session that a request is part of.
	session bool
	// scope is needed to call it; empty for none.
	scope string
	// offered reports whether it is there for the caller now; nil is always, and for everyone.
	offered func(c *call) bool
	handler handler
}

// permits checks what must hold before the method is served: that it is there, and the scope.
func (m method) permits(c *call) error {
	there := m.sessionBased
	if c.version.Stateless() {
		there = m.stateless
	}
	if !there || m.offered != nil && !m.offered(c) {
		return unknownMethod(c.msg.Method)
	}
	if m.scope != "" {
		return c.principal.Require(m.scope)
	}
	return nil
}

// methodTable lists what this endpoint serves, by name. A method that nothing serves is not in
// it, so that it is neither advertised nor known.
type methodTable map[string]method

func (t methodTable) has(name string) bool {
	_, ok := t[name]
	return ok
}

// answering serves a method by a result, which may have to wait: for backends, or for events.
type answering struct {
	replies *replies
	timing  timing
	answer  func(ctx context.Context, c *call) (result, error)
}

func (h answering) serve(w http.ResponseWriter, c *call) error {
	if !accepts(c.request.Header, "application/json") {
		sendError(w, http.StatusNotAcceptable, c.msg.ID, invalidRequest("Accept must list application/json"))
		return nil
	}
	c.late = h.timing.late(w, c)
	defer c.late.stop()
	r, err := h.answer(c.request.Context(), c)
	if err == nil {
		var release func()
		if release, err = h.replies.hold(c, r); err == nil {
			defer release()
		}
	}
	build := func(b []byte) []byte {
		if err != nil {
			return jsonrpc.AppendError(b, c.msg.ID, h.replies.faults.translate(c.request.Context(), err, c.version, c.profile))
		}
		return h.replies.appendResult(b, c, r)
	}
	if c.late.end(build) {
		return nil
	}
	if err == nil {
		send(w, http.StatusOK, build)
	}
	return err
}

func notAcceptable(w http.ResponseWriter, c *call) error {
	sendError(w, http.StatusNotAcceptable, c.msg.ID, invalidRequest("Accept must list text/event-stream"))
	return nil
}

func empty(context.Context, *call) (result, error) { return result{}, nil }
