package gateway

import (
	"context"
	"encoding/json"
	"net/http"

	"github.com/mcp-events/mcpevents/shared/gateway/api"
	"github.com/mcp-events/mcpevents/shared/gateway/translate"
	"github.com/mcp-events/mcpevents/shared/gateway/upstream"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/protocol/jsonrpc"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
)

// NotifyExtension forwards a client's notification to the backend that declares its extension, see [backends.Set.Find]. It drops a
// notification of an extension that no backend declares.
func (g *Gateway) NotifyExtension(ctx context.Context, c api.Client, method string, params json.RawMessage) error {
	e, err := g.Find(ctx, c, api.Extensions, method)
	switch {
	case fault.Is(err, fault.Invalid):
		return nil
	case err != nil:
		return err
	case params == nil:
		params = json.RawMessage(`{}`)
	case jsonrpc.Repeats(params): // as in a call
		return fault.New(fault.Invalid, "params have a member twice, or more than %d members", jsonrpc.MaxDistinct)
	}
	ctx, cancel := context.WithTimeout(ctx, notifyTime)
	defer cancel()
	info, err := e.View.LoadInfo(ctx)
	if info == nil {
		return err
	}
	b := e.View.Backend()
	client, r := b.ClientFor(c.Token), upstream.Request{Version: info.Version}
	switch {
	case !info.Version.Stateless():
		s, _, err := g.sessions.getOrBegin(ctx, c, b, false)
		if err != nil {
			return err
		}
		if r.Version, r.Session = s.Version, s.ID; c.Version.Stateless() {
			params, _ = translate.ToSessionBased(params, nil)
		}
	case !c.Version.Stateless():
		params = translate.ToStateless(params, info.Version, describeClient(c, client))
	}
	if info.Version.Stateless() {
		r.Header = http.Header{spec.HeaderMethod: {method}}
	}
	r.Body = jsonrpc.AppendNotification(nil, method, params)
	return fault.Wrap(fault.Unavailable, client.Send(ctx, r), "send a notification to backend %s", b.Name)
}
