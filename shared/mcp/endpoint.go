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
	"github.com/mcp-events/mcpevents/shared/gateway/api"
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

// Implementation names the server to its clients.
type Implementation struct {
	Name    string `json:"name"`
	Version string `json:"version"`
}

// Options configure an [Endpoint]. Auth and Catalogs are required, and the times where there are Feeds. What else is
// nil switches off the methods that need it.
type Options struct {
	Server Implementation

	Auth     auth.Authenticator
	Catalogs catalog.Source // is asked on every request, and should answer from memory

	// Feeds serves what is read: lists, resources/read and completions, the streams of all revisions, and polls.
	Feeds *stream.Tails
	// Sessions holds the sessions of the earlier revisions, for which it needs Feeds. Without it initialize
	// is unknown, and requests of these revisions are served one by one.
	Sessions store.DB
	// MaxSessions is how many sessions a principal may have; nil is no limit.
	MaxSessions func(ctx context.Context, p auth.Principal) int

	Subscriptions streams.Subscriptions
	Registrar     events.Registrar
	Deregistrar   events.Deregistrar
	// ForwardRegistrar and ForwardDeregistrar get the whole HTTP request,
	// credentials included, of the methods that Registrar or Deregistrar would serve.
	// They check it again by themselves.
	ForwardRegistrar   http.Handler
	ForwardDeregistrar http.Handler
	// AnonymousWebhooks lets the principal of --auth none use events/subscribe;
	// for development only.
	AnonymousWebhooks bool

	// Gateway serves what the backends have; nil without backends.
	Gateway api.Gateway
	// Conversation handles what is said in conversations; nil is none.
	Conversation streams.Conversation

	// EventTools makes tools that serve events to clients that know only tools, for example those of package logsource.
	// It needs Feeds; nil is none.
	EventTools func(*streams.Streams) events.Tools

	// Profile returns the profile of the MCP Events extension that a principal is configured for, or the default one. Nil is
	// [spec.Released] for all.
	Profile func(ctx context.Context, p auth.Principal) spec.Profile
	// EventsRevisions replaces [spec.EventsRevisions].
	EventsRevisions map[string]spec.Profile

	// Guard keeps pages of other sites out.
	Guard auth.Guard
	// ResourceMetadata is the URL of the protected resource metadata (RFC 9728)
	// that a 401 names; empty for none.
	ResourceMetadata string

	// PageSize is the number of entries on a page of a list; 0 is 100.
	PageSize int
	// MaxAge is how long a stream stays open. A deadline of the request's context ends it 5 s before.
	MaxAge time.Duration
	// AnswerStreamAfter is how long the answer to a list may wait for backends before it becomes a stream.
	AnswerStreamAfter time.Duration
	// Heartbeat is the longest quiet of a stream.
	Heartbeat time.Duration
	// WriteTimeout ends a stream whose reader takes nothing for so long; 0 is 30 s.
	WriteTimeout time.Duration
	// Leases bound the streams of a principal and of the fleet; nil bounds neither.
	Leases streams.Leases
	// Left is called when the client of a call to a backend has disconnected and the call goes on; nil where no connection is
	// held for it.
	Left func(*http.Request)
	// Calls bound the calls to backends that a principal has under way; nil does not.
	Calls *quota.Held
	// MaxStreamURIs is how many URIs a session or a listen may be subscribed to; 0
	// is 200. MaxStreamPatterns is how many of them may be parents or wildcards,
	// each of which is several partitions of the log to read; 0 is 20.
	MaxStreamURIs, MaxStreamPatterns int
	// PollMin and PollMax bound the time after which a client is asked to poll again.
	PollMin, PollMax time.Duration

	// Metrics count polls, ends of streams and limits that are met; may be nil.
	Metrics *metric.Set
	// Logger gets failures, and why streams ended; nil is [slog.Default].
	Logger *slog.Logger
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

// Endpoint serves MCP. It is an [http.Handler] under net/http and under
// aws-lambda-go's lambdaurl alike. Make it with [New]; end its streams with
// [Endpoint.Close].
type Endpoint struct {
	options  Options
	methods  method.Table
	sessions *session.Store // nil without those of [Options]
	catalogs method.Catalogs
	backends api.Gateway
	faults   method.Faults
	replies  *method.Replies
	about    *description

	// What serves the methods and the streams.
	calls         *calls
	session       *sessionMethods
	conversations *conversations
	streams       *streams.Streams
	admission     *streams.Admission

	shut context.Context // ends requests that still run, see Close
	cut  context.CancelFunc
}

// New makes an endpoint.
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
		e.backends = api.None{}
	}
	if o.Sessions != nil {
		e.sessions = &session.Store{
			DB: o.Sessions, MaxURIs: o.MaxStreamURIs, Max: o.MaxSessions, Broken: metric.NewUndecodable(o.Logger), Prolong: e.prolong,
		}
	}
	e.shut, e.cut = context.WithCancel(context.Background())
	e.admission = streams.NewAdmission(o.MaxAge, o.WriteTimeout, o.Leases, e.faults)
	e.replies = method.NewReplies(jsonrpc.Encode(o.Server), e.faults, e.catalogs, o.ResourceMetadata)
	e.about = &description{
		server: o.Server, methods: e.methods, sessions: e.sessions, backends: e.backends, conversation: o.Conversation,
	}
	timing := method.Timing{Heartbeat: o.Heartbeat, AnswerAfter: o.AnswerStreamAfter, WriteTimeout: o.WriteTimeout}
	targets := &streams.Targets{Subscriptions: o.Subscriptions, Backends: e.backends}
	e.calls = &calls{e.backends, o.Calls, o.Left, e.catalogs, e.faults, timing, e.shut}
	e.session = &sessionMethods{
		sessions: e.sessions, catalogs: e.catalogs, targets: targets, feeds: o.Feeds, backends: e.backends,
		about: e.about, replies: e.replies, faults: e.faults, maxPatterns: o.MaxStreamPatterns,
	}
	e.conversations = &conversations{o.Conversation, o.Feeds}
	e.streams = &streams.Streams{
		Admission: e.admission, Auth: o.Auth, Catalogs: e.catalogs, Targets: targets, Backends: e.backends, Methods: e.methods,
		Sessions: e.sessions, Feeds: o.Feeds, Conversation: o.Conversation, Replies: e.replies, Faults: e.faults,
		Timing: timing, MaxURIs: o.MaxStreamURIs, MaxPatterns: o.MaxStreamPatterns,
	}
	var tools events.Tools
	if o.EventTools != nil && o.Feeds != nil {
		tools = o.EventTools(e.streams)
		e.about.instructions = tools.Instructions()
	}
	e.table(events.NewLists(events.Lists{
		Catalogs: e.catalogs, Subscriptions: o.Subscriptions, Backends: e.backends, Tools: tools, Methods: e.methods,
		PageSize: o.PageSize, Anonymous: o.AnonymousWebhooks,
	}))
	return e, nil
}

// Close ends every open stream the way its revision wants, and waits for them and
// what they leave in the store until ctx ends. New streams are refused; other requests are still served. Those that run
// when ctx is about to end are answered with an error then, even after Close has returned.
func (e *Endpoint) Close(ctx context.Context) error {
	if deadline, ok := ctx.Deadline(); ok {
		left := time.Until(deadline)
		time.AfterFunc(left-min(method.CallReserve, left/2), e.cut)
	}
	return e.admission.Close(ctx)
}

// OpenStreams is the number of streams that are open now.
func (e *Endpoint) OpenStreams() int64 { return e.admission.Count() }
