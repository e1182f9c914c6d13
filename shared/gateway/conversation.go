package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strings"

	"github.com/mcp-events/mcpevents/shared/fault"
	"github.com/mcp-events/mcpevents/shared/gateway/upstream"
	"github.com/mcp-events/mcpevents/shared/jsonrpc"
	"github.com/mcp-events/mcpevents/shared/mcpspec"
)

// What [Gateway.Converse] can come to.
var (
	// ErrIncapable is of a backend that did not declare to want such messages.
	ErrIncapable = errors.New("gateway: the backend does not ask for messages of conversations")
	// ErrRefused is of one that answered with an error.
	ErrRefused = errors.New("gateway: the backend refused a message of a conversation")
)

// asks reports whether a backend asks for the messages that a method tells.
func (o Offers) asks(method string) bool {
	return method == mcpspec.MethodUserMessage && o.UserMessages || method == mcpspec.MethodAssistant && o.AssistantResponses
}

// Converse tells a backend, named as in the configuration, a message of a conversation,
// if it asks for such, and returns what it has to say to it. Nothing of either is in an
// error. A backend with sessions gets it in the client's, which begins with it if need be.
func (g *Gateway) Converse(ctx context.Context, c Client, name, method string, params json.RawMessage) (json.RawMessage, error) {
	b, known, err := g.named(ctx, c, name)
	if known == nil {
		return nil, err
	}
	if !known.offers.asks(method) {
		return nil, ErrIncapable
	}
	var result json.RawMessage
	if stateless(known.version) {
		result, err = b.converse(ctx, c, backendSession{Version: known.version}, method, b.withMeta(known.version, params))
	} else {
		result, err = g.converseInSession(ctx, c, b, method, params)
	}
	switch {
	case errors.Is(err, errRPC):
		return nil, ErrRefused
	case err != nil:
		return nil, fault.Wrap(fault.Unavailable, err, "tell backend %s a message", name)
	}
	return result, nil
}

// Prepare gets a backend ready for [Gateway.Converse]: it finds out what that is, and begins the client's
// session with it if need be.
func (g *Gateway) Prepare(ctx context.Context, c Client, name string) error {
	b, known, err := g.named(ctx, c, name)
	if known == nil {
		return err
	}
	if !stateless(known.version) && (known.offers.UserMessages || known.offers.AssistantResponses) {
		_, err = g.sessions.of(ctx, c, b)
	}
	return err
}

// named finds a backend by its name in the configuration, and what it is. Without that there is an error.
func (g *Gateway) named(ctx context.Context, c Client, name string) (*backend, *learned, error) {
	visible := g.visible(ctx, c.Principal)
	at := slices.IndexFunc(visible, func(b *backend) bool { return b.Name == name })
	if at < 0 {
		return nil, nil, unknown("backend", name)
	}
	known, err := visible[at].as(ctx, c).known(ctx)
	return visible[at], known, err
}

// converseInSession is converse with a backend of the earlier revisions. A session
// that it has forgotten is begun again, once.
func (g *Gateway) converseInSession(ctx context.Context, c Client, b *backend, method string, params json.RawMessage) (json.RawMessage, error) {
	for again := false; ; again = true {
		s, err := g.sessions.of(ctx, c, b)
		if err != nil {
			return nil, err
		}
		result, err := b.converse(ctx, c, s, method, params)
		if !errors.Is(err, upstream.ErrSession) || again {
			return result, err
		}
		if err := g.sessions.forget(ctx, c, b, s); err != nil {
			return nil, err
		}
	}
}

// converse makes the request. One that is given up is cancelled: with a session by a
// notification, without by the end of the connection.
func (b *backend) converse(ctx context.Context, c Client, s backendSession, method string, params json.RawMessage) (json.RawMessage, error) {
	id := freshID()
	r := upstream.Request{Body: jsonrpc.AppendRequest(nil, id, method, params), Version: s.Version, Session: s.ID}
	if stateless(s.Version) {
		r.Header = http.Header{mcpspec.HeaderMethod: {method}}
	}
	answer, err := b.caller(c.Token).Post(ctx, r)
	if err == nil {
		defer answer.Close()
		var result json.RawMessage
		if result, err = b.response(ctx, answer); err == nil {
			return result, nil
		}
	}
	if ctx.Err() != nil && !stateless(s.Version) {
		x := &exchange{gateway: b.gateway, call: Call{Client: c}, backend: b, with: s, id: id}
		x.abandon()
	}
	return nil, err
}

// withMeta adds to params what every request of revision 2026-07-28 has. The capabilities
// of the client are not told: nothing is asked of it while it waits for context.
func (b *backend) withMeta(version string, params json.RawMessage) json.RawMessage {
	own := string(jsonrpc.Member(b.meta(version, json.RawMessage(`{}`)), "_meta"))
	given := strings.TrimSuffix(strings.TrimPrefix(string(jsonrpc.Member(params, "_meta")), "{"), "}")
	if given != "" {
		own = strings.TrimSuffix(own, "}") + "," + given + "}"
	}
	return jsonrpc.Replace(params, "_meta", []byte(own))
}
