// Package server adds events to a Go program. It runs the whole product in the program's own process: the MCP endpoint,
// the endpoint for publishers, the deliveries, the admin API and the console, with one SQLite file for the data.
//
//	s, err := server.New(ctx, server.Options{Addr: "127.0.0.1:8080", Data: "data", Catalog: catalog, Upstream: tools})
//	if err != nil {
//		return err
//	}
//	defer s.Shutdown(context.Background())
//	_, err = s.Publish(ctx, server.DefaultWorkspace, server.Event{URI: "event://orders/42/shipped", Data: data})
//
// Here, catalog is the text of a catalog file, tools is the program's own MCP server (an [http.Handler] for Streamable HTTP), and data is
// the payload in JSON. A data directory belongs to one process at a time. The command mcpevents serve runs the same server.
//
// # Errors
//
// Use [errors.Is] with the errors of this package, for example [ErrUnknownEvent]. The text of an error says what to
// change.
package server

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/propagation"
	sdk "go.opentelemetry.io/otel/sdk/metric"
	oteltrace "go.opentelemetry.io/otel/trace"

	"github.com/mcp-events/mcpevents/shared/app/config"
	"github.com/mcp-events/mcpevents/shared/app/standalone"
	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/events/catalog"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/platform/trace"
)

// DefaultWorkspace is the workspace of all callers for which no other workspace is configured.
const DefaultWorkspace = auth.DefaultWorkspace

// InMemory is the value of [Options.Data] for a server that keeps all data in memory and loses it when it ends.
const InMemory = ":memory:"

// The values of [Options.Auth].
const (
	// AuthNone lets every caller do everything. The server then listens only on loopback addresses.
	AuthNone = "none"
	// AuthKeys authenticates callers by the keys in [Options.Config].
	AuthKeys = "keys"
	// AuthJWT authenticates callers by the JWTs that an authorization server issues. The setting jwt-issuer names that server.
	AuthJWT = "jwt"
)

var (
	// ErrClosed is the error of [Server.Publish] when [Server.Shutdown] has closed the data directory, and of [Server.Reload] after
	// a call of Shutdown.
	ErrClosed = errors.New("the server is closed")
	// ErrInvalid is the error of options, settings, events or files that are malformed or out of range.
	ErrInvalid error = fault.Invalid
	// ErrUnknownEvent is the error of an event whose URI belongs to no event type of the workspace's catalog.
	ErrUnknownEvent error = fault.NotFound
	// ErrSchema is the error of a payload that does not match the schema of its event type.
	ErrSchema error = fault.Unprocessable
	// ErrTooLarge is the error of a payload of more than 240 KiB, or of more than 1,000 events in one call.
	ErrTooLarge error = fault.TooLarge
	// ErrUnavailable is the error of a failure that may pass, for example a full disk. Some events of the call may have
	// been accepted. Publish them again with the same ids: the server drops repetitions within five minutes.
	ErrUnavailable error = fault.Unavailable
	// ErrConflict is the error of a call that something else prevents, for example [New] while another process uses the
	// data directory, or [Restore] into a directory that has data.
	ErrConflict error = fault.Conflict
)

// Options configure a server. Data and Catalog are required.
type Options struct {
	// Addr is the address to listen on, for example 127.0.0.1:8080. If it is empty, the program serves [Server.Handler]
	// itself and is responsible for restricting access to it.
	Addr string
	// AdminAddr is a separate address for the admin API and the console. If it is empty, they are served at Addr.
	AdminAddr string
	// Data is the directory of the database and the keys. New creates it. See also [InMemory].
	Data string
	// Catalog declares the event types, in YAML (docs/reference/catalog.md).
	Catalog []byte
	// Workspaces maps names of workspaces to their own catalogs. All other workspaces use Catalog.
	Workspaces map[string][]byte
	// Config holds keys, backends and sources, in YAML (docs/how-to/secure.md and docs/reference).
	Config []byte
	// Auth is [AuthNone], which is the default, [AuthKeys] or [AuthJWT].
	Auth string
	// Settings holds the settings that differ from their defaults, by the names of the flags of mcpevents serve, for
	// example {"quota": "50", "log-retention": "48h"} (docs/reference/settings.md). Instead of otlp-endpoint, use Metrics and Traces.
	Settings map[string]string
	// Upstream is the program's own MCP server, as a handler of Streamable HTTP. Callers of the default workspace see its
	// tools, prompts and resources together with the events. The server authenticates callers, so Upstream receives no
	// credentials.
	Upstream http.Handler
	// AllowBreaking applies a changed catalog even if it ends live subscriptions. Otherwise such a catalog is refused.
	AllowBreaking bool
	// LastSettings starts the server with the catalogs and the configuration that it used last if the new ones are
	// refused. The server logs why, and GET /readyz reports it, until a [Server.Reload] succeeds.
	LastSettings bool
	// Metrics are additional readers of the server's metrics, for example an OpenTelemetry exporter. GET /metrics works
	// without them. The program that passes a reader shuts it down.
	Metrics []sdk.Reader
	// Traces receives the server's spans; nil records none. The program that passes it shuts it down.
	Traces oteltrace.TracerProvider
	// Log receives the server's log; nil is [slog.Default].
	Log *slog.Logger
}

// Event is an event to publish.
type Event struct {
	// URI says what the event is about, for example event://orders/42/shipped. An event type of the catalog must match it.
	URI string
	// ID identifies the event, so that you can publish it again after an error without a duplicate. The server drops an event if it accepted
	// one with the same URI and ID within the last five minutes. If ID is empty, the server gives the event a new id.
	ID string
	// Time is when the event happened; the zero time is now.
	Time time.Time
	// Data is the payload, in JSON.
	Data json.RawMessage
}

// Accepted identifies an accepted event.
type Accepted struct {
	ID string
	// URI is the event's URI in canonical form.
	URI string
}

// Server is a running server, made by [New]. Its methods may be called concurrently. The zero value is a closed server.
type Server struct {
	running *standalone.Server
	auth    auth.Mode
	closed  atomic.Bool
}

// New starts a server and returns when it accepts requests. The server runs until [Server.Shutdown], even if ctx ends
// earlier.
func New(ctx context.Context, o Options) (*Server, error) {
	internal, err := o.parse()
	if err != nil {
		return nil, err
	}
	running, err := standalone.New(ctx, internal)
	if err != nil {
		return nil, err
	}
	return &Server{running: running, auth: internal.Auth}, nil
}

// parse returns the options of package standalone. It returns no error for a malformed configuration or catalog, but sets SettingsError,
// because with LastSettings the server starts nevertheless, and Reload applies the configuration even if a catalog is malformed.
func (o Options) parse() (standalone.Options, error) {
	out := standalone.Options{
		Addr: o.Addr, AdminAddr: o.AdminAddr, Data: o.Data, Catalog: o.Catalog, CatalogName: "Catalog", Auth: auth.Mode(o.Auth),
		Upstream: o.Upstream, AllowBreaking: o.AllowBreaking, LastSettings: o.LastSettings, Metrics: o.Metrics, Traces: o.Traces, Log: o.Log,
	}
	var err error
	if out.Limits, err = config.FromNames(o.Settings); err != nil {
		return out, err
	}
	if out.Limits.OTLPEndpoint != "" {
		return out, fault.New(fault.Invalid, "the setting otlp-endpoint is only for the command: use the options Metrics and Traces")
	}
	if o.Config != nil {
		out.Config, out.SettingsError = config.Parse(o.Config)
	}
	out.Workspaces = map[string]*catalog.Catalog{}
	for _, name := range slices.Sorted(maps.Keys(o.Workspaces)) {
		c, err := parseCatalog(name, o.Workspaces[name])
		if err != nil {
			out.SettingsError = cmp.Or(out.SettingsError, err)
			continue
		}
		out.Workspaces[name] = c
	}
	return out, nil
}

func parseCatalog(workspace string, text []byte) (*catalog.Catalog, error) {
	if !auth.ValidWorkspace(workspace) {
		return nil, fault.New(fault.Invalid, "%.100q is not the name of a workspace", workspace)
	}
	return catalog.ParseFile("the catalog of workspace "+workspace, text)
}

// URL returns the URL at which the server listens, without a path. It is empty if [Options.Addr] is empty.
func (s *Server) URL() string { return s.started().URL }

// AdminURL returns the URL of the admin API and the console, without a path.
func (s *Server) AdminURL() string { return s.started().AdminURL }

// started returns the server that [New] has started. For the zero Server it returns a server without listeners.
func (s *Server) started() *standalone.Server {
	return cmp.Or(s.running, &standalone.Server{})
}

// Handler returns the handler of /mcp, /events, /sources, /consent, /healthz, /readyz, /metrics, the paths below /.well-known
// and, if [Options.AdminAddr] is empty, /admin and /console. Call [Server.Shutdown] before you shut down the HTTP server that
// serves it, because that HTTP server waits for open streams. A middleware's response writer needs a method Flush or Unwrap, or
// streams bring no events.
func (s *Server) Handler() http.Handler {
	if s.running == nil {
		return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			http.Error(w, ErrClosed.Error(), http.StatusServiceUnavailable)
		})
	}
	return s.running.Handler()
}

// Publish publishes events in a workspace and returns when they are on disk. It accepts all of them or none, unless the
// error is [ErrUnavailable]. If there are several events, an error names a refused one, for example /4/data for the payload
// of events[4]. The setting publish-rate does not limit Publish. The events belong to the trace of the OpenTelemetry
// span in ctx, if there is one. During [Server.Shutdown], requests that still run can publish.
func (s *Server) Publish(ctx context.Context, workspace string, events ...Event) ([]Accepted, error) {
	if s.running == nil {
		return nil, ErrClosed
	}
	parent := http.Header{}
	propagation.TraceContext{}.Inject(ctx, propagation.HeaderCarrier(parent))
	in := make([]standalone.Event, len(events))
	for i, e := range events {
		in[i] = standalone.Event{URI: e.URI, ID: e.ID, Time: e.Time, Data: e.Data, Trace: trace.FromHeader(parent)}
		if len(events) > 1 {
			in[i].At = fmt.Sprintf("/%d", i)
			in[i].DataAt = in[i].At + "/data"
		}
	}
	done, err := s.running.Publish(ctx, workspace, in...)
	if err != nil {
		return nil, s.markClosed(err)
	}
	accepted := make([]Accepted, len(done))
	for i, a := range done {
		accepted[i] = Accepted(a)
	}
	return accepted, nil
}

// Reload applies the catalogs and the configuration of o. It ignores all other options except AllowBreaking.
//
// If o has an invalid catalog or workspace name, Reload changes no catalog and returns an error. It still applies the
// configuration, so that a key which was removed from it stops working.
//
// With [AuthKeys], Reload also returns an error if the configuration has no keys. If its list of keys is empty, all keys stop
// working. If the list is missing, the present keys stay valid.
func (s *Server) Reload(ctx context.Context, o Options) error {
	if s.running == nil || s.closed.Load() {
		return ErrClosed
	}
	o.Settings = nil
	internal, err := o.parse()
	if err != nil {
		return err
	}
	internal.Auth = s.auth
	return s.markClosed(s.running.Reload(ctx, internal))
}

// markClosed returns err, the error of a call. If the server was closed during the call, it returns an [ErrClosed] with the text of err
// instead.
func (s *Server) markClosed(err error) error {
	if err != nil && s.closed.Load() {
		return fmt.Errorf("%w: %v", ErrClosed, err)
	}
	return err
}

// Served returns a channel that receives an error if a listener fails before [Server.Shutdown].
func (s *Server) Served() <-chan error { return s.started().Served() }

// Shutdown ends streams, waits for running deliveries and closes the data directory. If ctx ends first, Shutdown cancels the
// running deliveries and returns the error of ctx. The server repeats these deliveries after its next start. Accepted events
// are never lost. Further calls wait for the first one and return the same error.
func (s *Server) Shutdown(ctx context.Context) error {
	if s.closed.Store(true); s.running == nil {
		return nil
	}
	return s.running.Shutdown(ctx)
}

// Backup writes the database and the keys of a data directory to a new file. A server may be using the directory. Keep the
// file secret, because its keys open all webhook secrets in the database.
func Backup(ctx context.Context, data, file string) error {
	return standalone.Backup(ctx, data, file, nil)
}

// Restore creates a data directory from a backup. It refuses a directory that has data.
func Restore(ctx context.Context, file, data string) error {
	return standalone.Restore(ctx, file, data, nil)
}
