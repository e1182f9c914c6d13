// Package app has a constructor for each role of the product, such as publishing or the MCP endpoint. A constructor connects the parts of
// its role. The stand-alone server (package standalone) runs all roles in one process. On AWS, each Lambda function runs one role.
//
//	role        constructor                       on AWS                stand-alone
//	publish     [NewPublishing]                   functions/publish     POST /events, POST /sources/…, inbox queue
//	fanout      webhooks.NewFanout                functions/fanout      events queue
//	dispatch    webhooks.NewDispatcher            functions/dispatch    deliveries queue, slow lane
//	retry       webhooks.NewJobs                  functions/retry       every minute
//	register    webhooks.NewRegistrar             functions/register    /mcp
//	deregister  [NewSubscriptions]                functions/deregister  /mcp
//	stream      [NewStreamEndpoint]               functions/stream      /mcp
//	relay       relays.New                        functions/relay       one goroutine
//	admin       operators.NewHandler              functions/admin       /admin/v1, /console
//
// Packages webhooks, relays and operators are separate from this package only because functions that do not import them are much smaller.
// Packages standalone and functions/internal/boot read the environment, open stores, and fill in a [Core].
package app

import (
	"cmp"
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"net/url"
	"sync/atomic"
	"time"

	"github.com/mcp-events/mcpevents/shared/app/config"
	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/auth/jwt"
	"github.com/mcp-events/mcpevents/shared/auth/quota"
	"github.com/mcp-events/mcpevents/shared/conversation"
	"github.com/mcp-events/mcpevents/shared/events/catalog"
	"github.com/mcp-events/mcpevents/shared/events/demand"
	"github.com/mcp-events/mcpevents/shared/events/demand/intake"
	eventlog "github.com/mcp-events/mcpevents/shared/events/log"
	"github.com/mcp-events/mcpevents/shared/events/publish"
	"github.com/mcp-events/mcpevents/shared/events/source/ingest"
	"github.com/mcp-events/mcpevents/shared/events/stream"
	"github.com/mcp-events/mcpevents/shared/events/stream/lease"
	"github.com/mcp-events/mcpevents/shared/events/subscription"
	"github.com/mcp-events/mcpevents/shared/events/subscription/review"
	"github.com/mcp-events/mcpevents/shared/gateway"
	"github.com/mcp-events/mcpevents/shared/gateway/backends"
	"github.com/mcp-events/mcpevents/shared/mcp"
	"github.com/mcp-events/mcpevents/shared/mcp/events"
	"github.com/mcp-events/mcpevents/shared/mcp/eventtools/logsource"
	"github.com/mcp-events/mcpevents/shared/mcp/streams"
	"github.com/mcp-events/mcpevents/shared/platform/descriptors"
	"github.com/mcp-events/mcpevents/shared/platform/metric"
	"github.com/mcp-events/mcpevents/shared/platform/secret"
	"github.com/mcp-events/mcpevents/shared/platform/trace"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
	"github.com/mcp-events/mcpevents/shared/storage/queue"
	"github.com/mcp-events/mcpevents/shared/storage/store"
)

// Version is the version of the product. The linker sets it for a release.
var Version = "0.1.0"

// UserAgent identifies the product to webhook endpoints and backends.
func UserAgent() string { return "mcp-events/" + Version }

// Core holds the parts that all roles share.
type Core struct {
	DB       store.DB
	Queues   queue.Sender
	Catalogs catalog.Source
	Config   *config.Stored
	EventLog *eventlog.Log
	// Demand records which backend events the clients want. The relay asks the backends for these events. Demand may be nil in a process
	// without subscriptions and backends.
	Demand *demand.Registry
	Limits config.Limits
	Log    *slog.Logger
	// Metrics and Tracer may be nil. Without Metrics, the process counts no events. Without Tracer, it creates no spans.
	Metrics *metric.Set
	Tracer  *trace.Tracer
	// Auth authenticates callers. Roles without callers use it only to look up principals, if it is an [auth.Directory]. In these roles,
	// it may be nil.
	Auth auth.Authenticator
	// Guard refuses requests that web pages of other sites send through a visitor's browser. All endpoints share the Guard, so that each
	// refused host is logged only once.
	Guard auth.Guard
	// ResourceMetadata is the URL at which clients learn how to get an access token. It is empty if they need no token.
	ResourceMetadata string
}

// config returns the current configuration. It returns nil if there is no configuration or if it cannot be read. The callers of config
// then use the limits from the settings, [Core.Limits].
func (c *Core) config(ctx context.Context) *config.Config {
	if c.Config == nil {
		return nil
	}
	now, err := c.Config.Config(ctx)
	if err != nil {
		return nil
	}
	return now
}

// Quota returns a function that looks up the quota with the given name, for example [quota.Streams], for a principal.
func (c *Core) Quota(name string) func(ctx context.Context, workspace, principal string) float64 {
	return func(ctx context.Context, workspace, principal string) float64 {
		if now := c.config(ctx); now != nil {
			return now.QuotaLimit(name, workspace, principal, c.Limits)
		}
		return c.Limits.QuotaLimit(name)
	}
}

// CallerQuota returns a function that looks up the same limits as [Core.Quota], for code that has the caller as an [auth.Principal].
func (c *Core) CallerQuota(name string) quota.LimitFunc {
	limitOf := c.Quota(name)
	return func(ctx context.Context, p auth.Principal) float64 { return limitOf(ctx, p.Workspace, p.ID) }
}

func (c *Core) maxStreams(ctx context.Context, p auth.Principal) int {
	return int(c.CallerQuota(quota.Streams)(ctx, p))
}

func (c *Core) maxSessions(ctx context.Context, p auth.Principal) int {
	return int(c.CallerQuota(quota.Sessions)(ctx, p))
}

// profile returns the version of the MCP Events extension (see [spec.Profile]) for a principal. This is the version that the
// configuration sets for the principal or, without one, the server's default.
func (c *Core) profile(ctx context.Context, p auth.Principal) spec.Profile {
	profile := spec.Profile(c.Limits.Profile)
	if now := c.config(ctx); now != nil {
		return cmp.Or(now.Profile(p.Workspace, p.ID), profile)
	}
	return profile
}

// WatchLog registers the metrics of the event log. The log assumes that an append takes at most [eventlog.SlowAppend], and that the clock
// of each process differs from the true time by at most [eventlog.MaxSkew]. If one of these assumptions is wrong, only these metrics show
// it.
func (c *Core) WatchLog() error {
	for name, n := range map[string]*atomic.Int64{
		metric.LogSlowAppends: &c.EventLog.Slow, metric.LogClockSkew: &c.EventLog.Skewed,
		metric.LogLateEntries: &c.EventLog.Late, metric.LogBrokenSegments: &c.EventLog.Broken,
	} {
		err := c.Metrics.Watch(name, func(context.Context) ([]metric.Reading, error) { return metric.One(float64(n.Load())), nil })
		if err != nil {
			return err
		}
	}
	return nil
}

// clockLeeway is how far the clock of a token's issuer may be ahead of or behind the server's clock.
const clockLeeway = 30 * time.Second

// NewTokenAuthenticator returns the authenticator for --auth jwt, which accepts access tokens. If a setting for tokens is missing or out
// of range, the error is of kind fault.Invalid.
func NewTokenAuthenticator(l config.Limits, log *slog.Logger) (*jwt.Authenticator, error) {
	return jwt.New(jwt.Options{
		Issuers: l.JWTIssuers, JWKS: l.JWTKeys, Audience: l.JWTAudience,
		PrincipalClaim: l.JWTPrincipal, WorkspaceClaim: l.JWTWorkspace, ScopePrefix: l.JWTScopePrefix, Leeway: clockLeeway, Log: log,
	})
}

// SubscriptionOptions has the functions through which a dispatcher in the same process learns which subscriptions start and end. The
// dispatcher's [delivery.Gate] then stops attempts to ended subscriptions. If the dispatcher runs in another process, both functions are
// nil.
//
// [delivery.Gate]: https://pkg.go.dev/github.com/mcp-events/mcpevents/shared/events/delivery#Gate
type SubscriptionOptions struct {
	// Started is called with the id of a new subscription before the subscription is written to the store. Ended is called before the
	// response to the request that ends a subscription.
	Started, Ended func(id string)
}

// NewSubscriptions returns the service that finds, pauses and ends existing subscriptions. A [subscription.Registrar] creates new ones.
func NewSubscriptions(c *Core, o SubscriptionOptions) *subscription.Service {
	ofPrincipal, ofWorkspace := c.Quota(quota.Subscriptions), c.Quota(quota.WorkspaceSubscriptions)
	return &subscription.Service{
		Store: subscription.Store{
			DB: c.DB, Started: o.Started, Ended: o.Ended, Log: c.Log,
			QuotaOf: func(ctx context.Context, workspace, principal string) int64 {
				return int64(ofPrincipal(ctx, workspace, principal))
			},
			SumOf: func(ctx context.Context, workspace string) int64 { return int64(ofWorkspace(ctx, workspace, "")) },
		},
		Catalog: c.Catalogs, Log: c.EventLog,
		AllowAnonymous: c.Limits.AllowInsecureTargets,
		PrincipalTopic: stream.TopicPrincipal, SubscriptionTopic: stream.TopicSubscription,
	}
}

// NewLists returns the lists of subscriptions by principal, workspace and event type.
func NewLists(c *Core) *subscription.Lists { return &subscription.Lists{DB: c.DB} }

// NewReview returns the review that decides whether subscriptions may continue. The review checks whether a subscription's event types
// are still compatible.
//
// If [Core.Auth] is a directory of principals, the review also checks whether the principal may still receive the events. Otherwise it
// uses the rights that the principal had when it subscribed.
func NewReview(c *Core) *review.Review {
	directory, _ := c.Auth.(auth.Directory)
	return &review.Review{DB: c.DB, Catalog: c.Catalogs, Directory: directory}
}

// Publishing holds the parts of the role that accepts events.
type Publishing struct {
	Service *publish.Service
	Handler *publish.Handler // serves POST /events
	Sources *ingest.Handler  // serves POST /sources/{name}
	Inbox   *publish.Inbox   // handles the messages of the inbox queue
}

// NewHooks returns the webhook subscriptions through which backends send their events to this server. The function key returns the
// deployment's key. The tokens and secrets of these subscriptions are derived from this key.
func NewHooks(c *Core, key func(context.Context) ([]byte, error)) demand.Hooks {
	base := c.Limits.PublicURL
	if at, err := url.Parse(c.ResourceMetadata); base == "" && err == nil && at.Host != "" {
		base = at.Scheme + "://" + at.Host
	}
	return demand.Hooks{DB: c.DB, Base: base, Key: key}
}

// PublishingOptions configure [NewPublishing].
type PublishingOptions struct {
	Secrets func(context.Context, secret.Value) (string, error)
	// Key returns the deployment's key. The secrets with which backends sign their webhooks are derived from this key.
	Key func(context.Context) ([]byte, error)
	// Dropped is called for each event from a backend that this process drops. If Dropped is nil, the process logs the number of dropped
	// events.
	Dropped func(ctx context.Context, workspace, backend, reason string)
}

// NewPublishing returns the publish role, which accepts events.
func NewPublishing(c *Core, o PublishingOptions) Publishing {
	service := newPublisher(c)
	documents, events := newDocuments(c, service), publish.NewBackendPublisher(service)
	if o.Dropped == nil {
		drops := &metric.Tally{Name: metric.BackendDropped, Text: "backend messages dropped", Log: c.Log, Set: c.Metrics}
		o.Dropped = func(ctx context.Context, workspace, backend, reason string) {
			drops.Add(ctx, slog.String("workspace", workspace), slog.String("backend", backend), slog.String("reason", reason))
		}
	}
	return Publishing{
		Service: service,
		Handler: &publish.Handler{Service: service, Auth: c.Auth, Guard: c.Guard, MetadataURL: c.ResourceMetadata, Log: c.Log},
		Sources: &ingest.Handler{
			Documents: documents, Secrets: o.Secrets, Rate: publish.NewRate(c.CallerQuota(quota.PublishRate)), Guard: c.Guard,
			Limited: func(limit string) { c.Metrics.LimitReached(limit) },
			Backends: &ingest.Backends{
				Intake: intake.Intake{Demand: c.Demand, Publish: events.Publish, Gap: events.Gap}, Hooks: NewHooks(c, o.Key), Dropped: o.Dropped,
			},
		},
		Inbox: newInbox(c, documents, service),
	}
}

// NewInbox returns the handler of the inbox queue. It is for a process that publishes only the messages of this queue.
func NewInbox(c *Core) *publish.Inbox {
	service := newPublisher(c)
	return newInbox(c, newDocuments(c, service), service)
}

func newPublisher(c *Core) *publish.Service {
	return &publish.Service{
		Catalog: c.Catalogs, Queue: c.Queues, Rate: publish.NewRate(c.CallerQuota(quota.PublishRate)), Metrics: c.Metrics, Tracer: c.Tracer,
	}
}

func newInbox(c *Core, documents ingest.Documents, service *publish.Service) *publish.Inbox {
	return &publish.Inbox{Service: service, Documents: &ingest.Bus{Documents: documents}, Log: c.Log}
}

// newDocuments returns the component that converts requests and messages of sources to events.
func newDocuments(c *Core, service *publish.Service) ingest.Documents {
	return ingest.Documents{
		Sources: c.Config, Catalogs: c.Catalogs, Publisher: service, Seen: ingest.NewSeen(c.DB), Queue: c.Queues,
		Recorder: ingest.NewOutcomeLog(c.DB, c.Limits.DeliveryLog, c.Metrics, c.Log), Metrics: c.Metrics, Log: c.Log,
	}
}

func implementation() mcp.Implementation {
	return mcp.Implementation{Name: "mcp-events", Version: Version}
}

// EndpointOptions configure [NewEndpoint]. One of the two fields may be nil: functions/register has only a Registrar, and
// functions/deregister has only a Deregistrar.
type EndpointOptions struct {
	Registrar   events.Registrar
	Deregistrar events.Deregistrar
}

// NewEndpoint returns an MCP endpoint that only creates or ends subscriptions. The functions register and deregister use it for requests
// that the function stream forwards to them.
func NewEndpoint(c *Core, o EndpointOptions) (*mcp.Endpoint, error) {
	options := endpointOptions(c)
	options.Registrar, options.Deregistrar = o.Registrar, o.Deregistrar
	return mcp.New(options)
}

func endpointOptions(c *Core) mcp.Options {
	return mcp.Options{
		Server: implementation(), Auth: c.Auth, Catalogs: c.Catalogs, ResourceMetadata: c.ResourceMetadata,
		AnonymousWebhooks: c.Limits.AllowInsecureTargets, Profile: c.profile,
		Guard: c.Guard, Logger: c.Log, Metrics: c.Metrics,
	}
}

// StreamOptions configure [NewStreamEndpoint].
type StreamOptions struct {
	Feeds  *stream.Tails
	Leases streams.Leases
	// Backends is nil if the endpoint is not a gateway. Conversation is nil if the endpoint does not accept messages of conversations.
	Backends     mcp.Gateway
	Conversation streams.Conversation
	// Registrar and Deregistrar create and end subscriptions in this process. On AWS, ForwardRegistrar and ForwardDeregistrar are used
	// instead. They forward these requests to the functions register and deregister.
	Registrar                            events.Registrar
	Deregistrar                          events.Deregistrar
	ForwardRegistrar, ForwardDeregistrar http.Handler
	// Left is called when a client has disconnected while its call to a backend continues; see [mcp.Options.Left].
	Left func(*http.Request)
}

// pollMin and pollMax limit the time that the server suggests to a client until its next events/poll.
const pollMin, pollMax = time.Second, 30 * time.Second

// NewStreamEndpoint returns the MCP endpoint of the stream role.
func NewStreamEndpoint(c *Core, o StreamOptions) (*mcp.Endpoint, error) {
	options, l := endpointOptions(c), c.Limits
	options.Feeds, options.Leases, options.Sessions, options.Subscriptions = o.Feeds, o.Leases, c.DB, NewLists(c)
	options.Gateway, options.Conversation, options.Left = o.Backends, o.Conversation, o.Left
	options.Registrar, options.Deregistrar = o.Registrar, o.Deregistrar
	options.ForwardRegistrar, options.ForwardDeregistrar = o.ForwardRegistrar, o.ForwardDeregistrar
	options.MaxAge, options.Heartbeat, options.AnswerStreamAfter = l.StreamMaxAge, l.Heartbeat, l.AnswerStreamAfter
	options.MaxSessions, options.Dialect = c.maxSessions, mcp.NamedEvents
	options.Calls = quota.NewConcurrency(quota.Calls, "calls to backends", c.CallerQuota(quota.Calls), descriptors.MaxOutgoing())
	options.PollMin, options.PollMax = cmp.Or(l.PollMin, pollMin), cmp.Or(l.PollMax, pollMax)
	if l.EventTools {
		options.EventTools = logsource.New
	}
	return mcp.New(options)
}

// NewSharedLeases returns the leases that limit the open streams of all instances together. The store holds the leases. The parameter
// concurrent is the number of requests that one instance can serve at the same time.
func NewSharedLeases(c *Core, concurrent int) *lease.Shared {
	const share = 80 // percent of all requests that may be streams; the rest is for calls, so that they always find a free instance
	l := c.Limits
	return &lease.Shared{
		DB: c.DB, Max: c.maxStreams, Fleet: l.StreamConcurrency * int64(concurrent) * share / 100,
		Life: l.StreamMaxAge, Check: l.Heartbeat, Log: c.Log,
	}
}

// NewLocalLeases returns the leases that limit the open streams of a single process.
func NewLocalLeases(c *Core) *lease.Local { return lease.NewLocal(c.maxStreams) }

// GatewayOptions configure [NewGateway].
type GatewayOptions struct {
	// Secrets looks up the secrets that settings refer to. If it is nil, secrets are read from environment variables.
	Secrets gateway.Secrets
	// Key is the secret that protects the gateway's state in the hands of clients. A client receives this state in one response, and
	// sends it back with its next request. Key is nil if the process serves no clients.
	Key []byte
	// HTTP is the client for requests to backends. If it is nil, the gateway uses a default client.
	HTTP *http.Client
	// Commands runs the backends that are programs on this machine. It is nil if the process runs none.
	Commands backends.Commands
	// LogDelay is how long the log line of a call may wait, so that several lines are written together. On Lambda it must be 0, because
	// the process may be frozen after each response.
	LogDelay time.Duration
	// StreamLinger is how long the GET stream of a session with a backend stays open after the session's last call. On Lambda it
	// must be 0, because a frozen process cannot read or answer the messages that the backend sends on this stream.
	StreamLinger time.Duration
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
			all, err := c.Demand.ListWanted(ctx, workspace, backend)
			return err == nil && len(all) > 0
		}
	}
	return gateway.New(gateway.Options{
		EventsWanted: wanted,
		Source:       c.Config.Backends, Secrets: o.Secrets, Key: o.Key, HTTP: o.HTTP, Commands: o.Commands, Server: server,
		DB: c.DB, Log: c.Log, LogDelay: o.LogDelay, StreamLinger: o.StreamLinger, Metrics: c.Metrics, Tracer: c.Tracer,
	})
}

// NewConversation returns the service that passes messages of conversations to the configured context providers. The caller sets only the
// options that differ between a stand-alone server and AWS. NewConversation sets the others.
func NewConversation(c *Core, o conversation.Options) (*conversation.Service, error) {
	o.Source, o.Catalogs, o.DB, o.Log, o.Metrics = c.Config, c.Catalogs, c.DB, c.Log, c.Metrics
	o.AllowAnonymous, o.Rate = c.Limits.AllowInsecureTargets, conversation.NewRate(c.CallerQuota(quota.ConversationRate))
	return conversation.New(o)
}

// NewConsent returns the handler of the HTTP API for consents, at /consent.
func NewConsent(c *Core, s *conversation.Service) *conversation.Handler {
	return &conversation.Handler{Service: s, Auth: c.Auth, Guard: c.Guard, MetadataURL: c.ResourceMetadata, Log: c.Log}
}
