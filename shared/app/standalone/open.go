package standalone

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/mcp-events/mcpevents/shared/app"
	"github.com/mcp-events/mcpevents/shared/app/config"
	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/events/catalog"
	"github.com/mcp-events/mcpevents/shared/events/demand"
	eventlog "github.com/mcp-events/mcpevents/shared/events/log"
	"github.com/mcp-events/mcpevents/shared/platform/descriptors"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/platform/metric"
	"github.com/mcp-events/mcpevents/shared/platform/trace"
	"github.com/mcp-events/mcpevents/shared/storage/queue"
	queuesqlite "github.com/mcp-events/mcpevents/shared/storage/queue/sqlite"
	"github.com/mcp-events/mcpevents/shared/storage/store/sqlite"
)

// open opens the store and the queues, reads or creates the keys, and puts together the parts that all roles share.
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
		EventLog: &eventlog.Log{DB: s.db, Retention: o.Limits.LogRetention}, Demand: demand.New(s.db),
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
	return auth.None(), ""
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
	if s.db, err = sqlite.Open(path, sqlite.Options{}); err != nil {
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

// adminConnections returns the maximum number of connections of an admin API with an address of its own.
func adminConnections() int { return min(256, descriptors.Accepted()/4+1) }

// listen opens the listener of the server. It returns nil if there is no address.
func (s *Server) listen(addr, adminAddr string) (net.Listener, error) {
	if addr == "" {
		return nil, nil
	}
	most := descriptors.Accepted()
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
