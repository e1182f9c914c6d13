// Package backends has the set of configured backends. For each backend, it knows who may use it, which tools, prompts and resources it
// lists, and how the gateway authenticates to it.
//
//	set.go            the backends of the configuration, and who may use them
//	backend.go        one backend, with its clients and counters
//	credentials.go    the headers and tokens of requests to it
//	exchange.go       tokens issued in exchange for callers' tokens, and the key with which the gateway authenticates itself for that
//	view.go           how long a backend's capabilities and lists are cached
//	callers.go        one view per caller, for backends whose lists depend on the caller
//	fetch.go          the requests for capabilities and lists
//	lists.go          the combined lists, and the search for a name or a URI in them
//	extensions.go     the extensions that backends declare, and their methods
//	subscriptions.go  subscriptions to resources, and the notification streams that they need
//	followed.go       the methods of a backend that package relay uses
package backends

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"log/slog"
	"time"

	"github.com/mcp-events/mcpevents/shared/gateway/api"
	"github.com/mcp-events/mcpevents/shared/gateway/rules"
	"github.com/mcp-events/mcpevents/shared/gateway/upstream"
	"github.com/mcp-events/mcpevents/shared/platform/bounded"
	"github.com/mcp-events/mcpevents/shared/platform/metric"
	"github.com/mcp-events/mcpevents/shared/platform/refresh"
	"github.com/mcp-events/mcpevents/shared/protocol/jsonrpc"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
	"golang.org/x/time/rate"
)

// Backend is one MCP server behind the gateway.
type Backend struct {
	api.Backend
	options  *Options        // the options of the [Set]
	serverID string          // the result of [Backend.ServerID]
	own      upstream.Client // makes the gateway's own requests, with the operator's credentials
	oauth    oauthTokens
	tokens   exchanges
	rules    map[api.Kind]rules.Set
	// The value noStream is true if package relay has recorded that the backend has no notification stream. It is read from the store at
	// most once per second, because one listen request can name many resources.
	noStream *refresh.Value[bool]
	changed  chan struct{} // receives when the subscriptions to the backend's resources may have changed
	// The channel reported receives the notification method of each list change that the backend reports during a call. The map reports
	// has a rate limit for each of these methods; the map is never modified.
	reported chan string
	reports  map[string]*reportRate

	view    *View // the view that uses the operator's credentials
	callers callers

	// These limit how often the log says that requests to the backend fail. Otherwise each request to a failing backend could write a
	// line.
	logCapabilities rate.Sometimes
	logExchange     rate.Sometimes
	logList         map[api.Kind]*rate.Sometimes
}

// commandTime is the minimum AskTimeout for a backend that is a command, because a package runner such as npx may download the
// command when it starts.
const commandTime = 30 * time.Second

func newBackend(o *Options, c api.Backend) *Backend {
	server := sha256.Sum256([]byte(c.URL))
	b := &Backend{
		Backend: c, options: o, serverID: c.Name + "#" + base64.RawURLEncoding.EncodeToString(server[:12]), changed: make(chan struct{}, 1),
		reported: make(chan string, len(api.Kinds)*reportBurst), reports: map[string]*reportRate{},
		tokens:          exchanges{kept: bounded.NewMap[subject, exchanged](maxExchanged)},
		logCapabilities: rate.Sometimes{Interval: metric.LogEvery}, logExchange: rate.Sometimes{Interval: metric.LogEvery},
		logList: map[api.Kind]*rate.Sometimes{},
		rules: map[api.Kind]rules.Set{
			api.Tools: rules.New(c.Tools), api.Prompts: rules.New(c.Prompts),
			api.Resources: rules.NewForURIs(c.Resources), api.Templates: rules.NewForURIs(c.Resources),
			api.Extensions: rules.New(c.Extensions),
		},
	}
	for _, kind := range api.Kinds {
		b.reports[kind.ChangedMethod()] = &reportRate{limit: rate.NewLimiter(1, reportBurst)}
	}
	for _, kind := range append([]api.Kind{api.Events}, api.Kinds...) {
		b.logList[kind] = &rate.Sometimes{Interval: metric.LogEvery}
	}
	b.own = upstream.Client{
		URL: c.URL, HTTP: o.HTTP, Credentials: credentials{Backend: b}.add, Refused: b.dropOAuthToken, Dropped: b.CountDrop,
		Server: o.Server, AskTimeout: o.AskTimeout,
		Observer: upstream.Observer{Name: c.Name, Metrics: o.Metrics, Tracer: o.Tracer},
	}
	if c.Command != nil {
		b.own.AskTimeout = max(o.AskTimeout, commandTime)
	}
	b.noStream = refresh.New(refresh.Options{Name: "the stream of backend " + c.Name, Fresh: time.Second}, b.readNoStream)
	b.view = newView(b, "")
	return b
}

// Place returns the workspace and the name of the backend.
func (b *Backend) Place() api.Place { return api.Place{Workspace: b.Workspace, Backend: b.Name} }

// ServerID identifies the backend by its name and the server at its URL. If the operator puts another server behind the same name, the id
// changes. So the new server does not receive session ids and answers that were meant for the old one.
func (b *Backend) ServerID() string { return b.serverID }

// EndSession ends a session with the backend. The token is the Authorization header of the caller that owns the session.
func (b *Backend) EndSession(ctx context.Context, token string, version spec.Version, id string) {
	c := b.own
	c.Credentials = credentials{Backend: b, token: token}.add
	if err := c.End(ctx, version, id); err != nil {
		b.options.Log.DebugContext(ctx, "backend session not ended", "backend", b.Name, "error", err)
	}
}

// ParseCapabilities parses the capabilities that a backend declares.
func ParseCapabilities(capabilities json.RawMessage) api.Capabilities {
	has := func(name string) bool { return jsonrpc.Member(capabilities, name) != nil }
	notifies := func(name, what string) bool {
		return string(jsonrpc.Member(jsonrpc.Member(capabilities, name), what)) == "true"
	}
	// Backends that follow an earlier draft of MCP Events declare events in the member "events" of their capabilities. Backends that
	// follow the Final version (SEP-3415) declare events as one of their extensions.
	events := jsonrpc.Member(jsonrpc.Member(capabilities, "extensions"), spec.EventsExtension)
	if events == nil {
		events = jsonrpc.Member(capabilities, "events")
	}
	return api.Capabilities{
		Events: events != nil, EventsChanged: string(jsonrpc.Member(events, "listChanged")) == "true",
		Tools: has("tools"), Prompts: has("prompts"), Resources: has("resources"),
		Completions: has("completions"), Logging: has("logging"),
		ToolsChanged: notifies("tools", "listChanged"), PromptsChanged: notifies("prompts", "listChanged"),
		ResourcesChanged: notifies("resources", "listChanged"), Subscribe: notifies("resources", "subscribe"),
		Tasks:        jsonrpc.Member(jsonrpc.Member(capabilities, "extensions"), spec.TasksExtension) != nil,
		UserMessages: notifies("conversationEvents", "onUserMessage"), AssistantResponses: notifies("conversationEvents", "onAssistantResponse"),
		Extensions: parseExtensions(jsonrpc.Member(capabilities, "extensions")),
	}
}

// Reasons for dropping an entry of a backend's list. The set is small and fixed because the reason is a dimension of the metric that
// counts dropped entries.
const (
	dropNameless     = "an entry of a list without a name"
	dropDeep         = "an entry of a list that is nested too deeply"
	dropControls     = "an entry of a list with control characters in its name"
	dropHeader       = "a tool with an invalid x-mcp-header"
	dropInstructions = "instructions that are too long" // about the whole backend
)

// CountDrop counts a message of the backend, or an entry of one of its lists, that the gateway did not pass on to clients.
func (b *Backend) CountDrop(ctx context.Context, reason string) {
	b.options.countDroppedMessage(ctx, b.Backend, reason)
}

// CountDrop counts a message of a backend, or an entry of one of its lists, that the gateway did not pass on to clients.
func (bs *Set) CountDrop(ctx context.Context, b api.Backend, reason string) {
	bs.options.countDroppedMessage(ctx, b, reason)
}

func (o *Options) countDroppedMessage(ctx context.Context, b api.Backend, reason string) {
	o.Drops.Add(ctx, slog.String("workspace", b.Workspace), slog.String("backend", b.Name), slog.String("reason", reason))
}
