package server

import (
	"context"
	"errors"
	"log/slog"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/catalog"
	"github.com/mcp-events/mcpevents/shared/config"
	"github.com/mcp-events/mcpevents/shared/conversation"
	"github.com/mcp-events/mcpevents/shared/delivery"
	"github.com/mcp-events/mcpevents/shared/fault"
)

// Reload takes over catalogs and the configuration: all of them, or none if one has a fault.
// Open streams are told of changed catalogs and backends, and webhook subscriptions that a
// changed catalog leaves behind end.
func (s *Server) Reload(ctx context.Context, o Options) error {
	rest, err := catalog.ParseFile(o.CatalogName, o.Catalog)
	if err != nil {
		return err
	}
	var keys auth.Authenticator
	if o.Auth == auth.ModeKeys {
		if keys, err = staticKeys(o.Config); err != nil {
			return err
		}
	}
	next := catalog.Workspaces{Own: map[string]catalog.Source{}, Rest: catalog.NewStatic(rest)}
	for workspace, own := range o.Workspaces {
		next.Own[workspace] = catalog.NewStatic(own)
	}
	if err := checkConversation(ctx, o.Config, s.conversation, next.Catalog); err != nil {
		return err
	}
	if err := o.checkBreaking(ctx, s.terminator, next); err != nil {
		return err
	}
	if err := s.backends.Replace(ctx, backends(o.Config)); err != nil {
		return err
	}
	s.core.Log.Info("files reloaded", "catalog_changed", s.changes(rest, o.Workspaces), "event_types", len(rest.Entries()), "backends", len(backends(o.Config)))
	s.config.Replace(o.Config)
	if keys != nil {
		s.keys.Replace(keys)
	}
	s.replace("", s.rest, rest)
	for workspace, own := range o.Workspaces {
		if static := s.own[workspace]; static != nil {
			s.replace(workspace, static, own)
		}
	}
	_, err = s.terminator.Audit(ctx)
	return errors.Join(s.announcer.Changed(ctx), err)
}

// checkBreaking refuses catalogs that would end live subscriptions, unless that is confirmed.
func (o Options) checkBreaking(ctx context.Context, terminator *delivery.Terminator, next catalog.Source) error {
	if o.AllowBreaking {
		return nil
	}
	endings, err := terminator.Endings(ctx, next)
	if err != nil {
		return err
	}
	return delivery.Breaking(endings)
}

// changes reports whether one of the catalogs is another than that in use.
func (s *Server) changes(rest *catalog.Catalog, own map[string]*catalog.Catalog) bool {
	differs := func(static *catalog.Static, next *catalog.Catalog) bool {
		now, err := static.Catalog(context.Background(), "")
		return err == nil && now.Fingerprint() != next.Fingerprint()
	}
	for workspace, next := range own {
		if static := s.own[workspace]; static != nil && differs(static, next) {
			return true
		}
	}
	return differs(s.rest, rest)
}

// replace puts a catalog in the place of another and tells the operator what changed.
func (s *Server) replace(workspace string, static *catalog.Static, next *catalog.Catalog) {
	before := static.Replace(next)
	if before.Fingerprint() == next.Fingerprint() {
		return
	}
	s.core.Log.Info("catalog reloaded", "workspace", workspace, "event_types", len(next.Entries()))
	for _, c := range catalog.Diff(before, next) {
		level := slog.LevelInfo
		if c.Breaking {
			level = slog.LevelWarn
		}
		s.core.Log.Log(context.Background(), level, "catalog change", "event", c.Event, "what", c.What, "breaking", c.Breaking)
	}
}

// backends are those of a configuration, if there is one.
func backends(c *config.Config) []config.Backend {
	if c == nil {
		return nil
	}
	return c.Backends
}

// checkConversation reports what speaks against the configuration's section "conversation".
func checkConversation(ctx context.Context, settings *config.Config, s *conversation.Service,
	catalogs func(context.Context, string) (*catalog.Catalog, error),
) error {
	if settings == nil {
		return nil
	}
	if err := s.Check(ctx, settings); err != nil {
		return err
	}
	events := settings.Conversation.Events
	if !events.Any() {
		return nil
	}
	cat, err := catalogs(ctx, events.Workspace)
	if err != nil {
		return fault.Wrap(fault.Invalid, err, "conversation: events: the catalog of workspace %s", events.Workspace)
	}
	return conversation.CheckCatalog(cat, events)
}
