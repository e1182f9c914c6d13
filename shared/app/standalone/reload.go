package standalone

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"

	"github.com/mcp-events/mcpevents/shared/app/apply"
	"github.com/mcp-events/mcpevents/shared/app/config"
	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/events/catalog"
	"github.com/mcp-events/mcpevents/shared/events/source/ingest"
	"github.com/mcp-events/mcpevents/shared/events/stream"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/platform/secret"
	"github.com/mcp-events/mcpevents/shared/storage/settings"
)

// files are the catalogs and the configuration of the options. They are all that there are: what an earlier run
// had in the store beside them does not stay.
func (o Options) files() (apply.Files, error) {
	if o.SettingsError != nil {
		return apply.Files{}, o.SettingsError
	}
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

// Reload applies catalogs and the configuration: all of them, or none if one is refused. Only a configuration that can be used with
// the catalogs in use is applied although a new catalog is refused.
// Open streams are notified of changed catalogs and backends, and webhook subscriptions that a
// changed catalog leaves behind end. A stream that was open when its workspace lost its own catalog is notified
// of that, and of later changes of the shared one when it comes back.
func (s *Server) Reload(ctx context.Context, o Options) error {
	f, err := o.files()
	var done apply.Outcome
	if err == nil {
		done, err = s.apply(ctx, f)
	}
	s.refused.Store(err != nil)
	if err != nil {
		s.applyConfig(ctx, o, err)
		return err
	}
	backends, err := s.core.Config.Backends(ctx)
	if err != nil {
		return err
	}
	s.core.Log.Info("files reloaded", "catalog_changed", done.CatalogChanged(), "event_types", len(f.Catalogs[catalog.Shared].Entries()), "backends", len(backends))
	s.logChanges(ctx, done, f)
	_, err = s.terminator.Recheck(ctx)
	return err
}

// applyConfig applies only the configuration of refused options. A key that an operator removes must not stay valid because of
// a catalog. It keeps the configuration in use if the new one is refused too, or if its file is empty, as it is while a program
// replaces its content.
func (s *Server) applyConfig(ctx context.Context, o Options, refused error) {
	if o.Config == nil || o.Config.Empty() || !refusal(refused) {
		return
	}
	// Without catalogs it ends no subscriptions.
	done, err := s.apply(ctx, apply.Files{Config: o.Config, AllowBreaking: true})
	switch {
	case err != nil && ctx.Err() == nil:
		s.core.Log.Error("configuration not applied", "error", err)
	case done.ConfigChanged:
		s.core.Log.Warn("only configuration applied", "error", refused)
	}
}

// refusal reports whether an error says that settings are wrong, and not that the store failed.
func refusal(err error) bool {
	return err != nil && !fault.Is(err, fault.Unavailable) && !fault.Is(err, fault.Internal)
}

// startWith decides how to start if the settings were refused: with the last ones if the options allow it and the store has
// some that this version can read. Otherwise it returns the refusal. An error of the store is no refusal.
func (s *Server) startWith(ctx context.Context, o Options, refused error) error {
	if !o.LastSettings || !refusal(refused) {
		return refused
	}
	names, err := catalog.Names(ctx, s.db)
	for _, name := range names {
		if err == nil {
			_, err = catalog.Load(ctx, s.db, name)
		}
	}
	if err == nil {
		_, err = config.Load(ctx, s.db)
	}
	switch {
	case err != nil:
		return fmt.Errorf("%w; the last settings cannot be used either: %v", refused, err)
	case len(names) == 0:
		return refused
	}
	s.refused.Store(true)
	s.catalogs.Written()
	s.core.Config.Written()
	s.core.Log.Error("settings refused at start", "error", refused)
	s.applyConfig(ctx, o, refused)
	return nil
}

// apply brings files into use at once.
func (s *Server) apply(ctx context.Context, f apply.Files) (apply.Outcome, error) {
	target := apply.Target{DB: s.db, Endings: s.terminator.Endings, Check: func(ctx context.Context, c *config.Config) error {
		return errors.Join(s.checkNames(c), s.backends.Check(ctx, c.Backends), s.conversation.Check(ctx, &c.Conversation), ingest.CheckSecrets(ctx, c.Sources, secret.FromEnvironment))
	}}
	done, err := target.Apply(ctx, f)
	s.catalogs.Written()
	s.core.Config.Written()
	if err != nil {
		return done, err
	}
	s.backends.Any(ctx) // ends the sessions with those that are gone
	return done, settings.Announce(ctx, s.db, 0, stream.AnnounceStored(s.core.EventLog))
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
