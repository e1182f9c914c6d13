package standalone

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/mcp-events/mcpevents/shared/app/config"
	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/events/catalog"
	eventlog "github.com/mcp-events/mcpevents/shared/events/log"
	"github.com/mcp-events/mcpevents/shared/platform/descriptors"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/storage/queue"
	queuesqlite "github.com/mcp-events/mcpevents/shared/storage/queue/sqlite"
	"github.com/mcp-events/mcpevents/shared/storage/store/sqlite"
)

// open opens the store and the queues, and reads or makes the keys.
func (s *Server) open(ctx context.Context, o Options) (secrets, error) {
	path := o.Data
	if path != ":memory:" {
		if err := os.MkdirAll(path, 0o700); err != nil {
			return secrets{}, fault.Wrap(fault.Invalid, err, "make the data directory")
		}
		path = filepath.Join(path, databaseName)
		if err := checkDatabase(o.Data, path); err != nil {
			return secrets{}, err
		}
	}
	var err error
	if s.db, err = sqlite.Open(path, sqlite.Options{}); err != nil {
		return secrets{}, err
	}
	s.undo = append(s.undo, func() { _ = s.db.Close() })
	keys, err := loadSecrets(ctx, o.Data, s.db)
	if err != nil {
		return keys, err
	}
	if s.queues, err = queuesqlite.Open(s.db.Engine(), queuesqlite.Options{Log: s.core.Log, MaxBytes: queueBytes, DeadLettered: func(q queue.Name, n int) { s.core.Metrics.DeadLettered(string(q), n) }}); err != nil {
		return keys, err
	}
	s.undo = append(s.undo, func() { _ = s.queues.Close() })
	s.core.DB, s.core.Queues = s.db, s.queues
	s.core.EventLog = &eventlog.Log{DB: s.db, Retention: s.core.Limits.LogRetention}
	s.catalogs = catalog.NewStored(s.db, time.Now, s.core.Log)
	s.core.Catalogs, s.core.Config = s.catalogs, config.NewStored(s.db, time.Now, s.core.Log, s.ownBackends()...)
	if o.Auth == auth.ModeKeys {
		s.core.Auth = s.core.Config.Authenticator()
	}
	return keys, nil
}

// adminConnections returns how many connections the admin API may have at an address of its own.
func adminConnections() int { return min(256, descriptors.Accepted()/4+1) }

// listen begins to listen, if there is an address.
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
	s.connections = limitConnections(listener, most).reserving()
	listener = s.connections
	s.undo = append(s.undo, func() { _ = listener.Close() })
	s.URL = "http://" + listener.Addr().String()
	return listener, nil
}
