package gateway

import (
	"context"
	"encoding/json"
	"log/slog"

	"github.com/mcp-events/mcpevents/shared/gateway/api"
	"github.com/mcp-events/mcpevents/shared/gateway/upstream"
	"github.com/mcp-events/mcpevents/shared/platform/metric"
	"github.com/mcp-events/mcpevents/shared/protocol/jsonrpc"
	"golang.org/x/time/rate"
)

// backend is one MCP server behind the gateway.
type backend struct {
	api.Backend
	options *Options // of the gateway
	drops   *metric.Tally
	own     upstream.Client // makes the gateway's own requests, with the operator's credentials
	oauth   oauthTokens
	streams streams
	changed chan struct{} // receives after the subscriptions at the backend may have changed

	*view   // with the operator's credentials
	callers callers

	// These limit how often requests of clients log that the backend is down.
	logCapabilities rate.Sometimes
	logList         map[api.Kind]*rate.Sometimes
}

func newBackend(o *Options, drops *metric.Tally, c api.Backend) *backend {
	b := &backend{
		Backend: c, options: o, drops: drops, changed: make(chan struct{}, 1),
		logCapabilities: rate.Sometimes{Interval: metric.LogEvery}, logList: map[api.Kind]*rate.Sometimes{},
	}
	for _, kind := range api.Kinds {
		b.logList[kind] = &rate.Sometimes{Interval: metric.LogEvery}
	}
	b.own = upstream.Client{
		URL: c.URL, HTTP: o.HTTP, Credentials: credentials{backend: b}.add, Dropped: b.dropped,
		Server: o.Server, AskTimeout: o.AskTimeout,
		Observer: upstream.Observer{Name: c.Name, Metrics: o.Metrics, Tracer: o.Tracer},
	}
	b.view = newView(b, "")
	return b
}

// Place returns the workspace and the name of the backend.
func (b *backend) Place() api.Place { return api.Place{Workspace: b.Workspace, Backend: b.Name} }

// capabilitiesOf parses the capabilities that a backend declares.
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

// MetricDropped is the name of the metric that counts the backends' messages that the gateway dropped, by
// workspace, backend and reason.
const MetricDropped = "GatewayMessagesDropped"

// Reasons for dropping a backend's message. Packages upstream and relay have further ones. The set is small and fixed
// because the reason is a dimension of the metric.
const (
	dropOther      = "it answers another request"
	dropProgress   = "it is the progress of another request"
	dropOutOfPlace = "its method does not belong into a call"
	dropNameless   = "an entry of a list without a name"
	dropDeep       = "an entry of a list that is nested too deeply"
	dropControls   = "an entry of a list with control characters in its name"
)

func (b *backend) dropped(ctx context.Context, reason string) {
	b.drops.Add(ctx, slog.String("workspace", b.Workspace), slog.String("backend", b.Name), slog.String("reason", reason))
}

// Dropped returns how many messages of each backend the gateway has dropped since the process started. The outer key is
// workspace/backend, the inner key is the reason.
func (g *Gateway) Dropped() map[string]map[string]int64 { return g.drops.ByThird() }
