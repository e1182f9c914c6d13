package standalone

import (
	"cmp"
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

// files returns the catalogs and the configuration of the options. They are all files of the server, so applying them removes all other
// stored catalogs.
func (o Options) files() (apply.Files, error) {
	if o.SettingsError != nil {
		return apply.Files{}, o.SettingsError
	}
	shared, err := catalog.ParseFile(cmp.Or(o.CatalogName, "catalog.yaml"), o.Catalog)
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

// Reload applies the catalogs and the configuration of the options. If a catalog is refused, Reload changes no catalog, but still applies
// the configuration if it is valid with the present catalogs. For example, a removed key must stop working even if a catalog has an
// error.
//
// Open streams are notified of changed catalogs and backends. Webhook subscriptions to event types that no longer exist end. If a
// workspace loses its own catalog, its open streams are notified of this change, but not of later changes of the shared catalog. Their
// clients have to reconnect first.
func (s *Server) Reload(ctx context.Context, o Options) error {
	f, err := o.files()
	if err == nil {
		err = s.checkNotEmptied(ctx, o.Config)
	}
	var done apply.Outcome
	if err == nil {
		done, err = s.apply(ctx, f)
	}
	if err == nil || isRefusal(err) {
		s.refused.Store(err != nil)
	}
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

func (s *Server) checkNotEmptied(ctx context.Context, now *config.Config) error {
	before, err := config.Read(ctx, s.db)
	return cmp.Or(err, before.CheckNotEmptied(now))
}

// applyConfig applies only the configuration. Reload calls it after it has refused the options as a whole, for example because of an
// invalid catalog. applyConfig keeps the current configuration if the new one is invalid or empty (see [Server.checkNotEmptied]).
//
// It also keeps the current configuration if callers need keys but the file has no section for them. Otherwise all calls would fail and
// all webhook subscriptions would end. A file in which that section is an empty list revokes all keys.
func (s *Server) applyConfig(ctx context.Context, o Options, refused error) {
	if o.Config == nil || o.Config.Empty() || !isRefusal(refused) || o.Auth == auth.ModeKeys && o.Config.Keys == nil {
		return
	}
	// AllowBreaking skips the check for subscriptions that the catalogs would end. That is safe here, because this call applies no
	// catalog.
	done, err := s.apply(ctx, apply.Files{Config: o.Config, AllowBreaking: true})
	switch {
	case err != nil && ctx.Err() == nil:
		s.core.Log.Error("configuration not applied", "error", err)
	case done.ConfigChanged:
		s.core.Log.Warn("only configuration applied", "error", refused)
	}
}

// isRefusal reports whether err says that the settings are invalid, and not that the server could not read or write them.
func isRefusal(err error) bool {
	return err != nil && !fault.Is(err, fault.Unavailable) && !fault.Is(err, fault.Internal)
}

// startRefused decides whether the server starts with its previous settings after the new ones were refused. It returns nil if the server
// starts. For this, [Options.LastSettings] must be true, and the store must have previous settings that this version can read.
//
// The parameter refused is the reason for the refusal. It is nil if the settings were accepted. In this case, startRefused also returns
// nil.
func (s *Server) startRefused(ctx context.Context, o Options, refused error) error {
	if !o.LastSettings || !isRefusal(refused) {
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
	s.catalogs.Invalidate()
	s.core.Config.Invalidate()
	s.core.Log.Error("settings refused at start", "error", refused, "used", "the last valid settings")
	s.applyConfig(ctx, o, refused)
	return nil
}

// apply stores the files, makes this process use them, and notifies the open streams.
func (s *Server) apply(ctx context.Context, f apply.Files) (apply.Outcome, error) {
	target := apply.Target{DB: s.db, Endings: s.terminator.CountEndings, Check: func(ctx context.Context, c *config.Config) error {
		return errors.Join(s.checkNames(c), s.backends.Check(ctx, c.Backends), s.conversation.Check(ctx, &c.Conversation), ingest.CheckSecrets(ctx, c.Sources, secret.FromEnvironment))
	}}
	done, err := target.Apply(ctx, f)
	s.catalogs.Invalidate()
	s.core.Config.Invalidate()
	if err != nil {
		return done, err
	}
	s.logBusSources(f)
	s.backends.Any(ctx) // reads the new list of backends, and so ends the sessions with removed ones
	if err := s.commands.Sync(ctx); err != nil {
		return done, err
	}
	return done, settings.Announce(ctx, s.db, 0, stream.AnnounceStored(s.core.EventLog))
}

// logBusSources logs a warning for each source that receives messages of AWS services, because only a deployment on AWS has the inbox
// queue for them. Such a source is not refused, so that an operator can use one file on AWS and on a stand-alone server.
func (s *Server) logBusSources(f apply.Files) {
	if f.Config == nil {
		return
	}
	for _, src := range f.Config.Sources {
		if src.From != "" {
			s.core.Log.Warn("source receives nothing", "source", src.Name, "from", string(src.From))
		}
	}
}

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
