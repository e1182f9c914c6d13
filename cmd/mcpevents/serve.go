package main

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"maps"
	"os"
	"os/signal"
	"slices"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/mcp-events/mcpevents/shared/app/config"
	"github.com/mcp-events/mcpevents/shared/app/standalone"
	"github.com/mcp-events/mcpevents/shared/app/standalone/otlp"
	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/events/webhook"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/storage/settings/watch"
)

type ServeCmd struct {
	Addr          string            `default:"127.0.0.1:8080" help:"Address to listen on."`
	Data          string            `default:"data" placeholder:"DIR|:memory:" help:"Directory of the database and the keys (${default}), or :memory: to keep no data."`
	Catalog       string            `default:"catalog.yaml" placeholder:"FILE" help:"The event types (${default})."`
	Own           map[string]string `name:"workspace-catalog" placeholder:"WORKSPACE=FILE;…" help:"Catalog of a workspace that does not use --catalog."`
	Config        string            `placeholder:"FILE" help:"The configuration: keys, backends, sources, conversation events, quotas."`
	Auth          string            `default:"none" enum:"none,keys,jwt" group:"Access" help:"How callers are authenticated: none (only on a loopback address), keys or jwt."`
	Admin         string            `name:"admin-addr" placeholder:"ADDR" help:"Serve the admin API and the console at this address instead of --addr."`
	AllowBreaking bool              `help:"Use a changed catalog even if it ends webhook subscriptions, because their event type was removed, became incompatible or is no longer visible to them. By default such a change is refused and logged."`

	config.Limits `embed:""`

	Debug string `name:"debug-addr" placeholder:"ADDR" group:"Operation" help:"Serve profiles (net/http/pprof) at this loopback address."`
}

// longestDrain is how long a shutdown waits for running requests and deliveries. The server's default timeout for sending a webhook is as
// long. Service managers allow 30 s or more for a shutdown. Even if a server is killed earlier, no event is lost.
const longestDrain = 20 * time.Second

func (c *ServeCmd) Run(g *Globals) error {
	hangup := make(chan os.Signal, 1)
	signal.Notify(hangup, syscall.SIGHUP) // first of all, because SIGHUP ends a program that does not handle it
	defer signal.Stop(hangup)
	ctx, stop := interruptible()
	defer stop()
	changed := watch.Files(ctx, c.files())
	s := c.settings()
	s.LastSettings = true
	s.Log = g.logger(g.err)
	slog.SetDefault(s.Log)
	config.LogIgnored(os.LookupEnv, s.Log)
	webhook.MuteTransport()
	standalone.CollectLessOften()
	var started atomic.Pointer[standalone.Server]
	if c.Debug != "" {
		if err := standalone.ServeDebug(ctx, c.Debug, started.Load); err != nil {
			return err
		}
	}
	if c.OTLPEndpoint != "" {
		end, err := otlp.Export(ctx, &s)
		if err != nil {
			return err
		}
		defer end()
	}
	e, err := standalone.New(ctx, s)
	if err != nil {
		return err
	}
	started.Store(e)
	go c.follow(ctx, e, changed, hangup, s.Log)
	s.Log.Info("serving", "mcp", e.URL+"/mcp", "events", e.URL+"/events", "console", e.AdminURL+"/console/", "data", s.Data, "auth", string(s.Auth))
	if s.Limits.AllowInsecureTargets {
		s.Log.Warn("insecure webhook targets allowed")
	}
	select {
	case <-ctx.Done():
	case err = <-e.Served():
		err = fault.Wrap(fault.Unavailable, err, "serve")
	}
	return errors.Join(err, shutDown(e, longestDrain, s.Log))
}

// shutDown shuts a server down. The parameter longest limits how long it waits for running requests and deliveries, before it cuts them
// off. To cut them off is not an error, because no event is lost.
func shutDown(e interface{ Shutdown(context.Context) error }, longest time.Duration, log *slog.Logger) error {
	log.Info("draining", "for", longest.String())
	ctx, cancel := context.WithTimeout(context.Background(), longest)
	defer cancel()
	err := e.Shutdown(ctx)
	if errors.Is(err, context.DeadlineExceeded) {
		log.Warn("drain timed out", "error", err)
		return nil
	}
	return err
}

// settings returns the options of the server, from the flags and the files. If a file cannot be read, SettingsError in the options says
// why.
func (c *ServeCmd) settings() standalone.Options {
	s := standalone.Options{
		Addr: c.Addr, Data: c.Data, CatalogName: c.Catalog, Auth: auth.Mode(c.Auth), Limits: c.Limits,
		AllowBreaking: c.AllowBreaking, AdminAddr: c.Admin,
	}
	var unread [3]error
	s.Catalog, unread[0] = read("catalog", c.Catalog)
	s.Workspaces, unread[1] = readCatalogs(c.Own)
	s.Config, unread[2] = readConfig(c.Config)
	s.SettingsError = cmp.Or(append(unread[:], config.CheckRemoved(os.LookupEnv))...)
	return s
}

func (c *ServeCmd) files() []string {
	paths := append(slices.Collect(maps.Values(c.Own)), c.Catalog)
	if c.Config != "" {
		paths = append(paths, c.Config)
	}
	return paths
}

// reloadAgain is how long the server waits before it repeats a failed reload.
const reloadAgain = 5 * time.Second

// follow reloads the catalog and configuration files whenever a file changes, and on SIGHUP, until ctx ends. If a file is refused, the
// server keeps its settings; see [standalone.Server.Reload]. If a reload fails for another reason, for example because the disk is full,
// follow repeats it.
func (c *ServeCmd) follow(ctx context.Context, e *standalone.Server, changed <-chan struct{}, hangup <-chan os.Signal, log *slog.Logger) {
	var again <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case <-changed:
		case <-again:
		case <-hangup:
			log.Info("SIGHUP received")
		}
		again = nil
		if err := e.Reload(ctx, c.settings()); err != nil && ctx.Err() == nil {
			log.Error("reload failed", "error", err)
			if fault.Is(err, fault.Unavailable) || fault.Is(err, fault.Internal) || fault.Is(err, fault.Conflict) {
				again = time.After(reloadAgain)
			}
		}
	}
}
