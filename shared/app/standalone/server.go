// Package standalone runs the whole product in one process: the listeners and connections, the endpoints for MCP clients,
// publishers and operators, and all deliveries. State is in one SQLite file. Package app creates the roles, such as fanout and
// dispatch, which are the same as on AWS. There each role is a Lambda function, and here goroutines run them. Only one process
// at a time may use a data directory.
//
// The command serve starts a server of this package, and the public package server wraps it for other programs. Read [New]
// first, then [Server.build], which connects the roles, and [Server.run] in process.go, which starts the workers.
package standalone

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	sdk "go.opentelemetry.io/otel/sdk/metric"
	oteltrace "go.opentelemetry.io/otel/trace"

	"github.com/mcp-events/mcpevents/shared/app"
	"github.com/mcp-events/mcpevents/shared/app/config"
	"github.com/mcp-events/mcpevents/shared/app/relays"
	"github.com/mcp-events/mcpevents/shared/app/webhooks"
	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/auth/jwt"
	"github.com/mcp-events/mcpevents/shared/conversation"
	"github.com/mcp-events/mcpevents/shared/events/catalog"
	"github.com/mcp-events/mcpevents/shared/events/delivery"
	"github.com/mcp-events/mcpevents/shared/events/delivery/deadletter"
	"github.com/mcp-events/mcpevents/shared/events/delivery/lifecycle"
	"github.com/mcp-events/mcpevents/shared/events/demand"
	"github.com/mcp-events/mcpevents/shared/events/fanout"
	eventlog "github.com/mcp-events/mcpevents/shared/events/log"
	"github.com/mcp-events/mcpevents/shared/events/publish"
	"github.com/mcp-events/mcpevents/shared/events/stream"
	"github.com/mcp-events/mcpevents/shared/events/subscription"
	"github.com/mcp-events/mcpevents/shared/events/switches"
	"github.com/mcp-events/mcpevents/shared/events/webhook"
	"github.com/mcp-events/mcpevents/shared/events/webhook/targets"
	"github.com/mcp-events/mcpevents/shared/gateway"
	"github.com/mcp-events/mcpevents/shared/gateway/api"
	"github.com/mcp-events/mcpevents/shared/gateway/inprocess"
	"github.com/mcp-events/mcpevents/shared/gateway/relay"
	"github.com/mcp-events/mcpevents/shared/gateway/stdio"
	"github.com/mcp-events/mcpevents/shared/mcp"
	"github.com/mcp-events/mcpevents/shared/platform/descriptors"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/platform/metric"
	"github.com/mcp-events/mcpevents/shared/platform/periodic"
	"github.com/mcp-events/mcpevents/shared/platform/secret"
	"github.com/mcp-events/mcpevents/shared/platform/trace"
	"github.com/mcp-events/mcpevents/shared/storage/queue"
	queuesqlite "github.com/mcp-events/mcpevents/shared/storage/queue/sqlite"
	"github.com/mcp-events/mcpevents/shared/storage/settings"
	"github.com/mcp-events/mcpevents/shared/storage/store/sqlite"
	"github.com/mcp-events/mcpevents/shared/storage/store/sqlite/engine"
)

// Options configure a server.
type Options struct {
	// Addr is the address to listen on. With [auth.ModeNone] it must be a loopback address. If it is empty, the server does
	// not listen. Then the program serves [Server.Handler] itself, and is responsible for restricting access to it.
	Addr string
	// Data is the directory of the database and the keys. The server creates it if necessary. With ":memory:", all data is
	// lost when the process ends.
	Data string
	// Catalog declares the event types, in YAML. CatalogName is the file's name in error messages, by default catalog.yaml.
	Catalog     []byte
	CatalogName string
	// Workspaces has the catalogs of workspaces with a catalog of their own. All other workspaces use Catalog.
	Workspaces map[string]*catalog.Catalog
	// Config has the API keys, backends and sources. It may be nil.
	Config *config.Config
	// Upstream is the program's own MCP server, which becomes a backend in this process. It speaks Streamable HTTP of any
	// revision, and receives its requests at the path /mcp. Only callers of the default workspace see its tools, prompts and
	// resources, together with the events. Requests to it carry no credentials, because the server has already authenticated
	// the caller.
	Upstream http.Handler
	// Auth is how callers are authenticated, by default [auth.ModeNone].
	Auth auth.Mode
	// AllowBreaking accepts catalogs that end live subscriptions. Otherwise they are refused.
	AllowBreaking bool
	// SettingsError is set by a program that could not read the catalogs or the configuration. [New] and [Server.Reload] then
	// treat these settings as refused, with this error as the reason.
	SettingsError error
	// LastSettings lets the server start with the previous catalogs and configuration, which are in the data directory, if
	// the new ones are refused. The server then logs the reason, and reports it in GET /readyz and in a metric until
	// [Server.Reload] succeeds. Without LastSettings, New fails.
	LastSettings bool
	// Limits are all other settings, which correspond to the flags of the command serve. The zero value means [DefaultLimits].
	// To change some settings, start from DefaultLimits().
	Limits config.Limits
	// AdminAddr is a separate address for the admin API and the console. With [auth.ModeNone] it must be a loopback address.
	// If it is empty, they are served at Addr.
	AdminAddr string
	// Metrics are readers that receive the same metrics as GET /metrics, for example a periodic exporter of OpenTelemetry. The
	// program that passes them shuts them down.
	Metrics []sdk.Reader
	// Traces receives the spans of events and of calls to backends. If it is nil, the server creates no spans. The program
	// that passes it shuts it down.
	Traces oteltrace.TracerProvider
	// Log is [slog.Default] if it is nil.
	Log *slog.Logger
}

// DefaultLimits returns the default settings, which are the default values of the flags of the command serve.
func DefaultLimits() config.Limits { return config.DefaultLimits() }

// Event is an event to publish; see [publish.Input].
type Event = publish.Input

// Accepted is an accepted event: its id, and its URI in canonical form.
type Accepted = publish.Accepted

// Server is a running server. [New] starts it and [Server.Shutdown] ends it. Its methods may be called concurrently.
type Server struct {
	// URL is the server's URL without a path. It is empty if the server does not listen.
	URL string
	// AdminURL is the URL of the admin API without its path.
	AdminURL string

	core       *app.Core
	db         *sqlite.DB
	queues     *queuesqlite.Queues
	tails      *stream.Tails
	publisher  *publish.Service
	dispatcher *delivery.Dispatcher
	endpoint   *mcp.Endpoint
	tokens     *jwt.Authenticator // nil except for [auth.ModeJWT]
	handler    http.Handler
	metrics    http.Handler
	listening  *http.Server // nil if the server does not listen
	// connections are the connections of listening.
	connections *connections
	served      chan error
	operators   *http.Server // nil unless the admin API has an address of its own

	upstream     *inprocess.Transport // nil without [Options.Upstream]
	commands     *stdio.Transport
	backends     *gateway.Gateway
	catalogs     *catalog.Stored
	terminator   *lifecycle.Terminator
	conversation *conversation.Service

	refused atomic.Bool // true if the last catalogs or configuration were refused

	closing context.Context // ends when the server begins to shut down
	close   context.CancelFunc
	stop    context.CancelFunc
	workers sync.WaitGroup
	undo    []func() // closes the opened parts if a later step of the start fails

	shutdown sync.Once
	ended    error // the result of the shutdown
}

// New starts a server, and returns when it accepts requests. The server keeps running when ctx ends. If something in the
// options or in the data directory is missing or out of range, the error is of kind fault.Invalid.
func New(ctx context.Context, o Options) (_ *Server, err error) {
	if err := o.complete(); err != nil {
		return nil, err
	}
	files, refused := o.files()
	if refused != nil && !o.LastSettings {
		return nil, refused
	}
	s := &Server{served: make(chan error, 2)}
	defer func() {
		if err != nil {
			for _, undo := range slices.Backward(s.undo) {
				undo()
			}
		}
	}()
	if o.Upstream != nil {
		s.upstream = &inprocess.Transport{Handler: o.Upstream, Log: o.Log}
	}
	s.closing, s.close = context.WithCancel(context.WithoutCancel(ctx))
	keys, err := s.open(ctx, o)
	if err != nil {
		return nil, err
	}
	listener, err := s.listen(o.Addr, o.AdminAddr)
	if err != nil {
		return nil, err
	}
	adminListener, err := s.listenAdmin(o)
	if err != nil {
		return nil, err
	}
	roles, err := s.build(ctx, keys, listener)
	if err != nil {
		return nil, err
	}
	if refused == nil && o.LastSettings {
		refused = s.checkNotEmptied(ctx, o.Config)
	}
	if refused == nil {
		_, refused = s.apply(ctx, files)
	}
	if err := s.startRefused(ctx, o, refused); err != nil {
		return nil, err
	}
	if err := s.registerMetrics(); err != nil {
		return nil, fault.Wrap(fault.Internal, err, "make the metrics")
	}
	proxies, _ := auth.ParseProxies(o.Limits.TrustedProxies) // the limits are checked
	secret := auth.SecretPath{Auth: s.core.Auth, Proxies: proxies}
	s.handler = boundBodies(secret.Handler(s.serveAdmin(roles, o.Auth, adminListener)), bodyTime)
	s.run(ctx, roles)
	if listener != nil {
		s.listening = s.httpServer(s.handler)
		s.connections.attach(s.listening)
		go func() { s.served <- s.listening.Serve(listener) }()
	}
	return s, nil
}

// complete fills in defaults, and refuses options that are missing or out of range.
func (o *Options) complete() error {
	o.Log, o.Auth = cmp.Or(o.Log, slog.Default()), cmp.Or(o.Auth, auth.ModeNone)
	if reflect.ValueOf(o.Limits).IsZero() {
		o.Limits = DefaultLimits()
	}
	switch {
	case o.Data == "":
		return fault.New(fault.Invalid, "Data is missing: a directory, or :memory: to keep nothing")
	case o.Auth != auth.ModeNone && o.Auth != auth.ModeKeys && o.Auth != auth.ModeJWT:
		return fault.New(fault.Invalid, "Auth is %.100q (allowed: none, keys, jwt)", string(o.Auth))
	}
	if o.Auth == auth.ModeKeys && o.Config == nil && o.SettingsError == nil {
		return fault.New(fault.Invalid, "--auth keys needs a --config file with keys")
	}
	o.Limits.DeliveryLog = cmp.Or(o.Limits.DeliveryLog, "all")
	if err := o.Limits.Check(); err != nil {
		return err
	}
	if f, ok := o.Upstream.(http.HandlerFunc); ok && f == nil {
		return fault.New(fault.Invalid, "Upstream is an http.HandlerFunc that is nil: leave it out, or give a handler")
	}
	if o.Addr == "" {
		return nil
	}
	return auth.CheckListen(o.Addr, o.Auth)
}

// httpServer returns a server for one of the addresses. It limits the time for everything except request bodies and
// responses, which boundBodies and connections limit.
func (s *Server) httpServer(h http.Handler) *http.Server {
	return &http.Server{
		Handler: h, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 32 << 10,
		ErrorLog: slog.NewLogLogger(s.core.Log.Handler(), slog.LevelWarn),
	}
}

// roles are the parts that are needed only to start the server: run starts their workers, and newRoutes and serveAdmin serve
// them over HTTP.
type roles struct {
	publishing    app.Publishing
	fanout        *fanout.Fanout
	subscriptions *subscription.Service
	operations    *deadletter.Operations
	switches      *switches.Set
	replays       *deadletter.Replays
	jobs          []periodic.Job
	relay         *relay.Relay
	mux           *http.ServeMux
}

// build creates all roles.
func (s *Server) build(ctx context.Context, keys secrets, listener net.Listener) (r roles, err error) {
	cursors, err := eventlog.NewSealer(keys.Cursor)
	if err != nil {
		return r, err
	}
	identity, err := keys.loadIdentity(s.core.Limits.ServerIdentity)
	if err != nil {
		return r, err
	}
	sending := webhooks.SenderOptions{Identity: identity, ConnsPerHost: 2 * attempts}
	if listener != nil {
		sending.OwnHost = listener.Addr().String()
	}
	sender := webhooks.NewSender(s.core, sending)
	s.undo = append(s.undo, sender.Close)
	key := func(context.Context) ([]byte, error) { return keys.Cursor, nil }
	s.core.Demand.Key = key
	r.publishing = app.NewPublishing(s.core, app.PublishingOptions{
		Secrets: secret.FromEnvironment, Key: key, Dropped: func(ctx context.Context, workspace, backend, reason string) {
			s.backends.CountDrop(ctx, api.Backend{Workspace: workspace, Name: backend}, reason)
		},
	})
	r.fanout = webhooks.NewFanout(s.core)
	s.publisher = r.publishing.Service
	if err := s.buildDelivery(&r, keys, cursors, sender); err != nil {
		return r, err
	}
	if err := s.buildEndpoint(ctx, r, keys, cursors, sender); err != nil {
		return r, err
	}
	r.relay = relays.New(s.core, s.backends, key, func(ctx context.Context) error {
		s.catalogs.Written()
		return settings.Announce(ctx, s.db, 0, stream.AnnounceStored(s.core.EventLog))
	})
	r.mux = s.newRoutes(r.publishing, identity)
	return r, nil
}

// buildDelivery creates the dispatcher and the other parts that read or end subscriptions: terminator, replays, switches and
// periodic jobs.
func (s *Server) buildDelivery(r *roles, keys secrets, cursors *eventlog.Sealer, sender *webhook.Sender) error {
	opener, err := webhook.NewOpener(keys.Private)
	if err != nil {
		return err
	}
	gate := &delivery.Gate{}
	r.subscriptions = app.NewSubscriptions(s.core, app.SubscriptionOptions{Started: gate.Open, Ended: gate.Close})
	s.terminator = webhooks.NewTerminator(s.core, r.subscriptions)
	r.switches, r.operations = webhooks.NewSwitches(s.core, true), webhooks.NewOperations(s.core)
	s.dispatcher = webhooks.NewDispatcher(s.core, webhooks.DispatcherOptions{
		Subscriptions: r.subscriptions, Terminator: s.terminator, Switches: r.switches, Sender: sender, Opener: opener,
		Cursors: func(context.Context) (*eventlog.Sealer, error) { return cursors, nil }, Gate: gate,
		Options: delivery.Options{
			Concurrency: attempts, Patience: attemptPatience, Detached: 4 * attempts, Bytes: attemptBytes, LogDeliveries: true,
		},
	})
	r.replays = webhooks.NewReplays(s.core, deadletter.ReplayOptions{
		Subscriptions: r.subscriptions, Operations: r.operations, Ahead: replayEvery,
	})
	r.jobs = webhooks.NewJobs(s.core, webhooks.JobOptions{
		Subscriptions: r.subscriptions, Terminator: s.terminator, Switches: r.switches, Operations: r.operations, SaveEvery: savePositions,
	})
	return nil
}

// buildEndpoint creates the MCP endpoint, and the gateway and the conversations behind it.
func (s *Server) buildEndpoint(ctx context.Context, r roles, keys secrets, cursors *eventlog.Sealer, sender *webhook.Sender) (err error) {
	sealer, err := webhook.NewSealer(keys.Public)
	if err != nil {
		return err
	}
	s.tails = stream.New(s.core.EventLog, s.db, cursors)
	s.tails.Shares, s.tails.Demand = s.catalogs.UsesShared, s.core.Demand
	s.undo = append(s.undo, s.tails.Close)
	identity, err := app.Identity()
	if err != nil {
		return err
	}
	s.commands = &stdio.Transport{Source: s.core.Config.Backends, Secrets: secret.FromEnvironment, Server: identity, Log: s.core.Log}
	s.undo = append(s.undo, func() { s.commands.Close(context.WithoutCancel(ctx)) })
	s.backends, err = app.NewGateway(s.core, app.GatewayOptions{Key: keys.Cursor, HTTP: s.backendClient(), Commands: s.commands, LogDelay: callLogDelay})
	if err != nil {
		return err
	}
	s.commands.Dropped = s.backends.CountDrop
	s.conversation, err = app.NewConversation(s.core, conversation.Options{
		Key: keys.Cursor, Backends: s.backends, Publisher: publish.OnBehalf{Service: s.publisher}, Prepares: true,
	})
	if err != nil {
		return err
	}
	s.undo = append(s.undo, func() { _ = s.conversation.Close(context.WithoutCancel(ctx)) })
	s.endpoint, err = app.NewStreamEndpoint(s.core, app.StreamOptions{
		Feeds: s.tails, Leases: app.NewLocalLeases(s.core), Backends: s.backends, Conversation: s.conversation, Left: clientLeft,
		Registrar: webhooks.NewRegistrar(s.core, webhooks.RegistrarOptions{
			Subscriptions: r.subscriptions, Targets: targets.Targets{Sender: sender, Sealer: sealer}, Cursors: cursors,
		}),
		Deregistrar: r.subscriptions,
	})
	return err
}

// Handler returns the handler of all paths: /mcp, /events, /sources, /consent, /healthz, /readyz, /metrics, /.well-known/…
// and, unless they have an address of their own, /admin and /console.
func (s *Server) Handler() http.Handler { return s.handler }

// Publish publishes events in a workspace, as POST /events does, but without the quota publish-rate. Without authentication,
// the workspace is "default". Publish returns when the events are on disk. See [publish.Service.Accept] for the kinds of its
// errors.
func (s *Server) Publish(ctx context.Context, workspace string, events ...Event) ([]Accepted, error) {
	if !auth.ValidWorkspace(workspace) { // no client can subscribe to its events
		return nil, fault.New(fault.Invalid, "%.100q is not the name of a workspace; without workspaces it is %q", workspace, auth.DefaultWorkspace)
	}
	// Do not apply the quota publish-rate. It protects the server from its callers, and this program would only lose its own
	// events.
	return s.publisher.Unlimited().Accept(ctx, auth.Principal{Workspace: workspace, ID: "server", Scopes: []string{auth.ScopePublish}}, events)
}

// Served returns a channel that receives the error if the listener fails before [Server.Shutdown]. After Shutdown it may
// receive [http.ErrServerClosed].
func (s *Server) Served() <-chan error { return s.served }

// Shutdown ends the server gracefully. It ends streams with a message and waits for running deliveries. Accepted events stay
// in the store. If ctx ends first, Shutdown cancels the running deliveries, which the server repeats after its next start, and
// returns the error of ctx within a few seconds. It also returns an error if the store cannot be closed. Further calls wait
// for the first one and return the same error.
func (s *Server) Shutdown(ctx context.Context) error {
	s.shutdown.Do(func() { s.ended = s.drain(ctx) })
	return s.ended
}

func (s *Server) drain(ctx context.Context) error {
	s.close()
	err := s.endpoint.Close(ctx)
	for _, listener := range []*http.Server{s.listening, s.operators} {
		if listener == nil {
			continue
		}
		if stopped := listener.Shutdown(ctx); stopped != nil {
			err = errors.Join(err, stopped)
			_ = listener.Close()
		}
	}
	s.stop()
	done := make(chan struct{})
	go func() {
		s.workers.Wait()
		s.dispatcher.Wait(ctx)
		if s.upstream != nil {
			_ = s.upstream.Wait(ctx) // fails only if ctx ended, which is reported below
		}
		_ = s.conversation.Close(ctx) // fails only if ctx ended, which is reported below
		s.tails.Close()
		close(done)
	}()
	select {
	case <-done:
	case <-ctx.Done():
		err = errors.Join(err, ctx.Err())
	}
	s.commands.Close(ctx)
	s.backends.Flush()
	// Before the database is closed, Close cancels the contexts of handlers that still run, and waits a few seconds for them.
	// A handler that ignores the cancellation gets an error from the closed database.
	closing := s.queues.Close()
	select {
	case <-done:
	case <-time.After(time.Second):
	}
	closing = errors.Join(closing, s.db.Close())
	if closing != nil && err != nil {
		return fmt.Errorf("%w; before that: %v", closing, err)
	}
	return cmp.Or(closing, err)
}

// open opens the store and the queues, reads or creates the keys, and fills in [app.Core], which all roles share.
func (s *Server) open(ctx context.Context, o Options) (keys secrets, err error) {
	if o.Auth == auth.ModeJWT {
		if s.tokens, err = app.NewTokenAuthenticator(o.Limits, o.Log); err != nil {
			return keys, err
		}
	}
	exported, counters, err := newMetrics(o.Metrics)
	if err != nil {
		return keys, fault.Wrap(fault.Internal, err, "make the metrics")
	}
	s.metrics = exported
	var tracer *trace.Tracer
	if o.Traces != nil {
		tracer = trace.New(o.Traces)
	}
	if keys, err = s.openStore(ctx, o, counters); err != nil {
		return keys, err
	}
	configs := config.NewStored(s.db, time.Now, o.Log, s.ownBackends()...)
	s.catalogs = catalog.NewStored(s.db, time.Now, o.Log, configs.EventTypes)
	authenticator, metadata := s.newAuthenticator(o.Auth, configs)
	s.core = &app.Core{
		DB: s.db, Queues: s.queues, Catalogs: s.catalogs, Config: configs,
		EventLog: &eventlog.Log{DB: s.db, Retention: o.Limits.LogRetention, Logger: o.Log}, Demand: demand.New(s.db),
		Limits: o.Limits, Log: o.Log, Metrics: counters, Tracer: tracer,
		Auth: authenticator, Guard: auth.NewGuard(o.Limits.AllowedOrigins, o.Limits.AllowedHosts, o.Log), ResourceMetadata: metadata,
	}
	return keys, nil
}

// newAuthenticator returns the authenticator of callers, and the URL at which they learn how to get a token.
func (s *Server) newAuthenticator(mode auth.Mode, configs *config.Stored) (_ auth.Authenticator, metadataURL string) {
	switch mode {
	case auth.ModeKeys:
		return configs.Authenticator(), ""
	case auth.ModeJWT:
		return s.tokens, s.tokens.MetadataURL()
	}
	return auth.AcceptAll(), ""
}

// openStore opens the store and the queues of the data directory, and reads or creates its keys.
func (s *Server) openStore(ctx context.Context, o Options, counters *metric.Set) (keys secrets, err error) {
	path := o.Data
	if path != ":memory:" {
		if err := os.MkdirAll(path, 0o700); err != nil {
			return keys, fault.Wrap(fault.Invalid, err, "make the data directory")
		}
		path = filepath.Join(path, databaseName)
		if err := checkDatabase(o.Data, path); err != nil {
			return keys, err
		}
	}
	if s.db, err = sqlite.Open(path, sqlite.Options{Engine: engine.Options{Log: o.Log}}); err != nil {
		return keys, err
	}
	s.undo = append(s.undo, func() { _ = s.db.Close() })
	if keys, err = loadSecrets(ctx, o.Data, s.db); err != nil {
		return keys, err
	}
	s.queues, err = queuesqlite.Open(s.db.Engine(), queuesqlite.Options{
		Log: o.Log, MaxBytes: queueBytes, DeadLettered: func(q queue.Name, n int) { counters.DeadLettered(string(q), n) },
	})
	if err != nil {
		return keys, err
	}
	s.undo = append(s.undo, func() { _ = s.queues.Close() })
	return keys, nil
}

// adminConnections returns the maximum number of concurrent connections to [Options.AdminAddr].
func adminConnections() int { return min(256, descriptors.MaxIncoming()/4+1) }

// listen opens the main listener and limits its connections. It returns nil if addr is empty. If adminAddr is set, the limit
// leaves file descriptors for the connections of the admin API.
func (s *Server) listen(addr, adminAddr string) (net.Listener, error) {
	if addr == "" {
		return nil, nil
	}
	most := descriptors.MaxIncoming()
	if adminAddr != "" {
		most = max(1, most-adminConnections())
	}
	listener, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, fault.Wrap(fault.Unavailable, err, "listen")
	}
	s.connections = limitConnections(listener, most).reserveLast()
	listener = s.connections
	s.undo = append(s.undo, func() { _ = listener.Close() })
	s.URL = "http://" + listener.Addr().String()
	return listener, nil
}
