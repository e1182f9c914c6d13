package main

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/catalog"
	"github.com/mcp-events/mcpevents/shared/delivery"
	"github.com/mcp-events/mcpevents/shared/fault"
)

// settle is how long a file must not have changed before it is read: editors and
// copying write in several steps.
const settle = 150 * time.Millisecond

// follow takes over changes of the catalog and configuration files until ctx
// ends: when a file changes, and on SIGHUP. Files with a fault change nothing.
func (c *ServeCmd) follow(ctx context.Context, e *Embedded, log *slog.Logger) error {
	paths := append(slices.Collect(maps.Values(c.Own)), c.Catalog)
	if c.Config != "" {
		paths = append(paths, c.Config)
	}
	changed, err := watchFiles(ctx, paths, log)
	if err != nil {
		return err
	}
	hangup := make(chan os.Signal, 1)
	signal.Notify(hangup, syscall.SIGHUP)
	go func() {
		defer signal.Stop(hangup)
		for {
			select {
			case <-ctx.Done():
				return
			case <-changed:
			case <-hangup:
				log.Info("SIGHUP: reading the files again")
			}
			s, err := c.settings()
			if err == nil {
				err = e.Reload(ctx, s)
			}
			if err != nil && ctx.Err() == nil {
				log.Error("changed files were not taken; what was in use stays in use", "error", err)
			}
		}
	}()
	return nil
}

// watchFiles tells when one of the files was written or replaced. It watches their
// directories, since many programs replace a file instead of writing it.
func watchFiles(ctx context.Context, paths []string, log *slog.Logger) (<-chan struct{}, error) {
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		return nil, fault.Wrap(fault.Unavailable, err, "watch the files")
	}
	names := map[string]bool{}
	for _, p := range paths {
		path, err := filepath.Abs(p)
		if err == nil {
			err = watcher.Add(filepath.Dir(path))
		}
		if err != nil {
			_ = watcher.Close()
			return nil, fault.Wrap(fault.Unavailable, err, "watch %s", p)
		}
		names[path] = true
	}
	changed := make(chan struct{}, 1)
	go func() {
		defer func() { _ = watcher.Close() }()
		timer := time.NewTimer(time.Hour)
		timer.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case ev := <-watcher.Events:
				// Mounted configuration is swapped by a link whose name begins with dots.
				if names[ev.Name] || strings.HasPrefix(filepath.Base(ev.Name), "..") {
					timer.Reset(settle)
				}
			case err := <-watcher.Errors:
				log.Warn("watching the files failed; SIGHUP still reads them", "error", err)
			case <-timer.C:
				select {
				case changed <- struct{}{}:
				default:
				}
			}
		}
	}()
	return changed, nil
}

// Reload takes over catalogs and the configuration: all of them, or none if one has a fault.
// Open streams are told of changed catalogs and backends, and webhook subscriptions that a
// changed catalog leaves behind end.
func (e *Embedded) Reload(ctx context.Context, s Settings) error {
	rest, err := catalog.ParseFile(s.CatalogName, s.Catalog)
	if err != nil {
		return err
	}
	var keys auth.Authenticator
	if s.Auth == auth.ModeKeys {
		if keys, err = staticKeys(s); err != nil {
			return err
		}
	}
	err = s.checkConversation(ctx, e.conversation, func(_ context.Context, workspace string) (*catalog.Catalog, error) {
		if own := s.Workspaces[workspace]; own != nil {
			return own, nil
		}
		return rest, nil
	})
	if err != nil {
		return err
	}
	next := catalog.Workspaces{Own: map[string]catalog.Source{}, Rest: catalog.NewStatic(rest)}
	for workspace, own := range s.Workspaces {
		next.Own[workspace] = catalog.NewStatic(own)
	}
	if err := s.checkBreaking(ctx, e.ender, next); err != nil {
		return err
	}
	if err := e.backends.Replace(ctx, s.backends()); err != nil {
		return err
	}
	e.log.Info("files reloaded", "catalog_changed", e.changes(rest, s.Workspaces), "event_types", len(rest.Entries()), "backends", len(s.backends()))
	e.config.Replace(s.Config)
	if keys != nil {
		e.keys.Replace(keys)
	}
	e.replace("", e.rest, rest)
	for workspace, own := range s.Workspaces {
		if static := e.own[workspace]; static != nil {
			e.replace(workspace, static, own)
		}
	}
	_, err = e.ender.Audit(ctx)
	return errors.Join(e.announcer.Changed(ctx), err)
}

// checkBreaking refuses catalogs that would end live subscriptions, unless that is confirmed.
func (s Settings) checkBreaking(ctx context.Context, ender *delivery.Ender, next catalog.Source) error {
	if s.AllowBreaking {
		return nil
	}
	endings, err := ender.Endings(ctx, next)
	if err != nil {
		return err
	}
	return delivery.Breaking(endings)
}

// changes reports whether one of the catalogs is another than that in use.
func (e *Embedded) changes(rest *catalog.Catalog, own map[string]*catalog.Catalog) bool {
	differs := func(static *catalog.Static, next *catalog.Catalog) bool {
		now, err := static.Catalog(context.Background(), "")
		return err == nil && now.Fingerprint() != next.Fingerprint()
	}
	for workspace, next := range own {
		if static := e.own[workspace]; static != nil && differs(static, next) {
			return true
		}
	}
	return differs(e.rest, rest)
}

// replace puts a catalog in the place of another and tells the operator what changed.
func (e *Embedded) replace(workspace string, static *catalog.Static, next *catalog.Catalog) {
	before := static.Replace(next)
	if before.Fingerprint() == next.Fingerprint() {
		return
	}
	e.log.Info("a changed catalog is in use", "workspace", workspace, "event_types", len(next.Entries()))
	for _, c := range catalog.Diff(before, next) {
		level := slog.LevelInfo
		if c.Breaking {
			level = slog.LevelWarn
		}
		e.log.Log(context.Background(), level, "catalog change", "event", c.Event, "what", c.What, "breaking", c.Breaking)
	}
}
