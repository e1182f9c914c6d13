package client

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/protocol/httpcall"
	"github.com/mcp-events/mcpevents/shared/protocol/jsonrpc"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
	"github.com/mcp-events/mcpevents/shared/protocol/sse"
)

// exchange sends a request and returns the header of the response. It does not renew the session.
func (c *Client) exchange(ctx context.Context, method string, params map[string]any, result any) (http.Header, error) {
	resp, body, err := c.server.Do(ctx, http.MethodPost, c.url, c.header(method, params), c.request(method, params))
	if err != nil {
		return nil, err
	}
	if resp.StatusCode == http.StatusNotFound && c.sessionID() != "" {
		return nil, errSessionGone // the revisions with sessions define this status
	}
	if strings.HasPrefix(resp.Header.Get("Content-Type"), sse.ContentType) {
		if body, err = lastMessage(body); err != nil {
			return nil, err
		}
	}
	var answer struct {
		Result json.RawMessage `json:"result"`
		Error  *rpcError       `json:"error"`
	}
	if err := json.Unmarshal(body, &answer); err != nil || answer.Result == nil && answer.Error == nil {
		if resp.StatusCode >= 300 {
			return nil, fault.Wrap(fault.Internal, httpcall.ReadRefusal(resp, body), "%s", method)
		}
		return nil, fault.New(fault.Unavailable, "%s: the server's response is not JSON-RPC", method)
	}
	if answer.Error != nil {
		return nil, fault.Wrap(fault.Internal, answer.Error.fault(resp.StatusCode), "%s", method)
	}
	if result == nil {
		return resp.Header, nil
	}
	if err := json.Unmarshal(answer.Result, result); err != nil {
		return nil, fault.Wrap(fault.Unavailable, err, "%s: read the result", method)
	}
	return resp.Header, nil
}

// lastMessage returns the response at the end of a stream.
func lastMessage(stream []byte) ([]byte, error) {
	r := sse.NewReader(strings.NewReader(string(stream)), httpcall.MaxAnswer)
	for {
		e, err := r.Next()
		if err != nil {
			return nil, fault.New(fault.Unavailable, "the server's stream ended without a response")
		}
		if m, bad := jsonrpc.Decode(e.Data); bad == nil && m.Kind == jsonrpc.Response {
			return e.Data, nil
		}
	}
}

// request encodes a request, with the _meta that revision 2026-07-28 requires.
func (c *Client) request(method string, params map[string]any) []byte {
	if params == nil {
		params = map[string]any{}
	}
	if c.isStateless() {
		meta, _ := params["_meta"].(map[string]any)
		if meta == nil {
			meta = map[string]any{}
		}
		meta[spec.MetaVersion] = c.version
		meta[spec.MetaClient] = c.clientInfo()
		meta[spec.MetaCapabilities] = map[string]any{}
		params["_meta"] = meta
	}
	b, err := json.Marshal(map[string]any{"jsonrpc": "2.0", "id": c.seq.Add(1), "method": method, "params": params})
	if err != nil {
		panic(err) // the parameters consist of maps and strings
	}
	return b
}

func (c *Client) header(method string, params map[string]any) http.Header {
	h := http.Header{}
	h.Set("Accept", "application/json, "+sse.ContentType)
	session := c.sessionID()
	if c.isStateless() || session != "" {
		h.Set("Mcp-Protocol-Version", string(c.version))
	}
	if session != "" {
		h.Set("Mcp-Session-Id", session)
	}
	if c.isStateless() && method != "" {
		h.Set("Mcp-Method", method)
		member := map[string]string{spec.MethodRead: "uri", spec.MethodToolsCall: "name", spec.MethodPromptsGet: "name"}[method]
		if name, ok := params[member].(string); ok {
			h.Set("Mcp-Name", spec.EncodeHeader(name))
		}
	}
	return h
}
