// Package server adds events to a Go program. It runs the whole product in the program's own process: the MCP endpoint, the endpoint for
// publishers, the deliveries, the admin API and the console. The data is in one SQLite file.
//
//	s, err := server.New(ctx, server.Options{Addr: "127.0.0.1:8080", Data: "data", Catalog: catalog, Upstream: tools})
//	if err != nil {
//		return err
//	}
//	defer s.Shutdown(context.Background())
//	_, err = s.Publish(ctx, server.DefaultWorkspace, server.Event{URI: "event://orders/42/shipped", Data: data})
//
// In this example, catalog is the text of a catalog file, and data is a payload in JSON. The variable tools is the program's own MCP
// server, an [http.Handler] for Streamable HTTP. Only one process at a time can use a data directory. The command mcpevents serve runs
// the same server.
//
// # Errors
//
// Test for the errors of this package with [errors.Is], for example errors.Is(err, server.ErrUnknownEvent). The text of an error says
// what to change.
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

// DefaultWorkspace is the workspace of all callers for whom the configuration or the access token names no other workspace.
const DefaultWorkspace = auth.DefaultWorkspace

// InMemory is the value of [Options.Data] for a server that keeps all data in memory. The data is lost when the server ends.
const InMemory = ":memory:"

// These are the values of [Options.Auth].
const (
	// AuthNone lets every caller do everything. The server then listens only on loopback addresses.
	AuthNone = "none"
	// AuthKeys authenticates callers by the API keys in [Options.Config].
	AuthKeys = "keys"
	// AuthJWT authenticates callers by access tokens (JWTs) from an authorization server, which the setting jwt-issuer names.
	AuthJWT = "jwt"
)

var (
	// ErrClosed is the error of [Server.Publish] after [Server.Shutdown] has closed the data directory. [Server.Reload] returns it after
	// any call of Shutdown.
	ErrClosed = errors.New("the server is closed")
	// ErrInvalid is the error for options, settings, events or files that are malformed or out of range.
	ErrInvalid error = fault.Invalid
	// ErrUnknownEvent is the error for an event whose URI belongs to no event type in the workspace's catalog.
	ErrUnknownEvent error = fault.NotFound
	// ErrSchema is the error for a payload that does not match the JSON schema of its event type.
	ErrSchema error = fault.Unprocessable
	// ErrTooLarge is the error for a payload of more than 240 KiB, and for more than 1,000 events in one call.
	ErrTooLarge error = fault.TooLarge
	// ErrUnavailable is the error for a temporary failure, for example a full disk. Some events of the call may have been accepted.
	// Publish the events again with the same ids. The server recognizes repeated events for five minutes.
	ErrUnavailable error = fault.Unavailable
	// ErrConflict is the error for a call that the present state does not allow, for example [New] while another process uses the data
	// directory, or [Restore] into a directory that has data.
	ErrConflict error = fault.Conflict
)

// Options configure a server. Data and Catalog are required.
type Options struct {
	// Addr is the address on which the server listens, for example 127.0.0.1:8080. If it is empty, the program serves [Server.Handler]
	// itself, and must restrict the access to it.
	Addr string
	// AdminAddr is an address for the admin API and the console alone. If it is empty, they are served at Addr.
	AdminAddr string
	// Data is the directory for the database and the keys. New creates it if necessary. See also [InMemory].
	Data string
	// Catalog is the text of a catalog, which declares event types in YAML (docs/reference/catalog.md).
	Catalog []byte
	// Workspaces maps the name of a workspace to its own catalog. All workspaces without a catalog of their own use Catalog.
	Workspaces map[string][]byte
	// Config is the text of a configuration with API keys, backends and sources, in YAML (docs/how-to/secure.md and docs/reference).
	Config []byte
	// Auth says how callers are authenticated: [AuthNone] (the default), [AuthKeys] or [AuthJWT].
	Auth string
	// Settings has the settings that differ from their defaults. The keys of the map are the names of flags of mcpevents serve, for
	// example {"quota": "50", "log-retention": "48h"} (docs/reference/settings.md). Use Metrics and Traces instead of the setting
	// otlp-endpoint.
	Settings map[string]string
	// Upstream is the program's own MCP server, as a handler for Streamable HTTP. Callers of the default workspace see its tools, prompts
	// and resources together with the events. Requests to it carry no credentials, because this server has already authenticated the
	// caller.
	Upstream http.Handler
	// AllowBreaking accepts a changed catalog even if it ends live subscriptions. Without it, such a catalog is refused.
	AllowBreaking bool
	// LastSettings lets the server start although the catalogs or the configuration were refused. The server then uses the last catalogs
	// and the last configuration that it accepted, and logs the reason. Until a [Server.Reload] succeeds, GET /readyz reports that the
	// settings were refused.
	LastSettings bool
	// Metrics are additional readers of the server's metrics, for example an OpenTelemetry exporter. GET /metrics works
	// without them. The program that passes a reader shuts it down.
	Metrics []sdk.Reader
	// Traces receives the server's trace spans. If it is nil, there are no spans. The program that passes it shuts it down.
	Traces oteltrace.TracerProvider
	// Log receives the server's log messages. If it is nil, the server uses [slog.Default].
	Log *slog.Logger
}

// Event is an event for [Server.Publish].
type Event struct {
	// URI says what the event is about, for example event://orders/42/shipped. An event type of the catalog must match it.
	URI string
	// ID identifies the event. If it is empty, the server gives the event a new id.
	//
	// After an [ErrUnavailable], publish the event again with the same URI and ID. The server drops it if it has accepted the same URI
	// and ID within the last five minutes. So the event is not published twice.
	ID string
	// Time is when the event happened. The zero time means now.
	Time time.Time
	// Data is the payload, in JSON.
	Data json.RawMessage
}

// Accepted identifies an event that the server has accepted and stored.
type Accepted struct {
	ID string
	// URI is the event's URI in canonical form.
	URI string
}

// Server is a running server, which [New] has started. Its methods may be called concurrently. The zero value acts as a closed server.
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

// parse returns the options for package standalone. For a malformed configuration or catalog, it returns no error but sets SettingsError,
// because the server can often continue. With LastSettings, it starts with its previous settings. Reload applies a valid configuration
// even if a catalog is malformed.
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

// started returns the server that [New] has started. For the zero Server, it returns a server that does not listen.
func (s *Server) started() *standalone.Server {
	return cmp.Or(s.running, &standalone.Server{})
}

// Handler returns an HTTP handler for the paths /mcp, /events, /sources, /consent, /healthz, /readyz, /metrics, and the paths below
// /.well-known. If [Options.AdminAddr] is empty, it also serves /admin and /console.
//
// Call [Server.Shutdown] before you shut down the HTTP server that serves the handler, because that HTTP server waits for open streams.
// If a middleware wraps the response writer, its writer needs a method Flush or Unwrap. Otherwise no events arrive on streams.
func (s *Server) Handler() http.Handler {
	if s.running == nil {
		return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			http.Error(w, ErrClosed.Error(), http.StatusServiceUnavailable)
		})
	}
	return s.running.Handler()
}

// Publish publishes events in a workspace, and returns when the events are on disk. If it returns an error, it has accepted no event. The
// exceptions are [ErrUnavailable] and [ErrClosed]: it may then have accepted some events. If there are several events, the error names a
// refused one, for example /4/data for the payload of events[4].
//
// The setting publish-rate does not limit Publish. If ctx has an OpenTelemetry span, the events belong to its trace. Until
// [Server.Shutdown] has closed the data directory, requests that still run can publish.
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
// If Reload refuses a catalog or the name of a workspace, it changes no catalog and returns an error. It refuses a catalog that is
// invalid or, without AllowBreaking, would end live subscriptions. It still applies a valid configuration, so that a key which was
// removed from it stops working.
//
// With [AuthKeys], Reload also returns an error if the configuration has no keys. If its list of keys is empty, all keys stop working. If
// the list is missing, the present keys stay valid.
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

// markClosed returns an [ErrClosed] with the text of err if the server was closed during a call that failed with err. Otherwise it
// returns err.
func (s *Server) markClosed(err error) error {
	if err != nil && s.closed.Load() {
		return fmt.Errorf("%w: %v", ErrClosed, err)
	}
	return err
}

// Served returns a channel that receives an error if a listener fails before [Server.Shutdown] is called.
func (s *Server) Served() <-chan error { return s.started().Served() }

// Shutdown ends open streams, waits for running deliveries, and closes the data directory. Accepted events are never lost. Further calls
// of Shutdown wait for the first one and return the same error.
//
// If ctx ends first, Shutdown cancels the running deliveries and returns the error of ctx. The server repeats these deliveries after its
// next start.
func (s *Server) Shutdown(ctx context.Context) error {
	if s.closed.Store(true); s.running == nil {
		return nil
	}
	return s.running.Shutdown(ctx)
}

// Backup writes the database and the keys of a data directory to a new file. A server may use the directory meanwhile. Keep the file
// secret, because its keys open all webhook secrets in the database.
func Backup(ctx context.Context, data, file string) error {
	return standalone.Backup(ctx, data, file, nil)
}

// Restore creates a data directory from a backup. It returns an error if the directory already has data.
func Restore(ctx context.Context, file, data string) error {
	return standalone.Restore(ctx, file, data, nil)
}
