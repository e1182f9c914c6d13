package standalone

import (
	"context"
	"errors"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	otelprom "go.opentelemetry.io/otel/exporters/prometheus"
	sdk "go.opentelemetry.io/otel/sdk/metric"

	"github.com/mcp-events/mcpevents/shared/app/operators"
	"github.com/mcp-events/mcpevents/shared/app/webhooks"
	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/auth/httpjson"
	"github.com/mcp-events/mcpevents/shared/events/delivery/retry"
	"github.com/mcp-events/mcpevents/shared/operate/admin"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/platform/metric"
	"github.com/mcp-events/mcpevents/shared/platform/secret"
	"github.com/mcp-events/mcpevents/shared/storage/queue"
)

// newMetrics creates the metrics, and the HTTP handler for GET /metrics.
func newMetrics(readers []sdk.Reader) (http.Handler, *metric.Set, error) {
	registry := prometheus.NewRegistry()
	exporter, err := otelprom.New(otelprom.WithRegisterer(registry), otelprom.WithoutTargetInfo(), otelprom.WithoutScopeInfo())
	if err != nil {
		return nil, nil, err
	}
	options := []sdk.Option{sdk.WithReader(exporter)}
	for _, r := range readers {
		options = append(options, sdk.WithReader(r))
	}
	set, err := metric.NewSet(sdk.NewMeterProvider(options...))
	return promhttp.HandlerFor(registry, promhttp.HandlerOpts{EnableOpenMetrics: true}), set, err
}

// registerMetrics registers the metrics whose values are read at each export, for example the lengths of the queues. The last export
// happens after the shutdown. It has no values from the database, because the database is already closed.
func (s *Server) registerMetrics() error {
	watch := func(name string, f func(context.Context) ([]metric.Reading, error)) error {
		return s.core.Metrics.Watch(name, func(ctx context.Context) ([]metric.Reading, error) {
			if s.drained.Load() {
				return nil, nil
			}
			return f(ctx)
		})
	}
	return errors.Join(
		s.core.WatchLog(),
		watch(metric.QueueDepth, s.queueReadings(func(d queue.Depth) float64 { return float64(d.Visible + d.InFlight + d.Delayed) })),
		watch(metric.QueueAge, s.queueReadings(func(d queue.Depth) float64 {
			if d.Oldest.IsZero() {
				return 0
			}
			return max(0, time.Since(d.Oldest).Seconds())
		})),
		watch(metric.RetriesWaiting, func(ctx context.Context) ([]metric.Reading, error) {
			n, err := s.db.Count(ctx, retry.DueTable, retry.FirstDuePartition, retry.AfterDue)
			return metric.One(float64(n)), err
		}),
		watch(metric.Healthy, readFlag(func() bool { return s.db.Engine().Health() == nil })),
		watch(metric.SettingsRefused, readFlag(s.refused.Load)),
		watch(metric.StreamsOpen, func(context.Context) ([]metric.Reading, error) {
			return metric.One(float64(s.endpoint.OpenStreams())), nil
		}),
		webhooks.WatchEndpoints(s.core, s.dispatcher),
	)
}

// readFlag returns a function that reads the value of a metric: 1 if the condition is true, and otherwise 0.
func readFlag(condition func() bool) func(context.Context) ([]metric.Reading, error) {
	return func(context.Context) ([]metric.Reading, error) {
		if condition() {
			return metric.One(1), nil
		}
		return metric.One(0), nil
	}
}

// queueReadings returns a function that reads the values of a metric of queues. The function figure computes the value for one queue, for
// example its length.
func (s *Server) queueReadings(figure func(queue.Depth) float64) func(context.Context) ([]metric.Reading, error) {
	return func(ctx context.Context) (all []metric.Reading, _ error) {
		for _, name := range queue.Names() {
			d, err := s.queues.Depth(ctx, name)
			if err != nil {
				return nil, err
			}
			all = append(all, metric.Reading{By: string(name), Value: figure(d)})
		}
		return all, nil
	}
}

// serveMetrics serves GET /metrics in the text format of Prometheus. Only operators of the default workspace may read it, because
// the metrics cover the whole process and name the backends and sources of all workspaces.
func (s *Server) serveMetrics(w http.ResponseWriter, r *http.Request) {
	if err := s.checkOperator(r); err != nil {
		responder := httpjson.Responder{Scope: auth.ScopeOperate, MetadataURL: s.core.ResourceMetadata, Log: s.core.Log}
		responder.Serve(w, r, http.StatusOK, func() (any, error) { return nil, err })
		return
	}
	s.metrics.ServeHTTP(w, r)
}

func (s *Server) checkOperator(r *http.Request) error {
	if err := s.core.Guard.Check(r); err != nil {
		return err
	}
	p, err := s.core.Auth.Authenticate(r.Context(), r.Header)
	if err != nil {
		return err
	}
	if err := p.Require(auth.ScopeOperate); err != nil {
		return err
	}
	if p.Workspace != auth.DefaultWorkspace {
		return fault.New(fault.Forbidden, "the metrics cover all workspaces, so only operators of the workspace %s may read them", auth.DefaultWorkspace)
	}
	return nil
}

// listenAdmin opens the listener for the address of the admin API. It returns nil if the admin API shares the main address.
func (s *Server) listenAdmin(o Options) (net.Listener, error) {
	if o.AdminAddr == "" {
		return nil, nil
	}
	if err := auth.CheckListen(o.AdminAddr, o.Auth); err != nil {
		return nil, err
	}
	listener, err := listenTCP(o.AdminAddr, "listen for the admin API")
	if err != nil {
		return nil, err
	}
	s.undo = append(s.undo, func() { _ = listener.Close() })
	s.AdminURL = "http://" + listener.Addr().String()
	return listener, nil
}

// serveAdmin returns the HTTP handler for the main address. If the admin API has an address of its own, serveAdmin starts to serve it
// there.
func (s *Server) serveAdmin(r roles, mode auth.Mode, listener net.Listener) http.Handler {
	rest := http.Handler(r.mux)
	if listener != nil {
		rest = http.NotFoundHandler()
	}
	handler := operators.NewHandler(s.core, operators.Options{
		Mode: mode, Subscriptions: r.subscriptions, Operations: r.operations, Replays: r.replays, Switches: r.switches,
		AddStates: s.addStates, SourceSecrets: secret.FromEnvironment, Closing: s.closing.Done(), Rest: rest,
	})
	if listener == nil {
		s.AdminURL = s.URL
		return handler
	}
	s.operators = s.httpServer(boundBodies(handler, bodyTime))
	limited := limitConnections(listener, adminConnections())
	limited.attach(s.operators)
	go s.serve(s.operators, limited)
	return r.mux
}

// backendPatience is how long a backend has to respond before the admin API shows it as unreachable. The gateway waits equally long for a
// backend, so a slower backend is useless to clients, too.
const backendPatience = 10 * time.Second

// addStates asks all backends of a workspace at the same time, and fills in whether they respond. It leaves out backends that respond
// only to requests with the token of a caller.
func (s *Server) addStates(ctx context.Context, workspace string, list []admin.Backend) {
	ctx, cancel := context.WithTimeout(ctx, backendPatience)
	defer cancel()
	s.addCommandStates(ctx, workspace, list)
	states := map[string]*string{} // by backend's name; the map stays unchanged while goroutines write the states
	for i := range list {
		states[list[i].Name] = &list[i].State
	}
	var asked sync.WaitGroup
	for _, f := range s.backends.Followed(ctx) {
		state := states[f.Name]
		if state == nil || f.Workspace != workspace || f.OnlyForCallers() {
			continue
		}
		asked.Go(func() {
			*state = "ready"
			if err := f.Check(ctx); err != nil {
				*state = "unreachable"
			}
		})
	}
	asked.Wait()
}

// addCommandStates fills in the states of backends that are commands and that are not running. It sends them no requests, because a
// request would start the command.
func (s *Server) addCommandStates(ctx context.Context, workspace string, list []admin.Backend) {
	all, _ := s.core.Config.Backends(ctx) // rarely fails, because the caller has just read the backends to make the list
	for _, b := range all {
		i := slices.IndexFunc(list, func(l admin.Backend) bool { return l.Name == b.Name })
		if i < 0 || b.Command == nil || b.Workspace != workspace || s.commands.Running(b) {
			continue
		}
		list[i].State = "resting"
		if s.commands.Failing(b) {
			list[i].State = "unreachable"
		}
	}
}
