package app

import (
	"context"
	"encoding/json"
	"net/http"
	"time"

	"github.com/mcp-events/mcpevents/shared/auth/quota"
	"github.com/mcp-events/mcpevents/shared/conversation"
	"github.com/mcp-events/mcpevents/shared/events/stream"
	"github.com/mcp-events/mcpevents/shared/events/stream/lease"
	"github.com/mcp-events/mcpevents/shared/gateway"
	"github.com/mcp-events/mcpevents/shared/gateway/api"
	"github.com/mcp-events/mcpevents/shared/gateway/backends"
	"github.com/mcp-events/mcpevents/shared/mcp"
	"github.com/mcp-events/mcpevents/shared/mcp/events"
	"github.com/mcp-events/mcpevents/shared/mcp/eventtools/logsource"
	"github.com/mcp-events/mcpevents/shared/mcp/streams"
	"github.com/mcp-events/mcpevents/shared/platform/descriptors"
)

// answerStreamAfter is shorter than any proxy waits for the begin of a response, and longer than most answers take.
const answerStreamAfter = time.Second

func implementation() mcp.Implementation {
	return mcp.Implementation{Name: "mcp-events", Version: Version}
}

// EndpointOptions are the parts of an endpoint that only changes subscriptions. One of them may be nil.
type EndpointOptions struct {
	Registrar   events.Registrar
	Deregistrar events.Deregistrar
}

// NewEndpoint returns an MCP endpoint that only changes subscriptions, for a function to which the function stream
// forwards such requests.
func NewEndpoint(c *Core, o EndpointOptions) (*mcp.Endpoint, error) {
	options := endpointOptions(c)
	options.Registrar, options.Deregistrar = o.Registrar, o.Deregistrar
	return mcp.New(options)
}

// endpointOptions returns the options that all endpoints have in common.
func endpointOptions(c *Core) mcp.Options {
	return mcp.Options{
		Server: implementation(), Auth: c.Auth, Catalogs: c.Catalogs, ResourceMetadata: c.ResourceMetadata,
		AnonymousWebhooks: c.Limits.AllowInsecureTargets, Profile: c.profile,
		Guard: c.Guard, Logger: c.Log, Metrics: c.Metrics,
	}
}

// StreamOptions are the parts of an endpoint that serves all methods.
type StreamOptions struct {
	Feeds  *stream.Tails
	Leases streams.Leases
	// Backends and Conversation may be nil.
	Backends     api.Gateway
	Conversation streams.Conversation
	// Registrar and Deregistrar change subscriptions in this process. ForwardRegistrar and ForwardDeregistrar let another
	// process do it.
	Registrar                            events.Registrar
	Deregistrar                          events.Deregistrar
	ForwardRegistrar, ForwardDeregistrar http.Handler
	// Left is [mcp.Options.Left].
	Left func(*http.Request)
}

// NewStreamEndpoint returns the MCP endpoint, which is the role stream. It lists, reads, streams and polls, and relays
// calls to the backends.
func NewStreamEndpoint(c *Core, o StreamOptions) (*mcp.Endpoint, error) {
	options, l := endpointOptions(c), c.Limits
	options.Feeds, options.Leases, options.Sessions, options.Subscriptions = o.Feeds, o.Leases, c.DB, NewLists(c)
	options.Gateway, options.Conversation, options.Left = o.Backends, o.Conversation, o.Left
	options.Registrar, options.Deregistrar = o.Registrar, o.Deregistrar
	options.ForwardRegistrar, options.ForwardDeregistrar = o.ForwardRegistrar, o.ForwardDeregistrar
	options.MaxAge, options.Heartbeat, options.AnswerStreamAfter = l.StreamMaxAge, l.Heartbeat, answerStreamAfter
	options.MaxSessions, options.Dialect = c.maxSessions, mcp.NamedEvents
	options.Calls = quota.NewHeld(quota.Calls, "calls to backends", c.CallerQuota(quota.Calls), descriptors.Outgoing())
	options.PollMin, options.PollMax = l.PollMin, l.PollMax
	if l.EventTools {
		options.EventTools = logsource.New
	}
	return mcp.New(options)
}

// NewSharedLeases returns the leases that limit the streams of several instances over one store. Each instance serves
// the given number of concurrent requests.
func NewSharedLeases(c *Core, concurrent int) *lease.Shared {
	const share = 80 // percent, so that calls always find a free instance
	l := c.Limits
	return &lease.Shared{
		DB: c.DB, Max: c.maxStreams, Fleet: l.StreamConcurrency * int64(concurrent) * share / 100,
		Life: l.StreamMaxAge, Check: l.Heartbeat, Refuse: refusesStreams(c),
	}
}

// NewLocalLeases returns the leases that limit the streams of a single process.
func NewLocalLeases(c *Core) *lease.Local { return lease.NewLocal(c.maxStreams, refusesStreams(c)) }

// refusesStreams reports whether a stream over the principal's quota is refused. Otherwise it ends the oldest one.
func refusesStreams(c *Core) bool { return c.Limits.FullStreams == "refuse" }

// GatewayOptions are the parts of the gateway that differ between the modes.
type GatewayOptions struct {
	// Secrets resolves the secrets in settings; nil reads environment variables.
	Secrets gateway.Secrets
	// Key authenticates the state that clients carry between requests; nil if the process has no clients.
	Key []byte
	// HTTP is the client for requests to backends; nil is the default one.
	HTTP *http.Client
	// Commands knows the running backends that are commands, which HTTP reaches. It is nil if the process runs none.
	Commands backends.Commands
	// LogDelay is how long the log line of a call may wait for others. It must be 0 where a process may be frozen after each response.
	LogDelay time.Duration
}

// Identity returns the MCP Implementation object with which the gateway identifies itself to backends.
func Identity() (json.RawMessage, error) { return json.Marshal(implementation()) }

// NewGateway returns the gateway to the backends of the configuration.
func NewGateway(c *Core, o GatewayOptions) (*gateway.Gateway, error) {
	server, err := Identity()
	if err != nil {
		return nil, err
	}
	var wanted func(context.Context, string, string) bool
	if c.Demand != nil {
		wanted = func(ctx context.Context, workspace, backend string) bool {
			all, err := c.Demand.Wanted(ctx, workspace, backend)
			return err == nil && len(all) > 0
		}
	}
	return gateway.New(gateway.Options{
		EventsWanted: wanted,
		Source:       c.Config.Backends, Secrets: o.Secrets, Key: o.Key, HTTP: o.HTTP, Commands: o.Commands, Server: server,
		DB: c.DB, Log: c.Log, LogDelay: o.LogDelay, Metrics: c.Metrics, Tracer: c.Tracer,
	})
}

// ConversationOptions are the parts of conversations that differ between the modes. See [conversation.Options].
type ConversationOptions struct {
	Secrets   gateway.Secrets
	Key       []byte
	Backends  conversation.Backends
	Publisher conversation.Publisher
	Prepares  bool
}

// NewConversation returns the service that passes messages of conversations to the configured context providers.
func NewConversation(c *Core, o ConversationOptions) (*conversation.Service, error) {
	return conversation.New(conversation.Options{
		Source: c.Config, Secrets: o.Secrets, Key: o.Key, Backends: o.Backends, Catalogs: c.Catalogs, Publisher: o.Publisher,
		AllowAnonymous: c.Limits.AllowInsecureTargets, Prepares: o.Prepares,
		Rate: conversation.NewRate(c.CallerQuota(quota.ConversationRate)), DB: c.DB, Log: c.Log,
	})
}

// NewConsent returns the handler of the consent pages.
func NewConsent(c *Core, s *conversation.Service) *conversation.Handler {
	return &conversation.Handler{Service: s, Auth: c.Auth, Guard: c.Guard, MetadataURL: c.ResourceMetadata, Log: c.Log}
}
