package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strings"

	"github.com/mcp-events/mcpevents/shared/gateway/api"
	"github.com/mcp-events/mcpevents/shared/gateway/upstream"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/protocol/jsonrpc"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
)

// asksFor reports whether a backend asks for the messages of a method.
func asksFor(c api.Capabilities, method string) bool {
	return method == spec.MethodUserMessage && c.UserMessages || method == spec.MethodAssistant && c.AssistantResponses
}

// Converse hands a backend, named as in the configuration, a message of a conversation,
// if it asks for such, and returns what it answers. Nothing of either is in an
// error. A backend with sessions gets it in the client's, which begins with it if need be.
func (g *Gateway) Converse(ctx context.Context, c api.Client, name, method string, params json.RawMessage) (json.RawMessage, error) {
	b, known, err := g.backends.named(ctx, c, name)
	if known == nil {
		return nil, err
	}
	if !asksFor(known.Capabilities, method) {
		return nil, api.ErrIncapable
	}
	var result json.RawMessage
	if known.version.Stateless() {
		result, err = b.converse(ctx, c, backendSession{Version: known.version}, method, b.withMeta(known.version, params))
	} else {
		result, err = g.sessions.converse(ctx, c, b, method, params)
	}
	switch {
	case refused(err):
		return nil, api.ErrRefused
	case err != nil:
		return nil, fault.Wrap(fault.Unavailable, err, "hand backend %s a message", name)
	}
	return result, nil
}

// refused reports whether a backend rejected a message, for which this one message may be the reason: with an error, or with a
// status from 400 to 499.
func refused(err error) bool {
	status, ok := errors.AsType[*upstream.StatusError](err)
	return ok && status.Status/100 == 4 || errors.Is(err, upstream.ErrAnswer) || errors.Is(err, upstream.ErrSession)
}

// Prepare gets a backend ready for [Gateway.Converse]: it finds out what that is, and begins the client's
// session with it if need be.
func (g *Gateway) Prepare(ctx context.Context, c api.Client, name string) error {
	b, known, err := g.backends.named(ctx, c, name)
	if known == nil {
		return err
	}
	if !known.version.Stateless() && (known.UserMessages || known.AssistantResponses) {
		_, _, err = g.sessions.of(ctx, c, b)
	}
	return err
}

// named finds a backend by its name in the configuration, and what it is. Without that there is an error.
func (bs *backends) named(ctx context.Context, c api.Client, name string) (*backend, *known, error) {
	visible := bs.visible(ctx, c.Principal)
	at := slices.IndexFunc(visible, func(b *backend) bool { return b.Name == name })
	if at < 0 {
		return nil, nil, unknown("backend", name)
	}
	known, err := visible[at].as(ctx, c).known(ctx)
	return visible[at], known, err
}

// converse makes the request in the client's session with a backend of the earlier revisions. A session
// that it has forgotten is begun again, once.
func (ss *sessions) converse(ctx context.Context, c api.Client, b *backend, method string, params json.RawMessage) (json.RawMessage, error) {
	for again := false; ; again = true {
		s, _, err := ss.of(ctx, c, b)
		if err != nil {
			return nil, err
		}
		result, err := b.converse(ctx, c, s, method, params)
		if !errors.Is(err, upstream.ErrSession) || again {
			return result, err
		}
		if err := ss.forget(ctx, c, b, s); err != nil {
			return nil, err
		}
	}
}

// converse makes the request. One that is given up is cancelled: with a session by a
// notification, without by the end of the connection.
func (b *backend) converse(ctx context.Context, c api.Client, s backendSession, method string, params json.RawMessage) (json.RawMessage, error) {
	id := upstream.FreshID()
	r := upstream.Request{Body: jsonrpc.AppendRequest(nil, id, method, params), Version: s.Version, Session: s.ID}
	if s.Version.Stateless() {
		r.Header = http.Header{spec.HeaderMethod: {method}}
	}
	client := b.caller(c.Token)
	answer, err := client.Post(ctx, r)
	if err == nil {
		defer answer.Close()
		var result json.RawMessage
		if result, err = answer.Result(ctx); err == nil {
			return result, nil
		}
	}
	if ctx.Err() != nil && !s.Version.Stateless() {
		b.abandon(client, s, id)
	}
	return nil, err
}

// withMeta adds to params what every request of revision 2026-07-28 has. The capabilities
// of the client are not passed on: nothing is asked of it while it waits for context.
func (b *backend) withMeta(version spec.Version, params json.RawMessage) json.RawMessage {
	own := string(jsonrpc.Member(b.own.Meta(version), "_meta"))
	given := strings.TrimSuffix(strings.TrimPrefix(string(jsonrpc.Member(params, "_meta")), "{"), "}")
	if given != "" {
		own = strings.TrimSuffix(own, "}") + "," + given + "}"
	}
	return jsonrpc.Replace(params, "_meta", []byte(own))
}
