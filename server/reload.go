package server

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"time"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/catalog"
	"github.com/mcp-events/mcpevents/shared/config"
	"github.com/mcp-events/mcpevents/shared/fault"
	"github.com/mcp-events/mcpevents/shared/settings"
	"github.com/mcp-events/mcpevents/shared/settings/apply"
	"github.com/mcp-events/mcpevents/shared/source/ingest"
	"github.com/mcp-events/mcpevents/shared/stream"
)

// files are the catalogs and the configuration of the options. They are all that there are: what an earlier run
// had in the store beside them does not stay.
func (o Options) files() (apply.Files, error) {
	shared, err := catalog.ParseFile(o.CatalogName, o.Catalog)
	if err != nil {
		return apply.Files{}, err
	}
	if o.Auth == auth.ModeKeys && (o.Config == nil || len(o.Config.Keys) == 0) {
		return apply.Files{}, fault.New(fault.Invalid, "--auth keys needs a --config file with keys")
	}
	f := apply.Files{Catalogs: map[string]*catalog.Catalog{}, Config: o.Config, All: true, AllowBreaking: o.AllowBreaking}
	maps.Copy(f.Catalogs, o.Workspaces)
	f.Catalogs[catalog.Shared] = shared
	return f, nil
}

// Reload applies catalogs and the configuration: all of them, or none if something speaks against one.
// Open streams are notified of changed catalogs and backends, and webhook subscriptions that a
// changed catalog leaves behind end. A stream that was open when its workspace lost its own catalog is notified
// of that, and of later changes of the shared one when it comes back.
func (s *Server) Reload(ctx context.Context, o Options) error {
	f, err := o.files()
	if err != nil {
		return err
	}
	done, err := s.apply(ctx, f)
	if err != nil {
		return err
	}
	backends, err := s.core.Config.Backends(ctx)
	if err != nil {
		return err
	}
	s.core.Log.Info("files reloaded", "catalog_changed", done.CatalogChanged(), "event_types", len(f.Catalogs[catalog.Shared].Entries()), "backends", len(backends))
	s.logChanges(ctx, done, f)
	_, err = s.terminator.Audit(ctx)
	return err
}

// apply brings files into use at once.
func (s *Server) apply(ctx context.Context, f apply.Files) (apply.Outcome, error) {
	target := apply.Target{DB: s.db, Endings: s.terminator.Endings, Check: func(ctx context.Context, c *config.Config) error {
		return errors.Join(s.checkNames(c), s.backends.Check(ctx, c.Backends), s.conversation.Check(ctx, c), ingest.CheckSecrets(ctx, c.Sources, config.Environment))
	}}
	done, err := target.Apply(ctx, f)
	s.catalogs.Written()
	s.core.Config.Written()
	if err != nil {
		return done, err
	}
	s.backends.Any(ctx) // ends the sessions with those that are gone
	_, err = settings.Announce(ctx, s.db, time.Time{}, stream.AnnounceStored(s.core.EventLog))
	return done, err
}

// logChanges tells the operator what is another than before.
func (s *Server) logChanges(ctx context.Context, done apply.Outcome, f apply.Files) {
	for _, c := range done.Catalogs {
		if !c.Changed {
			continue
		}
		types := 0
		if now := f.Catalogs[c.Workspace]; now != nil {
			types = len(now.Entries())
		}
		s.core.Log.Info("catalog reloaded", "workspace", c.Workspace, "event_types", types)
		for _, change := range c.Changes {
			level := slog.LevelInfo
			if change.Breaking {
				level = slog.LevelWarn
			}
			s.core.Log.Log(ctx, level, "catalog change", "event", change.Event, "what", change.What, "breaking", change.Breaking)
		}
	}
}
