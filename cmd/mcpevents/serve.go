package main

import (
	"context"
	"log/slog"
	"os"
	"sync/atomic"
	"time"

	"github.com/mcp-events/mcpevents/server"
	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/catalog"
	"github.com/mcp-events/mcpevents/shared/config"
	"github.com/mcp-events/mcpevents/shared/fault"
	"github.com/mcp-events/mcpevents/shared/webhook"
)

// ServeCmd runs the embedded server.
type ServeCmd struct {
	Addr    string            `default:"127.0.0.1:8080" help:"Address to listen on."`
	Data    string            `default:"data" placeholder:"DIR|:memory:" help:"Directory of the database and the keys, or :memory: to keep nothing."`
	Catalog string            `default:"catalog.yaml" placeholder:"FILE" help:"The event types."`
	Own     map[string]string `name:"workspace-catalog" placeholder:"WORKSPACE=FILE;…" help:"Event types of a workspace that has its own instead of those of --catalog."`
	Config  string            `placeholder:"FILE" help:"Keys and backends."`
	Auth    string            `default:"none" enum:"none,keys,jwt" help:"How callers are authenticated: none (loopback only), keys, jwt."`
	Admin   string            `name:"admin-addr" placeholder:"ADDR" help:"Serve the admin API at this address instead of --addr."`
	// AllowBreaking confirms what would end subscriptions.
	AllowBreaking bool          `help:"Use a changed catalog even if it ends live webhook subscriptions, because their event type is removed, has an incompatible schema, or is no longer for them. Otherwise such a change is refused and logged."`
	Debug         string        `name:"debug-addr" placeholder:"ADDR" help:"Serve profiles (net/http/pprof) at this loopback address."`
	Drain         time.Duration `default:"20s" help:"How long a shutdown waits for running requests and deliveries."`

	config.Limits `embed:""`
}

// Run serves until SIGINT or SIGTERM, then drains.
func (c *ServeCmd) Run(g *Globals) error {
	s, err := c.settings()
	if err != nil {
		return err
	}
	s.Log = g.logger(g.err)
	slog.SetDefault(s.Log)
	webhook.MuteTransport()
	server.CollectLessOften()
	ctx, stop := interruptible()
	defer stop()
	var started atomic.Pointer[server.Server]
	if c.Debug != "" {
		if err := server.ServeDebug(ctx, c.Debug, started.Load); err != nil {
			return err
		}
	}
	if c.OTLPEndpoint != "" {
		end, err := export(ctx, &s)
		if err != nil {
			return err
		}
		defer end()
	}
	e, err := server.New(ctx, s)
	if err != nil {
		return err
	}
	started.Store(e)
	if err := c.follow(ctx, e, s.Log); err != nil {
		s.Log.Warn("file watch failed", "error", err)
	}
	s.Log.Info("serving", "mcp", e.URL+"/mcp", "events", e.URL+"/events", "data", s.Data, "auth", string(s.Auth))
	if s.Limits.AllowInsecureTargets {
		s.Log.Warn("insecure webhook targets allowed")
	}
	select {
	case <-ctx.Done():
	case err := <-e.Served():
		return fault.Wrap(fault.Unavailable, err, "serve")
	}
	s.Log.Info("draining", "for", c.Drain)
	drain, cancel := context.WithTimeout(context.Background(), c.Drain)
	defer cancel()
	return e.Shutdown(drain)
}

// settings checks the flags and reads the files.
func (c *ServeCmd) settings() (server.Options, error) {
	if err := c.Check(); err != nil {
		return server.Options{}, err
	}
	src, err := os.ReadFile(c.Catalog)
	if err != nil {
		return server.Options{}, fault.Wrap(fault.Invalid, err, "read the catalog")
	}
	s := server.Options{
		Addr: c.Addr, Data: c.Data, Catalog: src, CatalogName: c.Catalog, Auth: auth.Mode(c.Auth), Limits: c.Limits,
		AllowBreaking: c.AllowBreaking, AdminAddr: c.Admin,
	}
	if s.Workspaces, err = readCatalogs(c.Own); err != nil {
		return s, err
	}
	if s.Limits.DeliveryLog == "" {
		s.Limits.DeliveryLog = "all"
	}
	s.Config, err = readConfig(c.Config)
	return s, err
}

// readConfig reads a configuration, if there is one.
func readConfig(path string) (*config.Config, error) {
	if path == "" {
		return nil, nil
	}
	src, err := os.ReadFile(path)
	if err != nil {
		return nil, fault.Wrap(fault.Invalid, err, "read the configuration")
	}
	return config.ParseFile(path, src)
}

// readCatalogs reads the catalogs of the workspaces that have their own.
func readCatalogs(files map[string]string) (map[string]*catalog.Catalog, error) {
	out := map[string]*catalog.Catalog{}
	for workspace, path := range files {
		if !auth.ValidWorkspace(workspace) {
			return nil, fault.New(fault.Invalid, "--workspace-catalog: %q is not the name of a workspace", workspace)
		}
		cat, err := readCatalog(path)
		if err != nil {
			return nil, err
		}
		out[workspace] = cat
	}
	return out, nil
}
