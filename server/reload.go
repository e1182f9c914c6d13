package server

import (
	"context"
	"errors"
	"log/slog"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/catalog"
	"github.com/mcp-events/mcpevents/shared/config"
	"github.com/mcp-events/mcpevents/shared/conversation"
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
	err = checkConversation(ctx, o.Config, s.conversation, func(_ context.Context, workspace string) (*catalog.Catalog, error) {
		if own := o.Workspaces[workspace]; own != nil {
			return own, nil
		}
		return rest, nil
	})
	if err != nil {
		return err
	}
	if err := s.backends.Replace(ctx, backends(o.Config)); err != nil {
		return err
	}
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
	_, err = s.ender.Audit(ctx)
	return errors.Join(s.announcer.Changed(ctx), err)
}

// replace puts a catalog in the place of another and tells the operator what changed.
func (s *Server) replace(workspace string, static *catalog.Static, next *catalog.Catalog) {
	before := static.Replace(next)
	if before.Fingerprint() == next.Fingerprint() {
		return
	}
	s.core.Log.Info("a changed catalog is in use", "workspace", workspace, "event_types", len(next.Entries()))
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
