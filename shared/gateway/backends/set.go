package backends

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/gateway/api"
	"github.com/mcp-events/mcpevents/shared/platform/bounded"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/platform/metric"
	"github.com/mcp-events/mcpevents/shared/platform/trace"
	"github.com/mcp-events/mcpevents/shared/storage/store"
)

// Options configure a [Set]. Source, Commands, EventsWanted, Metrics and Tracer may be nil; everything else is required.
type Options struct {
	// Source returns the current backends. The set calls it before each use and does not modify the result. Without a Source, the backends
	// change only by [Set.Replace].
	Source func(context.Context) ([]api.Backend, error)
	// Secrets resolves the secrets in backends' settings. The set calls it for each request to a backend.
	Secrets  Secrets
	DB       store.DB
	HTTP     *http.Client
	Commands Commands // nil if this process does not run commands
	// EventsWanted reports whether clients are subscribed to events of a backend that runs as a command. It is nil if the server has no
	// events.
	EventsWanted func(ctx context.Context, workspace, backend string) bool
	Server       json.RawMessage // the MCP Implementation object of the gateway
	// ListTTL limits how long the gateway uses a backend's list. AskTimeout limits each of the gateway's own requests to a backend.
	ListTTL, AskTimeout time.Duration
	Log                 *slog.Logger
	// Metrics counts calls and Tracer traces them. Drops counts the backends' messages and list entries that the gateway did not
	// pass on to clients.
	Metrics *metric.Set
	Tracer  *trace.Tracer
	Drops   *metric.Tally
}

// Commands is the part of package stdio that the set needs for backends that are commands, see [api.Command].
type Commands interface {
	// Touch records that a client uses the backend. Running reports whether the backend's shared process is running.
	Touch(api.Backend)
	Running(api.Backend) bool
}

// Set is the backends of the current configuration. It is safe for concurrent use. Create it with [New].
type Set struct {
	options   *Options
	conflicts bounded.Map[conflict, bool] // the name conflicts that were logged

	mu   sync.Mutex
	from []api.Backend // the configuration from which set was made
	set  []*Backend    // replaced as a whole, never modified
}

// New returns a set without backends.
func New(o Options) *Set { return &Set{options: &o} }

// Check resolves all secrets of the backends. For each backend with a missing secret, the result contains an error of kind fault.Invalid.
func (bs *Set) Check(ctx context.Context, backends []api.Backend) error {
	var all []error
	for _, c := range backends {
		all = append(all, newBackend(bs.options, c).checkSecrets(ctx))
	}
	return errors.Join(all...)
}

// Replace makes the given backends the current ones. Unchanged backends keep their cached data. Running calls to removed backends
// continue.
//
// Replace ends the gateway's own sessions with removed backends. It leaves clients' sessions to expire, because another instance of the
// server may still run a call in them.
func (bs *Set) Replace(ctx context.Context, backends []api.Backend) []*Backend {
	set, gone := bs.swap(backends)
	var wg sync.WaitGroup
	for _, b := range gone {
		for _, v := range b.views() {
			wg.Go(func() { v.endSession(ctx) })
		}
	}
	wg.Wait()
	return set
}

func (bs *Set) swap(backends []api.Backend) (set, gone []*Backend) {
	bs.mu.Lock()
	defer bs.mu.Unlock()
	had := map[api.Place]*Backend{}
	for _, b := range bs.set {
		had[b.Place()] = b
	}
	set = make([]*Backend, len(backends))
	for i, c := range backends {
		if set[i] = had[api.Place{Workspace: c.Workspace, Backend: c.Name}]; set[i] == nil || !reflect.DeepEqual(set[i].Backend, c) {
			set[i] = newBackend(bs.options, c)
		}
	}
	for _, b := range bs.set {
		if !slices.Contains(set, b) {
			gone = append(gone, b)
		}
	}
	bs.from, bs.set = backends, set
	return set, gone
}

// current returns the current backends, or the previous ones if the function Options.Source fails.
func (bs *Set) current(ctx context.Context) []*Backend {
	bs.mu.Lock()
	from, set := bs.from, bs.set
	bs.mu.Unlock()
	if bs.options.Source == nil {
		return set
	}
	now, err := bs.options.Source(ctx)
	if err != nil {
		bs.options.Log.WarnContext(ctx, "backends not read", "error", err)
		return set
	}
	if len(now) == len(from) && (len(now) == 0 || &now[0] == &from[0]) {
		return set
	}
	return bs.Replace(ctx, now)
}

// VisibleTo returns the backends that the principal may use.
func (bs *Set) VisibleTo(ctx context.Context, p auth.Principal) []*Backend {
	all := bs.current(ctx)
	out := make([]*Backend, 0, len(all))
	for _, b := range all {
		if b.Workspace == p.Workspace && !slices.ContainsFunc(b.Scopes, func(s string) bool { return !p.Has(s) }) {
			out = append(out, b)
		}
	}
	return out
}

// FindByServer returns the backend with the given [Backend.ServerID], or nil if the principal may not use it or it does not exist.
func (bs *Set) FindByServer(ctx context.Context, p auth.Principal, name string) *Backend {
	for _, b := range bs.VisibleTo(ctx, p) {
		if b.ServerID() == name {
			return b
		}
	}
	return nil
}

// FindView returns the client's [View] of the backend with the given [Backend.ServerID], or nil if the client may not use the backend.
func (bs *Set) FindView(ctx context.Context, c api.Client, name string) *View {
	b := bs.FindByServer(ctx, c.Principal, name)
	if b == nil || b.OnlyForCallers() && c.Token == "" {
		return nil
	}
	return b.viewFor(ctx, c)
}

// viewsFor returns the client's [View] of each backend that the client may use. It skips backends that need the caller's token if the
// client sent no token.
func (bs *Set) viewsFor(ctx context.Context, c api.Client) []*View {
	visible := bs.VisibleTo(ctx, c.Principal)
	out := make([]*View, 0, len(visible))
	for _, b := range visible {
		if b.Command != nil && bs.options.Commands != nil {
			bs.options.Commands.Touch(b.Backend)
		}
		if !b.OnlyForCallers() {
			out = append(out, b.view)
		} else if c.Token != "" {
			out = append(out, b.viewFor(ctx, c))
		}
	}
	return out
}

// Any reports whether there are backends, even if only some principals may use them.
func (bs *Set) Any(ctx context.Context) bool { return len(bs.current(ctx)) > 0 }

// Backends returns the names of the backends that the principal may use.
func (bs *Set) Backends(ctx context.Context, p auth.Principal) (names []string) {
	for _, b := range bs.VisibleTo(ctx, p) {
		names = append(names, b.Name)
	}
	return names
}

// FindByName returns the backend with the configured name, and its capabilities as the client sees them. It returns an error if there is no
// such backend or, together with the last known capabilities, if the backend does not respond.
func (bs *Set) FindByName(ctx context.Context, c api.Client, name string) (*Backend, *ServerInfo, error) {
	visible := bs.VisibleTo(ctx, c.Principal)
	at := slices.IndexFunc(visible, func(b *Backend) bool { return b.Name == name })
	if at < 0 {
		return nil, nil, unknownError("backend", name)
	}
	info, err := visible[at].viewFor(ctx, c).LoadInfo(ctx)
	return visible[at], info, err
}

func unknownError(what, name string) error {
	return fault.New(fault.Invalid, "there is no %s %.128q", what, name)
}
