// Package method contains what all methods of the MCP endpoint share: the [Call] that they serve, the [Result] or error of their
// answer, the [Table] of methods, how long a call runs (life.go), and how its answer is written (answer.go).
//
// The packages that serve methods (streams, events, eventtools/logsource) and the endpoint in package mcp build on it. It serves no method.
package method

import (
	"context"
	"net/http"

	"github.com/mcp-events/mcpevents/shared/protocol/jsonrpc"
)

// Result is the result of a method, in the parts that all revisions share.
type Result struct {
	// Members are the members of the result without braces. The pieces are joined.
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

// The scopes of a cached result.
const (
	Public  = "public"
	Private = "private"
)

// Handler serves one call of a method. It may return an error only if it has written no part of the response.
type Handler interface {
	Serve(w http.ResponseWriter, c *Call) error
}

// Row is a row of the table.
type Row struct {
	// SessionBased and Stateless tell in which revisions the method exists.
	SessionBased, Stateless bool
	Family                  Family
	// Session is set for methods that need a session.
	Session bool
	// Scope is the scope that a caller needs, or empty.
	Scope string
	// Offered reports whether the method currently exists for the caller. If it is nil, the method always exists.
	Offered func(c *Call) bool
	Handler Handler
}

// Permits checks that the method exists for the caller, and that the caller has the scope.
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

// Table contains the methods of the endpoint by name. A method without a handler is not in the table, so that the endpoint does not
// advertise it and answers it as unknown.
type Table map[string]Row

// Has reports whether the method is served.
func (t Table) Has(name string) bool {
	_, ok := t[name]
	return ok
}

// Answering serves a method that returns a result. Answer may wait for backends or events, see [answer.Wait].
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
	c.Answer = h.Timing.answer(w, c)
	defer c.Answer.Stop()
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
	if c.Answer.finish(build) {
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
