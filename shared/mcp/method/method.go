// Package method has what all methods of the MCP endpoint share: the [Call] that they serve, the [Result] or error that they
// answer with, the [Table] of methods, and how an answer is written, immediately or late.
//
// The packages that serve methods (streams, events, eventtools/logsource) and the endpoint in package mcp build on it. It serves no method.
package method

import (
	"context"
	"net/http"

	"github.com/mcp-events/mcpevents/shared/protocol/jsonrpc"
)

// Result is what a method answers, in the parts that all revisions share.
type Result struct {
	// Members are the result's members without the braces; the pieces are joined.
	Members [][]byte
	// Meta are further members of _meta, without braces.
	Meta []byte
	// Cache is set where revision 2026-07-28 requires caching hints.
	Cache *Caching
}

// Caching is the hint of a cacheable result (revision 2026-07-28, Caching).
type Caching struct {
	TTL   int64 // milliseconds
	Scope string
}

const (
	Public  = "public"
	Private = "private"
)

// Handler serves a method for one call. An error is returned only while nothing was written.
type Handler interface {
	Serve(w http.ResponseWriter, c *Call) error
}

// Row is a row of the table.
type Row struct {
	// SessionBased and stateless say in which revisions the method exists.
	SessionBased, Stateless bool
	Family                  Family
	// Session is set for what changes the session that a request is part of.
	Session bool
	// Scope is needed to call it; empty for none.
	Scope string
	// Offered reports whether it is there for the caller now; nil is always, and for everyone.
	Offered func(c *Call) bool
	Handler Handler
}

// Permits checks what must hold before the method is served: that it is there, and the scope.
func (m Row) Permits(c *Call) error {
	there := m.SessionBased
	if c.Version.Stateless() {
		there = m.Stateless
	}
	if !there || m.Offered != nil && !m.Offered(c) {
		return UnknownMethod(c.Msg.Method)
	}
	if m.Scope != "" {
		return c.Principal.Require(m.Scope)
	}
	return nil
}

// Table lists what this endpoint serves, by name. A method that nothing serves is not in
// it, so that it is neither advertised nor known.
type Table map[string]Row

// Has reports whether the method is served.
func (t Table) Has(name string) bool {
	_, ok := t[name]
	return ok
}

// Answering serves a method by a result, which may have to wait: for backends, or for events.
type Answering struct {
	Replies *Replies
	Timing  Timing
	Answer  func(ctx context.Context, c *Call) (Result, error)
}

// Serve implements [Handler].
func (h Answering) Serve(w http.ResponseWriter, c *Call) error {
	if !Accepts(c.Request.Header, "application/json") {
		SendError(w, http.StatusNotAcceptable, c.Msg.ID, InvalidRequest("Accept must list application/json"))
		return nil
	}
	c.Late = h.Timing.late(w, c)
	defer c.Late.Stop()
	r, err := h.Answer(c.Request.Context(), c)
	if err == nil {
		var release func()
		if release, err = h.Replies.hold(c, r); err == nil {
			defer release()
		}
	}
	build := func(b []byte) []byte {
		if err != nil {
			return jsonrpc.AppendError(b, c.Msg.ID, h.Replies.faults.Translate(c.Request.Context(), err, c.Version, c.Profile))
		}
		return h.Replies.AppendResult(b, c, r)
	}
	if c.Late.end(build) {
		return nil
	}
	if err == nil {
		Send(w, http.StatusOK, build)
	}
	return err
}

// NotAcceptable answers a client that does not accept event streams.
func NotAcceptable(w http.ResponseWriter, c *Call) error {
	SendError(w, http.StatusNotAcceptable, c.Msg.ID, InvalidRequest("Accept must list text/event-stream"))
	return nil
}

// Empty answers with an empty result.
func Empty(context.Context, *Call) (Result, error) { return Result{}, nil }
