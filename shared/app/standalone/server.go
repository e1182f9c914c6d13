// Package standalone runs the whole product in one process, with its state in one SQLite file. Package app creates the roles, such as
// fanout and dispatch. On AWS each role is a Lambda function, and here goroutines run them. Only one process at a time may use a data
// directory.
//
// Read [New] first. Then read [Server.build], which connects the roles, and [Server.run], which starts the workers.
package standalone

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	sdk "go.opentelemetry.io/otel/sdk/metric"
	oteltrace "go.opentelemetry.io/otel/trace"

	"github.com/mcp-events/mcpevents/shared/app"
	"github.com/mcp-events/mcpevents/shared/app/config"
	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/auth/jwt"
	"github.com/mcp-events/mcpevents/shared/conversation"
	"github.com/mcp-events/mcpevents/shared/events/catalog"
	"github.com/mcp-events/mcpevents/shared/events/delivery"
	"github.com/mcp-events/mcpevents/shared/events/delivery/lifecycle"
	"github.com/mcp-events/mcpevents/shared/events/publish"
	"github.com/mcp-events/mcpevents/shared/events/stream"
	"github.com/mcp-events/mcpevents/shared/gateway"
	"github.com/mcp-events/mcpevents/shared/gateway/inprocess"
	"github.com/mcp-events/mcpevents/shared/gateway/stdio"
	"github.com/mcp-events/mcpevents/shared/mcp"
	"github.com/mcp-events/mcpevents/shared/platform/descriptors"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/platform/metric"
	queuesqlite "github.com/mcp-events/mcpevents/shared/storage/queue/sqlite"
	"github.com/mcp-events/mcpevents/shared/storage/store/sqlite"
)

// Options configure a server.
type Options struct {
	// Addr is the address on which the server listens. With [auth.ModeNone] it must be a loopback address. If it is empty, the server
	// does not listen. The program then serves [Server.Handler] itself, and must restrict the access to it.
	Addr string
	// Data is the directory of the database and the keys. The server creates it if necessary. With ":memory:", all data is
	// lost when the process ends.
	Data string
	// Catalog is the catalog of event types, in YAML. CatalogName is the catalog's file name in error messages. The default is
	// catalog.yaml.
	Catalog     []byte
	CatalogName string
	// Workspaces has the catalogs of workspaces with a catalog of their own. All other workspaces use Catalog.
	Workspaces map[string]*catalog.Catalog
	// Config has the API keys, backends and sources. It may be nil.
	Config *config.Config
	// Upstream is the program's own MCP server. It becomes a backend of the gateway in this process. It speaks Streamable HTTP of any
	// revision, and receives its requests at the path /mcp. Requests to it carry no credentials, because the server has already
	// authenticated the caller.
	//
	// Only callers of the default workspace see its tools, prompts and resources.
	Upstream http.Handler
	// Auth is how callers are authenticated, by default [auth.ModeNone].
	Auth auth.Mode
	// AllowBreaking accepts catalogs that end live subscriptions. Without it, such catalogs are refused.
	AllowBreaking bool
	// SettingsError is the reason why the program could not read the catalogs or the configuration. If it is set, [New] and
	// [Server.Reload] treat these settings as refused.
	SettingsError error
	// LastSettings lets the server start although the catalogs or the configuration were refused. It then uses the previous ones, which
	// are in the data directory. It logs the reason, and reports it in GET /readyz and in a metric until [Server.Reload] succeeds.
	// Without LastSettings, New returns an error.
	LastSettings bool
	// Limits are all other settings. Each setting corresponds to a flag of the command serve. The zero value means [DefaultLimits]. To
	// change some settings, change the result of DefaultLimits.
	Limits config.Limits
	// AdminAddr is an address for the admin API and the console alone. With [auth.ModeNone] it must be a loopback address. If it is
	// empty, they are served at Addr.
	AdminAddr string
	// Metrics are readers that receive the same metrics as GET /metrics, for example a periodic exporter of OpenTelemetry. The
	// program that passes them shuts them down.
	Metrics []sdk.Reader
	// Traces receives the spans of events and of calls to backends. If it is nil, the server creates no spans. The program
	// that passes it shuts it down.
	Traces oteltrace.TracerProvider
	// SpansNotSent counts the batches of spans that Traces could not send, for a metric of the server. It may be nil.
	SpansNotSent *metric.Tally
	// Log receives the server's log messages. If it is nil, the server uses [slog.Default].
	Log *slog.Logger
}

// DefaultLimits returns the default settings.
func DefaultLimits() config.Limits { return config.DefaultLimits() }

// Event is an event to publish; see [publish.Input].
type Event = publish.Input

// Accepted is an accepted event: its id, and its URI in canonical form.
type Accepted = publish.Accepted

// Server is a running server. [New] starts it and [Server.Shutdown] ends it. Its methods may be called concurrently.
type Server struct {
	// URL is the server's URL without a path, for example http://127.0.0.1:8080. It is empty if the server does not listen.
	URL string
	// AdminURL is the URL of the admin API without its path.
	AdminURL string

	core        *app.Core
	db          *sqlite.DB
	queues      *queuesqlite.Queues
	tails       *stream.Tails
	publisher   *publish.Service
	dispatcher  *delivery.Dispatcher
	attempts    attemptLimits
	endpoint    *mcp.Endpoint
	tokens      *jwt.Authenticator // nil unless callers authenticate with tokens ([auth.ModeJWT])
	handler     http.Handler
	metrics     http.Handler
	listening   *http.Server // nil if the server does not listen
	connections *connections
	served      chan error
	operators   *http.Server // nil unless the admin API has an address of its own

	upstream     *inprocess.Transport // nil without [Options.Upstream]
	commands     *stdio.Transport
	backends     *gateway.Gateway
	catalogs     *catalog.Stored
	terminator   *lifecycle.Terminator
	conversation *conversation.Service

	refused   atomic.Bool // true if the last catalogs or configuration were refused
	unflushed sync.Once   // makes the server log only once that responses cannot be flushed

	closing context.Context // ends when the server begins to shut down
	close   context.CancelFunc
	stop    context.CancelFunc
	drained atomic.Bool // true when the server begins to close the database
	workers sync.WaitGroup
	undo    []func() // if the start fails, these functions close the parts that it has opened

	shutdown sync.Once
	ended    error // the result of the shutdown
}

// New starts a server, and returns when the server accepts requests. The server keeps running when ctx ends. If an option or a file in the
// data directory is missing or invalid, the error is of kind fault.Invalid.
func New(ctx context.Context, o Options) (_ *Server, err error) {
	if err := o.complete(); err != nil {
		return nil, err
	}
	files, refused := o.files()
	if refused != nil && !o.LastSettings {
		return nil, refused
	}
	s := &Server{served: make(chan error, 2), attempts: newAttemptLimits(descriptors.MaxOutgoing())}
	defer func() {
		if err != nil {
			for _, undo := range slices.Backward(s.undo) {
				undo()
			}
		}
	}()
	if o.Upstream != nil {
		s.upstream = inprocess.New(o.Upstream, o.Log)
		s.undo = append(s.undo, func() { _ = s.upstream.Shutdown(ctx) })
	}
	s.closing, s.close = context.WithCancel(context.WithoutCancel(ctx))
	// Do everything that can fail before the first worker starts. Listen before the roles are built, because the sender of webhooks must
	// know the server's own address to refuse it as a target. Apply the settings after the roles are built, because a changed catalog can
	// end subscriptions.
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
	proxies, _ := auth.ParseProxies(o.Limits.TrustedProxies) // cannot fail, because the limits were checked
	secret := auth.SecretPath{Auth: s.core.Auth, Proxies: proxies}
	s.handler = boundBodies(secret.Handler(s.serveAdmin(roles, o.Auth, adminListener)), bodyTime)
	s.run(ctx, roles)
	if listener != nil {
		s.listening = s.httpServer(s.handler)
		s.connections.attach(s.listening)
		go s.serve(s.listening, listener)
	}
	return s, nil
}

// complete fills in the defaults of the options. It returns an error if an option is missing or out of range.
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
	o.Limits = trimLists(o.Limits)
	if err := cmp.Or(o.Limits.Check(), checkHosts(o.Limits)); err != nil {
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

// httpServer returns an HTTP server with time limits for request headers and idle connections. boundBodies limits the time for request
// bodies, and connections limits the time for responses.
func (s *Server) httpServer(h http.Handler) *http.Server {
	return &http.Server{
		Handler: h, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 32 << 10,
		ErrorLog: slog.NewLogLogger(s.core.Log.Handler(), slog.LevelWarn),
	}
}

// Handler returns the handler of all paths, including /admin and /console unless they have an address of their own. After the end of the
// server it responds to all requests with 503.
//
// If responses cannot be flushed, the handler logs an error, because the clients of streams would then wait forever.
func (s *Server) Handler() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if s.drained.Load() { // otherwise each request would log an error of the closed database
			http.Error(w, "the server is closed", http.StatusServiceUnavailable)
			return
		}
		if !canFlush(w) {
			s.unflushed.Do(func() { s.core.Log.Error("streams cannot be sent", "writer", fmt.Sprintf("%T", w)) })
		}
		s.handler.ServeHTTP(w, r)
	})
}

// canFlush reports whether [http.ResponseController] can flush a response.
func canFlush(w http.ResponseWriter) bool {
	for {
		switch t := w.(type) {
		case http.Flusher, interface{ FlushError() error }:
			return true
		case interface{ Unwrap() http.ResponseWriter }:
			w = t.Unwrap()
		default:
			return false
		}
	}
}

// Publish publishes events in a workspace, as POST /events does, but without the quota publish-rate. Without authentication, the
// workspace is "default". Publish returns when the events are on disk. The kinds of its errors are listed at [publish.Service.Accept].
func (s *Server) Publish(ctx context.Context, workspace string, events ...Event) ([]Accepted, error) {
	if !auth.ValidWorkspace(workspace) { // no client could subscribe to events of such a workspace
		return nil, fault.New(fault.Invalid, "%.100q is not the name of a workspace; without workspaces it is %q", workspace, auth.DefaultWorkspace)
	}
	// Do not apply the quota publish-rate. It protects the server from other programs, but here the caller is the program that contains
	// the server.
	return s.publisher.WithoutQuota().Accept(ctx, auth.Principal{Workspace: workspace, ID: "server", Scopes: []string{auth.ScopePublish}}, events)
}

// Served returns a channel that receives an error if a listener fails before [Server.Shutdown] is called.
func (s *Server) Served() <-chan error { return s.served }

// serve serves the requests that arrive at a listener until Shutdown is called or the listener fails.
func (s *Server) serve(server *http.Server, l net.Listener) {
	if err := server.Serve(l); err != http.ErrServerClosed {
		s.served <- err
	}
}

// Shutdown ends the server gracefully. It ends streams with a message and waits for running deliveries. Accepted events stay in the
// store. Further calls of Shutdown wait for the first one and return the same error.
//
// If ctx ends first, Shutdown cancels the running deliveries, and returns the error of ctx within a few seconds. The server repeats these
// deliveries after its next start. Shutdown also returns an error if the store cannot be closed.
func (s *Server) Shutdown(ctx context.Context) error {
	s.shutdown.Do(func() { s.ended = s.drain(ctx) })
	return s.ended
}

func (s *Server) drain(ctx context.Context) error {
	s.close()
	s.backends.CloseStreams()
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
		_ = s.conversation.Close(ctx) // fails only if ctx ended, which is reported below
		if s.upstream != nil {
			_ = s.upstream.Shutdown(ctx) // fails only if ctx ended, which is reported below
		}
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
	s.drained.Store(true)
	// Close cancels the contexts of the message handlers that still run, and waits a few seconds for them. Then the database is closed. A
	// handler that ignores the cancellation gets an error from the closed database.
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

func adminConnections() int { return min(256, descriptors.MaxIncoming()/4+1) }

func listenTCP(addr, what string) (net.Listener, error) {
	listener, err := net.Listen("tcp", addr)
	if _, ok := errors.AsType[*net.AddrError](err); ok {
		return nil, fault.Wrap(fault.Invalid, err, "%s", what)
	}
	return listener, fault.Wrap(fault.Unavailable, err, "%s", what)
}

// listen opens the main listener, or returns nil if the parameter addr is empty. If adminAddr is not empty, the main listener accepts
// fewer connections, so that file descriptors are left for connections to adminAddr.
func (s *Server) listen(addr, adminAddr string) (net.Listener, error) {
	if addr == "" {
		return nil, nil
	}
	most := descriptors.MaxIncoming()
	if adminAddr != "" {
		most = max(1, most-adminConnections())
	}
	listener, err := listenTCP(addr, "listen")
	if err != nil {
		return nil, err
	}
	s.connections = limitConnections(listener, most).reserveLast()
	listener = s.connections
	s.undo = append(s.undo, func() { _ = listener.Close() })
	s.URL = "http://" + listener.Addr().String()
	return listener, nil
}
