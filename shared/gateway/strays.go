package gateway

import (
	"context"

	"github.com/mcp-events/mcpevents/shared/gateway/translate"
	"github.com/mcp-events/mcpevents/shared/gateway/upstream"
	"github.com/mcp-events/mcpevents/shared/protocol/jsonrpc"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
)

// A stray message is a message whose call is unknown, because a backend sends it over stdio or on the GET stream of a session (package
// sessionstream). Only a progress notification names its call, by the token. A stray question may also belong to no call, because some
// servers ask for the client's roots when the session begins.
//
// For a client with a session, the call does not matter, because the client answers by the question's id. The question goes to the
// response stream of the newest call. It stays open after that call's response, because the backend may still wait for the answer.
//
// Clients of 2026-07-28 get no messages from the GET stream. To ask such a client, the gateway cancels and repeats a call. That might be
// the wrong one, even if no other call is running, because a backend may still ask on behalf of a call whose client has gone.

// receiveStrays lets the call receive the messages of its session that name no call, until the function leave is called.
func (x *exchange) receiveStrays(ctx context.Context) (leave func()) {
	// A backend that is a command needs no GET stream, because package stdio itself hands the stray messages of commands to calls.
	if x.with.ID == "" || x.backend().Command != nil || x.call.Version.Stateless() || !translate.MayBeAsked(x.call.Capabilities) {
		return func() {}
	}
	over := false // whether leave was called; guarded by mu
	end := x.gateway.strays.Join(ctx, x.client, x.with.request(nil), func(m upstream.Message) bool {
		x.mu.Lock()
		defer x.mu.Unlock()
		return !over && !x.answered && x.takeStray(ctx, m)
	})
	return func() {
		x.mu.Lock()
		over = true
		x.mu.Unlock()
		x.sharing = !end()
	}
}

// takeStray handles a stray message of the session, and reports whether it belongs to this call. The caller holds the lock.
func (x *exchange) takeStray(ctx context.Context, m upstream.Message) bool {
	m = m.WithoutOwn()
	params := jsonrpc.Member(m.Raw, "params")
	named := m.Method == spec.NoteCancelled || m.Method == spec.NoteProgress // such a notification names its question or call
	switch {
	case !named && x.call.ResponseOnly:
		return false
	case m.ID != nil:
		if err := x.asker.elicit(ctx, m, true); err != nil {
			_ = x.refuse(ctx, m, jsonrpc.InternalError, "the question could not be passed on") // the call itself continues
		}
		return true
	case m.Method == spec.NoteCancelled:
		found, _ := x.asker.withdraw(ctx, jsonrpc.Member(params, "requestId"), m) // an error only means that the client is gone
		return found
	case m.Method == spec.NoteProgress && !x.ownsProgress(params):
		return false
	case m.Method == spec.NoteMessage, m.Method == spec.NoteElicited, m.Method == spec.NoteProgress:
		if m, ok := x.adaptNotification(m); ok {
			_ = x.send(m.Raw, false) // if this fails, send has recorded that the client is gone
		}
		return true
	}
	return false
}

// CloseStreams closes the GET streams of sessions without calls. From now on, a stream is closed immediately after its last call.
func (g *Gateway) CloseStreams() { g.strays.Close() }
