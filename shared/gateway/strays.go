package gateway

import (
	"context"

	"github.com/mcp-events/mcpevents/shared/gateway/translate"
	"github.com/mcp-events/mcpevents/shared/gateway/upstream"
	"github.com/mcp-events/mcpevents/shared/protocol/jsonrpc"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
)

// A stray message is one that a backend sends over stdio or on the GET stream of a session (package sessionstream), so that its call is
// unknown. A stray question may also belong to no call: some servers ask for the client's roots when the session begins.
//
//   - For a client with a session, that makes no difference, because the client answers by the question's id. The question goes to the
//     response stream of the newest call. It stays open after the response, because the backend may still wait for the answer.
//   - A client of 2026-07-28 gets the question as the result of one call, which must be the right one. If there are several, the gateway
//     answers the question with an error. The same holds for requests for the roots, see [roundsBridge.accepts]. If other instances may
//     make calls in the session, the gateway cannot know whether there are several, so it does not read the stream.

// receiveStrays lets the call receive the stray messages of its session until leave is called. A call that cannot ask receives none.
func (x *exchange) receiveStrays(ctx context.Context) (leave func()) {
	// Package stdio hands the stray messages of commands to calls, because over stdio all questions are strays.
	cannotAsk := x.call.Version.Stateless() && (x.gateway.options.Shared || !translate.MultiRound[x.call.Method]) || !translate.MayBeAsked(x.call.Capabilities)
	if x.with.ID == "" || x.backend().Command != nil || cannotAsk {
		return func() {}
	}
	over := false // guarded by mu
	end := x.gateway.strays.Join(ctx, x.client, upstream.Request{Version: x.with.Version, Session: x.with.ID}, func(m upstream.Message, alone bool) bool {
		x.mu.Lock()
		defer x.mu.Unlock()
		return !over && !x.answered && x.takeStray(ctx, m, alone)
	})
	return func() {
		x.mu.Lock()
		over = true
		x.mu.Unlock()
		x.sharing = !end()
	}
}

// takeStray handles a stray message of the session, and reports whether it belongs to this call. The caller holds the lock.
func (x *exchange) takeStray(ctx context.Context, m upstream.Message, alone bool) bool {
	m = withoutOwn(m)
	params := jsonrpc.Member(m.Raw, "params")
	switch {
	case m.ID != nil && x.asker.accepts(m, alone):
		if err := x.asker.elicit(ctx, m, true); err != nil {
			_ = x.refuse(ctx, m, jsonrpc.InternalError, "the question could not be passed on") // the call itself continues
		}
		return true
	case m.Method == spec.NoteCancelled:
		found, _ := x.asker.withdraw(ctx, jsonrpc.Member(params, "requestId"), m) // an error means that the client is gone
		return found
	case m.Method == spec.NoteMessage, m.Method == spec.NoteElicited:
		if m, ok := x.adaptNotification(m); ok {
			_ = x.send(m.Raw, false) // records if the client is gone
		}
		return true
	}
	return false
}

// CloseStreams closes the GET streams of sessions without calls. From now on, a stream is closed immediately after its last call.
func (g *Gateway) CloseStreams() { g.strays.Close() }
