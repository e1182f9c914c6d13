package gateway

import (
	"encoding/json"

	"github.com/mcp-events/mcpevents/shared/config"
	"github.com/mcp-events/mcpevents/shared/gateway/api"
	"github.com/mcp-events/mcpevents/shared/gateway/upstream"
	"github.com/mcp-events/mcpevents/shared/jsonrpc"
)

// backend is one MCP server behind the gateway.
type backend struct {
	config.Backend
	gateway *Gateway
	own     upstream.Client // speaks for the gateway itself, with the operator's credentials
	granted granted
	changed chan struct{} // receives when what is wanted of it may have changed

	*view   // with the operator's credentials
	callers callers
}

func (g *Gateway) newBackend(c config.Backend) *backend {
	b := &backend{Backend: c, gateway: g, changed: make(chan struct{}, 1)}
	b.own = upstream.Client{
		URL: c.URL, HTTP: g.options.HTTP, Credentials: credentials{backend: b}.add, Dropped: b.dropped,
		Server: g.options.Server, AskTimeout: g.options.AskTimeout,
		Observer: upstream.Observer{Name: c.Name, Metrics: g.options.Metrics, Tracer: g.options.Tracer},
	}
	b.view = newView(b, "")
	return b
}

// caller speaks to the backend for a caller. One that gets callers' tokens does not get the
// operator's for a caller who has none.
func (b *backend) caller(token string) *upstream.Client {
	c := b.own
	c.Credentials = credentials{b, token, b.ForwardToken && token == ""}.add
	return &c
}

// perCaller reports whether what the backend shows is asked for with the callers' tokens.
func (b *backend) perCaller() bool {
	_, fixed := b.Headers["Authorization"]
	return b.ForwardToken && !fixed && b.OAuth == nil
}

// capabilitiesOf reads what a backend declares.
func capabilitiesOf(capabilities json.RawMessage) api.Capabilities {
	has := func(name string) bool { return jsonrpc.Member(capabilities, name) != nil }
	notifies := func(name, what string) bool {
		return string(jsonrpc.Member(jsonrpc.Member(capabilities, name), what)) == "true"
	}
	return api.Capabilities{
		Tools: has("tools"), Prompts: has("prompts"), Resources: has("resources"),
		Completions: has("completions"), Logging: has("logging"),
		ToolsChanged: notifies("tools", "listChanged"), PromptsChanged: notifies("prompts", "listChanged"),
		ResourcesChanged: notifies("resources", "listChanged"), Subscribe: notifies("resources", "subscribe"),
		UserMessages: notifies("conversationEvents", "onUserMessage"), AssistantResponses: notifies("conversationEvents", "onAssistantResponse"),
	}
}
