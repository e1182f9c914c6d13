// Package mcp is the MCP endpoint. It serves Streamable HTTP for the revisions 2025-03-26, 2025-06-18 and 2025-11-25, which have
// sessions, and 2026-07-28, which has no sessions. The file dialect.go serves the same methods over an older transport at
// /mcp/{workspace}.
//
//	        ┌ checks ─────────────────────────┐   ┌ method table ┐
//	POST ──▶│ origin, caller, size, JSON-RPC, │──▶│ resources/…  │──▶ catalog, event log
//	        │ version, headers                │   │ events/…     │──▶ subscriptions
//	GET  ──▶│ session                         │   │ …/listen     │──▶ feed ──▶ stream
//	        └─────────────────────────────────┘   └──────────────┘
//
// [Endpoint] checks requests and dispatches them to the methods. It also has the code for sessions, for messages of conversations, and
// for calls that are forwarded to backends. The packages below it serve the other methods:
//
//	mcp ──▶ events ──▶ streams ──▶ method     eventtools/logsource is given to the endpoint by Options.EventTools
//	   └──▶ session ◀────┘
//
// docs/internals/architecture.md follows a tools/call through these packages.
package mcp

import (
	"cmp"
	"context"
	"log/slog"
	"net/http"
	"time"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/auth/quota"
	"github.com/mcp-events/mcpevents/shared/events/catalog"
	"github.com/mcp-events/mcpevents/shared/events/stream"
	"github.com/mcp-events/mcpevents/shared/mcp/events"
	"github.com/mcp-events/mcpevents/shared/mcp/method"
	"github.com/mcp-events/mcpevents/shared/mcp/session"
	"github.com/mcp-events/mcpevents/shared/mcp/streams"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/platform/metric"
	"github.com/mcp-events/mcpevents/shared/protocol/jsonrpc"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
	"github.com/mcp-events/mcpevents/shared/storage/store"
)

// Implementation is the name and version with which the server introduces itself to its clients.
type Implementation struct {
	Name    string `json:"name"`
	Version string `json:"version"`
}

// Options configure an [Endpoint]. Auth and Catalogs are required. If Feeds is set, then MaxAge, Heartbeat, PollMin and PollMax
// are required too. If Feeds, Sessions, Registrar, Deregistrar, Gateway, Dialect, Conversation or EventTools is nil, the
// endpoint lacks the methods that need it.
type Options struct {
	Server Implementation

	Auth     auth.Authenticator
	Catalogs catalog.Source // provides the catalogs; it should cache them, because the endpoint asks it on every request

	// Feeds reads events from the event log. Lists of resources, resources/read, completions, polls and all streams use it.
	Feeds *stream.Tails
	// Sessions stores the sessions of the session-based revisions (up to 2025-11-25). It needs Feeds. If Sessions is nil, the endpoint
	// refuses initialize, and serves each request of these revisions without the state of earlier requests.
	Sessions store.DB
	// MaxSessions returns how many sessions a principal may have. Nil means no limit.
	MaxSessions func(ctx context.Context, p auth.Principal) int

	Subscriptions streams.Subscriptions
	Registrar     events.Registrar
	Deregistrar   events.Deregistrar
	// ForwardRegistrar and ForwardDeregistrar, if set, serve the methods that make and end webhook subscriptions, instead of
	// Registrar and Deregistrar. They get the whole HTTP request with its credentials, and authenticate it again.
	ForwardRegistrar   http.Handler
	ForwardDeregistrar http.Handler
	// AnonymousWebhooks lets the anonymous callers of a server with --auth none use events/subscribe and events/unsubscribe, for
	// development.
	AnonymousWebhooks bool

	Gateway Gateway // nil without backends
	// Dialect returns the function that serves requests to /mcp/{workspace}, for example [NamedEvents]. It is optional.
	Dialect      func(*Endpoint) Dialect
	Conversation streams.Conversation // may be nil

	// EventTools makes tools through which clients that support only tools can receive events, for example the tools of package
	// logsource. It needs Feeds.
	EventTools func(*streams.Streams) events.Tools

	// Profile returns the version of the MCP Events extension for a principal's calls. A version that the client itself declares takes
	// precedence. Nil means [spec.Released] for all principals.
	Profile func(ctx context.Context, p auth.Principal) spec.Profile
	// EventsRevisions maps each revision of the MCP Events extension that a client may declare to the profile that serves it. Nil means
	// [spec.EventsRevisions].
	EventsRevisions map[string]spec.Profile

	// Guard refuses requests that a browser sends for a web page of another site. Such a page could otherwise call the server with the
	// visitor's access.
	Guard            auth.Guard
	ResourceMetadata string // the URL of the protected resource metadata (RFC 9728) in a 401, or empty

	PageSize int // entries on a page of a list; 0 means 100
	// MaxAge is how long a stream may stay open. If the request has a deadline, the stream ends at least five seconds before the
	// deadline.
	MaxAge time.Duration
	// AnswerStreamAfter is how long a handler may wait for backends or for an event before its response becomes an SSE stream. 0 means
	// immediately.
	AnswerStreamAfter time.Duration
	Heartbeat         time.Duration  // how long a stream may be quiet before the endpoint sends a heartbeat
	WriteTimeout      time.Duration  // ends a stream whose client has not read for this long; 0 means 30 s
	Leases            streams.Leases // limit the open streams; nil means no limit
	// Left is called when the client has disconnected during a call to a backend, although the call continues. The server can then close
	// the connection, so that it no longer counts toward the limit of connections. Left is optional.
	Left  func(*http.Request)
	Calls *quota.Concurrency // limits the concurrent calls of a principal to backends; nil means no limit
	// MaxStreamURIs is the maximum number of URIs to which a session or a subscriptions/listen may subscribe; 0 means 200.
	//
	// MaxStreamPatterns is the maximum number of these URIs that may have a wildcard or be a parent of other URIs, such as
	// event://orders; 0 means 20. It is lower because a stream reads several partitions of the event log for each such URI.
	MaxStreamURIs, MaxStreamPatterns int
	// PollMin and PollMax are the shortest and the longest time that the server asks a client to wait before its next events/poll.
	PollMin, PollMax time.Duration

	Metrics *metric.Set  // may be nil
	Logger  *slog.Logger // nil means [slog.Default]
}

func (o Options) withDefaults() Options {
	o.WriteTimeout = cmp.Or(o.WriteTimeout, 30*time.Second)
	o.MaxStreamURIs = cmp.Or(o.MaxStreamURIs, 200)
	o.MaxStreamPatterns = cmp.Or(o.MaxStreamPatterns, 20)
	o.PageSize = cmp.Or(o.PageSize, 100)
	o.Logger = cmp.Or(o.Logger, slog.Default())
	if o.EventsRevisions == nil {
		o.EventsRevisions = spec.EventsRevisions
	}
	return o
}

// Dialect is a function that serves an authenticated request to /mcp/{workspace}.
type Dialect func(w http.ResponseWriter, c *method.Call, workspace string)

// Endpoint is an [http.Handler] that serves MCP, either with net/http or with lambdaurl of aws-lambda-go. [Endpoint.Close] ends its
// streams.
type Endpoint struct {
	options  Options
	methods  method.Table
	sessions *session.Store // nil without [Options.Sessions]
	catalogs method.Catalogs
	backends Gateway
	faults   method.Faults
	replies  *method.Replies
	dialect  Dialect // may be nil
	streams  *streams.Streams

	instructions string // how to use the event tools; empty without them

	shut        context.Context // is canceled late in a shutdown, and then ends the calls in sessions and the calls to backends
	cutOffCalls context.CancelFunc
}

// New returns an endpoint with the given options.
func New(o Options) (*Endpoint, error) {
	if o.Auth == nil || o.Catalogs == nil {
		return nil, fault.New(fault.Internal, "make the MCP endpoint: Auth and Catalogs are required")
	}
	if o.Sessions != nil && o.Feeds == nil {
		return nil, fault.New(fault.Internal, "make the MCP endpoint: Sessions need Feeds")
	}
	o = o.withDefaults()
	e := &Endpoint{
		options: o, methods: method.Table{}, catalogs: method.Catalogs{Source: o.Catalogs}, backends: o.Gateway,
		faults: method.Faults{Logger: o.Logger, Metrics: o.Metrics},
	}
	if e.backends == nil {
		e.backends = noBackends{}
	}
	if o.Sessions != nil {
		e.sessions = &session.Store{
			DB: o.Sessions, MaxURIs: o.MaxStreamURIs, Max: o.MaxSessions, Broken: metric.NewUndecodable(o.Logger, o.Metrics), Prolong: e.prolong,
		}
	}
	e.shut, e.cutOffCalls = context.WithCancel(context.Background())
	e.replies = method.NewReplies(jsonrpc.Encode(o.Server), e.faults, e.catalogs, o.ResourceMetadata)
	e.streams = &streams.Streams{
		Admission: streams.NewAdmission(o.MaxAge, o.WriteTimeout, o.Leases, e.faults), Auth: o.Auth, Catalogs: e.catalogs, Backends: e.backends, Methods: e.methods,
		Subscriptions: o.Subscriptions, Sessions: e.sessions, Feeds: o.Feeds, Conversation: o.Conversation, Replies: e.replies, Faults: e.faults,
		Timing:  method.Timing{Heartbeat: o.Heartbeat, AnswerAfter: o.AnswerStreamAfter, WriteTimeout: o.WriteTimeout},
		MaxURIs: o.MaxStreamURIs, MaxPatterns: o.MaxStreamPatterns,
	}
	if o.Dialect != nil {
		e.dialect = o.Dialect(e)
	}
	var tools events.Tools
	if o.EventTools != nil && o.Feeds != nil {
		tools = o.EventTools(e.streams)
		e.instructions = tools.Instructions()
	}
	e.table(events.NewLists(events.Lists{
		Catalogs: e.catalogs, Subscriptions: o.Subscriptions, Backends: e.backends, Tools: tools, Methods: e.methods,
		PageSize: o.PageSize, Anonymous: o.AnonymousWebhooks,
	}))
	return e, nil
}

// Close refuses new streams from now on, and ends every open stream with the messages that the stream's revision requires. It waits until
// the streams have ended and cleaned up in the store, or until ctx ends. The endpoint still serves other requests.
//
// If ctx has a deadline, the endpoint also ends the running calls in sessions and to backends, even after Close has returned. It ends
// them [method.CallReserve] before the deadline, or halfway to the deadline if that is later. The clients of calls to backends then get
// an error.
func (e *Endpoint) Close(ctx context.Context) error {
	if deadline, ok := ctx.Deadline(); ok {
		left := time.Until(deadline)
		time.AfterFunc(left-min(method.CallReserve, left/2), e.cutOffCalls)
	}
	return e.streams.Admission.Close(ctx)
}

// OpenStreams returns the number of open streams.
func (e *Endpoint) OpenStreams() int64 { return e.streams.Admission.Count() }
