package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strings"

	"github.com/mcp-events/mcpevents/shared/gateway/api"
	"github.com/mcp-events/mcpevents/shared/gateway/backends"
	"github.com/mcp-events/mcpevents/shared/gateway/translate"
	"github.com/mcp-events/mcpevents/shared/gateway/upstream"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/protocol/jsonrpc"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
)

// Converse sends a user message or an assistant response to the named backend and returns its result. The error is [api.ErrIncapable] if
// the backend does not want such messages. Converse uses the client's session with the backend, or begins one. Errors never contain the
// message or the result.
func (g *Gateway) Converse(ctx context.Context, c api.Client, name, method string, params json.RawMessage) (json.RawMessage, error) {
	b, info, err := g.FindByName(ctx, c, name)
	switch {
	case info == nil && isRefusal(err):
		return nil, api.ErrRefused
	case info == nil:
		return nil, errors.Join(err, api.ErrNoSession)
	}
	if wants := method == spec.MethodUserMessage && info.UserMessages || method == spec.MethodAssistant && info.AssistantResponses; !wants {
		return nil, api.ErrIncapable
	}
	var result json.RawMessage
	if info.Version.Stateless() {
		client := b.ClientFor(c.Token)
		result, err = g.converse(ctx, client, backendSession{Version: info.Version}, method, addMeta(client.MetaParams(info.Version), params))
	} else {
		result, err = g.converseInSession(ctx, c, b, method, params)
	}
	switch {
	// A backend that asks for input has refused the message, too. The gateway cannot forward its question, because the message does not
	// belong to a client's call.
	case isRefusal(err), translate.InputRequired(result):
		return nil, api.ErrRefused
	case err != nil:
		return nil, fault.Wrap(fault.Unavailable, err, "hand backend %s a message", name)
	}
	return result, nil
}

// isRefusal reports whether the backend works but refused this message or its caller, so that another message may succeed.
func isRefusal(err error) bool {
	unsent, _ := errors.AsType[*upstream.UnsentError](err)
	return unsent != nil && unsent.NoToken || upstream.StatusOf(err)/100 == 4 || fault.Is(err, fault.Exhausted) ||
		errors.Is(err, upstream.ErrAnswer) || errors.Is(err, upstream.ErrSession)
}

// Prepare does the first steps of [Gateway.Converse] in advance, so that the next call of Converse is faster. It reads the capabilities of
// the backend with the given name. If the backend uses sessions, Prepare also begins one for the client.
func (g *Gateway) Prepare(ctx context.Context, c api.Client, name string) error {
	b, info, err := g.FindByName(ctx, c, name)
	if info == nil {
		return err
	}
	if !info.Version.Stateless() && (info.UserMessages || info.AssistantResponses) {
		_, _, err = g.sessions.getOrBegin(ctx, c, b, false)
	}
	return err
}

// converseInSession sends a message in the client's session, and retries once in a new session if the backend has forgotten the session.
func (g *Gateway) converseInSession(ctx context.Context, c api.Client, b *backends.Backend, method string, params json.RawMessage) (json.RawMessage, error) {
	for again := false; ; again = true {
		s, _, err := g.sessions.getOrBegin(ctx, c, b, false)
		if err != nil {
			return nil, errors.Join(err, api.ErrNoSession)
		}
		result, err := g.converse(ctx, b.ClientFor(c.Token), s, method, params)
		if !errors.Is(err, upstream.ErrSession) || again {
			return result, err
		}
		if err := g.sessions.forget(ctx, c, b, s); err != nil {
			return nil, err
		}
	}
}

// converse sends one message to a backend and returns the result. It cancels the request if ctx ends.
func (g *Gateway) converse(ctx context.Context, client *upstream.Client, s backendSession, method string, params json.RawMessage) (json.RawMessage, error) {
	id := upstream.FreshID()
	r := s.request(jsonrpc.AppendRequest(nil, id, method, params))
	if s.Version.Stateless() {
		r.Header = http.Header{spec.HeaderMethod: {method}}
	}
	answer, err := client.Post(ctx, r)
	if err == nil {
		defer answer.Close()
		var result json.RawMessage
		if result, err = answer.Result(ctx); err == nil {
			return result, nil
		}
	}
	if ctx.Err() != nil && !s.Version.Stateless() {
		g.abandon(client, s, id)
	}
	return nil, err
}

// addMeta adds the _meta of own to the params of a conversation message, because every request of 2026-07-28 needs these members. They
// declare no client capabilities, because the gateway does not forward a backend's questions about such a message.
func addMeta(own, params json.RawMessage) json.RawMessage {
	meta := string(jsonrpc.Member(own, "_meta"))
	given := strings.TrimSuffix(strings.TrimPrefix(string(jsonrpc.Member(params, "_meta")), "{"), "}")
	if given != "" {
		meta = strings.TrimSuffix(meta, "}") + "," + given + "}"
	}
	return jsonrpc.Replace(params, "_meta", []byte(meta))
}
