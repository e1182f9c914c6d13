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
	own     upstream.Client // speaks for the gateway itself, with the operator's credentials
	granted granted
	streams streams
	changed chan struct{} // receives when what is wanted of it may have changed

	*view   // with the operator's credentials
	callers callers

	// These limit the log lines about requests of clients while the backend is down.
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

// Place names it.
func (b *backend) Place() api.Place { return api.Place{Workspace: b.Workspace, Backend: b.Name} }

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

// MetricDropped is the name under which messages of backends that were not handed on are
// counted, by workspace, backend and reason.
const MetricDropped = "GatewayMessagesDropped"

// Why a message of a backend was not handed on; packages upstream and relay have further reasons. There are few,
// since they are counted by.
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

// Dropped is how many messages of each backend, named workspace/backend, were not handed
// on since the process began, and why.
func (g *Gateway) Dropped() map[string]map[string]int64 { return g.drops.ByThird() }
